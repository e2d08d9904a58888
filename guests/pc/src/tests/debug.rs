//! Debug exceptions: their causes and addresses, also if deferred by a shadow or caused by an instruction
//! that exits.

use core::arch::asm;
use core::sync::atomic::{AtomicU64, Ordering};

use super::test::{check, is_guest};
use crate::exception::{self, COUNTS, catch};
use crate::lapic::{self as apic, register};
use crate::machine::pace;

const DEBUG: u8 = 1;
const BREAKPOINT: u8 = 3;

/// DR6 without a cause; a single step; general detection; a match of DR1 and DR2.
const NOTHING: u64 = 0xffff_0ff0;
const STEP: u64 = NOTHING | 1 << 14;
const DETECTED: u64 = NOTHING | 1 << 13;
const MATCH_1: u64 = NOTHING | 1 << 1;
const MATCH_2: u64 = NOTHING | 1 << 2;
/// DR7 with all breakpoints disabled.
const OFF: u64 = 0x400;

static PLACES: [AtomicU64; 16] = [const { AtomicU64::new(0) }; 16];
static REASONS: [AtomicU64; 16] = [const { AtomicU64::new(0) }; 16];

fn note(place: u64) {
    let n = (COUNTS[usize::from(DEBUG)].load(Ordering::SeqCst) as usize).wrapping_sub(1);
    let dr6: u64;
    // SAFETY: reading has no effect; an instruction breakpoint would recur.
    unsafe {
        asm!("mov {}, dr6", out(reg) dr6, options(nostack, preserves_flags));
        if dr6 & 1 << 2 != 0 {
            asm!("mov dr7, {}", in(reg) OFF, options(nostack, preserves_flags));
        }
    }
    if let (Some(to), Some(why)) = (PLACES.get(n), REASONS.get(n)) {
        to.store(place, Ordering::SeqCst);
        why.store(dr6, Ordering::SeqCst);
    }
}

fn set(dr6: u64, dr7: u64) {
    // SAFETY: the tests' handler handles the exceptions.
    unsafe { asm!("mov dr6, {}", "mov dr7, {}", in(reg) dr6, in(reg) dr7, options(nostack, preserves_flags)) };
}

/// Whether the debug exceptions since the last call were these: offset from `start`, and cause.
fn came(start: u64, expected: &[(u64, u64)]) -> bool {
    let count = exception::take(DEBUG);
    let seen =
        PLACES.iter().zip(&REASONS).map(|(place, why)| (place.load(Ordering::SeqCst).wrapping_sub(start), why.load(Ordering::SeqCst)));
    let right = count == expected.len() as u64 && seen.clone().zip(expected).all(|(seen, expected)| seen == *expected);
    if !right {
        crate::console::println!("{count} came:");
        for (place, why) in seen.take(count as usize) {
            crate::console::println!("  {place} {why:#x}");
        }
    }
    set(0, OFF);
    right
}

/// Code that sets TF and leaves RFLAGS in RAX, and code that clears TF again.
macro_rules! tf {
    (on) => {
        "pushfq; pop rax; or eax, 0x100; push rax; popfq"
    };
    (off) => {
        "and eax, ~0x100; push rax; popfq"
    };
}

/// Code with TF set before label 2, from where places count.
macro_rules! stepped {
    ($($line:expr),*) => {{
        let start: u64;
        exception::take(DEBUG);
        // SAFETY: TF is clear at the end, and the clobbers are named; interrupt handlers save theirs.
        unsafe {
            asm!(
                "push rbx", $($line,)* "lea r10, [rip + 2b]", "pop rbx",
                out("r10") start, out("rax") _, out("rcx") _, inout("rdx") 0x80u64 => _, inout("rdi") 0xfee0_0020u64 => _,
            );
        }
        start
    }};
}

/// Whether steps are from branch to branch, also with one that reads a device.
fn branches() -> bool {
    let start = stepped!(
        "lea rax, [rip + 2f]",
        "mov edi, 0xff000000",
        "mov [rdi], rax",
        "mov ecx, 0x1d9",
        "mov eax, 2",
        "xor edx, edx",
        "wrmsr",
        tf!(on),
        "jmp [rdi]",
        "2: nop",
        tf!(off)
    );
    came(start, &[(0, STEP), (1, STEP), (6, STEP), (7, STEP), (8, STEP)])
}

/// Single steps within and after the shadows of MOV SS and STI, with INT1, DR7.GD and HLT.
pub fn steps(_: u64) -> Result<(), &'static str> {
    const VECTOR: u8 = 0x31;
    const PERIODIC: u32 = 1 << 17;
    exception::handle(DEBUG, Some(note));
    set(0, OFF);
    let start = stepped!(tf!(on), "and eax, ~0x100", "2: push rax", "popfq");
    check!(came(start, &[(0, STEP), (1, STEP), (2, STEP)]), "plain steps");
    let start = stepped!("cli", tf!(on), "sti", "2: and eax, ~0x100", "push rax", "popfq");
    check!(came(start, &[(0, STEP), (5, STEP), (6, STEP), (7, STEP)]), "STI");
    let start = stepped!("cli", "mov ecx, ss", tf!(on), "mov ss, ecx", "and eax, ~0x100", "2: push rax", "popfq");
    check!(came(start, &[(0, STEP), (1, STEP), (2, STEP)]), "MOV SS");
    let start = stepped!("mov ecx, ss", tf!(on), "mov ss, ecx", ".byte 0xf1", "2: .byte 0xf1", tf!(off));
    check!(came(start, &[(0, NOTHING), (1, NOTHING), (6, STEP), (7, STEP), (8, STEP)]), "MOV SS and INT1");
    set(0, 1 << 13 | OFF);
    let start = stepped!("xor edx, edx", "mov ecx, ss", tf!(on), "mov ss, ecx", "2: mov dr6, rdx", tf!(off));
    // Bochs itself also reports the step that ended MOV SS.
    let detected = if is_guest() { DETECTED } else { DETECTED | STEP };
    check!(came(start, &[(0, detected), (3, STEP), (8, STEP), (9, STEP), (10, STEP)]), "MOV SS and DR7.GD");
    check!(!is_guest() || branches(), "a branch");
    apic::enable();
    exception::handle(VECTOR, None);
    // An interrupt before HLT, on a shared CPU, is followed by another.
    apic::write(register::TIMER, PERIODIC | u32::from(VECTOR));
    apic::write(register::DIVIDE, 0xb);
    apic::write(register::INITIAL, 100_000 * pace() as u32);
    let start = stepped!("cli", tf!(on), "sti", "2: hlt", tf!(off), "cli");
    let stepped = came(start, &[(0, STEP), (1, STEP), (6, STEP), (7, STEP), (8, STEP)]);
    exception::handle(DEBUG, None);
    apic::write(register::TIMER, apic::IO_MASKED);
    apic::write(register::INITIAL, 0);
    exception::take(VECTOR);
    check!(stepped, "STI and HLT");
    Ok(())
}

static mut WORD: u64 = 0;

/// Breakpoints on code and on data, which a MOV SS may hold till the next exception.
pub fn breakpoints(_: u64) -> Result<(), &'static str> {
    /// DR1 for writes, and for reads and writes, in four bytes; DR2 for code.
    const ON_WRITES: u64 = 0x00d0_0408;
    const ON_ACCESSES: u64 = 0x00f0_0408;
    const ON_CODE: u64 = OFF | 1 << 5;
    let word = &raw mut WORD as u64;
    exception::handle(DEBUG, Some(note));
    exception::take(BREAKPOINT);
    set(0, OFF);
    macro_rules! run {
        ($dr6:expr, $dr7:expr, $($line:literal),*) => {{
            let start: u64;
            set($dr6, OFF);
            exception::take(DEBUG);
            // SAFETY: the word belongs to the test, and holds SS's own selector.
            unsafe {
                asm!(
                    "mov eax, ss", "mov [rdi], rax", "mov dr1, rdi", "lea r10, [rip + 2f]", "mov dr7, {dr7}", $($line,)*
                    dr7 = in(reg) $dr7, in("rdi") word, out("r10") start, out("rax") _,
                );
            }
            start
        }};
    }
    let start = run!(0, ON_CODE, "mov dr2, r10", "2: nop");
    check!(came(start, &[(0, MATCH_2)]), "on code");
    let start = run!(1 << 14 | 1 << 1, ON_CODE, "mov dr2, r10", "2: nop");
    check!(came(start, &[(0, MATCH_2 | 1 << 14)]), "on code: what DR6 keeps");
    let start = run!(0, ON_CODE, "mov dr2, r10", "mov eax, ss", "mov ss, eax", "2: nop");
    check!(came(start, &[]), "on code behind MOV SS");
    // SAFETY: a match is reported even for a disabled breakpoint, so the address is cleared.
    unsafe { asm!("mov dr2, {}", in(reg) 0u64, options(nostack, preserves_flags)) };
    let start = run!(1 << 14, ON_WRITES, "mov [rdi], rax", "2: nop");
    check!(came(start, &[(0, MATCH_1 | 1 << 14)]), "on data: what DR6 keeps");
    let start = run!(0, ON_WRITES, "mov [rdi], rax", "2: nop");
    check!(came(start, &[(0, MATCH_1)]), "on data");
    let start = run!(0, OFF, ".byte 0xf1", "2: nop");
    check!(came(start, &[(0, NOTHING)]), "INT1");
    run!(0, ON_ACCESSES, "mov ss, word ptr [rdi]", ".byte 0x2e, 0x2e, 0xf1", "2: nop");
    let icebp = exception::take(DEBUG);
    run!(0, ON_ACCESSES, "mov ss, word ptr [rdi]", "int 1", "2: nop");
    let int1 = exception::take(DEBUG);
    run!(0, ON_ACCESSES, "mov ss, word ptr [rdi]", "int3", "2: nop");
    let (debug, breakpoint) = (exception::take(DEBUG), exception::take(BREAKPOINT));
    exception::handle(DEBUG, None);
    set(0, OFF);
    check!(icebp == 1, "on data, MOV SS and INT1");
    check!(int1 == 2, "on data, MOV SS and INT 1");
    check!((debug, breakpoint) == (1, 1), "on data, MOV SS and INT3");
    Ok(())
}

/// RFLAGS.RF suppresses an instruction breakpoint until the instruction is complete, even for a long
/// repetition whose elements each exit.
pub fn resumed(_: u64) -> Result<(), &'static str> {
    const ON_CODE: u64 = OFF | 1 << 5;
    exception::handle(DEBUG, Some(note));
    set(0, OFF);
    exception::take(DEBUG);
    macro_rules! resume {
        ($code:literal) => {{
            let start: u64;
            // SAFETY: IRET continues after itself with the same segments and stack; the port is unused, and
            // memory is only read.
            unsafe {
                asm!(
                    "lea r10, [rip + 2f]", "mov dr2, r10", "mov dr7, {dr7}", "mov r8, rsp",
                    "mov eax, ss", "push rax", "push r8", "pushfq", "or dword ptr [rsp], 0x10000", "mov eax, cs", "push rax", "push r10",
                    "iretq",
                    "2:", $code,
                    dr7 = in(reg) ON_CODE, out("r10") start, out("rax") _, out("r8") _, in("rdx") 0x80u64,
                    inout("rcx") 200u64 => _, inout("rsi") &raw const PLACES => _, in("rdi") 0xfee0_0020u64,
                );
            }
            came(start, &[])
        }};
    }
    let right = [resume!("nop"), resume!("mov eax, [rdi]"), resume!("rep lodsb"), resume!("rep outsb")];
    exception::handle(DEBUG, None);
    // SAFETY: no address is watched any more.
    unsafe { asm!("mov dr2, {}", in(reg) 0u64, options(nostack, preserves_flags)) };
    check!(right == [true; 4], "a breakpoint comes though RF is set");
    Ok(())
}

/// A fault pushes RF set, whether detected by the processor or by the emulation.
pub fn faults(_: u64) -> Result<(), &'static str> {
    let has_rf = |fault: Option<(u64, u64)>| fault.is_some() && exception::last_flags() & 1 << 16 != 0;
    let pushed = [
        has_rf(catch!("ud2")),
        has_rf(catch!("mov eax, -1; mov cr4, rax")),
        // EFER has reserved bits. (Bochs itself reads nonexistent MSRs.)
        has_rf(catch!("wrmsr", "ecx" = 0xc000_0080u32, "eax" = u32::MAX, "edx" = u32::MAX)),
        has_rf(catch!("mov rax, cr0; btr eax, 0; mov cr0, rax")),
    ];
    check!(pushed == [true; 4], "RF is not set");
    Ok(())
}
