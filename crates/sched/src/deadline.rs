//! Wake-up deadlines of blocked vCPUs: a per-CPU timer queue.

use crate::{VCPUS, VcpuId};

/// The deadlines of the vCPUs blocked on one CPU, at most one per vCPU.
///
/// A deadline is a counter value. Deadlines are stored in an array indexed by vCPU, with a bit mask of the
/// armed ones. A CPU rarely has more than a handful, so scanning the mask is cheaper than maintaining a heap;
/// and a scan is needed only when the earliest deadline is removed.
#[derive(Clone, Debug)]
pub struct Deadlines {
    at: [u64; VCPUS],
    /// Bit n: the vCPU with index n has a deadline.
    armed: u64,
    /// The vCPU with the earliest deadline.
    first: Option<VcpuId>,
}

const _: () = assert!(VCPUS == u64::BITS as usize);

impl Deadlines {
    /// An empty queue.
    pub const fn new() -> Self {
        Self { at: [0; VCPUS], armed: 0, first: None }
    }

    /// Sets a vCPU's deadline, replacing an earlier one.
    ///
    /// Returns whether [`earliest`](Self::earliest) may have changed, so that the CPU's timer must be
    /// reprogrammed.
    pub fn set(&mut self, vcpu: VcpuId, deadline: u64) -> bool {
        self.at[vcpu.index()] = deadline;
        self.armed |= 1 << vcpu.index();
        match self.first {
            Some(first) if first == vcpu => self.find_first(),
            Some(first) if self.at[first.index()] <= deadline => return false,
            _ => self.first = Some(vcpu),
        }
        true
    }

    /// Removes a vCPU's deadline, if it has one. Returns whether [`earliest`](Self::earliest) may have
    /// changed.
    pub fn cancel(&mut self, vcpu: VcpuId) -> bool {
        self.armed &= !(1 << vcpu.index());
        let was_first = self.first == Some(vcpu);
        if was_first {
            self.find_first();
        }
        was_first
    }

    /// The earliest deadline, to program the CPU's timer with.
    #[inline]
    pub fn earliest(&self) -> Option<u64> {
        self.first.map(|first| self.at[first.index()])
    }

    /// Removes the vCPUs whose deadlines are at or before `now`, earliest first; the order of equal deadlines
    /// is unspecified.
    ///
    /// vCPUs not consumed from the iterator stay armed.
    pub fn expired(&mut self, now: u64) -> impl Iterator<Item = VcpuId> + '_ {
        core::iter::from_fn(move || {
            let first = self.first.filter(|first| self.at[first.index()] <= now)?;
            self.cancel(first);
            Some(first)
        })
    }

    fn find_first(&mut self) {
        let mut rest = self.armed;
        let armed = core::iter::from_fn(|| {
            let vcpu = VcpuId::from_index(rest.trailing_zeros() as usize)?;
            rest &= rest - 1;
            Some(vcpu)
        });
        self.first = armed.min_by_key(|vcpu| self.at[vcpu.index()]);
    }
}

impl Default for Deadlines {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    fn vcpu(index: usize) -> VcpuId {
        VcpuId::from_index(index).expect("in range")
    }

    #[test]
    fn the_earliest_expires_first_and_only_when_due() {
        let mut deadlines = Deadlines::new();
        assert_eq!(deadlines.earliest(), None);
        assert!(deadlines.set(vcpu(5), 50));
        assert!(!deadlines.set(vcpu(63), 70));
        assert!(deadlines.set(vcpu(0), 30));
        assert_eq!(deadlines.earliest(), Some(30));
        assert_eq!(deadlines.expired(29).next(), None);
        assert_eq!(deadlines.expired(50).collect::<Vec<_>>(), [vcpu(0), vcpu(5)]);
        assert_eq!(deadlines.earliest(), Some(70));
        assert!(deadlines.cancel(vcpu(63)));
        assert!(!deadlines.cancel(vcpu(63)));
        assert_eq!(deadlines.earliest(), None);
    }

    #[test]
    fn a_later_deadline_replaces_an_earlier_one() {
        let mut deadlines = Deadlines::new();
        deadlines.set(vcpu(1), 10);
        deadlines.set(vcpu(2), 20);
        assert!(deadlines.set(vcpu(1), 30));
        assert_eq!(deadlines.earliest(), Some(20));
    }

    #[derive(Clone, Debug)]
    enum Op {
        Set(usize, u64),
        Cancel(usize),
        Expire(u64),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            (0..VCPUS, 0..100u64).prop_map(|(vcpu, at)| Op::Set(vcpu, at)),
            (0..VCPUS).prop_map(Op::Cancel),
            (0..100u64).prop_map(Op::Expire),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        #[test]
        fn matches_a_map(ops in prop::collection::vec(op(), 0..100)) {
            let mut deadlines = Deadlines::new();
            let mut model = BTreeMap::new();
            for op in ops {
                let before = deadlines.earliest();
                let changed = match op {
                    Op::Set(index, at) => {
                        model.insert(index, at);
                        deadlines.set(vcpu(index), at)
                    }
                    Op::Cancel(index) => {
                        model.remove(&index);
                        deadlines.cancel(vcpu(index))
                    }
                    Op::Expire(now) => {
                        let at: Vec<_> =
                            (0..VCPUS).map(|index| model.get(&index).copied()).collect();
                        let expired: Vec<_> = deadlines.expired(now).map(VcpuId::index).collect();
                        prop_assert!(expired.is_sorted_by_key(|index| at[*index]));
                        for index in &expired {
                            let due = model.remove(index).is_some_and(|at| at <= now);
                            prop_assert!(due, "{} expired early, or twice", index);
                        }
                        prop_assert!(model.values().all(|at| *at > now));
                        true
                    }
                };
                prop_assert_eq!(deadlines.earliest(), model.values().min().copied());
                prop_assert!(changed || deadlines.earliest() == before);
            }
        }
    }
}
