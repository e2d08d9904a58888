//! CPUs that do not answer kicks: vCPUs that may use other CPUs do.

use crate::deadline::Sleepers as _;
use crate::id::VMS;
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
        self.shared().barred.set(&barred);
        for vm in 0..VMS {
            let affinity = self.shared().affinity(vm);
            affinity.usable.set(&self.without_barred(&affinity.configured.get()));
        }
    }

    fn bar_from(&mut self, cpu: CpuId, vcpu: VcpuId, now: u64, kicks: &mut CpuSet) {
        let usable = self.usable_by(vcpu);
        let is_loaded = self[cpu].loaded == Some(vcpu);
        if usable.is_empty() || usable.contains(cpu) || is_loaded {
            return;
        }
        let it = &mut self[vcpu];
        it.last = it.last.filter(|&last| last != cpu);
        if self.state(vcpu) == State::Ready(cpu) {
            let to = self.place(vcpu);
            if let Some(kick) = self.transfer(vcpu, to, self.held.mark(), now) {
                kicks.set(kick, true);
            }
        } else if self.home(vcpu) == cpu
            && let Some(to) = self.least_loaded(&usable)
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
            if let State::Ready(on) = self.state(vcpu)
                && on != cpu
                && self.may_use(vcpu, cpu)
            {
                let _ = self.shared().add_usable(on, &cpu.into());
            }
        }
    }

    /// The CPUs of an affinity that are not barred, unless all are.
    pub(crate) fn without_barred(&self, affinity: &CpuSet) -> CpuSet {
        let usable = affinity.without(&self.barred());
        if usable.is_empty() { *affinity } else { usable }
    }
}
