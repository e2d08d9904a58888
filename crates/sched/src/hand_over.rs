//! Handing a CPU over: the frequent case of a switch, in which no decision is left.

use crate::vcpu::Link;
use crate::{CpuId, Scheduler, State, VcpuId};

impl Scheduler {
    /// Does what [`wake`](Self::wake) of `to` at `woken` and then [`block`](Self::block) at `now` do, if the result is
    /// that `to` replaces the running vCPU: a vCPU wakes another one of its VM, which belongs to this CPU, and blocks.
    /// No other vCPU waits here, and no VM has a cap.
    ///
    /// Returns the replaced vCPU. `None`: another case; nothing has changed.
    #[inline]
    pub fn hand_over(&mut self, cpu: CpuId, to: VcpuId, woken: u64, now: u64) -> Option<VcpuId> {
        let here = &self.cpus[cpu.index()];
        let from = here.current?;
        let target = &self.vcpus[to.index()];
        // It was last loaded here, where another vCPU is loaded now: so it is loaded nowhere.
        let belongs_here = target.last == Some(cpu) && target.allowed.and(self.idle).is_empty();
        if target.state != State::Blocked || !belongs_here || !from.is_sibling_of(to) || !here.queue.ready.is_empty() {
            return None;
        }
        // Caps imply that shares are accounted.
        if self.policed && !self.capped.is_empty() {
            return None;
        }
        let it = &mut self.vcpus[from.index()];
        if it.woken || it.leave.is_some() {
            return None;
        }
        it.times.ran = it.times.ran.wrapping_add(now.saturating_sub(it.since));
        it.since = now;
        it.state = State::Blocked;
        self.arrivals = self.arrivals.wrapping_add(1);
        let it = &mut self.vcpus[to.index()];
        it.arrived = self.arrivals;
        it.times.waited = it.times.waited.wrapping_add(now.saturating_sub(woken));
        it.since = now;
        it.state = State::Running(cpu);
        it.woken = false;
        it.sent = false;
        it.link = Link::NONE;
        let here = &mut self.cpus[cpu.index()];
        here.current = Some(to);
        here.loaded = Some(to);
        here.turns = 0;
        if self.policed {
            // Both were ready from then until now. The VM is the only one here, so that it isn't charged.
            let vm = &mut self.vms[usize::from(to.vm())];
            vm.activate(woken);
            vm.deactivate(now);
        }
        Some(from)
    }
}
