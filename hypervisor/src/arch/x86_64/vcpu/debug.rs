//! CR2 and the debug registers stay those of the loaded vCPU while Stile runs. DR7, which enables the others, is in the
//! control structure.

use core::arch::asm;

use crate::arch::x86_64::virt::state;

/// Values of a vCPU that is not loaded.
#[repr(C)]
pub struct Debug {
    cr2: u64,
    /// DR0 to DR3.
    addresses: [u64; 4],
    dr6: u64,
}

impl Debug {
    /// Reset and INIT state (the manual, "Processor State Following Power-up, Reset, or INIT").
    pub fn reset(&mut self) {
        *self = Debug { cr2: 0, addresses: [0; 4], dr6: 0xffff_0ff0 };
    }

    /// Exports the registers.
    pub fn saved(&self) -> [u64; 6] {
        let [a, b, c, d] = self.addresses;
        [self.cr2, a, b, c, d, self.dr6]
    }

    /// Imports registers: DR6 does not take more than 32 bits.
    pub fn restore(&mut self, from: &[u64; 6]) {
        let [cr2, a, b, c, d, dr6] = *from;
        *self = Debug { cr2, addresses: [a, b, c, d], dr6: dr6 & 0xffff_ffff };
    }

    /// Loads the registers.
    pub fn load(&self) {
        let [a, b, c, d] = self.addresses;
        // SAFETY: the registers hold guest values, without effect on Stile: after an exit DR7 enables no breakpoint.
        unsafe {
            asm!(
                "mov dr0, {a}", "mov dr1, {b}", "mov dr2, {c}", "mov dr3, {d}",
                a = in(reg) a, b = in(reg) b, c = in(reg) c, d = in(reg) d, options(nostack, preserves_flags)
            );
        }
        state::set_fault_address(self.cr2);
        state::set_dr6(self.dr6);
    }

    /// Puts the registers.
    pub fn put(&mut self) {
        let [a, b, c, d]: [u64; 4];
        // SAFETY: reads of debug registers have no side effects, since a VM exit clears DR7.GD ("Loading Host Control Registers").
        unsafe {
            asm!(
                "mov {a}, dr0", "mov {b}, dr1", "mov {c}, dr2", "mov {d}, dr3",
                a = out(reg) a, b = out(reg) b, c = out(reg) c, d = out(reg) d, options(nostack, preserves_flags)
            );
        }
        self.cr2 = state::fault_address();
        self.dr6 = state::dr6();
        self.addresses = [a, b, c, d];
    }
}
