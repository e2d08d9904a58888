//! Exceptions of instructions on a device.

use core::arch::asm;

use super::memory::DEVICE;
use super::run;
use crate::emulator::tables::{APIC, PAGE, Place, Root, WINDOW, map_to, write};
use crate::exception::{self, catch};
use crate::lapic;
use crate::tests::test::check;

const DIVIDE: u64 = 0;
const DEVICE_NOT_AVAILABLE: u64 = 7;
const GENERAL_PROTECTION: u64 = 13;
const PAGE_FAULT: u64 = 14;
const FLOATING_POINT: u64 = 16;

/// Each fault, with its error code.
pub fn all(_: u64) -> Result<(), &'static str> {
    let avx = run::turn_vectors_on();
    check!(catch!("movaps [rsi], xmm0", "rsi" = DEVICE + 8) == Some((GENERAL_PROTECTION, 0)), "MOVAPS that is not aligned");
    check!(catch!("movups [rsi], xmm0", "rsi" = DEVICE + 8).is_none(), "MOVUPS that is not aligned");
    if avx {
        check!(catch!("vmovaps ymm0, [rsi]", "rsi" = DEVICE + 16) == Some((GENERAL_PROTECTION, 0)), "VMOVAPS that is not aligned");
    }
    let pair = catch!("lock cmpxchg16b [rsi]", "rsi" = DEVICE + 8);
    check!(pair == Some((GENERAL_PROTECTION, 0)), "CMPXCHG16B that is not aligned");
    write(DEVICE, &[0; 8]);
    check!(catch!("div qword ptr [rsi]", "rsi" = DEVICE, "rax" = 1, "rdx" = 2) == Some((DIVIDE, 0)), "DIV by zero");
    write(DEVICE, &[2]);
    check!(catch!("div qword ptr [rsi]", "rsi" = DEVICE, "rax" = 1, "rdx" = 2) == Some((DIVIDE, 0)), "a quotient that overflows");
    check!(catch!("div qword ptr [rsi]", "rsi" = DEVICE, "rax" = 1, "rdx" = 1).is_none(), "a quotient that fits");
    write(DEVICE, &[0x11; 8]);
    check!(catch!("jmp qword ptr [rsi]", "rsi" = DEVICE) == Some((GENERAL_PROTECTION, 0)), "JMP to a non-canonical address");
    // The selector of code.
    write(DEVICE, &8u16.to_le_bytes());
    check!(catch!("mov ss, word ptr [rsi]", "rsi" = DEVICE) == Some((GENERAL_PROTECTION, 8)), "MOV SS of a code segment");
    write(DEVICE, &0x1000u16.to_le_bytes());
    check!(catch!("mov es, word ptr [rsi]", "rsi" = DEVICE) == Some((GENERAL_PROTECTION, 0x1000)), "MOV ES beyond the GDT");
    write(DEVICE, &[0; 2]);
    check!(catch!("ltr word ptr [rsi]", "rsi" = DEVICE) == Some((GENERAL_PROTECTION, 0)), "LTR of null");
    task_switched()?;
    floating_point()?;
    effects_before()?;
    second_page()
}

/// With CR0.TS set, SSE and MMX instructions raise #NM.
fn task_switched() -> Result<(), &'static str> {
    // SAFETY: no code but the tests' uses these registers.
    unsafe { asm!("mov {0}, cr0", "or {0}, 8", "mov cr0, {0}", out(reg) _, options(nostack)) };
    let faults = [catch!("movups xmm0, [rsi]", "rsi" = DEVICE), catch!("movq [rsi], mm0", "rsi" = DEVICE)];
    // SAFETY: clears CR0.TS alone, as it was before the test set it.
    unsafe { asm!("clts", options(nostack)) };
    check!(faults == [Some((DEVICE_NOT_AVAILABLE, 0)); 2], "with CR0.TS");
    Ok(())
}

/// A pending x87 exception precedes MOVQ.
fn floating_point() -> Result<(), &'static str> {
    let control = 0x033bu16;
    // With CR0.NE; division by zero is not masked.
    let fault = catch!(
        "mov rax, cr0; or eax, 0x20; mov cr0, rax; fninit; fldcw [rdi]; fld1; fldz; fdivp; movq [rsi], mm0",
        "rsi" = DEVICE,
        "rdi" = &control
    );
    // SAFETY: the x87 state is as after initialization.
    unsafe { asm!("fnclex", "fninit", options(nostack)) };
    check!(fault == Some((FLOATING_POINT, 0)), "MOVQ with a pending x87 exception");
    Ok(())
}

/// An instruction that faults after an effect on a device: the interrupt that this has raised is taken at once. The
/// local APIC's offset 40H is reserved.
fn effects_before() -> Result<(), &'static str> {
    const VECTOR: u8 = 0x57;
    const LVT_ERROR: u32 = 0x370;
    lapic::enable();
    exception::handle(VECTOR, None);
    lapic::write(LVT_ERROR, VECTOR.into());
    map_to(Root::First, 3, None);
    let at = WINDOW + 3 * PAGE - 4;
    let fault = catch!("rep movsd", "rsi" = APIC + 0x40, "rdi" = at, "ecx" = 2);
    crate::machine::sti();
    crate::machine::cli();
    let came = exception::take(VECTOR);
    map_to(Root::First, 3, Some(Place::Frame(3)));
    lapic::write(LVT_ERROR, lapic::IO_MASKED);
    check!(fault == Some((PAGE_FAULT, 2)), "REP MOVS to a page that is not present");
    check!(came == 1, "the interrupt of an access before the fault");
    Ok(())
}

/// The second page of an operand is not present: the instruction has no effect.
fn second_page() -> Result<(), &'static str> {
    map_to(Root::First, 2, Some(Place::Device(DEVICE)));
    map_to(Root::First, 3, None);
    let at = WINDOW + 3 * PAGE - 8;
    write(at, &[0x99; 8]);
    let fault = catch!("movups [rsi], xmm0", "rsi" = at);
    let address: u64;
    // SAFETY: reads a control register, which has no side effect at privilege level 0.
    unsafe { asm!("mov {}, cr2", out(reg) address, options(nostack, preserves_flags)) };
    check!(fault == Some((PAGE_FAULT, 2)) && address == WINDOW + 3 * PAGE, "a store whose second page is not present");
    // SAFETY: aligned memory of the test device, which the tests alone access.
    check!(unsafe { (at as *const u64).read_volatile() } == 0x9999_9999_9999_9999, "a store that faults was done in part");
    for page in 2..4 {
        map_to(Root::First, page, Some(Place::Frame(page as usize)));
    }
    Ok(())
}
