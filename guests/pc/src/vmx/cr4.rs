//! CR4.VMXE, outside VMX operation.

use core::arch::asm;

use pc::exception::catch;

use crate::test::{Outcome, Test, check, same};

pub const ALL: &[Test] = &[("vmxe_with_others", with_others)];

const GENERAL_PROTECTION: Option<(u64, u64)> = Some((13, 0));

fn read() -> u64 {
    let cr4: u64;
    // SAFETY: reads a control register, which has no side effect at privilege level 0.
    unsafe { asm!("mov {}, cr4", out(reg) cr4) };
    cr4
}

/// VMXE changes together with bits that page walks depend on.
fn with_others() -> Outcome {
    const VMXE: u64 = 1 << 13;
    const PAE: u64 = 1 << 5;
    const PGE: u64 = 1 << 7;
    const PCIDE: u64 = 1 << 17;
    let before = read();
    let has_pcids = core::arch::x86_64::__cpuid_count(1, 0).ecx & 1 << 17 != 0;
    let changed = before ^ (VMXE | PGE) | if has_pcids { PCIDE } else { 0 };
    check!(catch!("mov cr4, rsi", "rsi" = changed & !PAE) == GENERAL_PROTECTION, "PAE can be cleared in 64-bit mode");
    same!(read(), before, "CR4 after the exception");
    same!(catch!("mov cr4, rsi", "rsi" = changed), None, "a change of VMXE with PGE and PCIDE");
    same!(read(), changed, "CR4");
    same!(catch!("mov cr4, rsi", "rsi" = before), None, "a change back");
    same!(read(), before, "CR4 as before");
    Outcome::Pass
}
