//! Breakpoints and watchpoints. Most guests never use them: their registers trap until the first access, and move at
//! load and put from then on.

use stile_snapshot::aarch64::{BREAKPOINTS, Debug as Saved};

use super::traps;
use crate::arch::aarch64::host::features;
use crate::arch::aarch64::host::sysreg::{isb, read_sysreg, write_sysreg};

const MOST: usize = BREAKPOINTS;

/// OS lock while no vCPU is loaded: unlocked, as a booted guest leaves it.
const LOCKED_ON_PUT: bool = false;

/// Debug registers of a vCPU.
pub struct Debug {
    in_use: bool,
    /// OSLSR_EL1.OSLK.
    os_lock: bool,
    bvr: [u64; MOST],
    bcr: [u64; MOST],
    wvr: [u64; MOST],
    wcr: [u64; MOST],
}

impl Debug {
    /// Reset state: not in use, OS lock set (Arm ARM, OSLSR_EL1, on a Cold reset).
    pub fn reset(&mut self) {
        *self = Debug { in_use: false, os_lock: true, bvr: [0; MOST], bcr: [0; MOST], wvr: [0; MOST], wcr: [0; MOST] };
    }

    /// Writes the OS lock of the loaded vCPU, which the hardware observes.
    pub fn set_os_lock(&mut self, locked: bool) {
        self.os_lock = locked;
        write_sysreg!(OSLAR_EL1, u64::from(locked));
    }

    /// OSLSR_EL1: OSLM (implemented) and OSLK (state).
    pub fn os_lock_status(&self) -> u64 {
        1 << 3 | u64::from(self.os_lock) << 1
    }

    /// Grants the registers to the loaded vCPU, whose guest accessed one.
    pub fn grant(&mut self) {
        self.in_use = true;
        traps::set_debug_traps(false);
        self.load();
    }

    /// Grants the registers from the start. The vCPU is not loaded.
    pub fn share(&mut self) {
        self.in_use = true;
    }

    /// Whether the registers are granted.
    pub fn in_use(&self) -> bool {
        self.in_use
    }

    /// Exports the registers of a vCPU that is not loaded.
    pub fn save(&self) -> Saved {
        let Debug { in_use, os_lock, bvr, bcr, wvr, wcr } = *self;
        Saved { in_use, os_lock, bvr, bcr, wvr, wcr }
    }

    /// Imports the registers of a vCPU that is not loaded. The guest could have written any values.
    pub fn restore(&mut self, from: &Saved) {
        let Saved { in_use, os_lock, bvr, bcr, wvr, wcr } = *from;
        *self = Debug { in_use, os_lock, bvr, bcr, wvr, wcr };
    }

    /// Loads the registers, if granted.
    #[inline(always)]
    pub fn load(&self) {
        if self.in_use {
            self.load_granted();
        }
        if self.os_lock != LOCKED_ON_PUT {
            write_sysreg!(OSLAR_EL1, u64::from(self.os_lock));
        }
    }

    #[inline(never)]
    fn load_granted(&self) {
        traps::set_debug_traps(false);
        let have = features::get();
        for n in 0..MOST {
            if n <= have.breakpoints as usize {
                write_breakpoint(n, self.bvr[n], self.bcr[n]);
            }
            if n <= have.watchpoints as usize {
                write_watchpoint(n, self.wvr[n], self.wcr[n]);
            }
        }
    }

    /// Puts the registers, if granted, and disables them, so that they do not stop another vCPU. The next vCPU finds
    /// them trapped, and the OS lock as in [`LOCKED_ON_PUT`].
    #[inline(always)]
    pub fn put(&mut self) {
        if self.os_lock != LOCKED_ON_PUT {
            write_sysreg!(OSLAR_EL1, u64::from(LOCKED_ON_PUT));
        }
        if self.in_use {
            self.put_granted();
        }
    }

    #[inline(never)]
    fn put_granted(&mut self) {
        traps::set_debug_traps(true);
        let have = features::get();
        for n in 0..MOST {
            if n <= have.breakpoints as usize {
                (self.bvr[n], self.bcr[n]) = read_breakpoint(n);
                write_breakpoint(n, 0, 0);
            }
            if n <= have.watchpoints as usize {
                (self.wvr[n], self.wcr[n]) = read_watchpoint(n);
                write_watchpoint(n, 0, 0);
            }
        }
        // DBGCLAIMCLR_EL1: shared by all VMs of a CPU, and so a covert channel.
        write_sysreg!(DBGCLAIMCLR_EL1, 0xff);
        isb();
    }
}

/// Disables all breakpoints and watchpoints of this CPU: their reset state is unknown.
pub fn disable() {
    let have = features::get();
    write_sysreg!(OSLAR_EL1, u64::from(LOCKED_ON_PUT));
    for n in 0..=usize::from(have.breakpoints) {
        write_breakpoint(n, 0, 0);
    }
    for n in 0..=usize::from(have.watchpoints) {
        write_watchpoint(n, 0, 0);
    }
}

// The register's number is part of its name, so that each access is a branch on the number.
macro_rules! register_pairs {
    ($read:ident, $write:ident, $value:literal, $control:literal; $($n:literal)*) => {
        fn $read(n: usize) -> (u64, u64) {
            match n {
                $($n => (
                    read_sysreg!(concat!($value, $n, "_EL1")),
                    read_sysreg!(concat!($control, $n, "_EL1")),
                ),)*
                _ => (0, 0),
            }
        }

        fn $write(n: usize, value: u64, control: u64) {
            match n {
                $($n => {
                    write_sysreg!(concat!($value, $n, "_EL1"), value);
                    write_sysreg!(concat!($control, $n, "_EL1"), control);
                })*
                _ => {}
            }
        }
    };
}
register_pairs!(read_breakpoint, write_breakpoint, "DBGBVR", "DBGBCR"; 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
register_pairs!(read_watchpoint, write_watchpoint, "DBGWVR", "DBGWCR"; 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
