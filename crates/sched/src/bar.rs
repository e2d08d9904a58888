//! CPUs that do not answer kicks: vCPUs that may use other CPUs do.

use crate::{CpuId, CpuSet, Scheduler, State, VCPUS, VcpuId};

impl Scheduler {
    /// Bars a CPU that does not answer: vCPUs that may use others wait there no longer, and don't come there, but for the one that it
    /// runs. Returns the CPUs to kick.
    pub fn bar(&mut self, cpu: CpuId, now: u64) -> CpuSet {
        let mut kicks = CpuSet::EMPTY;
        self.barred.set(cpu, true);
        for vcpu in (0..VCPUS).filter_map(VcpuId::from_index) {
            let it = &mut self.vcpus[vcpu.index()];
            let others = it.allowed.without(self.barred);
            if others.is_empty() || !it.allowed.contains(cpu) || self.cpus[cpu.index()].loaded == Some(vcpu) {
                continue;
            }
            it.allowed.set(cpu, false);
            it.last = it.last.filter(|&last| last != cpu);
            self.barred_from[vcpu.index()].set(cpu, true);
            if self.state(vcpu) == State::Ready(cpu) {
                let to = self.place(vcpu);
                if let Some(kick) = self.transfer(vcpu, cpu, to, now) {
                    kicks.set(kick, true);
                }
            }
        }
        self.update_idle(cpu);
        kicks
    }

    /// Whether a CPU is barred.
    pub fn is_barred(&self, cpu: CpuId) -> bool {
        self.barred.contains(cpu)
    }

    /// Lifts a bar: the CPU answers.
    pub fn unbar(&mut self, cpu: CpuId) {
        self.barred.set(cpu, false);
        for (it, from) in self.vcpus.iter_mut().zip(&mut self.barred_from) {
            if from.contains(cpu) {
                from.set(cpu, false);
                it.allowed.set(cpu, true);
            }
        }
    }

    /// The CPUs of `allowed` that are not barred, unless all are. Those that are become the vCPU's again when the bar is lifted.
    pub(crate) fn without_barred(&mut self, vcpu: VcpuId, allowed: CpuSet) -> CpuSet {
        let usable = allowed.without(self.barred);
        let usable = if usable.is_empty() { allowed } else { usable };
        self.barred_from[vcpu.index()] = allowed.without(usable);
        usable
    }
}
