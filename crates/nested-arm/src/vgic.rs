//! L1's virtual CPU interface: its list registers in the page, and their loading on the processor while L2
//! runs. Arm GIC Architecture Specification, "AArch64 virtualization control System registers".
//!
//! While L2 runs, L1's list registers are loaded on the processor: acknowledging and ending an interrupt
//! causes no exit. A list register linked to an interrupt of L1 (HW) has L1's INTID. The processor can
//! deactivate that only if it is backed by a physical interrupt; otherwise L0 does so when it finds the list
//! register invalid, and enables EOI maintenance to learn of it in time.

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
    /// Maintenance enables. A list register can request maintenance, too.
    pub const ASKS: u64 = UIE | LRENPIE | NPIE | VGRP0EIE | VGRP0DIE | VGRP1EIE | VGRP1DIE;
    /// All bits but GICv4's: vSGIEOICount, DVIM.
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

/// The first SPI.
const SPIS: u32 = 32;

/// ICH_HCR_EL2 as L1 wrote it, for the processor.
#[inline]
pub fn control(page: &Page) -> u64 {
    page.get(vncr::ICH_HCR_EL2) & hcr::OFFERED
}

/// The status registers derived from the page: ICH_EISR_EL2, ICH_ELRSR_EL2, ICH_MISR_EL2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// ICH_EISR_EL2: list registers with an EOI for which L1 requested maintenance.
    pub eisr: u64,
    /// ICH_ELRSR_EL2: unused list registers.
    pub elrsr: u64,
    /// ICH_MISR_EL2: asserted maintenance conditions.
    pub misr: u64,
}

impl Status {
    /// The status of a page with `list_registers` list registers.
    pub fn of(page: &Page, list_registers: usize) -> Self {
        let list_registers = list_registers.min(vncr::LIST_REGISTERS);
        let control = page.get(vncr::ICH_HCR_EL2);
        // At most exits of L2 no list register is valid or has requested EOI maintenance.
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

    /// Whether L1's maintenance interrupt is asserted with this page: only while the interface is enabled.
    pub fn asserts_maintenance(&self, page: &Page) -> bool {
        self.misr != 0 && page.get(vncr::ICH_HCR_EL2) & hcr::EN != 0
    }
}

/// Whether L2 has an interrupt pending in a list register, so that it must not wait for one.
pub fn has_pending(page: &Page, list_registers: usize) -> bool {
    let is_pending = |lr: ListRegister| lr.pending() && !lr.active();
    page.get(vncr::ICH_HCR_EL2) & hcr::EN != 0 && page.list_registers(list_registers).map(ListRegister).any(is_pending)
}

/// L1's list registers loaded on the processor. One value per load.
#[derive(Debug)]
#[must_use = "L1's list registers are on the processor until they are taken back"]
pub struct OnProcessor {
    /// The list registers in use.
    used: u16,
    /// Those whose interrupt the processor deactivates.
    backed: u16,
}

/// L2's deactivations: the L1 interrupts of list registers that became invalid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deactivated {
    /// Whether some are SPIs.
    spis: bool,
    /// List registers whose L1 interrupt must be deactivated in L1's distributor or redistributor.
    ended: u16,
    /// Those of `ended` whose physical interrupt the processor has already deactivated.
    by_processor: u16,
    intids: [u16; vncr::LIST_REGISTERS],
}

/// An interrupt of L1 that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// L1's INTID.
    pub intid: u32,
    /// Whether the processor has deactivated the physical interrupt that backs it.
    pub by_processor: bool,
}

impl Deactivated {
    /// Whether any of them is an SPI.
    #[inline]
    pub fn has_spis(&self) -> bool {
        self.spis
    }

    /// All of them, at most one per list register.
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
    /// Whether L1 used a list register, or enables maintenance in `page`. If not, no maintenance is asserted
    /// after L2 has run.
    #[inline]
    pub fn may_ask(&self, page: &Page) -> bool {
        self.used != 0 || page.get(vncr::ICH_HCR_EL2) & hcr::ASKS != 0
    }

    /// Writes L1's list registers to the processor's `list_registers`, all invalid before. `backing` returns
    /// the physical interrupt that backs an L1 interrupt and is active on its behalf; the processor then
    /// deactivates it with L2's.
    pub fn load<L: ListRegisters>(page: &Page, list_registers: usize, lrs: &mut L, mut backing: impl FnMut(u32) -> Option<u32>) -> Self {
        let mut this = Self { used: 0, backed: 0 };
        // Physical interrupts linked to a list register. None is linked twice: the second would deactivate
        // the next occurrence.
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

    /// Saves the list registers to the page, and invalidates the processor's. Saves the EOI count from
    /// `control`, the processor's ICH_HCR_EL2, too.
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
