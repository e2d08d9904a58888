//! Lazily switched trap controls of L1's guest: fine-grained traps, HCRX_EL2, HSTR_EL2, which rarely change and
//! mostly trap nothing. L1 writes them in memory without a trap, but never while its guest runs: each guest entry
//! checks whether one has changed since the last. Only then are the CPU's values computed, and they are loaded only
//! if they differ from those of virtual EL2.

use stile_nested_arm::forward::{Control, Masks};
use stile_nested_arm::vncr::{self, Page, Slot};

use crate::arch::aarch64::host::features;
use crate::arch::aarch64::host::sysreg::write_sysreg;
use crate::arch::aarch64::vcpu::traps;

/// Number of controls.
const COUNT: usize = 7;

/// Offsets in the page, in ascending order, and identifiers in crate `nested-arm`.
const REGISTERS: [(Slot, Control); COUNT] = [
    (vncr::HFGRTR_EL2, Control::Hfgrtr),
    (vncr::HFGWTR_EL2, Control::Hfgwtr),
    (vncr::HFGITR_EL2, Control::Hfgitr),
    (vncr::HDFGRTR_EL2, Control::Hdfgrtr),
    (vncr::HDFGWTR_EL2, Control::Hdfgwtr),
    (vncr::HCRX_EL2, Control::Hcrx),
    (vncr::HSTR_EL2, Control::Hstr),
];

/// Registers of the CPU.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Values([u64; COUNT]);

/// HCRX_EL2.MCE2: memory-copy exceptions are taken to EL2. KVM sets it for guests with FEAT_MOPS; it is always set,
/// to avoid a load, and the handler determines who gets the exception.
const MCE2: u64 = 1 << 10;
/// HCRX_EL2.MSCEn: memory copy and set instructions at EL1 and EL0.
const MSCEN: u64 = 1 << 11;
/// HCRX_EL2.{FnXS, FGTnXS}.
const NO_XS: u64 = 0b11 << 3;
/// HDFGWTR_EL2.MDSCR_EL1: traps writes of that register.
const MDSCR_WRITES: u64 = 1 << 4;
/// HSTR_EL2.{T7, T9, T13}: EL0 has no AArch32 registers with other numbers, and EL1 is AArch64.
const BY_NUMBER: u64 = 1 << 7 | 1 << 9 | 1 << 13;

/// HFGRTR_EL2, HFGWTR_EL2: the five pointer-authentication keys.
const KEYS: u64 = 0x1f << 4;
/// HCR_EL2.APK: keys do not trap.
const APK: u64 = 1 << 40;

impl Values {
    /// Values for virtual EL2 without the trap of MDSCR_EL1 writes.
    fn own() -> Self {
        let have = features::get();
        let [hfgrtr, hfgwtr, hfgitr, hdfgrtr, hdfgwtr] = traps::FINE;
        let hcrx = traps::hcrx(have) | if have.mops { MCE2 } else { 0 };
        Self([hfgrtr, hfgwtr, hfgitr, hdfgrtr, hdfgwtr, hcrx, 0])
    }

    /// Values for its guest, where L1 wrote `seen`.
    fn of_guest(seen: &[u64; COUNT], masks: &Masks) -> Self {
        let Self(mut values) = Self::own();
        for ((value, written), (_, control)) in values.iter_mut().zip(seen).zip(REGISTERS) {
            *value = match control {
                // Bits of features that L1's processor lacks are ignored.
                Control::Hcrx => {
                    let theirs = masks.apply(control, *written);
                    *value & (theirs | !MSCEN) | theirs & NO_XS
                }
                Control::Hstr => written & BY_NUMBER,
                _ => *value | written & masks.fine(control),
            };
        }
        Self(values)
    }

    fn load(&self) {
        let Self([hfgrtr, hfgwtr, hfgitr, hdfgrtr, hdfgwtr, hcrx, hstr]) = *self;
        let have = features::get();
        if have.fgt {
            write_sysreg!(HFGRTR_EL2, hfgrtr);
            write_sysreg!(HFGWTR_EL2, hfgwtr);
            write_sysreg!(HFGITR_EL2, hfgitr);
            write_sysreg!(HDFGRTR_EL2, hdfgrtr);
            write_sysreg!(HDFGWTR_EL2, hdfgwtr);
        }
        if have.hcx {
            write_sysreg!(HCRX_EL2, hcrx);
        }
        write_sysreg!(HSTR_EL2, hstr);
    }
}

/// State of the lazily switched controls.
pub struct LazyTraps {
    /// CPU values for virtual EL2.
    own: Values,
    /// L1's values when its guest last ran.
    seen: [u64; COUNT],
    /// CPU values for the guest.
    guest: Values,
    /// Whether they differ from virtual EL2's.
    differs: bool,
    /// Bits of HCR_EL2 that the guest has set only if L1 has set them as well, and these.
    pub hcr: u64,
}

impl LazyTraps {
    /// Reset state: L1 has written nothing.
    pub fn at_reset() -> Self {
        // HCRX_EL2.MSCEn is not 0 for virtual EL2: detected at the first entry to the guest.
        Self { own: Values::own(), seen: [u64::MAX; COUNT], guest: Values::own(), differs: false, hcr: u64::MAX }
    }

    /// Sets whether virtual EL2's writes of MDSCR_EL1 trap, from the next [`LazyTraps::unload_guests`] on. The CPU
    /// has FEAT_FGT.
    pub fn trap_mdscr_writes(&mut self, on: bool) {
        self.own = Values::own();
        if on {
            let Values([_, _, _, _, hdfgwtr, ..]) = &mut self.own;
            *hdfgwtr |= MDSCR_WRITES;
        }
        self.differs = self.guest != self.own;
    }

    /// Checks L1's values in `page` before its guest runs.
    #[inline(always)]
    pub fn update<'a>(&mut self, page: &Page, masks: impl FnOnce() -> &'a Masks) {
        // All of them without a branch in between: usually none has changed.
        let registers = REGISTERS.iter().zip(&self.seen);
        if registers.fold(0, |changed, ((slot, _), seen)| changed | page.get(*slot) ^ seen) != 0 {
            self.recompute(page, masks());
        }
    }

    #[cold]
    #[inline(never)]
    fn recompute(&mut self, page: &Page, masks: &Masks) {
        let seen = REGISTERS.map(|(slot, _)| page.get(slot));
        let mut guest = Values::of_guest(&seen, masks);
        let Values([reads, writes, ..]) = &mut guest;
        let mut hcr = u64::MAX;
        if *reads & *writes & KEYS == KEYS {
            // KVM traps all keys for a guest without FEAT_PAuth, also by HCR_EL2.APK, which is written at each
            // switch.
            *reads &= !KEYS;
            *writes &= !KEYS;
            hcr = !APK;
        }
        let own = self.own;
        *self = LazyTraps { own, seen, guest, differs: guest != own, hcr };
    }

    /// Loads the guest's controls in place of virtual EL2's.
    #[inline(always)]
    pub fn load_guests(&self) {
        if self.differs {
            self.replace_by_guests();
        }
    }

    /// Loads virtual EL2's controls in place of the guest's.
    #[inline(always)]
    pub fn unload_guests(&self) {
        if self.differs {
            self.load_own();
        }
    }

    #[cold]
    #[inline(never)]
    fn replace_by_guests(&self) {
        self.guest.load();
    }

    /// Loads virtual EL2's controls after a change.
    #[cold]
    #[inline(never)]
    pub fn load_own(&self) {
        self.own.load();
    }
}

/// Loads the controls of other vCPUs in place of virtual EL2's.
pub fn load_ordinary() {
    Values::own().load();
}

/// HCRX_EL2 of a vCPU with an EL2, or of others.
pub fn set_copies_to_el2(on: bool) {
    let have = features::get();
    if have.hcx && have.mops {
        write_sysreg!(HCRX_EL2, traps::hcrx(have) | if on { MCE2 } else { 0 });
    }
}
