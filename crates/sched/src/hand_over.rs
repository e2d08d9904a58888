//! Handing a CPU over: the frequent case of a switch, in which no decision is left.

use crate::vcpu::Link;
use crate::{CpuId, Locked, State, VcpuId};

impl Locked<'_> {
    /// Does what [`wake`](Self::wake) of `to` at `woken` and then [`block`](Self::block) at `now` do, if the result is
    /// that `to` replaces the running vCPU: a vCPU wakes another one of its VM, which belongs to this CPU, and blocks.
    /// No other vCPU waits here, and no VM has a cap.
    ///
    /// Cancels the deadline of `to`. Returns the replaced vCPU. `None`: another case; nothing has changed.
    #[inline]
    pub fn hand_over(&mut self, cpu: CpuId, to: VcpuId, woken: u64, now: u64) -> Option<VcpuId> {
        let from = self[cpu].current?;
        let shared = self.held.shared();
        // It belongs to this CPU, where another vCPU is loaded now: so it is loaded nowhere.
        let (here, [old, new], node) = self.held.two_of(cpu.index(), from.index(), to.index())?;
        if new.state != State::Blocked || !from.is_sibling_of(to) || !here.queue.ready.is_empty() {
            return None;
        }
        if new.only.is_none() && shared.is_any_idle(usize::from(to.vm())) {
            return None;
        }
        // Caps imply that shares are accounted.
        let policed = shared.policed();
        if policed && !shared.capped.get().is_empty() || old.woken || old.leave.is_some() {
            return None;
        }
        old.times.ran = old.times.ran.wrapping_add(now.saturating_sub(old.since));
        old.since = now;
        old.state = State::Blocked;
        here.current = Some(to);
        here.loaded = Some(to);
        here.turns = 0;
        // The timer expires at the end of the other vCPU's slice at the latest; the new one has none.
        here.timed = false;
        here.arrivals = here.arrivals.wrapping_add(1);
        new.arrived = here.arrivals;
        new.times.waited = new.times.waited.wrapping_add(now.saturating_sub(woken));
        new.since = now;
        new.state = State::Running(cpu);
        new.woken = false;
        new.migrated = false;
        new.link = Link::NONE;
        let has_deadline = node.is_set();
        if policed {
            // Both were ready from then until now. The VM is the only one here, so that it isn't charged.
            shared.vm(usize::from(to.vm())).count_between(woken, now);
        }
        if has_deadline {
            self.cancel_deadline(to);
        }
        Some(from)
    }
}
