//! CPUs that do not answer kicks: vCPUs that may use other CPUs do.

use crate::deadline::Sleepers as _;
use crate::{CpuId, CpuSet, Locked, State, VcpuId};

impl Locked<'_> {
    /// See [`Scheduler::bar`](crate::Scheduler::bar). All locks are held; `vcpus` are those of all VMs.
    pub(crate) fn bar(&mut self, cpu: CpuId, vcpus: impl Iterator<Item = VcpuId>, now: u64) -> CpuSet {
        let mut kicks = CpuSet::EMPTY;
        self.set_barred(cpu, true);
        for vcpu in vcpus {
            self.bar_from(cpu, vcpu, now, &mut kicks);
        }
        self.update_idle(cpu);
        kicks
    }

    fn set_barred(&self, cpu: CpuId, is_barred: bool) {
        let mut barred = self.barred();
        barred.set(cpu, is_barred);
        self.shared().barred.set(barred);
    }

    fn bar_from(&mut self, cpu: CpuId, vcpu: VcpuId, now: u64, kicks: &mut CpuSet) {
        let barred = self.barred();
        let is_loaded = self[cpu].loaded == Some(vcpu);
        let it = &mut self[vcpu];
        let others = it.allowed.without(barred);
        if others.is_empty() || !it.allowed.contains(cpu) || is_loaded {
            return;
        }
        it.allowed.set(cpu, false);
        it.last = it.last.filter(|&last| last != cpu);
        it.barred_from.set(cpu, true);
        if self.state(vcpu) == State::Ready(cpu) {
            let to = self.place(vcpu);
            if let Some(kick) = self.transfer(vcpu, to, self.held.set(), now) {
                kicks.set(kick, true);
            }
        } else if self.home(vcpu) == cpu
            && let Some(to) = self.least_loaded(others)
        {
            // It belongs to a CPU that it may use, which also keeps the time for it.
            let deadline = self.deadline_of(vcpu);
            self.move_to(vcpu, to);
            if let Some(at) = deadline {
                self.set_deadline(to, vcpu, at);
                kicks.set(to, true);
            }
        }
    }

    /// Lifts a bar: the CPU answers. All locks are held; `vcpus` are those of all VMs.
    pub(crate) fn unbar(&mut self, cpu: CpuId, vcpus: impl Iterator<Item = VcpuId>) {
        self.set_barred(cpu, false);
        for vcpu in vcpus {
            let it = &mut self[vcpu];
            if it.barred_from.contains(cpu) {
                it.barred_from.set(cpu, false);
                it.allowed.set(cpu, true);
                if let State::Ready(on) = it.state {
                    let _ = self.load_of(on).add_usable(cpu.into());
                }
            }
        }
    }

    /// Divides `allowed` into those CPUs that are not barred, unless all are, and those that the vCPU may use again when the bar is
    /// lifted.
    pub(crate) fn without_barred(&self, allowed: CpuSet) -> (CpuSet, CpuSet) {
        let usable = allowed.without(self.barred());
        let usable = if usable.is_empty() { allowed } else { usable };
        (usable, allowed.without(usable))
    }
}
