//! vCPUs that are blocked, not loaded, and to be woken at some time: each by the CPU that put it.

use stile_board::MAX_CPUS;
use stile_sched::deadline::Deadlines;
use stile_sched::{CpuId, VCPUS, VcpuId};

/// All sleepers.
pub struct Sleepers {
    deadlines: [Deadlines; MAX_CPUS],
    /// The CPU that keeps each vCPU's time.
    keeper: [Option<CpuId>; VCPUS],
}

impl Sleepers {
    /// None.
    pub const fn new() -> Sleepers {
        Sleepers { deadlines: [const { Deadlines::new() }; MAX_CPUS], keeper: [None; VCPUS] }
    }

    /// `cpu` is to wake a vCPU that has no deadline yet.
    pub fn set(&mut self, cpu: CpuId, vcpu: VcpuId, deadline: u64) {
        self.deadlines[cpu.index()].set(vcpu, deadline);
        self.keeper[vcpu.index()] = Some(cpu);
    }

    /// A vCPU sleeps no more.
    pub fn cancel(&mut self, vcpu: VcpuId) {
        if let Some(cpu) = self.keeper[vcpu.index()].take() {
            self.deadlines[cpu.index()].cancel(vcpu);
        }
    }

    /// Takes out a vCPU that `cpu` is to wake now, if there is one.
    pub fn expired(&mut self, cpu: CpuId, now: u64) -> Option<VcpuId> {
        let vcpu = self.deadlines[cpu.index()].expired(now).next()?;
        self.keeper[vcpu.index()] = None;
        Some(vcpu)
    }

    /// When `cpu` has to wake the first of its own.
    pub fn earliest(&self, cpu: CpuId) -> Option<u64> {
        self.deadlines[cpu.index()].earliest()
    }
}
