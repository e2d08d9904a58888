//! Exits that controls, masks and bitmaps ask for.

use core::arch::asm;

use crate::exits::{VMCALL, go};
use crate::field::{self, entry, exit, primary, secondary};
use crate::test::{Outcome, Test, check, same};
use crate::vmcs::{BITMAP, BITMAP_B, Done, clear, code, enable, fresh, get, misc, page, poke, run, set};

pub const ALL: &[Test] = &[
    ("controls", controls),
    ("hlt", hlt),
    ("ports", ports),
    ("msr_bitmap", msrs),
    ("cr0", cr0),
    ("partly_read", partly_read),
    ("saved_registers", saved_registers),
    ("cr4", cr4),
    ("cr3", cr3),
    ("exceptions", exceptions),
    ("page_faults", page_faults),
    ("time_stamp_counter", tsc),
];

/// With the control, the code exits for this reason; without, it goes on.
fn intercepts(control: u64, bits: u32, code: u64, reason: u64) -> Result<(), &'static str> {
    if control == field::PRIMARY_CONTROLS && crate::vmcs::allowed(control).0 & bits == 0 && go(code) != VMCALL {
        return Err("it exits without the control");
    }
    fresh(code);
    if !enable(control, bits) {
        return Ok(());
    }
    if run(&mut [0; 8], false) == Ok(reason) { Ok(()) } else { Err("it does not exit with the control") }
}

fn controls() -> Outcome {
    let rows = [
        (field::PRIMARY_CONTROLS, primary::INVLPG, code!("invlpg [rsp]"), 14),
        (field::PRIMARY_CONTROLS, primary::RDTSC, code!("rdtsc"), 16),
        (field::PRIMARY_CONTROLS, primary::CR3_LOAD, code!("mov rax, cr3", "mov cr3, rax"), 28),
        (field::PRIMARY_CONTROLS, primary::CR3_STORE, code!("mov rax, cr3"), 28),
        (field::PRIMARY_CONTROLS, primary::CR8_LOAD, code!("xor eax, eax", "mov cr8, rax"), 28),
        (field::PRIMARY_CONTROLS, primary::CR8_STORE, code!("mov rax, cr8"), 28),
        (field::PRIMARY_CONTROLS, primary::MOV_DR, code!("mov rax, dr7"), 29),
        (field::PRIMARY_CONTROLS, primary::UNCONDITIONAL_IO, code!("in al, 0x80"), 30),
        (field::PRIMARY_CONTROLS, primary::PAUSE, code!("pause"), 40),
        (field::SECONDARY_CONTROLS, secondary::DESCRIPTOR_TABLES, code!("sgdt [rsp - 16]"), 46),
        (field::SECONDARY_CONTROLS, secondary::DESCRIPTOR_TABLES, code!("sldt eax"), 47),
        (field::SECONDARY_CONTROLS, secondary::WBINVD, code!("wbinvd"), 54),
    ];
    for (n, (control, bits, code, reason)) in rows.into_iter().enumerate() {
        if let Err(why) = intercepts(control, bits, code, reason) {
            pc::console::println!("row {n}, reason {reason}: {:#x?}", get(field::EXIT_REASON));
            return Outcome::Fail(why);
        }
    }
    fresh(code!("xor ecx, ecx", "rdpmc"));
    enable(field::PRIMARY_CONTROLS, primary::RDPMC);
    same!(run(&mut [0; 8], false), Ok(15), "RDPMC");
    // Which register, and to or from it.
    fresh(code!("mov r9, cr3"));
    enable(field::PRIMARY_CONTROLS, primary::CR3_STORE);
    same!(run(&mut [0; 8], false), Ok(28), "MOV from CR3");
    same!(get(field::EXIT_QUALIFICATION), 3 | 1 << 4 | 9 << 8, "its qualification");
    fresh(code!("mov dr6, r11"));
    enable(field::PRIMARY_CONTROLS, primary::MOV_DR);
    same!(run(&mut [0; 8], false), Ok(29), "MOV to DR6");
    same!(get(field::EXIT_QUALIFICATION), 6 | 11 << 8, "its qualification");
    fresh(code!("invlpg [0x12345678]"));
    enable(field::PRIMARY_CONTROLS, primary::INVLPG);
    same!(run(&mut [0; 8], false), Ok(14), "INVLPG");
    same!(get(field::EXIT_QUALIFICATION), 0x1234_5678, "its qualification");
    Outcome::Pass
}

fn hlt() -> Outcome {
    let start = code!("hlt");
    fresh(start);
    enable(field::PRIMARY_CONTROLS, primary::HLT);
    same!(run(&mut [0; 8], false), Ok(12), "HLT");
    same!((get(field::GUEST_RIP), get(field::EXIT_LENGTH)), (start, 1), "its address and length");
    Outcome::Pass
}

fn clear_bitmaps() {
    [BITMAP, BITMAP_B].into_iter().for_each(clear);
}

fn ports() -> Outcome {
    clear_bitmaps();
    // Port 80H, and the last one.
    poke(BITMAP, 0x80 / 64, 1 << (0x80 % 64));
    poke(BITMAP_B, 511, 1 << 63);
    let run_with_bitmaps = |code| {
        fresh(code);
        let is_there = enable(field::PRIMARY_CONTROLS, primary::IO_BITMAPS);
        // Ignored with bitmaps.
        enable(field::PRIMARY_CONTROLS, primary::UNCONDITIONAL_IO);
        set(field::IO_BITMAP_A, page(BITMAP));
        set(field::IO_BITMAP_B, page(BITMAP_B));
        if is_there { run(&mut [0; 8], false) } else { Err(Done::Succeed) }
    };
    let first = run_with_bitmaps(code!("in al, 0x80"));
    if first == Err(Done::Succeed) {
        return Outcome::Skip("there are no I/O bitmaps");
    }
    same!(first, Ok(30), "a port with its bit");
    same!(get(field::EXIT_QUALIFICATION) & 0xffff_ffff, 0x80 << 16 | 1 << 6 | 1 << 3, "the qualification of IN AL, 80H");
    same!(run_with_bitmaps(code!("in al, 0x81")), VMCALL, "a port without its bit");
    same!(run_with_bitmaps(code!("in al, 0x7f")), VMCALL, "a port below one with its bit");
    same!(run_with_bitmaps(code!("in ax, 0x7f")), Ok(30), "two ports, of which the second has its bit");
    same!(get(field::EXIT_QUALIFICATION) & 0xffff_ffff, 0x7f << 16 | 1 << 6 | 1 << 3 | 1, "the qualification of IN AX, 7FH");
    same!(run_with_bitmaps(code!("in eax, 0x7d")), Ok(30), "four ports");
    same!(run_with_bitmaps(code!("in eax, 0x7c")), VMCALL, "four ports without bits");
    same!(run_with_bitmaps(code!("mov edx, 0xfffe", "out dx, al")), VMCALL, "the last port but one");
    same!(run_with_bitmaps(code!("mov edx, 0xffff", "out dx, al")), Ok(30), "the last port");
    same!(get(field::EXIT_QUALIFICATION) & 0xffff_ffff, 0xffff << 16, "the qualification of OUT DX, AL");
    poke(BITMAP_B, 511, 0);
    same!(run_with_bitmaps(code!("mov edx, 0xffff", "in al, dx")), VMCALL, "the last port without its bit");
    same!(run_with_bitmaps(code!("mov edx, 0xffff", "in ax, dx")), Ok(30), "beyond the last port");
    Outcome::Pass
}

fn msrs() -> Outcome {
    clear_bitmaps();
    let run_with_bitmap = |code| {
        fresh(code);
        let is_there = enable(field::PRIMARY_CONTROLS, primary::MSR_BITMAPS);
        set(field::MSR_BITMAP, page(BITMAP));
        if is_there { run(&mut [0; 8], false) } else { Err(Done::Succeed) }
    };
    let first = run_with_bitmap(code!("mov ecx, 0xc0000102", "rdmsr"));
    if first == Err(Done::Succeed) {
        return Outcome::Skip("there are no MSR bitmaps");
    }
    same!(first, VMCALL, "RDMSR without its bit");
    // Reads of high MSRs are in the second KiB, writes of low ones in the third.
    poke(BITMAP, 128 + 0x102 / 64, 1 << (0x102 % 64));
    same!(run_with_bitmap(code!("mov ecx, 0xc0000102", "rdmsr")), Ok(31), "RDMSR with its bit");
    same!(run_with_bitmap(code!("mov ecx, 0xc0000102", "mov rax, 0", "mov rdx, 0", "wrmsr")), VMCALL, "WRMSR without its bit");
    poke(BITMAP, 256 + 0x174 / 64, 1 << (0x174 % 64));
    same!(run_with_bitmap(code!("mov ecx, 0x174", "wrmsr")), Ok(32), "WRMSR with its bit");
    same!(run_with_bitmap(code!("mov ecx, 0x174", "rdmsr")), VMCALL, "RDMSR of a low MSR without its bit");
    same!(run_with_bitmap(code!("mov ecx, 0x40000000", "rdmsr")), Ok(31), "RDMSR of an MSR beyond the bitmap");
    if crate::test::is_guest() {
        // Bochs reads MSRs that it does not know as 0.
        fresh(code!("mov ecx, 0x1fff", "rdmsr"));
        enable(field::PRIMARY_CONTROLS, primary::MSR_BITMAPS);
        set(field::MSR_BITMAP, page(BITMAP));
        set(field::EXCEPTION_BITMAP, 1 << 13);
        same!((run(&mut [0; 8], false), get(field::EXIT_INTERRUPTION)), (Ok(0), 0x8000_0b0d), "RDMSR of an MSR that does not exist");
    }
    // A change of the bitmap takes effect, also without a VMREAD or VMWRITE.
    poke(BITMAP, 128 + 0x102 / 64, 0);
    let start = code!("mov ecx, 0xc0000102", "rdmsr");
    same!(run_with_bitmap(start), VMCALL, "RDMSR after its bit was cleared");
    poke(BITMAP, 128 + 0x102 / 64, 1 << (0x102 % 64));
    set(field::GUEST_RIP, start);
    same!(run(&mut [0; 8], true), Ok(31), "RDMSR after its bit was set");
    Outcome::Pass
}

fn cr0() -> Outcome {
    const TS: u64 = 1 << 3;
    const MP: u64 = 1 << 1;
    const CD: u64 = 1 << 30;
    let with = |code, mask, shadow| {
        fresh(code);
        set(field::CR0_MASK, mask);
        set(field::CR0_SHADOW, get(field::GUEST_CR0) & !mask | shadow);
        let mut registers = [0; 8];
        let exit = run(&mut registers, false);
        (exit, registers[0])
    };
    let toggle_ts = || code!("mov rax, cr0", "xor eax, 8", "mov cr0, rax", "mov rax, cr0");
    let (exit, after) = with(toggle_ts(), 0, 0);
    same!(exit, VMCALL, "a bit that L2 owns");
    same!(after & TS, get(field::GUEST_CR0) & TS, "what L2 reads");
    same!(get(field::GUEST_CR0) & TS, TS, "what L1 reads");
    same!(with(toggle_ts(), TS, 0).0, Ok(28), "a bit that L1 holds");
    same!(get(field::EXIT_QUALIFICATION), 0, "its qualification");
    let (exit, after) = with(code!("mov rax, cr0"), TS | MP, TS);
    same!((exit, after & (TS | MP)), (VMCALL, TS), "the shadow");
    // A write of the shadow's value does not exit, and does not change the register.
    let (exit, _) = with(code!("mov rax, cr0", "mov cr0, rax"), TS, TS);
    same!((exit, get(field::GUEST_CR0) & TS), (VMCALL, 0), "a write of the shadow");
    same!(with(code!("clts"), TS, TS).0, Ok(28), "CLTS");
    same!(get(field::EXIT_QUALIFICATION) & 0x3f, 2 << 4, "its qualification");
    same!(with(code!("clts"), TS, 0).0, VMCALL, "CLTS of a shadow that is clear");
    same!(with(code!("mov eax, 9", "lmsw ax"), TS, 0).0, Ok(28), "LMSW");
    same!(get(field::EXIT_QUALIFICATION) & 0xffff_007f, 9 << 16 | 3 << 4, "its qualification");
    same!(with(code!("mov eax, 1", "lmsw ax"), TS, 0).0, VMCALL, "LMSW that changes no bit of L1's");
    // A bit that is fixed in VMX operation. L1 sees the exception.
    fresh(code!("mov rax, cr0", "btr rax, 5", "mov cr0, rax"));
    set(field::EXCEPTION_BITMAP, 1 << 13);
    same!((run(&mut [0; 8], false), get(field::EXIT_INTERRUPTION)), (Ok(0), 0x8000_0b0d), "a write that clears NE");
    // A write to CD, which L2 owns, leaves alone a bit that L1 holds with another value than L2 reads: the bit stays in force.
    fresh(code!("mov rax, cr0", "bts eax, 30", "mov cr0, rax", "mov rax, cr0", "fninit"));
    set(field::GUEST_CR0, get(field::GUEST_CR0) | TS);
    set(field::CR0_MASK, TS);
    set(field::CR0_SHADOW, get(field::GUEST_CR0) & !TS);
    set(field::EXCEPTION_BITMAP, 1 << 7);
    let mut registers = [0; 8];
    same!(run(&mut registers, false), Ok(0), "an FPU instruction after a write to CD");
    same!(get(field::EXIT_INTERRUPTION) & 0xff, 7, "its exception");
    same!(registers[0] & (TS | CD), CD, "what L2 reads");
    same!(get(field::GUEST_CR0) & (TS | CD), TS | CD, "what L1 reads");
    Outcome::Pass
}

/// L1 reads only some of what L2 has changed, and writes what belongs with it: the rest stays L2's.
fn partly_read() -> Outcome {
    const TS: u64 = 1 << 3;
    const TSD: u64 = 1 << 2;
    fresh(code!("mov rax, cr0", "or eax, 8", "mov cr0, rax", "mov rax, cr4", "or eax, 4", "mov cr4, rax"));
    set(field::GUEST_CR0, get(field::GUEST_CR0) & !TS);
    same!(run(&mut [0; 8], false), VMCALL, "changes of CR0 and CR4");
    // The exit has stored the register, whatever the mask is now.
    set(field::CR0_MASK, TS);
    same!(get(field::GUEST_CR0) & TS, TS, "CR0 after a write of its mask");
    set(field::CR0_SHADOW, 0);
    set(field::GUEST_RIP, code!("mov rax, cr0", "mov rcx, cr4", "and eax, 8", "and ecx, 4", "or eax, ecx"));
    let mut registers = [0; 8];
    same!((run(&mut registers, true), registers[0]), (VMCALL, TSD), "what L2 reads");
    same!((get(field::GUEST_CR4) & TSD, get(field::GUEST_CR0) & TS), (TSD, TS), "what L1 reads");
    Outcome::Pass
}

/// L1 changes VM-exit controls alone, and reads nothing: registers that the exit has saved stay L2's.
fn saved_registers() -> Outcome {
    const LOCAL_0: u64 = 1 << 0;
    let saves = || enable(field::EXIT_CONTROLS, exit::SAVE_DEBUG) && enable(field::ENTRY_CONTROLS, entry::LOAD_DEBUG);
    fresh(code!("mov eax, 0x401", "mov dr7, rax"));
    if !saves() {
        return Outcome::Skip("DR7 is neither saved nor loaded");
    }
    same!(run(&mut [0; 8], false), VMCALL, "a change of DR7");
    set(field::EXIT_CONTROLS, get(field::EXIT_CONTROLS) ^ u64::from(exit::ACKNOWLEDGE_INTERRUPT));
    set(field::GUEST_RIP, code!("mov rax, dr7"));
    let mut registers = [0; 8];
    same!((run(&mut registers, true), registers[0] & LOCAL_0), (VMCALL, LOCAL_0), "DR7 after another control's change");
    // L2 keeps the values of the last exit, although the next one does not save them.
    set(field::EXIT_CONTROLS, get(field::EXIT_CONTROLS) & !u64::from(exit::SAVE_DEBUG));
    set(field::GUEST_RIP, code!("mov rax, dr7"));
    same!((run(&mut registers, true), registers[0] & LOCAL_0), (VMCALL, LOCAL_0), "DR7 without its control");
    same!(get(field::GUEST_DR7) & LOCAL_0, LOCAL_0, "DR7 that L1 reads");
    Outcome::Pass
}

fn cr4() -> Outcome {
    const TSD: u64 = 1 << 2;
    const VMXE: u64 = 1 << 13;
    let with = |code, mask, shadow| {
        fresh(code);
        set(field::CR4_MASK, mask);
        set(field::CR4_SHADOW, shadow);
        let mut registers = [0; 8];
        (run(&mut registers, false), registers[0])
    };
    let toggle = || code!("mov rax, cr4", "xor eax, 4", "mov cr4, rax", "mov rax, cr4");
    let (exit, after) = with(toggle(), 0, 0);
    same!((exit, after & TSD), (VMCALL, TSD), "a bit that L2 owns");
    same!(get(field::GUEST_CR4) & TSD, TSD, "what L1 reads");
    same!(with(toggle(), TSD, 0).0, Ok(28), "a bit that L1 holds");
    same!(get(field::EXIT_QUALIFICATION), 4, "its qualification");
    let (exit, after) = with(code!("mov rax, cr4"), VMXE, 0);
    same!((exit, after & VMXE), (VMCALL, 0), "the shadow");
    Outcome::Pass
}

fn cr3() -> Outcome {
    if misc() >> 16 & 0x1ff < 2 {
        return Outcome::Skip("there are no CR3 targets");
    }
    let with = |count, targets: [u64; 2]| {
        fresh(code!("mov rax, cr3", "mov cr3, rax"));
        enable(field::PRIMARY_CONTROLS, primary::CR3_LOAD);
        set(field::PRIMARY_CONTROLS, get(field::PRIMARY_CONTROLS) & !u64::from(primary::CR3_STORE));
        set(field::CR3_TARGETS, count);
        set(field::CR3_TARGET_0, targets[0]);
        set(field::CR3_TARGET_0 + 2, targets[1]);
        run(&mut [0; 8], false)
    };
    if crate::vmcs::allowed(field::PRIMARY_CONTROLS).0 & primary::CR3_STORE != 0 {
        return Outcome::Skip("MOV from CR3 always exits");
    }
    let cr3: u64;
    // SAFETY: reads a control register, which has no side effect at privilege level 0.
    unsafe { asm!("mov {}, cr3", out(reg) cr3) };
    same!(with(0, [cr3, cr3]), Ok(28), "without targets");
    same!(with(1, [cr3, 0]), VMCALL, "the first target");
    same!(with(2, [0, cr3]), VMCALL, "the second target");
    same!(with(1, [0, cr3]), Ok(28), "a target that does not count");
    Outcome::Pass
}

fn exceptions() -> Outcome {
    let with = |code, bitmap: u64| {
        fresh(code);
        set(field::EXCEPTION_BITMAP, bitmap);
        run(&mut [0; 8], false)
    };
    let start = code!("ud2");
    same!(with(start, 1 << 6), Ok(0), "UD2");
    same!(get(field::EXIT_INTERRUPTION), 0x8000_0306, "its information");
    same!(get(field::GUEST_RIP), start, "its address");
    let start = code!("int3");
    same!(with(start, 1 << 3), Ok(0), "INT3");
    same!(get(field::EXIT_INTERRUPTION), 0x8000_0603, "its information");
    same!((get(field::GUEST_RIP), get(field::EXIT_LENGTH)), (start, 1), "its address and length");
    same!(with(code!("mov rax, 1 << 63", "mov rax, [rax]"), 1 << 13), Ok(0), "a general-protection exception");
    same!(get(field::EXIT_INTERRUPTION), 0x8000_0b0d, "its information");
    same!(get(field::EXIT_INTERRUPTION_CODE), 0, "its error code");
    same!(with(code!("mov eax, 0x23", "mov fs, eax"), 1 << 13), Ok(0), "a selector beyond the GDT");
    same!(get(field::EXIT_INTERRUPTION_CODE), 0x20, "its error code");
    same!(with(code!("xor ecx, ecx", "div ecx"), 1 << 0), Ok(0), "a division by zero");
    same!(get(field::EXIT_INTERRUPTION), 0x8000_0300, "its information");
    Outcome::Pass
}

fn page_faults() -> Outcome {
    const WRITE: u64 = 2;
    // Reads, or writes, beyond the first 4 GiB.
    let read = || code!("mov rax, 0x123456789000", "mov al, [rax]");
    let write = || code!("mov rax, 0x123456789000", "mov [rax], al");
    let with = |code, bitmap: u64, mask, matching| {
        fresh(code);
        set(field::EXCEPTION_BITMAP, bitmap << 14);
        set(field::PAGE_FAULT_MASK, mask);
        set(field::PAGE_FAULT_MATCH, matching);
        // If it does not exit, it ends in a triple fault.
        set(field::GUEST_IDTR_LIMIT, 0);
        run(&mut [0; 8], false)
    };
    let cr2 = || {
        let address: u64;
        // SAFETY: reads a control register, which has no side effect at privilege level 0.
        unsafe { asm!("mov {}, cr2", out(reg) address) };
        address
    };
    let before = cr2();
    same!(with(write(), 1, 0, 0), Ok(0), "a page fault");
    same!(get(field::EXIT_INTERRUPTION), 0x8000_0b0e, "its information");
    same!(get(field::EXIT_INTERRUPTION_CODE), WRITE, "its error code");
    same!(get(field::EXIT_QUALIFICATION), 0x1234_5678_9000, "its address");
    check!(cr2() == before, "it changes CR2");
    same!(with(read(), 0, 0, 0), Ok(2), "no page fault");
    same!(with(read(), 0, WRITE, WRITE), Ok(0), "bit clear, no match");
    same!(with(write(), 0, WRITE, WRITE), Ok(2), "bit clear, match");
    same!(with(read(), 1, WRITE, WRITE), Ok(2), "bit set, no match");
    same!(with(write(), 1, WRITE, WRITE), Ok(0), "bit set, match");
    Outcome::Pass
}

fn tsc() -> Outcome {
    const OFFSET: u64 = 1 << 50;
    fresh(code!("rdtsc"));
    if !enable(field::PRIMARY_CONTROLS, primary::TSC_OFFSET) {
        return Outcome::Skip("there is no TSC offset");
    }
    set(field::TSC_OFFSET, OFFSET);
    let mut registers = [0; 8];
    let before = pc::machine::ticks();
    same!(run(&mut registers, false), VMCALL, "the exit");
    let after = pc::machine::ticks();
    let counter = registers[2] << 32 | registers[0] & 0xffff_ffff;
    check!((before + OFFSET..=after + OFFSET).contains(&counter), "the counter is not offset");
    Outcome::Pass
}
