//! IA32_SPEC_CTRL, IA32_PRED_CMD and IA32_ARCH_CAPABILITIES: what CPUID enumerates is there, and nothing else.

use core::arch::x86_64::__cpuid_count as cpuid;

use super::test::check;
use super::vector::GENERAL_PROTECTION;
use crate::console::println;
use crate::exception::catch;
use crate::machine::{rdmsr, wrmsr};
use crate::others;
use pc::hypercall::is_amds;

const SPEC_CTRL: u32 = 0x48;
const PRED_CMD: u32 = 0x49;
const ARCH_CAPABILITIES: u32 = 0x10a;

/// Bit of CPUID that enumerates IBPB; those of IBRS, STIBP and SSBD with their bits of IA32_SPEC_CTRL. Intel's are in CPUID.(EAX=7,
/// ECX=0):EDX, AMD's in leaf 8000_0008H, EBX.
type Bits = (u32, [(u32, u64); 3]);
const INTELS: Bits = (26, [(26, 1 << 0), (27, 1 << 1), (31, 1 << 2)]);
const AMDS: Bits = (12, [(14, 1 << 0), (15, 1 << 1), (24, 1 << 2)]);

pub fn control(_: u64) -> Result<(), &'static str> {
    let is_amds = is_amds();
    let edx = cpuid(7, 0).edx;
    let (word, (barrier, bits)) = if is_amds { (cpuid(0x8000_0008, 0).ebx, AMDS) } else { (edx, INTELS) };
    let has = |bit: u32| word & 1 << bit != 0;
    let has_capabilities = edx & 1 << 29 != 0;
    let raises = |found: Option<(u64, u64)>| found == Some((GENERAL_PROTECTION, 0));
    println!("speculation control: {word:#x}");
    let writable: u64 = bits.into_iter().filter(|(feature, _)| has(*feature)).map(|(_, bit)| bit).sum();
    check!(writable == 0 || is_amds || has(26), "STIBP or SSBD without IBRS");
    let has_control = if is_amds { writable != 0 } else { has(26) };
    check!(raises(catch!("wrmsr", "ecx" = ARCH_CAPABILITIES, "eax" = 0, "edx" = 0)), "IA32_ARCH_CAPABILITIES is writable");
    check!(raises(catch!("rdmsr", "ecx" = PRED_CMD)), "IA32_PRED_CMD is readable");
    check!(raises(catch!("rdmsr", "ecx" = ARCH_CAPABILITIES)) != has_capabilities, "IA32_ARCH_CAPABILITIES and CPUID differ");
    check!(raises(catch!("rdmsr", "ecx" = SPEC_CTRL)) != has_control, "IA32_SPEC_CTRL and CPUID differ");
    check!(raises(catch!("wrmsr", "ecx" = PRED_CMD, "eax" = 1, "edx" = 0)) != has(barrier), "IA32_PRED_CMD and CPUID differ");
    check!(raises(catch!("wrmsr", "ecx" = PRED_CMD, "eax" = 2, "edx" = 0)), "a reserved bit of IA32_PRED_CMD");
    check!(raises(catch!("wrmsr", "ecx" = SPEC_CTRL, "eax" = !(writable as u32), "edx" = 0)), "a reserved bit of IA32_SPEC_CTRL");
    if !has_control {
        return Ok(());
    }
    for bit in [0, 1, 2, 0].map(|bit| 1 << bit & writable) {
        // SAFETY: CPUID enumerates the register and the bit.
        let found = unsafe {
            wrmsr(SPEC_CTRL, bit);
            // Another VM or vCPU may run meanwhile.
            others::pass(100_000);
            rdmsr(SPEC_CTRL)
        };
        check!(found == bit, "IA32_SPEC_CTRL does not keep its value");
    }
    // SAFETY: CPUID enumerates IA32_SPEC_CTRL, and 0 turns all of its mitigations off, as at reset.
    unsafe { wrmsr(SPEC_CTRL, 0) };
    Ok(())
}
