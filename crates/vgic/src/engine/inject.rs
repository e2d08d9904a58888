//! A physical PPI and an SGI on their way to a vCPU, where there is no shortcut.

use super::slots::clear;
use crate::interface::ListRegisters;
use crate::kick::{Bits, Delivery};
use crate::redistributor::Redistributor;
use crate::shortcuts::Letters;
use crate::{BLOCK, SGIS};

impl Redistributor {
    /// Delivers the physical PPI `intid` (one of [`Config::hw_ppis`](crate::Config::hw_ppis)), which
    /// the hypervisor has just acknowledged and left active, to this vCPU. It stays active until the
    /// guest deactivates the virtual one, even if that takes long because the guest has it disabled:
    /// so it is neither lost nor does it fire again.
    pub fn inject_hw_ppi<L: ListRegisters>(&mut self, lrs: &mut L, intid: u32) -> Delivery {
        let i = intid as usize % BLOCK;
        let bit = 1 << i;
        debug_assert!(self.slots.hw_ppis & bit != 0, "not a PPI with a physical one behind it");
        let block = &mut self.block;
        if block.resident & bit != 0 {
            // Fold first: otherwise the new event and an old one that the guest has acknowledged could
            // not be told apart.
            let n = block.slot[i].into();
            let lr = lrs.read(n);
            self.slots.fold(block, n, lr, lrs);
            clear(n, lr, lrs);
        }
        self.slots.held |= bit & self.slots.hw_ppis;
        block.line |= bit;
        self.sync_private(lrs)
    }

    /// [`inject_hw_ppi`](Self::inject_hw_ppi) for a vCPU that is not loaded: a software timer stood
    /// in for the physical one. [`load`](Self::load) will ask for the physical one to be made active.
    /// Nothing happens if that is so already: the line is looked at again when the guest deactivates.
    pub fn inject_hw_ppi_saved(&mut self, intid: u32) -> Delivery {
        if self.holds_saved(intid as usize % BLOCK) {
            return Delivery::Done;
        }
        self.on_saved(|this, saved| this.inject_hw_ppi(saved, intid))
    }

    /// Sends SGI `intid` (0 to 15) of a decoded write to this vCPU, loaded here.
    pub fn send_sgi_self<L: ListRegisters>(&mut self, lrs: &mut L, intid: u32, group1: bool) -> Delivery {
        if self.post_sgi(intid, group1) { self.sync_private(lrs) } else { Delivery::Done }
    }

    /// Takes over the SGIs of a vCPU's mail. Then comes [`sync_private`](Self::sync_private), or, if the vCPU is loaded on another CPU,
    /// [`Mail::announce_private`](crate::Mail::announce_private) and a kick.
    pub fn accept(&mut self, letters: Letters) {
        for intid in letters.sgis() {
            self.post_sgi(intid, true);
        }
    }

    /// Sends an SGI to this vCPU from another CPU. True if the vCPU must run
    /// [`sync_private`](Self::sync_private): kick it if it is loaded elsewhere, wake it if it sleeps.
    #[inline]
    pub fn post_sgi(&mut self, intid: u32, group1: bool) -> bool {
        let bit = 1 << (intid as usize % SGIS);
        let block = &mut self.block;
        if !group1 && block.group1 & bit != 0 || block.pending & bit != 0 {
            // Not for this group; or under way already, with a kick of its own.
            return false;
        }
        block.pending |= bit;
        block.recall |= bit & block.resident & !self.slots.quick;
        block.forward & bit != 0
    }

    /// Sets the line of an emulated PPI (one that has no physical interrupt behind it). True if the
    /// vCPU must run [`sync_private`](Self::sync_private).
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
        self.attend(bit)
    }

    /// Those of SGIs and PPIs that are active. The vCPU is not loaded.
    pub fn active_saved(&self) -> u32 {
        let block = &self.block;
        let shown = |i: &usize| block.drop_active >> i & 1 == 0 && self.interface.read(block.slot[*i].into()).active();
        Bits(block.resident).filter(shown).fold(block.active, |active, i| active | 1 << i)
    }

    /// Makes PPIs inactive of a vCPU that is not loaded: what it runs in its stead has ended them.
    pub fn deactivate_saved(&mut self, ppis: u32) {
        let bits = self.block.clear_active(ppis & !((1 << SGIS) - 1));
        self.attend(bits);
    }

    /// Something changed for `bits` of the SGIs and PPIs. Does the vCPU have to look?
    pub(crate) fn attend(&mut self, bits: u32) -> bool {
        let block = &mut self.block;
        block.recall |= bits & block.resident;
        self.slots.quick &= !bits;
        bits & (block.resident | block.wanted() | self.slots.held) != 0
    }
}
