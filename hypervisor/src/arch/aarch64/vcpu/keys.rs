//! Pointer-authentication keys. They, and the instructions that use them, trap until a vCPU's first use of either; its
//! keys move at load and put from then on.
//!
//! No vCPU uses or reads another one's keys: [`Keys::load`] leaves HCR_EL2.API and APK set only for a vCPU whose own keys
//! it writes to the registers. For any other both are clear: each access to a key traps (APK), and each instruction that
//! uses one traps unless the guest's SCTLR_EL1 makes it a no-op (API; Arm ARM, HCR_EL2). The registers are cleared when
//! both bits are, so that speculation cannot use another vCPU's keys either.

use super::registers::{self, KEYS};
use super::traps;
use crate::arch::aarch64::host::features;

/// Keys of a vCPU.
pub struct Keys {
    in_use: bool,
    values: [u64; KEYS],
}

impl Keys {
    /// Reset state: not in use.
    pub fn reset(&mut self) {
        *self = Keys { in_use: false, values: [0; KEYS] };
    }

    /// Grants the keys from the start. The vCPU is not loaded.
    pub fn share(&mut self) {
        self.in_use = features::get().pauth;
    }

    /// Values of a vCPU that is not loaded: zero before its first use.
    pub const fn saved(&self) -> [u64; KEYS] {
        self.values
    }

    /// Replaces the values of a vCPU that is not loaded. Keys that are all zero are not in use yet.
    pub fn restore(&mut self, values: &[u64; KEYS]) {
        *self = Keys { in_use: features::get().pauth && *values != [0; KEYS], values: *values };
    }

    /// Handles a trapped access by the loaded vCPU, which then retries. Returns false if the keys were granted already.
    /// `trapped`: whether keys trap on this CPU.
    pub fn grant(&mut self, trapped: &mut bool) -> bool {
        if self.in_use || !features::get().pauth {
            return false;
        }
        self.in_use = true;
        self.load(trapped);
        true
    }

    /// Loads the keys, if granted; otherwise they trap.
    #[inline(always)]
    pub fn load(&self, trapped: &mut bool) {
        if *trapped == self.in_use {
            set_traps(!self.in_use, trapped);
        }
        if self.in_use {
            self.load_granted();
        }
    }

    #[inline(never)]
    fn load_granted(&self) {
        registers::load_keys(&self.values);
    }

    /// Puts the keys, if granted.
    #[inline(always)]
    pub fn put(&mut self) {
        if self.in_use {
            self.put_granted();
        }
    }

    #[inline(never)]
    fn put_granted(&mut self) {
        registers::save_keys(&mut self.values);
    }
}

#[inline(never)]
fn set_traps(on: bool, trapped: &mut bool) {
    // Without FEAT_PAuth no vCPU has keys, and the bits are reserved.
    if features::get().pauth {
        traps::set_key_traps(on);
        if on {
            registers::load_keys(&[0; KEYS]);
        }
    }
    *trapped = on;
}
