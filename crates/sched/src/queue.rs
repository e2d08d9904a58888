//! The run queue of one CPU: a list of waiting vCPUs per VM.

use crate::VcpuId;
use crate::cap::Grant;
use crate::id::{VMS, VmSet};
use crate::vcpu::{Link, Links, LinksMut};

/// A CPU's run queue.
// The fields that every operation uses come first.
#[cfg_attr(test, derive(PartialEq, Debug))]
#[repr(C)]
pub(crate) struct RunQueue {
    /// VMs with a vCPU waiting here, not throttled here.
    pub(crate) ready: VmSet,
    /// VMs with a used-up cap: their vCPUs here wait for the next period.
    pub(crate) throttled: VmSet,
    /// The VM picked last: it loses ties.
    pub(crate) last: usize,
    /// The CPU's virtual time: that of the VM picked last, at the time of the pick.
    pub(crate) vtime: u64,
    /// While VMs compete: the clock of the running vCPU's VM up to which it has been charged.
    pub(crate) charged: u64,
    /// Time at which VMs last stopped competing.
    pub(crate) alone_since: u64,
    /// CPU time granted to the running vCPU from its VM's cap, if it has one.
    pub(crate) grant: Option<Grant>,
    /// See [`Scheduler::deadline`](crate::Scheduler::deadline); set when the CPU comes online.
    pub(crate) deadline: u64,
    /// Per-VM queue state, by VM number.
    pub(crate) entities: [Entity; VMS],
}

/// A VM's part of a run queue.
#[cfg_attr(test, derive(PartialEq, Debug))]
#[derive(Clone, Copy)]
pub(crate) struct Entity {
    head: Option<VcpuId>,
    tail: Option<VcpuId>,
    /// Service received here while VMs competed, divided by weight. The lowest runs next.
    pub(crate) vtime: u64,
}

impl RunQueue {
    pub(crate) const fn new() -> Self {
        Self {
            entities: [Entity { head: None, tail: None, vtime: 0 }; VMS],
            ready: VmSet::EMPTY,
            throttled: VmSet::EMPTY,
            last: 0,
            vtime: 0,
            charged: 0,
            alone_since: 0,
            grant: None,
            deadline: 0,
        }
    }

    #[inline]
    pub(crate) fn entity(&mut self, vm: usize) -> &mut Entity {
        &mut self.entities[vm & (VMS - 1)]
    }

    /// Appends a vCPU, which is in no queue, to its VM's list.
    pub(crate) fn push(&mut self, vcpus: &mut impl LinksMut, vcpu: VcpuId) {
        let vm = usize::from(vcpu.vm());
        let entity = self.entity(vm);
        let before = entity.tail.replace(vcpu);
        *vcpus.link_mut(vcpu) = Link { before, after: None };
        match before {
            Some(before) => vcpus.link_mut(before).after = Some(vcpu),
            None => {
                entity.head = Some(vcpu);
                if !self.throttled.contains(vm) {
                    self.ready.insert(vm);
                }
            }
        }
    }

    /// Removes a waiting vCPU.
    pub(crate) fn remove(&mut self, vcpus: &mut impl LinksMut, vcpu: VcpuId) {
        let vm = usize::from(vcpu.vm());
        let Link { before, after } = *vcpus.link_mut(vcpu);
        let entity = self.entity(vm);
        match before {
            Some(before) => vcpus.link_mut(before).after = after,
            None => entity.head = after,
        }
        match after {
            Some(after) => vcpus.link_mut(after).before = before,
            None => entity.tail = before,
        }
        if entity.head.is_none() {
            self.ready.remove(vm);
        }
    }

    /// The VM to run next: the ready one with the lowest virtual time.
    #[inline]
    pub(crate) fn next_vm(&self) -> Option<usize> {
        if self.ready.is_several() { self.by_vtime(self.ready) } else { self.ready.first() }
    }

    /// The VM with the lowest virtual time; ties are broken round-robin.
    #[cold]
    pub(crate) fn by_vtime(&self, vms: VmSet) -> Option<usize> {
        vms.iter_after(self.last).min_by_key(|&vm| self.entities[vm].vtime)
    }

    /// Removes and returns the vCPU to run next. Unless `POLICED`, all are of one VM.
    #[inline]
    pub(crate) fn pop<const POLICED: bool>(&mut self, vcpus: &mut impl LinksMut) -> Option<VcpuId> {
        let vm = if POLICED { self.next_vm() } else { self.ready.first() }?;
        let entity = self.entity(vm);
        let head = entity.head?;
        entity.head = vcpus.link_mut(head).after;
        match entity.head {
            Some(after) => vcpus.link_mut(after).before = None,
            None => {
                entity.tail = None;
                self.ready.remove(vm);
            }
        }
        Some(head)
    }

    /// A VM's waiting vCPUs, from the head.
    pub(crate) fn iter_vm<'a, L: Links>(&self, vcpus: &'a L, vm: usize) -> impl Iterator<Item = VcpuId> + use<'a, L> {
        core::iter::successors(self.entities[vm & (VMS - 1)].head, |&at| vcpus.link(at).after)
    }

    /// A VM's waiting vCPUs, from the tail.
    pub(crate) fn iter_vm_back<'a, L: Links>(&self, vcpus: &'a L, vm: usize) -> impl Iterator<Item = VcpuId> + use<'a, L> {
        core::iter::successors(self.entities[vm & (VMS - 1)].tail, |&at| vcpus.link(at).before)
    }

    /// The waiting vCPUs of unthrottled VMs; VM by VM, starting after the VM picked last.
    pub(crate) fn iter<'a>(&'a self, vcpus: &'a impl Links) -> impl Iterator<Item = VcpuId> + 'a {
        self.ready.iter_after(self.last).flat_map(|vm| self.iter_vm(vcpus, vm))
    }

    /// Whether a vCPU of the VM waits here.
    pub(crate) fn waits(&self, vm: usize) -> bool {
        self.entities[vm & (VMS - 1)].head.is_some()
    }
}
