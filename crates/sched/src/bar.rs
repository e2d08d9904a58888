//! CPUs that do not answer kicks: vCPUs that may use other CPUs do.

use crate::id::VMS;
use crate::{CpuId, CpuSet, Scheduler, State, VcpuId};

impl Scheduler {
    /// Bars an unresponsive CPU: vCPUs with other CPUs in their affinity no longer wait or are placed there, except the one that it
    /// runs. Returns the CPUs to kick.
    pub fn bar(&mut self, cpu: CpuId, now: u64) -> CpuSet {
        let mut kicks = CpuSet::EMPTY;
        self.barred.set(cpu, true);
        for vm in 0..VMS as u8 {
            for vcpu in self.vcpus_of(vm) {
                self.bar_from(cpu, vcpu, now, &mut kicks);
            }
        }
        self.update_idle(cpu);
        kicks
    }

    fn bar_from(&mut self, cpu: CpuId, vcpu: VcpuId, now: u64, kicks: &mut CpuSet) {
        let it = &mut self.vcpus[vcpu.index()];
        let others = it.allowed.without(self.barred);
        if others.is_empty() || !it.allowed.contains(cpu) || self.cpus[cpu.index()].loaded == Some(vcpu) {
            return;
        }
        it.allowed.set(cpu, false);
        it.last = it.last.filter(|&last| last != cpu);
        it.barred_from.set(cpu, true);
        if self.state(vcpu) == State::Ready(cpu) {
            let to = self.place(vcpu);
            if let Some(kick) = self.transfer(vcpu, cpu, to, now) {
                kicks.set(kick, true);
            }
        }
    }

    /// Whether a CPU is barred.
    pub fn is_barred(&self, cpu: CpuId) -> bool {
        self.barred.contains(cpu)
    }

    /// Lifts a bar: the CPU answers.
    pub fn unbar(&mut self, cpu: CpuId) {
        self.barred.set(cpu, false);
        for vm in 0..VMS as u8 {
            for vcpu in self.vcpus_of(vm) {
                let it = &mut self.vcpus[vcpu.index()];
                if it.barred_from.contains(cpu) {
                    it.barred_from.set(cpu, false);
                    it.allowed.set(cpu, true);
                }
            }
        }
    }

    /// The CPUs of `allowed` that are not barred, unless all are. Those that are become the vCPU's again when the bar is lifted.
    pub(crate) fn without_barred(&mut self, vcpu: VcpuId, allowed: CpuSet) -> CpuSet {
        let usable = allowed.without(self.barred);
        let usable = if usable.is_empty() { allowed } else { usable };
        self.vcpus[vcpu.index()].barred_from = allowed.without(usable);
        usable
    }
}
