//! Wake-up deadlines of blocked vCPUs: a leftist tree per CPU.

use stile_lock::Initial;

use crate::{CpuId, VcpuId};

/// A vCPU's deadline.
#[derive(Clone, Copy, Debug)]
#[repr(align(32))]
pub(crate) struct Node {
    at: u64,
    /// The CPU whose tree contains the deadline; `None` without a deadline.
    keeper: Option<CpuId>,
    parent: Option<VcpuId>,
    left: Option<VcpuId>,
    right: Option<VcpuId>,
    /// Number of nodes on the path from here along right children: at most that of the left child, plus 1.
    rank: u8,
}

impl Initial for Node {
    const INITIAL: Self = Self { at: 0, keeper: None, parent: None, left: None, right: None, rank: 0 };
}

impl Node {
    /// Whether the vCPU has a deadline.
    #[inline]
    pub(crate) fn is_set(&self) -> bool {
        self.keeper.is_some()
    }
}

/// The deadlines of blocked vCPUs, at most one per vCPU, each kept by one CPU.
///
/// A deadline is a counter value. The vCPUs kept by a CPU form a leftist tree: setting, cancelling and expiring a deadline take time
/// logarithmic in the number of vCPUs that this CPU keeps, in the worst case, too. Without another deadline on the CPU they take
/// constant time.
pub(crate) trait Sleepers {
    /// The root of a CPU's tree: the vCPU with the earliest deadline.
    fn first(&self, cpu: CpuId) -> Option<VcpuId>;

    fn set_first(&mut self, cpu: CpuId, first: Option<VcpuId>);

    fn node(&self, vcpu: VcpuId) -> &Node;

    fn node_mut(&mut self, vcpu: VcpuId) -> &mut Node;

    /// Sets a vCPU's deadline in the tree of `cpu`; replaces an earlier one on any CPU.
    #[inline]
    fn set_deadline(&mut self, cpu: CpuId, vcpu: VcpuId, deadline: u64) {
        self.cancel_deadline(vcpu);
        *self.node_mut(vcpu) = Node { at: deadline, keeper: Some(cpu), parent: None, left: None, right: None, rank: 1 };
        let root = match self.first(cpu) {
            None => Some(vcpu),
            root => self.merge(root, Some(vcpu)),
        };
        self.set_first(cpu, root);
    }

    /// Removes a vCPU's deadline, if it has one.
    #[inline]
    fn cancel_deadline(&mut self, vcpu: VcpuId) {
        if let Some(cpu) = self.node_mut(vcpu).keeper.take() {
            self.remove(cpu, vcpu);
        }
    }

    /// Takes a vCPU whose deadline, kept by `cpu`, is at or before `now`: the one with the earliest. The order of equal deadlines is
    /// unspecified.
    #[inline]
    fn expired(&mut self, cpu: CpuId, now: u64) -> Option<VcpuId> {
        let first = self.first(cpu).filter(|&first| self.node(first).at <= now)?;
        self.cancel_deadline(first);
        Some(first)
    }

    /// The earliest deadline that `cpu` keeps, to program its timer with.
    #[inline]
    fn earliest(&self, cpu: CpuId) -> Option<u64> {
        self.first(cpu).map(|first| self.node(first).at)
    }

    /// A vCPU's deadline.
    fn deadline_of(&self, vcpu: VcpuId) -> Option<u64> {
        let it = self.node(vcpu);
        it.keeper.map(|_| it.at)
    }

    /// Removes a node from the tree of `cpu`.
    #[inline]
    fn remove(&mut self, cpu: CpuId, vcpu: VcpuId) {
        let Node { parent, left, right, .. } = *self.node(vcpu);
        let rest = if left.is_none() && right.is_none() { None } else { self.merge(left, right) };
        match parent {
            None => self.set_first(cpu, rest),
            Some(parent) => self.replace_child(parent, vcpu, rest),
        }
    }

    #[cold]
    #[inline(never)]
    fn replace_child(&mut self, parent: VcpuId, child: VcpuId, by: Option<VcpuId>) {
        if let Some(by) = by {
            self.node_mut(by).parent = Some(parent);
        }
        let it = self.node_mut(parent);
        if it.left == Some(child) {
            it.left = by;
        } else {
            it.right = by;
        }
        self.restore_ranks(Some(parent));
    }

    /// Restores the order and rank of a node and its ancestors after a change of one of its children. A rank that
    /// changes exceeds by one that of the changed child, before or after: the greatest rank bounds the number of
    /// visited nodes.
    fn restore_ranks(&mut self, from: Option<VcpuId>) {
        let mut next = from;
        while let Some(vcpu) = next {
            let before = self.node(vcpu).rank;
            self.restore_rank(vcpu);
            let it = self.node(vcpu);
            if it.rank == before {
                break;
            }
            next = it.parent;
        }
    }

    /// Restores the order of a node's children, and its rank.
    fn restore_rank(&mut self, vcpu: VcpuId) {
        let Node { left, right, .. } = *self.node(vcpu);
        let (left_rank, right_rank) = (self.rank(left), self.rank(right));
        let it = self.node_mut(vcpu);
        if left_rank < right_rank {
            (it.left, it.right) = (right, left);
        }
        it.rank = left_rank.min(right_rank) + 1;
    }

    /// Merges two trees; returns the root. Visits their right paths only.
    #[inline(never)]
    fn merge(&mut self, mut a: Option<VcpuId>, mut b: Option<VcpuId>) -> Option<VcpuId> {
        let (mut root, mut last) = (None, None::<VcpuId>);
        loop {
            let both = a.zip(b);
            let next = match both {
                Some((first, second)) => {
                    if self.node(second).at < self.node(first).at {
                        core::mem::swap(&mut a, &mut b);
                    }
                    a
                }
                None => a.or(b),
            };
            if let Some(next) = next {
                self.node_mut(next).parent = last;
            }
            match last {
                Some(last) => self.node_mut(last).right = next,
                None => root = next,
            }
            if both.is_none() {
                break;
            }
            last = next;
            a = next.and_then(|next| self.node(next).right);
        }
        // Every node of the merged path has another right subtree now.
        while let Some(vcpu) = last {
            self.restore_rank(vcpu);
            last = self.node(vcpu).parent;
        }
        root
    }

    fn rank(&self, vcpu: Option<VcpuId>) -> u8 {
        vcpu.map_or(0, |vcpu| self.node(vcpu).rank)
    }
}

#[cfg(test)]
mod tests {
    use std::boxed::Box;
    use std::collections::BTreeMap;
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;
    use crate::{CPUS, VCPUS};

    struct Deadlines {
        first: [Option<VcpuId>; CPUS],
        nodes: [Node; VCPUS],
    }

    impl Sleepers for Deadlines {
        fn first(&self, cpu: CpuId) -> Option<VcpuId> {
            self.first[cpu.index()]
        }

        fn set_first(&mut self, cpu: CpuId, first: Option<VcpuId>) {
            self.first[cpu.index()] = first;
        }

        fn node(&self, vcpu: VcpuId) -> &Node {
            &self.nodes[vcpu.index()]
        }

        fn node_mut(&mut self, vcpu: VcpuId) -> &mut Node {
            &mut self.nodes[vcpu.index()]
        }
    }

    fn vcpu(index: usize) -> VcpuId {
        VcpuId::from_index(index).expect("in range")
    }

    fn cpu(index: usize) -> CpuId {
        CpuId::new(index).expect("in range")
    }

    fn all_expired(sleepers: &mut Deadlines, on: CpuId, now: u64) -> Vec<VcpuId> {
        core::iter::from_fn(|| sleepers.expired(on, now)).collect()
    }

    impl Deadlines {
        fn new() -> Self {
            Self { first: [None; CPUS], nodes: [Node::INITIAL; VCPUS] }
        }

        /// Checks a tree, and returns its nodes.
        fn check(&self, on: CpuId, root: Option<VcpuId>, parent: Option<VcpuId>) -> Vec<usize> {
            let Some(vcpu) = root else { return Vec::new() };
            let it = self.nodes[vcpu.index()];
            assert_eq!((it.keeper, it.parent), (Some(on), parent));
            assert!(parent.is_none_or(|parent| self.nodes[parent.index()].at <= it.at));
            assert!(self.rank(it.left) >= self.rank(it.right));
            assert_eq!(it.rank, self.rank(it.right) + 1);
            let mut all = self.check(on, it.left, root);
            all.extend(self.check(on, it.right, root));
            all.push(vcpu.index());
            all
        }
    }

    #[test]
    fn the_earliest_expires_first_and_only_when_due() {
        let mut sleepers = Box::new(Deadlines::new());
        let (here, there) = (cpu(0), cpu(CPUS - 1));
        assert_eq!(sleepers.earliest(here), None);
        sleepers.set_deadline(here, vcpu(5), 50);
        sleepers.set_deadline(here, vcpu(VCPUS - 1), 70);
        sleepers.set_deadline(here, vcpu(0), 30);
        sleepers.set_deadline(there, vcpu(1), 10);
        assert_eq!((sleepers.earliest(here), sleepers.earliest(there)), (Some(30), Some(10)));
        assert_eq!(sleepers.expired(here, 29), None);
        assert_eq!(all_expired(&mut sleepers, here, 50), [vcpu(0), vcpu(5)]);
        assert_eq!(sleepers.earliest(here), Some(70));
        sleepers.cancel_deadline(vcpu(VCPUS - 1));
        sleepers.cancel_deadline(vcpu(VCPUS - 1));
        assert_eq!((sleepers.earliest(here), sleepers.earliest(there)), (None, Some(10)));
    }

    #[test]
    fn a_deadline_replaces_an_earlier_one_of_another_cpu() {
        let mut sleepers = Box::new(Deadlines::new());
        sleepers.set_deadline(cpu(0), vcpu(1), 10);
        sleepers.set_deadline(cpu(0), vcpu(2), 20);
        sleepers.set_deadline(cpu(1), vcpu(1), 30);
        assert_eq!((sleepers.earliest(cpu(0)), sleepers.earliest(cpu(1))), (Some(20), Some(30)));
        assert_eq!(all_expired(&mut sleepers, cpu(0), u64::MAX), [vcpu(2)]);
    }

    /// For any order of deadlines, a path along right children is logarithmic in their number.
    #[test]
    fn right_paths_are_short() {
        for step in [1, VCPUS as u64 - 1, 37] {
            let mut sleepers = Box::new(Deadlines::new());
            for index in 0..VCPUS {
                sleepers.set_deadline(cpu(0), vcpu(index), index as u64 * step % VCPUS as u64);
            }
            let rank = sleepers.rank(sleepers.first[0]);
            assert!(u32::from(rank) <= (VCPUS + 1).ilog2(), "{rank}");
            let expired = all_expired(&mut sleepers, cpu(0), u64::MAX).len();
            assert_eq!(expired, VCPUS);
        }
    }

    #[derive(Clone, Debug)]
    enum Op {
        Set(usize, usize, u64),
        Cancel(usize),
        Expire(usize, u64),
    }

    /// vCPUs of the test: often the same ones, of all VMs.
    fn some_vcpu() -> impl Strategy<Value = usize> {
        (0..24usize).prop_map(|n| n * (VCPUS / 24))
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            6 => (0..2usize, some_vcpu(), 0..100u64).prop_map(|(cpu, vcpu, at)| Op::Set(cpu, vcpu, at)),
            3 => some_vcpu().prop_map(Op::Cancel),
            1 => (0..2usize, 0..60u64).prop_map(|(cpu, now)| Op::Expire(cpu, now)),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

        #[test]
        fn matches_a_map(ops in prop::collection::vec(op(), 0..200)) {
            let mut sleepers = Box::new(Deadlines::new());
            let mut model = BTreeMap::new();
            for op in ops {
                match op {
                    Op::Set(on, index, at) => {
                        model.insert(index, (on, at));
                        sleepers.set_deadline(cpu(on), vcpu(index), at);
                    }
                    Op::Cancel(index) => {
                        model.remove(&index);
                        sleepers.cancel_deadline(vcpu(index));
                    }
                    Op::Expire(on, now) => {
                        let expired = all_expired(&mut sleepers, cpu(on), now);
                        let times: Vec<_> = expired.iter().filter_map(|vcpu| model.remove(&vcpu.index())).collect();
                        prop_assert_eq!(times.len(), expired.len(), "expired twice");
                        prop_assert!(times.is_sorted() && times.iter().all(|&(keeper, at)| keeper == on && at <= now));
                    }
                }
                for on in 0..2 {
                    let mut kept = sleepers.check(cpu(on), sleepers.first[on], None);
                    kept.sort_unstable();
                    let wanted = model.iter().filter(|(_, (keeper, _))| *keeper == on);
                    prop_assert_eq!(kept, wanted.clone().map(|(index, _)| *index).collect::<Vec<_>>());
                    prop_assert_eq!(sleepers.earliest(cpu(on)), wanted.map(|(_, (_, at))| *at).min());
                }
                prop_assert_eq!(sleepers.nodes.iter().filter(|node| node.keeper.is_some()).count(), model.len());
            }
        }
    }
}
