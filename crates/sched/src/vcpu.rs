//! A vCPU, as the scheduler knows it.

use stile_lock::Initial;

use crate::{CpuId, State, VcpuId};

/// Access to the links of vCPUs.
pub(crate) trait Links {
    fn link(&self, vcpu: VcpuId) -> &Link;
}

/// Access to the links of vCPUs, to change them.
pub(crate) trait LinksMut {
    fn link_mut(&mut self, vcpu: VcpuId) -> &mut Link;
}

/// The scheduler's state of a vCPU: one cache line, and of a size that is cheap to index.
#[cfg_attr(test, derive(PartialEq, Debug))]
#[derive(Clone, Copy)]
// In this order, fields that are read or written together are next to each other.
#[repr(C, align(64))]
pub struct Vcpu {
    /// Time at which it entered its state, in ticks.
    pub(crate) since: u64,
    pub(crate) times: Times,
    /// Its CPU's count of arrivals when it arrived there.
    pub(crate) arrived: u32,
    pub(crate) link: Link,
    pub(crate) state: State,
    /// The CPU on which it last ran.
    pub(crate) last: Option<CpuId>,
    /// The only CPU that it may use; `None`: any in its VM's [`Affinity`](crate::shared::Affinity).
    pub(crate) only: Option<CpuId>,
    /// Whether it exists: it has an affinity.
    pub(crate) exists: bool,
    /// Whether it was woken while running.
    pub(crate) woken: bool,
    /// Whether it was migrated since it last ran.
    pub(crate) migrated: bool,
    /// State that another CPU requests for its next exit.
    pub(crate) leave: Option<Leave>,
}

const _: () = assert!(size_of::<Vcpu>() == 64);

/// A state change requested of a vCPU that runs on another CPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Leave {
    // 0 is `None`.
    Park = 1,
    Off,
}

/// A vCPU's accumulated times, in ticks.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Times {
    /// Running.
    pub ran: u64,
    /// Ready, but queued: steal time.
    pub waited: u64,
}

/// A vCPU's neighbours in the list that it is in: at most one.
#[cfg_attr(test, derive(PartialEq, Debug))]
#[derive(Clone, Copy)]
pub(crate) struct Link {
    pub(crate) before: Option<VcpuId>,
    pub(crate) after: Option<VcpuId>,
}

impl Link {
    pub(crate) const NONE: Self = Self { before: None, after: None };
}

impl Initial for Vcpu {
    const INITIAL: Self = Self::NEW;
}

impl Vcpu {
    /// Off, and without affinity.
    pub(crate) const NEW: Vcpu = Vcpu {
        state: State::Off,
        last: None,
        only: None,
        exists: false,
        arrived: 0,
        migrated: false,
        woken: false,
        leave: None,
        since: 0,
        times: Times { ran: 0, waited: 0 },
        link: Link::NONE,
    };

    /// Its times, including the current state's until `now`.
    pub(crate) fn times_at(&self, now: u64) -> Times {
        let spent = now.saturating_sub(self.since);
        let mut times = self.times;
        match self.state {
            State::Running(_) => times.ran = times.ran.wrapping_add(spent),
            State::Ready(_) => times.waited = times.waited.wrapping_add(spent),
            State::Off | State::Blocked | State::Parked => {}
        }
        times
    }
}
