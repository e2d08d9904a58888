//! Enforcement of caps: grants of CPU time, and throttled VMs, whose vCPUs wait for the next period.

use crate::id::VMS;
use crate::{CpuId, Scheduler};

impl Scheduler {
    /// When this CPU must call [`pick_next`](Self::pick_next) because of a cap: a running vCPU's grant ends, or a
    /// throttled VM's next period begins. In the past if it has more vCPUs for idle CPUs.
    ///
    /// [`u64::MAX`]: never.
    #[inline]
    pub fn deadline(&self, cpu: CpuId) -> u64 {
        self.cpus[cpu.index()].queue.deadline
    }

    /// Enforces caps on this CPU. Returns whether the running vCPU must wait for the next period.
    #[cold]
    pub(crate) fn enforce_caps(&mut self, cpu: CpuId, now: u64) -> bool {
        let queue = &self.cpus[cpu.index()].queue;
        let (throttled, waiting) = (queue.throttled, queue.ready.and(self.capped));
        for vm in throttled.iter() {
            if self.has_time(vm, now) {
                self.unthrottle(cpu, vm, now);
            }
        }
        let current = self.cpus[cpu.index()].current;
        let ended = match (current, self.cpus[cpu.index()].queue.grant) {
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

    pub(crate) fn has_time(&self, vm: usize, now: u64) -> bool {
        self.vms[vm & (VMS - 1)].cap.as_ref().is_none_or(|cap| cap.has_time(now))
    }

    /// Takes a grant of CPU time for the vCPU to run here. Returns false if the cap is used up. Grants are needed only
    /// while a VM has a cap: a VM gets and loses its cap while none of its vCPUs runs or waits.
    #[inline(never)]
    pub(crate) fn begin_grant(&mut self, cpu: CpuId, vm: usize, now: u64) -> bool {
        let grant = match &mut self.vms[vm & (VMS - 1)].cap {
            None => return true,
            Some(cap) => cap.grant(now),
        };
        self.cpus[cpu.index()].queue.grant = grant;
        grant.is_some()
    }

    /// Settles the grant of the vCPU that stops running here.
    #[inline(never)]
    pub(crate) fn end_grant(&mut self, cpu: CpuId, now: u64) {
        if let (Some(grant), Some(current)) = (self.cpus[cpu.index()].queue.grant.take(), self.cpus[cpu.index()].current)
            && let Some(cap) = &mut self.vms[usize::from(current.vm()) & (VMS - 1)].cap
        {
            cap.settle(grant, now);
        }
    }

    /// Throttles a VM on this CPU. None of its vCPUs may be running here.
    pub(crate) fn throttle(&mut self, cpu: CpuId, vm: usize, now: u64) {
        self.charge(cpu, now);
        self.vanish(cpu, vm, now);
        let queue = &mut self.cpus[cpu.index()].queue;
        queue.load -= usize::from(queue.entity(vm).count);
        queue.ready.remove(vm);
        queue.throttled.insert(vm);
    }

    /// Reverses [`throttle`](Self::throttle).
    pub(crate) fn unthrottle(&mut self, cpu: CpuId, vm: usize, now: u64) {
        self.charge(cpu, now);
        let queue = &mut self.cpus[cpu.index()].queue;
        queue.throttled.remove(vm);
        queue.ready.insert(vm);
        queue.load += usize::from(queue.entity(vm).count);
        self.appear(cpu, vm, now);
    }

    /// Recomputes [`deadline`](Self::deadline).
    #[inline(always)]
    pub(crate) fn update_deadline(&mut self, cpu: CpuId, now: u64) {
        if self.capped.is_empty() {
            self.cpus[cpu.index()].queue.deadline = u64::MAX;
        } else {
            self.update_deadline_of_caps(cpu, now);
        }
    }

    #[inline(never)]
    fn update_deadline_of_caps(&mut self, cpu: CpuId, now: u64) {
        let grant = self.cpus[cpu.index()].queue.grant;
        let periods = self.cpus[cpu.index()].queue.throttled.iter().filter_map(|vm| Some(self.vms[vm].cap.as_ref()?.next_period(now)));
        self.cpus[cpu.index()].queue.deadline = periods.chain(grant.map(|grant| grant.until)).min().unwrap_or(u64::MAX);
    }
}
