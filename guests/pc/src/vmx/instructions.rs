//! VMX instructions with each of their failures (Intel SDM volume 3, "VMX Instruction Reference"), and the capability MSRs.

use core::arch::asm;

use pc::exception::catch;
use pc::machine::wrmsr;

use crate::field::{self, secondary};
use crate::test::{Outcome, Test, check, is_guest, same};
use crate::vmcs::{
    self, Done, FIRST, SECOND, VMXON, allowed, capability, code, get, invept, invvpid, misc, page, poke, revision, run, set, vmclear,
    vmlaunch_only, vmptrld, vmptrst, vmread, vmresume_only, vmwrite, vmxoff, vmxon,
};

/// Before VMX operation, which the last of these enters.
pub const BEFORE: &[Test] = &[("capabilities", capabilities), ("operation_outside", outside), ("operation_vmxon", failures)];

/// In VMX operation.
pub const ALL: &[Test] = &[
    ("fixed_bits", fixed_bits),
    ("vmclear", clear),
    ("vmptrld", load),
    ("vmread_and_vmwrite", fields),
    ("fields_keep_their_values", keep),
    ("launch_states", launch_states),
    ("events_blocked_by_mov_ss", mov_ss),
    ("invept", invalidate_ept),
    ("invvpid", invalidate_vpid),
];

/// Leaves VMX operation.
pub const LAST: Test = ("vmxoff", leave);

const UNDEFINED: Option<(u64, u64)> = Some((6, 0));
/// An address without a page.
const UNMAPPED: u64 = 1 << 40;
const GENERAL_PROTECTION: Option<(u64, u64)> = Some((13, 0));

fn capabilities() -> Outcome {
    let basic = capability(0x480);
    check!(basic & 1 << 31 == 0 && basic & 1 << 48 == 0, "IA32_VMX_BASIC");
    check!((1..=4096).contains(&(basic >> 32 & 0x1fff)), "the size of regions");
    check!(basic >> 50 & 0xf == 6, "regions are not write-back");
    // Without VMX operation, too, the MSRs are read-only.
    for number in 0x480..=0x48a {
        check!(catch!("wrmsr", "ecx" = number, "eax" = 0, "edx" = 0) == GENERAL_PROTECTION, "a capability MSR can be written");
    }
    for (plain, exact, default1) in [(0x481, 0x48d, 0x16), (0x482, 0x48e, 0x0401_e172), (0x483, 0x48f, 0x0003_6dff), (0x484, 0x490, 0x11ff)]
    {
        let plain = capability(plain);
        check!(plain as u32 & !((plain >> 32) as u32) == 0, "a control must be 1 and must not");
        check!(plain & default1 == default1, "a control of the default1 class may be 0");
        if basic & 1 << 55 != 0 {
            let exact = capability(exact);
            check!(exact >> 32 == plain >> 32 && exact & !plain & 0xffff_ffff == 0, "true controls differ");
        }
    }
    let (cr0, cr4) = ((capability(0x486), capability(0x487)), (capability(0x488), capability(0x489)));
    check!(cr0.0 & 0x8000_0021 == 0x8000_0021 && cr0.0 & !cr0.1 == 0, "fixed bits of CR0");
    check!(cr4.0 & 0x2000 == 0x2000 && cr4.0 & !cr4.1 == 0, "fixed bits of CR4");
    // The highest index is at least that of the guest's IA32_SYSENTER_CS.
    check!(capability(0x48a) & 0x3fe >= 0x2a, "IA32_VMX_VMCS_ENUM");
    check!(misc() >> 16 & 0x1ff <= 256, "CR3 targets");
    let (must, may) = allowed(field::SECONDARY_CONTROLS);
    check!(must == 0, "a secondary control must be 1");
    if may & secondary::UNRESTRICTED_GUEST != 0 {
        check!(may & secondary::EPT != 0, "unrestricted guests without EPT");
        check!(misc() & 1 << 5 != 0, "unrestricted guests, but EFER.LMA is not stored");
    }
    Outcome::Pass
}

fn outside() -> Outcome {
    let at = page(FIRST);
    check!(catch!("vmxon [rsi]", "rsi" = &at) == UNDEFINED, "VMXON without CR4.VMXE");
    // SAFETY: CPUID was checked for VMX before these tests run, so that CR4.VMXE can be set.
    unsafe { asm!("mov rax, cr4", "or eax, 1 << 13", "mov cr4, rax", out("rax") _) };
    check!(catch!("vmclear [rsi]", "rsi" = &at) == UNDEFINED, "VMCLEAR");
    check!(catch!("vmptrld [rsi]", "rsi" = &at) == UNDEFINED, "VMPTRLD");
    check!(catch!("vmptrst [rsi]", "rsi" = &at) == UNDEFINED, "VMPTRST");
    check!(catch!("vmread rax, rsi", "rsi" = 0x4402u64) == UNDEFINED, "VMREAD");
    check!(catch!("vmwrite rsi, rsi", "rsi" = 0x4402u64) == UNDEFINED, "VMWRITE");
    check!(catch!("vmlaunch") == UNDEFINED, "VMLAUNCH");
    check!(catch!("vmresume") == UNDEFINED, "VMRESUME");
    check!(catch!("vmxoff") == UNDEFINED, "VMXOFF");
    check!(catch!("vmcall") == UNDEFINED || is_guest(), "VMCALL");
    check!(catch!("invept rax, [rsi]", "rsi" = &at) == UNDEFINED, "INVEPT");
    check!(catch!("invvpid rax, [rsi]", "rsi" = &at) == UNDEFINED, "INVVPID");
    Outcome::Pass
}

/// An address with a bit beyond the physical-address width; the highest there is if it is 52.
fn wide() -> u64 {
    let bits = core::arch::x86_64::__cpuid_count(0x8000_0008, 0).eax & 0xff;
    1 << bits
}

/// Enters VMX operation, without the failures of VMXON.
pub fn enter() -> Outcome {
    poke(VMXON, 0, revision());
    // SAFETY: CPUID was checked for VMX before these tests run, so that CR4.VMXE can be set.
    unsafe { asm!("mov rax, cr4", "bts rax, 13", "mov cr4, rax", "mov rax, cr0", "bts rax, 5", "mov cr0, rax", out("rax") _) };
    same!(vmxon(page(VMXON)), Done::Succeed, "VMXON");
    Outcome::Pass
}

fn failures() -> Outcome {
    poke(VMXON, 0, revision());
    const NE: u64 = 1 << 5;
    let (cr0, region): (u64, u64);
    // SAFETY: CR0.NE selects how x87 exceptions are reported, and this program has none.
    unsafe { asm!("mov {0}, cr0", "and {0}, ~(1 << 5)", "mov cr0, {0}", out(reg) cr0) };
    region = page(VMXON);
    check!(catch!("vmxon [rsi]", "rsi" = &region) == GENERAL_PROTECTION, "VMXON without CR0.NE");
    check!(catch!("vmxon [rsi]", "rsi" = UNMAPPED) == GENERAL_PROTECTION, "VMXON without CR0.NE accesses its operand");
    // SAFETY: the bits of CR0 that must be 1.
    unsafe { asm!("mov cr0, {}", in(reg) cr0 | NE | capability(0x486)) };
    same!(vmxon(page(VMXON) + 8), Done::FailInvalid, "VMXON with an unaligned pointer");
    same!(vmxon(wide()), Done::FailInvalid, "VMXON beyond the physical-address width");
    poke(VMXON, 0, revision() ^ 1);
    same!(vmxon(page(VMXON)), Done::FailInvalid, "VMXON with another revision");
    poke(VMXON, 0, revision() | 1 << 31);
    same!(vmxon(page(VMXON)), Done::FailInvalid, "VMXON with a shadow VMCS");
    poke(VMXON, 0, revision());
    same!(vmxon(page(VMXON)), Done::Succeed, "VMXON");
    same!(vmxon(page(VMXON)), Done::FailInvalid, "VMXON again, without a current VMCS");
    same!(vmptrst(), u64::MAX, "VMPTRST without a current VMCS");
    same!(vmread(field::GUEST_RIP), Err(Done::FailInvalid), "VMREAD without a current VMCS");
    same!(vmwrite(field::GUEST_RIP, 0), Done::FailInvalid, "VMWRITE without a current VMCS");
    same!(vmlaunch_only(), Done::FailInvalid, "VMLAUNCH without a current VMCS");
    same!(vmresume_only(), Done::FailInvalid, "VMRESUME without a current VMCS");
    same!(vmclear(page(FIRST) + 1), Done::FailInvalid, "VMCLEAR without a current VMCS");
    same!(vmptrld(page(FIRST) + 1), Done::FailInvalid, "VMPTRLD without a current VMCS");
    poke(FIRST, 0, revision());
    same!(vmclear(page(FIRST)), Done::Succeed, "VMCLEAR");
    same!(vmptrld(page(FIRST)), Done::Succeed, "VMPTRLD");
    same!(vmxon(page(VMXON)), Done::Fail(15), "VMXON in VMX operation");
    check!(catch!("vmxon [rsi]", "rsi" = UNMAPPED).is_none(), "VMXON in VMX operation accesses its operand");
    Outcome::Pass
}

fn fixed_bits() -> Outcome {
    let (cr0, cr4): (u64, u64);
    // SAFETY: reads a control register, which has no side effect at privilege level 0.
    unsafe { asm!("mov {}, cr0", "mov {}, cr4", out(reg) cr0, out(reg) cr4) };
    check!(cr4 & 1 << 13 != 0, "CR4.VMXE reads as 0");
    let can_clear_vmxe = catch!("mov cr4, rsi", "rsi" = cr4 & !(1 << 13)) != GENERAL_PROTECTION;
    let can_clear_ne = catch!("mov cr0, rsi", "rsi" = cr0 & !(1 << 5)) != GENERAL_PROTECTION;
    // SAFETY: for the tests that follow, as it was.
    unsafe { asm!("mov cr0, {}", "mov cr4, {}", in(reg) cr0, in(reg) cr4) };
    check!(!can_clear_vmxe, "CR4.VMXE can be cleared");
    check!(!can_clear_ne, "CR0.NE can be cleared");
    check!(catch!("mov cr0, rsi", "rsi" = cr0 & !(1 << 31)) == GENERAL_PROTECTION, "CR0.PG can be cleared");
    Outcome::Pass
}

/// Makes the first VMCS current.
fn begin() {
    vmcs::fresh(code!("nop"));
}

fn clear() -> Outcome {
    begin();
    same!(vmclear(page(SECOND) + 0x800), Done::Fail(2), "an unaligned pointer");
    same!(vmclear(wide()), Done::Fail(2), "beyond the physical-address width");
    same!(vmclear(page(VMXON)), Done::Fail(3), "the VMXON pointer");
    same!(vmptrst(), page(FIRST), "the current VMCS changed");
    same!(vmclear(page(SECOND)), Done::Succeed, "another VMCS");
    same!(vmptrst(), page(FIRST), "the current VMCS changed");
    same!(vmclear(page(FIRST)), Done::Succeed, "the current VMCS");
    same!(vmptrst(), u64::MAX, "a current VMCS is left");
    Outcome::Pass
}

fn load() -> Outcome {
    begin();
    same!(vmptrld(page(SECOND) + 4), Done::Fail(9), "an unaligned pointer");
    same!(vmptrld(wide()), Done::Fail(9), "beyond the physical-address width");
    same!(vmptrld(page(VMXON)), Done::Fail(10), "the VMXON pointer");
    poke(SECOND, 0, revision() ^ 2);
    same!(vmptrld(page(SECOND)), Done::Fail(11), "another revision");
    if !vmcs::may(field::SECONDARY_CONTROLS, 1 << 14) {
        poke(SECOND, 0, revision() | 1 << 31);
        same!(vmptrld(page(SECOND)), Done::Fail(11), "a shadow VMCS");
    }
    same!(vmptrst(), page(FIRST), "a failure changed the current VMCS");
    poke(SECOND, 0, revision());
    vmclear(page(SECOND));
    same!(vmptrld(page(SECOND)), Done::Succeed, "another VMCS");
    same!(vmptrst(), page(SECOND), "VMPTRST");
    vmclear(page(SECOND));
    Outcome::Pass
}

fn fields() -> Outcome {
    begin();
    for encoding in [0x7ffe, 0x1_0000, 0x1_0000_681e, 0x781e, 0x681f, 0x4001, u64::MAX, 0x2fffe] {
        same!(vmread(encoding), Err(Done::Fail(12)), "VMREAD of a field that does not exist");
        same!(vmwrite(encoding, 0), Done::Fail(12), "VMWRITE to a field that does not exist");
    }
    let expected = if misc() & 1 << 29 != 0 { Done::Succeed } else { Done::Fail(13) };
    same!(vmwrite(field::EXIT_REASON, 5), expected, "VMWRITE to a read-only field");
    same!(vmwrite(field::GUEST_CS, 0xffff_1234), Done::Succeed, "VMWRITE to 16 bits");
    same!(get(field::GUEST_CS), 0x1234, "16 bits");
    set(field::EXCEPTION_BITMAP, 0xaaaa_bbbb_1234_5678);
    same!(get(field::EXCEPTION_BITMAP), 0x1234_5678, "32 bits");
    set(field::VMCS_LINK, 0x1111_2222_3333_4444);
    same!(vmwrite(field::VMCS_LINK + 1, 0x9999_9999_5555_6666), Done::Succeed, "VMWRITE to a high half");
    same!(get(field::VMCS_LINK), 0x5555_6666_3333_4444, "64 bits");
    same!(get(field::VMCS_LINK + 1), 0x5555_6666, "a high half");
    set(field::GUEST_RIP, u64::MAX);
    same!(get(field::GUEST_RIP), u64::MAX, "natural width");
    // Memory operands.
    let mut stored = 0u64;
    // SAFETY: VMREAD stores eight bytes into `stored`, and a VMCS is current.
    unsafe { asm!("vmread [{}], {}", in(reg) &mut stored, in(reg) field::EXCEPTION_BITMAP) };
    same!(stored, 0x1234_5678, "VMREAD to memory");
    let value = 0x77u64;
    // SAFETY: VMWRITE reads eight bytes of `value`, and a VMCS is current.
    unsafe { asm!("vmwrite {}, [{}]", in(reg) field::EXCEPTION_BITMAP, in(reg) &value) };
    same!(get(field::EXCEPTION_BITMAP), 0x77, "VMWRITE from memory");
    check!(catch!("vmread [rsi], rdi", "rsi" = 1u64 << 63, "rdi" = 0x4004u64) == GENERAL_PROTECTION, "VMREAD to no address");
    let fault = catch!("vmwrite rdi, [rsi]", "rsi" = 1u64 << 40, "rdi" = 0x4004u64);
    check!(fault == Some((14, 0)), "VMWRITE from an address that is not mapped");
    Outcome::Pass
}

/// A field of each width and type that every processor has.
const FIELDS: [u64; 14] = [
    field::GUEST_ES,
    field::HOST_GS,
    field::VMCS_LINK,
    field::GUEST_DEBUGCTL,
    field::EXIT_MSR_STORE_AREA,
    field::EXCEPTION_BITMAP,
    field::PAGE_FAULT_MASK,
    field::GUEST_ACTIVITY,
    field::CR0_MASK,
    field::CR4_SHADOW,
    field::GUEST_TR_BASE,
    field::GUEST_PENDING_DEBUG,
    field::HOST_SYSENTER_EIP,
    field::HOST_RIP,
];

fn keep() -> Outcome {
    begin();
    let value = |field: u64, vmcs: u64| {
        let mask = match field >> 13 {
            0 => 0xffff,
            2 => 0xffff_ffff,
            _ => u64::MAX,
        };
        field.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(vmcs) & mask
    };
    for vmcs in [FIRST, SECOND] {
        poke(vmcs, 0, revision());
        vmclear(page(vmcs));
        vmptrld(page(vmcs));
        for field in FIELDS {
            set(field, value(field, vmcs as u64));
        }
    }
    // Two are active; then one is cleared, moved, and made current again.
    for vmcs in [FIRST, SECOND, FIRST] {
        same!(vmptrld(page(vmcs)), Done::Succeed, "VMPTRLD");
        for field in FIELDS {
            same!(get(field), value(field, vmcs as u64), "a field changed");
        }
        vmclear(page(vmcs));
    }
    Outcome::Pass
}

fn launch_states() -> Outcome {
    begin();
    same!(vmresume_only(), Done::Fail(5), "VMRESUME of a VMCS that is clear");
    let mut registers = [0; 8];
    same!(run(&mut registers, false), Ok(18), "VMLAUNCH");
    same!(run(&mut registers, false), Err(Done::Fail(4)), "VMLAUNCH of a VMCS that is launched");
    same!(run(&mut registers, true), Ok(18), "VMRESUME");
    // Another VMCS does not change the state of the first; VMCLEAR does.
    poke(SECOND, 0, revision());
    vmclear(page(SECOND));
    vmptrld(page(SECOND));
    same!(vmresume_only(), Done::Fail(5), "VMRESUME of another VMCS");
    vmptrld(page(FIRST));
    same!(run(&mut registers, true), Ok(18), "VMRESUME after VMPTRLD");
    vmclear(page(FIRST));
    vmptrld(page(FIRST));
    same!(run(&mut registers, true), Err(Done::Fail(5)), "VMRESUME after VMCLEAR");
    same!(run(&mut registers, false), Ok(18), "VMLAUNCH after VMCLEAR");
    // The launch state is looked at before fields.
    set(field::HOST_CS, 0);
    same!(run(&mut registers, false), Err(Done::Fail(4)), "VMLAUNCH with invalid host state");
    same!(run(&mut registers, true), Err(Done::Fail(8)), "VMRESUME with invalid host state");
    // An entry that fails does not launch.
    begin();
    set(field::GUEST_RFLAGS, 0);
    same!(run(&mut registers, false), Ok(0x8000_0021), "VMLAUNCH with invalid guest state");
    set(field::GUEST_RFLAGS, 2);
    same!(run(&mut registers, true), Err(Done::Fail(5)), "VMRESUME after an entry that failed");
    same!(run(&mut registers, false), Ok(18), "VMLAUNCH after an entry that failed");
    Outcome::Pass
}

fn mov_ss() -> Outcome {
    begin();
    same!(vmcs::launch_in_shadow(), Done::Fail(26), "VMLAUNCH after MOV SS");
    Outcome::Pass
}

fn invalidate_ept() -> Outcome {
    if !vmcs::may(field::SECONDARY_CONTROLS, secondary::EPT) {
        return Outcome::Skip("there is no EPT");
    }
    begin();
    let capable = capability(0x48c);
    if capable & 1 << 20 == 0 {
        return Outcome::Skip("there is no INVEPT");
    }
    let pointer = page(vmcs::EPT) | 6 | 3 << 3;
    for (kind, bit) in [(1, 25), (2, 26)] {
        let expected = if capable >> bit & 1 != 0 { Done::Succeed } else { Done::Fail(28) };
        same!(invept(kind, [pointer, 0]), expected, "INVEPT");
    }
    for kind in [0, 3, 4, u64::MAX] {
        same!(invept(kind, [pointer, 0]), Done::Fail(28), "INVEPT of a type that does not exist");
    }
    if is_guest() {
        // Bochs 3.0 reads the descriptor first.
        check!(catch!("invept rdi, [rsi]", "rsi" = UNMAPPED, "rdi" = 3u64).is_none(), "INVEPT of no type accesses its descriptor");
    }
    // Walks of three levels.
    same!(invept(1, [page(vmcs::EPT) | 6 | 2 << 3, 0]), Done::Fail(28), "INVEPT with an invalid pointer");
    check!(catch!("invept rdi, [rsi]", "rsi" = 1u64 << 63, "rdi" = 1u64) == GENERAL_PROTECTION, "INVEPT of no address");
    Outcome::Pass
}

fn invalidate_vpid() -> Outcome {
    if !vmcs::may(field::SECONDARY_CONTROLS, secondary::VPID) {
        return Outcome::Skip("there are no VPIDs");
    }
    begin();
    let capable = capability(0x48c);
    if capable & 1 << 32 == 0 {
        return Outcome::Skip("there is no INVVPID");
    }
    for kind in 0..4 {
        let expected = if capable >> (40 + kind) & 1 != 0 { Done::Succeed } else { Done::Fail(28) };
        same!(invvpid(kind, [1, 0x1000]), expected, "INVVPID");
    }
    for kind in [4, 5, u64::MAX] {
        same!(invvpid(kind, [1, 0]), Done::Fail(28), "INVVPID of a type that does not exist");
    }
    if is_guest() {
        check!(catch!("invvpid rdi, [rsi]", "rsi" = UNMAPPED, "rdi" = 4u64).is_none(), "INVVPID of no type accesses its descriptor");
    }
    for kind in [0, 1, 3] {
        same!(invvpid(kind, [0, 0]), Done::Fail(28), "INVVPID of VPID 0");
    }
    for kind in 0..4 {
        same!(invvpid(kind, [0x1_0001, 0]), Done::Fail(28), "INVVPID with reserved bits");
    }
    same!(invvpid(0, [1, 1 << 63]), Done::Fail(28), "INVVPID of an address that is not canonical");
    same!(invvpid(1, [1, 1 << 63]), if capable >> 41 & 1 != 0 { Done::Succeed } else { Done::Fail(28) }, "INVVPID ignores the address");
    Outcome::Pass
}

fn leave() -> Outcome {
    vmclear(page(FIRST));
    same!(vmxoff(), Done::Succeed, "VMXOFF");
    check!(catch!("vmxoff") == UNDEFINED, "VMXOFF again");
    // SAFETY: outside VMX operation, CR4.VMXE may be cleared.
    unsafe { asm!("mov rax, cr4", "and eax, ~(1 << 13)", "mov cr4, rax", out("rax") _) };
    // Once more, in the same region.
    // SAFETY: outside VMX operation, CR4.VMXE may be set.
    unsafe { asm!("mov rax, cr4", "or eax, 1 << 13", "mov cr4, rax", out("rax") _) };
    same!(vmxon(page(VMXON)), Done::Succeed, "VMXON after VMXOFF");
    same!(vmptrst(), u64::MAX, "VMPTRST after VMXON");
    same!(vmxoff(), Done::Succeed, "VMXOFF at the end");
    Outcome::Pass
}

/// An MSR that tests may change: IA32_KERNEL_GS_BASE.
pub const SCRATCH_MSR: u32 = 0xc000_0102;

/// Sets it.
pub fn set_scratch(value: u64) {
    // SAFETY: this program uses this MSR nowhere else: any value may be in it.
    unsafe { wrmsr(SCRATCH_MSR, value) };
}
