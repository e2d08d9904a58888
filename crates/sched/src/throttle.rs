//! Enforcement of caps: grants of CPU time, and throttled VMs, whose vCPUs wait for the next period.

use crate::{CpuId, CpuSet, Locked};

impl Locked<'_> {
    /// Time at which this CPU must call [`pick_next`](Self::pick_next) because of a cap: a running vCPU's grant ends, or a
    /// throttled VM's next period begins.
    ///
    /// [`u64::MAX`]: never.
    #[inline]
    pub fn deadline(&self, cpu: CpuId) -> u64 {
        self[cpu].queue.deadline
    }

    /// Enforces caps on this CPU. Returns whether the running vCPU must wait for the next period.
    #[cold]
    pub(crate) fn enforce_caps(&mut self, cpu: CpuId, now: u64) -> bool {
        if self[cpu].loaded.is_some_and(|loaded| self.home(loaded) != cpu) {
            // It was just migrated, and another vCPU must replace it. Other CPUs may have used up that one's cap since the caps
            // were enforced: it runs on debt, as in `begin_turn_with_cap`.
            return false;
        }
        let queue = &self[cpu].queue;
        let (throttled, waiting) = (queue.throttled, queue.ready.and(self.capped()));
        for vm in throttled.iter() {
            if self.has_time(vm, now) {
                self.unthrottle(cpu, vm, now);
            }
        }
        let current = self[cpu].current;
        let ended = match (current, self[cpu].queue.grant) {
            (Some(current), Some(grant)) if now >= grant.until => {
                self.end_grant(cpu, now);
                !self.begin_grant(cpu, usize::from(current.vm()), now)
            }
            _ => false,
        };
        for vm in waiting.iter() {
            // The running vCPU may hold a grant of the last ticks: its VM is throttled here when it stops
            // running.
            if current.is_none_or(|current| usize::from(current.vm()) != vm) && !self.has_time(vm, now) {
                self.throttle(cpu, vm, now);
            }
        }
        ended
    }

    /// Whether a VM has CPU time left in this period; true without a cap.
    pub(crate) fn has_time(&self, vm: usize, now: u64) -> bool {
        self.vm(vm).with_cap(|cap| cap.has_time(now)).unwrap_or(true)
    }

    /// Takes a grant of CPU time for the vCPU to run here. Returns false if the cap is used up. Grants are needed only
    /// while a VM has a cap: a VM gets and loses its cap while none of its vCPUs runs or waits.
    #[inline(never)]
    pub(crate) fn begin_grant(&mut self, cpu: CpuId, vm: usize, now: u64) -> bool {
        let Some(grant) = self.vm(vm).with_cap(|cap| cap.grant(now)) else { return true };
        self[cpu].queue.grant = grant;
        grant.is_some()
    }

    /// Settles the grant of the vCPU that stops running here.
    #[inline(never)]
    pub(crate) fn end_grant(&mut self, cpu: CpuId, now: u64) {
        if let (Some(grant), Some(current)) = (self[cpu].queue.grant.take(), self[cpu].current) {
            let _ = self.vm(usize::from(current.vm())).with_cap(|cap| cap.settle(grant, now));
        }
    }

    /// Takes a grant for the vCPU that starts to run here. Other CPUs may have taken the time that the VM had: then the
    /// vCPU runs on debt until its CPU, whose deadline is now, stops it.
    #[inline(never)]
    pub(crate) fn begin_turn_with_cap(&mut self, cpu: CpuId, vm: usize, now: u64) {
        if !self.begin_grant(cpu, vm, now) {
            self[cpu].queue.grant = self.vm(vm).with_cap(|cap| cap.empty_grant(now));
        }
    }

    /// Throttles a VM on this CPU. None of its vCPUs may be running here.
    pub(crate) fn throttle(&mut self, cpu: CpuId, vm: usize, now: u64) {
        self.charge(cpu, now);
        self.vanish(cpu, vm, now);
        let load = self.load_of(cpu);
        load.sub(load.count(vm).into());
        let queue = &mut self[cpu].queue;
        queue.ready.remove(vm);
        queue.throttled.insert(vm);
    }

    /// Reverses [`throttle`](Self::throttle).
    pub(crate) fn unthrottle(&mut self, cpu: CpuId, vm: usize, now: u64) {
        self.charge(cpu, now);
        let queue = &mut self[cpu].queue;
        queue.throttled.remove(vm);
        queue.ready.insert(vm);
        let load = self.load_of(cpu);
        load.add(load.count(vm).into());
        // Those of its vCPUs that wait here.
        let _ = self.shared().add_usable(cpu, &CpuSet::ALL.except(cpu));
        self.appear(cpu, vm, now);
    }

    /// Recomputes [`deadline`](Self::deadline).
    #[inline(always)]
    pub(crate) fn update_deadline(&mut self, cpu: CpuId, now: u64) {
        if self.capped().is_empty() {
            self[cpu].queue.deadline = u64::MAX;
        } else {
            self.update_deadline_of_caps(cpu, now);
        }
    }

    #[inline(never)]
    fn update_deadline_of_caps(&mut self, cpu: CpuId, now: u64) {
        let grant = self[cpu].queue.grant;
        let periods = self[cpu].queue.throttled.iter().filter_map(|vm| self.vm(vm).with_cap(|cap| cap.next_period(now)));
        let deadline = periods.chain(grant.map(|grant| grant.until)).min().unwrap_or(u64::MAX);
        self[cpu].queue.deadline = deadline;
    }
}
