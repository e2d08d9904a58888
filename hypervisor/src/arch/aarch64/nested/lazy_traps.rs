//! Controls of L1's guest that seldom change, and mostly ask for nothing: fine-grained traps, HCRX_EL2, HSTR_EL2. L1 writes them in memory,
//! unseen, but never while its guest runs. So each entry to that looks whether one has changed since the last. What they are on the CPU is
//! found out only then, and they are loaded only if that is not what Stile has there for virtual EL2.

use stile_nested::forward::{Control, Masks};
use stile_nested::vncr::{self, Page, Slot};

use crate::arch::aarch64::host::features;
use crate::arch::aarch64::host::sysreg::write_sysreg;
use crate::arch::aarch64::vcpu::traps;

/// How many there are.
const COUNT: usize = 7;

/// Their places in the page, in the order of addresses, and what they are to crate `nested`.
const REGISTERS: [(Slot, Control); COUNT] = [
    (vncr::HFGRTR_EL2, Control::Hfgrtr),
    (vncr::HFGWTR_EL2, Control::Hfgwtr),
    (vncr::HFGITR_EL2, Control::Hfgitr),
    (vncr::HDFGRTR_EL2, Control::Hdfgrtr),
    (vncr::HDFGWTR_EL2, Control::Hdfgwtr),
    (vncr::HCRX_EL2, Control::Hcrx),
    (vncr::HSTR_EL2, Control::Hstr),
];

/// The registers on the CPU.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Values([u64; COUNT]);

/// HCRX_EL2.MCE2: exceptions of memory copies come to EL2. KVM sets it for a guest that has them; so that nothing need be loaded
/// then, it is always set, and who is to have the exception is found out when there is one.
const MCE2: u64 = 1 << 10;
/// HCRX_EL2.MSCEn: EL1 and EL0 have memory copy and set instructions.
const MSCEN: u64 = 1 << 11;
/// HCRX_EL2.{FnXS, FGTnXS}.
const NO_XS: u64 = 0b11 << 3;
/// HDFGWTR_EL2.MDSCR_EL1: writes of that register trap.
const MDSCR_WRITES: u64 = 1 << 4;
/// HSTR_EL2.{T7, T9, T13}: EL0 reaches no AArch32 register of another number, and EL1 is AArch64.
const BY_NUMBER: u64 = 1 << 7 | 1 << 9 | 1 << 13;

/// HFGRTR_EL2, HFGWTR_EL2: the five keys of pointer authentication.
const KEYS: u64 = 0x1f << 4;
/// HCR_EL2.APK: they don't trap.
const APK: u64 = 1 << 40;

impl Values {
    /// Values for virtual EL2 while its writes of MDSCR_EL1 don't trap.
    fn own() -> Self {
        let have = features::get();
        let [hfgrtr, hfgwtr, hfgitr, hdfgrtr, hdfgwtr] = traps::FINE;
        let hcrx = traps::hcrx(have) | if have.mops { MCE2 } else { 0 };
        Self([hfgrtr, hfgwtr, hfgitr, hdfgrtr, hdfgwtr, hcrx, 0])
    }

    /// Controls of its guest, where L1 wrote `seen`.
    fn of_guest(seen: &[u64; COUNT], masks: &Masks) -> Self {
        let Self(mut values) = Self::own();
        for ((value, written), (_, control)) in values.iter_mut().zip(seen).zip(REGISTERS) {
            *value = match control {
                // A bit of a feature that L1's processor doesn't have is not L1's.
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

/// The state of these controls.
pub struct LazyTraps {
    /// As the CPU is to have them while virtual EL2 runs.
    own: Values,
    /// As L1 had them when its guest ran last.
    seen: [u64; COUNT],
    /// As the CPU is to have them while that runs.
    guest: Values,
    /// Whether that is not what virtual EL2 runs with.
    differs: bool,
    /// Bits of HCR_EL2 that the guest has set only if L1 has, and these.
    pub hcr: u64,
}

impl LazyTraps {
    /// L1 has written nothing.
    pub fn at_reset() -> Self {
        // HCRX_EL2.MSCEn is not 0 for virtual EL2: the first entry to the guest finds that out.
        Self { own: Values::own(), seen: [u64::MAX; COUNT], guest: Values::own(), differs: false, hcr: u64::MAX }
    }

    /// Sets whether virtual EL2's writes of MDSCR_EL1 trap, from the next [`LazyTraps::unload_guests`] on. The CPU has FEAT_FGT.
    pub fn trap_mdscr_writes(&mut self, on: bool) {
        self.own = Values::own();
        if on {
            let Values([_, _, _, _, hdfgwtr, ..]) = &mut self.own;
            *hdfgwtr |= MDSCR_WRITES;
        }
        self.differs = self.guest != self.own;
    }

    /// Looks at what L1 has written to `page`. Its guest is about to run.
    #[inline(always)]
    pub fn update<'a>(&mut self, page: &Page, masks: impl FnOnce() -> &'a Masks) {
        // All of them, with no branch between: mostly none has.
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
            // KVM traps all keys so for a guest that has none, and by HCR_EL2.APK as well, which is written at each switch.
            *reads &= !KEYS;
            *writes &= !KEYS;
            hcr = !APK;
        }
        let own = self.own;
        *self = LazyTraps { own, seen, guest, differs: guest != own, hcr };
    }

    /// The guest's controls onto the CPU, where virtual EL2's are.
    #[inline(always)]
    pub fn load_guests(&self) {
        if self.differs {
            self.replace_by_guests();
        }
    }

    /// Virtual EL2's controls onto the CPU, where the guest's are.
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

    /// Virtual EL2's controls onto the CPU, after one has changed.
    #[cold]
    #[inline(never)]
    pub fn load_own(&self) {
        self.own.load();
    }
}

/// The controls of other vCPUs onto the CPU, where virtual EL2's are.
pub fn load_ordinary() {
    Values::own().load();
}

/// HCRX_EL2 as a vCPU with an EL2 has it, or as others do.
pub fn set_copies_to_el2(on: bool) {
    let have = features::get();
    if have.hcx && have.mops {
        write_sysreg!(HCRX_EL2, traps::hcrx(have) | if on { MCE2 } else { 0 });
    }
}
