//! L1's virtual CPU interface: its list registers in the page, and on the processor while L2 runs. Arm GIC Architecture
//! Specification, "AArch64 virtualization control System registers".
//!
//! While L2 runs, L1's list registers are the processor's: acknowledging and ending an interrupt is no exit. A list
//! register that stands for an interrupt of L1's (HW) names it by L1's INTID. Only where a physical interrupt is behind
//! that one can the processor deactivate it; else L0 does when it finds the list register invalid, and asks for
//! maintenance to find out in time.

use crate::vncr::{self, Page};
use stile_vgic::{ListRegister, ListRegisters};

#[cfg(test)]
mod tests;

/// Bits of ICH_HCR_EL2.
mod hcr {
    pub const EN: u64 = 1 << 0;
    pub const UIE: u64 = 1 << 1;
    pub const LRENPIE: u64 = 1 << 2;
    pub const NPIE: u64 = 1 << 3;
    pub const VGRP0EIE: u64 = 1 << 4;
    pub const VGRP0DIE: u64 = 1 << 5;
    pub const VGRP1EIE: u64 = 1 << 6;
    pub const VGRP1DIE: u64 = 1 << 7;
    pub const TC_TO_TDIR: u64 = 0x1f << 10;
    pub const EOI_COUNT: u64 = 0x1f << 27;
    /// What asks for maintenance: a list register does so by itself, too.
    pub const ASKS: u64 = UIE | LRENPIE | NPIE | VGRP0EIE | VGRP0DIE | VGRP1EIE | VGRP1DIE;
    /// All but what belongs to GICv4: vSGIEOICount, DVIM.
    pub const OFFERED: u64 = EN | UIE | LRENPIE | NPIE | VGRP0EIE | VGRP0DIE | VGRP1EIE | VGRP1DIE | TC_TO_TDIR | EOI_COUNT;
}

/// Bits of ICH_VMCR_EL2.
mod vmcr {
    pub const VENG0: u64 = 1 << 0;
    pub const VENG1: u64 = 1 << 1;
}

/// Bits of ICH_LRn_EL2.
mod lr {
    pub const STATE: u64 = 0b11 << 62;
    pub const PINTID_SHIFT: u32 = 32;
    pub const PINTID: u64 = 0x1fff << PINTID_SHIFT;
    /// State, HW, Group, Priority, pINTID, vINTID.
    pub const DEFINED: u64 = 0xf << 60 | 0xff << 48 | PINTID | 0xffff_ffff;
}

/// The first INTID of SPIs.
const SPIS: u32 = 32;

/// ICH_HCR_EL2 for the processor, as L1 wrote it.
#[inline]
pub fn control(page: &Page) -> u64 {
    page.get(vncr::ICH_HCR_EL2) & hcr::OFFERED
}

/// What the registers that trap say of those in the page: ICH_EISR_EL2, ICH_ELRSR_EL2, ICH_MISR_EL2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// ICH_EISR_EL2: which list registers have an EOI that L1 asked to hear of.
    pub eisr: u64,
    /// ICH_ELRSR_EL2: which list registers can be used.
    pub elrsr: u64,
    /// ICH_MISR_EL2: why maintenance is asked for.
    pub misr: u64,
}

impl Status {
    /// Of a page whose processor has `list_registers` of them.
    pub fn of(page: &Page, list_registers: usize) -> Self {
        let list_registers = list_registers.min(vncr::LIST_REGISTERS);
        let control = page.get(vncr::ICH_HCR_EL2);
        // At most exits of L2 no list register is valid, and none was to tell of its end.
        let any = page.list_registers(list_registers).fold(0, |any, lr| any | lr);
        if any & (lr::STATE | ListRegister::EOI) == 0 && control & hcr::ASKS == 0 {
            return Self { eisr: 0, elrsr: (1 << list_registers) - 1, misr: 0 };
        }
        let (mut eisr, mut elrsr, mut valid, mut is_pending) = (0, 0, 0, false);
        for (n, lr) in page.list_registers(list_registers).map(ListRegister).enumerate() {
            if lr.eoi_asserted() {
                eisr |= 1 << n;
            } else if lr.invalid() {
                elrsr |= 1 << n;
            }
            valid += u32::from(!lr.invalid());
            is_pending |= lr.pending() && !lr.active();
        }
        let vmcr = page.get(vncr::ICH_VMCR_EL2);
        let reasons = [
            eisr != 0,
            control & hcr::UIE != 0 && valid <= 1,
            control & hcr::LRENPIE != 0 && control & hcr::EOI_COUNT != 0,
            control & hcr::NPIE != 0 && !is_pending,
            control & hcr::VGRP0EIE != 0 && vmcr & vmcr::VENG0 != 0,
            control & hcr::VGRP0DIE != 0 && vmcr & vmcr::VENG0 == 0,
            control & hcr::VGRP1EIE != 0 && vmcr & vmcr::VENG1 != 0,
            control & hcr::VGRP1DIE != 0 && vmcr & vmcr::VENG1 == 0,
        ];
        let misr = reasons.into_iter().enumerate().map(|(bit, holds)| u64::from(holds) << bit).sum();
        Self { eisr, elrsr, misr }
    }

    /// Whether L1's maintenance interrupt is asserted, the page being as it was: only while the interface is enabled.
    pub fn asserts_maintenance(&self, page: &Page) -> bool {
        self.misr != 0 && page.get(vncr::ICH_HCR_EL2) & hcr::EN != 0
    }
}

/// Whether L2 has an interrupt pending in a list register, so that it is not to wait for one.
pub fn has_pending(page: &Page, list_registers: usize) -> bool {
    let is_pending = |lr: ListRegister| lr.pending() && !lr.active();
    page.get(vncr::ICH_HCR_EL2) & hcr::EN != 0 && page.list_registers(list_registers).map(ListRegister).any(is_pending)
}

/// L1's list registers on the processor. One value for one load.
#[derive(Debug)]
#[must_use = "L1's list registers are on the processor until they are taken back"]
pub struct OnProcessor {
    /// The list registers that were written.
    used: u16,
    /// Those whose interrupt the processor deactivates.
    backed: u16,
}

/// What L2 has deactivated: the interrupts of L1's, by INTID, of list registers that became invalid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deactivated {
    /// Some are SPIs.
    spis: bool,
    /// List registers whose interrupt of L1's is to be deactivated in L1's distributor or redistributor.
    ended: u16,
    /// Those of them whose physical interrupt the processor has deactivated already.
    by_processor: u16,
    intids: [u16; vncr::LIST_REGISTERS],
}

/// An interrupt of L1's that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// L1's INTID.
    pub intid: u32,
    /// The processor has deactivated the physical interrupt behind it.
    pub by_processor: bool,
}

impl Deactivated {
    /// Whether there are SPIs among them.
    #[inline]
    pub fn has_spis(&self) -> bool {
        self.spis
    }

    /// All of them, at most as many as there are list registers.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = Ended> + '_ {
        let mut left = self.ended;
        core::iter::from_fn(move || {
            let n = left.trailing_zeros() as usize;
            let &intid = self.intids.get(n)?;
            left &= left - 1;
            Some(Ended { intid: intid.into(), by_processor: self.by_processor >> n & 1 != 0 })
        })
    }
}

impl OnProcessor {
    /// Whether L1 had something in a list register, or asks for maintenance in `page`. If not, there is none when L2 has run, either.
    #[inline]
    pub fn may_ask(&self, page: &Page) -> bool {
        self.used != 0 || page.get(vncr::ICH_HCR_EL2) & hcr::ASKS != 0
    }

    /// Writes L1's list registers to the processor's, of which there are `list_registers`, all invalid before. `backing` says
    /// which physical interrupt is behind one of L1's, and active on its behalf; the processor then deactivates it with L2's.
    pub fn load<L: ListRegisters>(page: &Page, list_registers: usize, lrs: &mut L, mut backing: impl FnMut(u32) -> Option<u32>) -> Self {
        let mut this = Self { used: 0, backed: 0 };
        // Physical interrupts given to a list register. A second one is not: it would deactivate the next occurrence.
        let mut given = [None; vncr::LIST_REGISTERS];
        for (n, written) in page.list_registers(list_registers).enumerate() {
            let wanted = ListRegister(written & lr::DEFINED);
            if wanted.invalid() && !wanted.eoi_asserted() {
                continue;
            }
            let physical = if wanted.hw() { backing(wanted.physical_intid()).filter(|&intid| !given.contains(&Some(intid))) } else { None };
            let actual = match physical {
                Some(intid) => {
                    given[n] = Some(intid);
                    this.backed |= 1 << n;
                    ListRegister(wanted.0 & !lr::PINTID | (u64::from(intid) << lr::PINTID_SHIFT) & lr::PINTID)
                }
                None if wanted.hw() => ListRegister(wanted.0 & !(ListRegister::HW | lr::PINTID) | ListRegister::EOI),
                None => wanted,
            };
            this.used |= 1 << n;
            lrs.write(n, actual);
        }
        this
    }

    /// Takes the list registers back into the page, and makes the processor's invalid. Of `control`, the processor's
    /// ICH_HCR_EL2, the count of EOIs goes back, too.
    pub fn unload<L: ListRegisters>(self, page: &Page, lrs: &mut L, control: u64) -> Deactivated {
        let mut deactivated = Deactivated::default();
        let mut left = self.used;
        while left != 0 {
            let n = left.trailing_zeros() as usize;
            left &= left - 1;
            let before = ListRegister(page.get(vncr::ich_lr(n)));
            let after = lrs.read(n);
            lrs.write(n, ListRegister::INVALID);
            page.set(vncr::ich_lr(n), before.0 & !lr::STATE | after.0 & lr::STATE);
            if before.hw() && !before.invalid() && after.invalid() {
                deactivated.ended |= 1 << n;
                deactivated.intids[n] = before.physical_intid() as u16;
                deactivated.spis |= before.physical_intid() >= SPIS;
            }
        }
        deactivated.by_processor = deactivated.ended & self.backed;
        let kept = page.get(vncr::ICH_HCR_EL2) & !hcr::EOI_COUNT;
        page.set(vncr::ICH_HCR_EL2, kept | control & hcr::EOI_COUNT);
        deactivated
    }
}
