//! The state of all CPUs and vCPUs, with a lock for each CPU.

use stile_lock::{Held, Items, Shards};

use crate::cpu::Cpu;
use crate::deadline::Node;
use crate::shared::Shared;
use crate::vcpu::{Link, Links, LinksMut, Vcpu};
use crate::{CPUS, VCPUS, VcpuId};

/// All CPUs, by [`CpuId::index`](crate::CpuId::index), and vCPUs, by [`VcpuId::index`].
pub(crate) type Table = Shards<Shared, Cpu, Vcpu, Node, CPUS, VCPUS>;
/// The locks of some CPUs.
pub(crate) type Locks<'s> = Held<'s, Shared, Cpu, Vcpu, Node, CPUS, VCPUS>;
/// The vCPUs of the CPUs whose locks are held.
type Vcpus<'h> = Items<'h, Shared, Cpu, Vcpu, Node, CPUS, VCPUS>;

impl Links for Locks<'_> {
    #[inline]
    fn link(&self, vcpu: VcpuId) -> &Link {
        &self.item(vcpu.index()).link
    }
}

impl LinksMut for Vcpus<'_> {
    #[inline]
    fn link_mut(&mut self, vcpu: VcpuId) -> &mut Link {
        &mut self.item_mut(vcpu.index()).link
    }
}
