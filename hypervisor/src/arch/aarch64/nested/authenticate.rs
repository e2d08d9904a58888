//! Authenticates the return address of ERETAA and ERETAB with L1's keys, which are in the CPU.

use stile_nested_arm::inject::EretKind;
use stile_nested_arm::pauth::{Authenticated, Controls};

use crate::arch::aarch64::host::features;
use crate::arch::aarch64::host::sysreg::{isb, read_sysreg, write_sysreg};

/// SCTLR_EL1.EnIA and EnIB: without it the instruction does not authenticate.
const ENABLE_A: u64 = 1 << 31;
const ENABLE_B: u64 = 1 << 30;
/// PSTATE.SP: the stack pointer is virtual EL2's, in SP_EL1.
const SP: u64 = 1;

/// Returns where an exception return of this kind goes, of a vCPU at virtual EL2 with this processor state.
pub fn return_address(kind: EretKind, elr: u64, pstate: u64) -> Authenticated {
    let (enable, key, is_key_b) = match kind {
        EretKind::Plain => return Authenticated::Address(elr),
        EretKind::KeyA => (ENABLE_A, [read_sysreg!(APIAKeyLo_EL1), read_sysreg!(APIAKeyHi_EL1)], false),
        EretKind::KeyB => (ENABLE_B, [read_sysreg!(APIBKeyLo_EL1), read_sysreg!(APIBKeyHi_EL1)], true),
    };
    if read_sysreg!(SCTLR_EL12) & enable == 0 {
        return Authenticated::Address(elr);
    }
    let modifier = if pstate & SP != 0 { read_sysreg!(SP_EL1) } else { read_sysreg!(SP_EL0) };
    let controls = Controls { tcr: read_sysreg!(TCR_EL12), level: features::get().pauth_level };
    controls.authenticate(elr, is_key_b, |address| generic_code(address, modifier, key))
}

/// PACGA with `key` in place of L1's generic key.
fn generic_code(address: u64, modifier: u64, key: [u64; 2]) -> u64 {
    let kept = [read_sysreg!(APGAKeyLo_EL1), read_sysreg!(APGAKeyHi_EL1)];
    let set = |[low, high]: [u64; 2]| {
        write_sysreg!(APGAKeyLo_EL1, low);
        write_sysreg!(APGAKeyHi_EL1, high);
        isb();
    };
    set(key);
    let code;
    // SAFETY: the CPU has FEAT_PAuth, as the instruction trapped; it computes on registers, and accesses no memory.
    unsafe {
        core::arch::asm!(
            ".arch_extension pauth",
            "pacga {}, {}, {}",
            out(reg) code,
            in(reg) address,
            in(reg) modifier,
            options(nomem, nostack, preserves_flags)
        );
    }
    set(kept);
    code
}
