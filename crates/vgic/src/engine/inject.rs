//! Delivery of physical PPIs and SGIs to a vCPU without a shortcut.

use super::slots::{clear, shorten};
use crate::distributor::Distributor;
use crate::interface::ListRegisters;
use crate::kick::{Bits, Delivery};
use crate::lr::ListRegister;
use crate::redistributor::Redistributor;
use crate::shortcuts::Requests;
use crate::{BLOCK, SGIS};

impl Redistributor {
    /// Delivers the physical PPI `intid` (one of [`Config::hw_ppis`](crate::Config::hw_ppis)) to this vCPU.
    /// The hypervisor has just acknowledged it and left it active. It stays active until the guest
    /// deactivates the virtual one, even if the guest has that disabled for long: so it is neither lost nor
    /// fires again.
    pub fn inject_hw_ppi<L: ListRegisters>(&mut self, lrs: &mut L, intid: u32) -> Delivery {
        let i = intid as usize % BLOCK;
        let bit = 1 << i;
        debug_assert!(self.slots.hw_ppis & bit != 0, "not a PPI backed by a physical interrupt");
        let block = &mut self.block;
        if block.resident & bit != 0 {
            // Fold first: otherwise the new event could not be distinguished from an old one that the guest has
            // acknowledged.
            let n = block.slot[i].into();
            let lr = lrs.read(n);
            self.slots.fold(block, n, lr, lrs);
            clear(n, lr, lrs);
        }
        self.slots.held |= bit & self.slots.hw_ppis;
        block.line |= bit;
        self.sync_private(lrs)
    }

    /// [`inject_hw_ppi`](Self::inject_hw_ppi) for a vCPU that is not loaded, whose timer a software timer
    /// emulates. [`load`](Self::load) will request the physical one to be made active. Without effect if it
    /// is active already: the line is sampled again when the guest deactivates.
    pub fn inject_hw_ppi_saved(&mut self, intid: u32) -> Delivery {
        if self.holds_saved(intid as usize % BLOCK) {
            return Delivery::Done;
        }
        self.on_saved(|this, saved| this.inject_hw_ppi(saved, intid))
    }

    /// Sends SGI `intid` (0 to 15) of a decoded write to this vCPU, which is loaded here.
    pub fn send_sgi_self<L: ListRegisters>(&mut self, lrs: &mut L, intid: u32, group1: bool) -> Delivery {
        if self.post_sgi(intid, group1) { self.sync_private(lrs) } else { Delivery::Done }
    }

    /// Pulses the edge-triggered SPI or LPI `intid` in the list register of this vCPU, which is loaded here, in which it
    /// is resident. Returns false, without effect, if it is not, or if more than that has to become pending: that
    /// takes [`Distributor::pulse`].
    #[inline(always)]
    pub fn pulse_resident<L: ListRegisters>(&mut self, distributor: &mut Distributor, lrs: &mut L, intid: u32) -> bool {
        let Some((b, i)) = distributor.locate_edge(intid) else { return false };
        let bit = 1 << i;
        let block = &distributor.blocks[b];
        let settled = block.resident & block.edge & block.forward & !(block.recall | block.written | block.pending) & bit != 0;
        if !settled || self.overflows() || !distributor.is_home_and_target(b, i, self.config.vcpu) {
            return false;
        }
        let n = block.slot[i].into();
        let lr = lrs.read(n);
        // An active one may have been acknowledged with another priority; maintenance at its end is for a level.
        if lr.eoi() || !lr.same_rank(block.entry[i]) {
            return false;
        }
        distributor.blocks[b].latched |= bit;
        lrs.write(n, lr.with(ListRegister::PENDING));
        true
    }

    /// [`pulse_resident`](Self::pulse_resident) for a posted SPI, which gets a shortcut.
    #[cold]
    #[inline(never)]
    pub fn pulse_posted<L: ListRegisters>(&mut self, distributor: &mut Distributor, lrs: &mut L, intid: u32) -> bool {
        if !self.pulse_resident(distributor, lrs, intid) {
            return false;
        }
        if let Some((b, i)) = distributor.locate(intid) {
            let block = &mut distributor.blocks[b];
            shorten(block, i, block.slot[i].into(), lrs);
        }
        true
    }

    /// Accepts the SGIs of a vCPU's pending requests. Must be followed by
    /// [`sync_private`](Self::sync_private), or, if the vCPU is loaded on another CPU, by
    /// [`PendingRequests::announce_private`](crate::PendingRequests::announce_private) and a kick.
    pub fn accept(&mut self, requests: Requests) {
        let block = &mut self.block;
        // As `post_sgi`, for all of them.
        let posted = requests.sgi_mask() & !block.pending;
        block.pending |= posted;
        block.recall |= posted & block.resident & !self.slots.quick;
    }

    /// Posts an SGI from another CPU. Returns whether the vCPU must run [`sync_private`](Self::sync_private):
    /// kick it if it is loaded elsewhere, wake it if it is blocked.
    #[inline]
    pub fn post_sgi(&mut self, intid: u32, group1: bool) -> bool {
        let bit = 1 << (intid as usize % SGIS);
        let block = &mut self.block;
        if !group1 && block.group1 & bit != 0 || block.pending & bit != 0 {
            // Not in this group; or already posted, with its own kick.
            return false;
        }
        block.pending |= bit;
        block.recall |= bit & block.resident & !self.slots.quick;
        block.forward & bit != 0
    }

    /// Sets the line of an emulated PPI (not backed by a physical interrupt). Returns whether the vCPU must
    /// run [`sync_private`](Self::sync_private).
    pub fn set_ppi_level(&mut self, intid: u32, high: bool) -> bool {
        let bit = 1 << (intid % BLOCK as u32) & !0xffff & !self.slots.hw_ppis;
        let block = &mut self.block;
        if (block.line & bit != 0) == high {
            return false;
        }
        block.line ^= bit;
        if high {
            block.pending |= bit & block.edge;
        }
        self.note_changed(bit)
    }

    /// The active SGIs and PPIs of a vCPU that is not loaded.
    pub fn active_saved(&self) -> u32 {
        let block = &self.block;
        let shown = |i: &usize| block.drop_active >> i & 1 == 0 && self.interface.read(block.slot[*i].into()).active();
        Bits(block.resident).filter(shown).fold(block.active, |active, i| active | 1 << i)
    }

    /// Deactivates PPIs of a vCPU that is not loaded, because the context that runs in its place has ended
    /// them.
    pub fn deactivate_saved(&mut self, ppis: u32) {
        let bits = self.block.clear_active(ppis & !((1 << SGIS) - 1));
        self.note_changed(bits);
    }

    /// Handles a change of `bits` of the SGIs and PPIs. Returns whether the vCPU must sync.
    pub(crate) fn note_changed(&mut self, bits: u32) -> bool {
        let block = &mut self.block;
        block.recall |= bits & block.resident;
        self.slots.quick &= !bits;
        bits & (block.resident | block.wanted() | self.slots.held) != 0
    }
}
