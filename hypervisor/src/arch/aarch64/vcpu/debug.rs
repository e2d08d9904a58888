//! Breakpoints and watchpoints. Most guests never use them: their registers trap until the first access, and move at
//! load and put from then on.
//!
//! The physical OS lock is always clear: with it set, MDSCR_EL1 writes fields of the machine's EDSCR, of which INTdis
//! masks interrupts to EL2 as well (Arm ARM, MDSCR_EL1, EDSCR). While the guest's is set, the registers trap, and the
//! guest accesses the copy here.

use stile_snapshot::aarch64::{BREAKPOINTS, Debug as Saved};
use stile_sysreg::SysReg;

use super::traps;
use crate::arch::aarch64::assigned::injection;
use crate::arch::aarch64::host::cpu::this_index;
use crate::arch::aarch64::host::features;
use crate::arch::aarch64::host::sysreg::{isb, read_sysreg, write_sysreg};

const MOST: usize = BREAKPOINTS;

/// MDSCR_EL1 bits that guests can set: SS, TDCC, KDE, MDE.
const MDSCR: u64 = 1 << 15 | 1 << 13 | TDCC | 1;
/// EL0's accesses of the debug communications channel trap.
const TDCC: u64 = 1 << 12;

/// Debug registers of a vCPU.
pub struct Debug {
    /// The guest has used them.
    in_use: bool,
    /// They are in the CPU while the vCPU is loaded.
    granted: bool,
    /// [`Debug::put`] has something to do: they are granted, or a vPE is resident with the vCPU.
    has_put: bool,
    /// A vPE is resident with the vCPU.
    resident: bool,
    /// They are granted also while the OS lock is set: the vCPU has an EL2.
    shared: bool,
    /// OSLSR_EL1.OSLK.
    os_lock: bool,
    /// MDSCR_EL1 while the OS lock withholds it: then the CPU's has TDCC only.
    mdscr: u64,
    bvr: [u64; MOST],
    bcr: [u64; MOST],
    wvr: [u64; MOST],
    wcr: [u64; MOST],
}

impl Debug {
    /// Reset state: not in use, OS lock set (Arm ARM, OSLSR_EL1, on a Cold reset).
    pub fn reset(&mut self) {
        *self = Debug {
            in_use: false,
            granted: false,
            has_put: false,
            resident: false,
            shared: false,
            os_lock: true,
            mdscr: 0,
            bvr: [0; MOST],
            bcr: [0; MOST],
            wvr: [0; MOST],
            wcr: [0; MOST],
        };
    }

    /// Writes the OS lock of the loaded vCPU: debug exceptions, except those of BRK, are disabled while it is set (Arm ARM,
    /// OSLSR_EL1.OSLK).
    fn set_os_lock(&mut self, locked: bool) {
        if self.os_lock == locked {
            return;
        }
        self.os_lock = locked;
        if self.shared {
            return;
        }
        if locked {
            if self.granted {
                self.put_granted();
            }
            self.granted = false;
            self.mdscr = read_sysreg!(MDSCR_EL1) & MDSCR;
            write_sysreg!(MDSCR_EL1, self.mdscr & TDCC);
        } else {
            write_sysreg!(MDSCR_EL1, self.mdscr);
            if self.in_use {
                self.grant();
            }
        }
    }

    /// Grants the registers to the loaded vCPU, whose guest accessed one. Returns false if they are granted already, or the
    /// OS lock withholds them.
    pub fn grant(&mut self) -> bool {
        if self.granted || self.os_lock {
            return false;
        }
        (self.in_use, self.granted, self.has_put) = (true, true, true);
        self.load_granted();
        true
    }

    /// Grants the registers from the start. The vCPU is not loaded.
    pub fn share(&mut self) {
        (self.in_use, self.granted, self.has_put, self.shared) = (true, true, true, true);
    }

    /// Reads a register of the loaded vCPU, for its guest. `None` if the CPU does not have it.
    pub fn read(&mut self, reg: SysReg) -> Option<u64> {
        match reg {
            // OSLM: the lock is implemented.
            SysReg::OSLSR_EL1 => Some(1 << 3 | u64::from(self.os_lock) << 1),
            SysReg::MDSCR_EL1 => Some(self.mdscr),
            _ => match self.comparator(reg) {
                Comparator::Register(value) => Some(*value),
                Comparator::Absent => None,
                // Machine-wide registers: RAZ/WI.
                Comparator::Other => Some(0),
            },
        }
    }

    /// Writes a register of the loaded vCPU, for its guest. `None` if the CPU does not have it.
    pub fn write(&mut self, reg: SysReg, value: u64) -> Option<()> {
        match reg {
            SysReg::OSLAR_EL1 => self.set_os_lock(value & 1 != 0),
            SysReg::MDSCR_EL1 => {
                (self.in_use, self.mdscr) = (true, value & MDSCR);
                write_sysreg!(MDSCR_EL1, value & TDCC);
            }
            _ => match self.comparator(reg) {
                Comparator::Register(register) => {
                    *register = value;
                    self.in_use = true;
                }
                Comparator::Absent => return None,
                Comparator::Other => {}
            },
        }
        Some(())
    }

    /// The copy of a register of a breakpoint or watchpoint.
    fn comparator(&mut self, reg: SysReg) -> Comparator<'_> {
        let have = features::get();
        let (of, last) = match (reg.op0(), reg.op1(), reg.crn(), reg.op2()) {
            (2, 0, 0, 4) => (&mut self.bvr, have.breakpoints),
            (2, 0, 0, 5) => (&mut self.bcr, have.breakpoints),
            (2, 0, 0, 6) => (&mut self.wvr, have.watchpoints),
            (2, 0, 0, 7) => (&mut self.wcr, have.watchpoints),
            _ => return Comparator::Other,
        };
        of.get_mut(usize::from(reg.crm())).filter(|_| reg.crm() <= last).map_or(Comparator::Absent, Comparator::Register)
    }

    /// Exports the registers of a vCPU that is not loaded. `mdscr`: its MDSCR_EL1, which becomes that of the guest's view.
    pub fn save(&self, mdscr: &mut u64) -> Saved {
        let Debug { in_use, os_lock, bvr, bcr, wvr, wcr, .. } = *self;
        if os_lock {
            *mdscr = self.mdscr;
        }
        Saved { in_use, os_lock, bvr, bcr, wvr, wcr }
    }

    /// Imports the registers of a vCPU that is not loaded. The guest could have written any values. `mdscr`: as in
    /// [`save`](Self::save); becomes that of the CPU.
    pub fn restore(&mut self, from: &Saved, mdscr: &mut u64) {
        let Saved { in_use, os_lock, bvr, bcr, wvr, wcr } = *from;
        let guests = *mdscr & MDSCR;
        if os_lock {
            *mdscr = guests & TDCC;
        }
        let granted = in_use && !os_lock;
        *self = Debug { in_use, granted, has_put: granted, resident: false, shared: false, os_lock, mdscr: guests, bvr, bcr, wvr, wcr };
    }

    /// Loads the registers, if granted.
    #[inline(always)]
    pub fn load(&self) {
        if self.granted {
            self.load_granted();
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
    /// them trapped.
    #[inline(always)]
    pub fn put(&mut self) {
        if self.has_put {
            self.put_something();
        }
    }

    /// Makes the next [`Debug::put`] end the residency of the loaded vCPU's vPE: no other test is needed at put.
    pub fn depart_at_put(&mut self) {
        (self.has_put, self.resident) = (true, true);
    }

    #[inline(never)]
    fn put_something(&mut self) {
        if self.resident {
            injection::depart(this_index());
            self.resident = false;
        }
        self.has_put = self.granted;
        if self.granted {
            self.put_granted();
        }
    }

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

/// A register by its encoding.
enum Comparator<'a> {
    /// Of a breakpoint or watchpoint.
    Register(&'a mut u64),
    /// Of one that the CPU does not have.
    Absent,
    /// Another register.
    Other,
}

/// Disables all breakpoints and watchpoints of this CPU, whose reset state is unknown, and clears the OS lock.
pub fn disable() {
    let have = features::get();
    write_sysreg!(OSLAR_EL1, 0);
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
