//! The run queues: one doubly linked list for each CPU, through one array of vCPUs.

use crate::{CPUS, CpuId, CpuSet, VCPUS, VcpuId};

/// All run queues. A vCPU is in one of them at most; the scheduler's states say in which.
pub(crate) struct Queues {
    lists: [List; CPUS],
    links: [Link; VCPUS],
    /// The CPUs whose queues aren't empty.
    filled: CpuSet,
}

#[derive(Clone, Copy)]
struct List {
    head: Option<VcpuId>,
    tail: Option<VcpuId>,
    len: u8,
}

#[derive(Clone, Copy)]
struct Link {
    before: Option<VcpuId>,
    after: Option<VcpuId>,
}

impl Queues {
    pub(crate) const fn new() -> Self {
        Self {
            lists: [List { head: None, tail: None, len: 0 }; CPUS],
            links: [Link { before: None, after: None }; VCPUS],
            filled: CpuSet::EMPTY,
        }
    }

    /// How many vCPUs wait for this CPU.
    pub(crate) fn len(&self, cpu: CpuId) -> usize {
        usize::from(self.lists[cpu.index()].len)
    }

    /// Whether a vCPU waits for this CPU.
    pub(crate) fn is_filled(&self, cpu: CpuId) -> bool {
        self.filled.contains(cpu)
    }

    /// The CPUs whose queues aren't empty.
    pub(crate) fn filled(&self) -> CpuSet {
        self.filled
    }

    /// Puts a vCPU that is in no queue at a queue's tail.
    pub(crate) fn push(&mut self, cpu: CpuId, vcpu: VcpuId) {
        let list = &mut self.lists[cpu.index()];
        let before = list.tail.replace(vcpu);
        list.len += 1;
        self.links[vcpu.index()] = Link { before, after: None };
        match before {
            Some(before) => self.links[before.index()].after = Some(vcpu),
            None => list.head = Some(vcpu),
        }
        self.filled.set(cpu, true);
    }

    /// Takes the vCPU at a queue's head.
    pub(crate) fn pop(&mut self, cpu: CpuId) -> Option<VcpuId> {
        let head = self.lists[cpu.index()].head?;
        self.remove(cpu, head);
        Some(head)
    }

    /// Takes a vCPU out of the queue that it is in.
    pub(crate) fn remove(&mut self, cpu: CpuId, vcpu: VcpuId) {
        let Link { before, after } = self.links[vcpu.index()];
        let list = &mut self.lists[cpu.index()];
        match before {
            Some(before) => self.links[before.index()].after = after,
            None => list.head = after,
        }
        match after {
            Some(after) => self.links[after.index()].before = before,
            None => list.tail = before,
        }
        list.len = list.len.saturating_sub(1);
        let filled = list.head.is_some();
        self.filled.set(cpu, filled);
    }

    /// The vCPU at a queue's tail.
    pub(crate) fn tail(&self, cpu: CpuId) -> Option<VcpuId> {
        self.lists[cpu.index()].tail
    }

    /// The vCPUs of a queue, from its head.
    pub(crate) fn iter(&self, cpu: CpuId) -> impl Iterator<Item = VcpuId> + '_ {
        core::iter::successors(self.lists[cpu.index()].head, |at| self.links[at.index()].after)
    }

    /// The vCPUs of a queue, from its tail.
    pub(crate) fn iter_back(&self, cpu: CpuId) -> impl Iterator<Item = VcpuId> + '_ {
        core::iter::successors(self.lists[cpu.index()].tail, |at| self.links[at.index()].before)
    }
}
