//! Instructions that access the local APIC's memory-mapped registers, modified in every possible way:
//! emulation must observe each change immediately, despite its cache.

mod code;
mod second;
pub mod tables;

use core::arch::{asm, global_asm};

use crate::exception::catch;
use crate::tests::test::{On, Test, check};
use code::{BACK, LOAD, LOAD_BYTE, TASK_PRIORITY, VERSION, VERSION_IS, put, run};
use tables::{APIC, FRAMES, PAGE, Root, WINDOW, frame, map, map_quietly, write};

global_asm!(include_str!("modes.s"));

/// All of them, in order.
pub const ALL: &[Test] = &[
    ("mmio_widths_and_registers", On::Stile, widths_and_registers),
    ("mmio_code_overwrites_itself", On::Stile, overwrites_itself),
    ("mmio_code_written_by_another_vcpu", On::Stile, second::written_by_another_vcpu),
    ("mmio_code_written_while_it_runs", On::Stile, second::written_while_it_runs),
    ("mmio_page_remapped", On::Stile, page_remapped),
    ("mmio_page_remapped_unseen", On::Stile, page_remapped_unseen),
    ("mmio_other_root", On::Stile, other_root),
    ("mmio_other_mode", On::Stile, other_mode),
    ("mmio_across_two_pages", On::Stile, across_two_pages),
    ("mmio_at_the_end_of_what_is_mapped", On::Stile, at_the_end),
    ("mmio_more_code_than_any_cache_holds", On::Stile, more_than_a_cache),
];

/// Maps the memory that the tests need.
pub fn setup() {
    tables::setup();
}

fn widths_and_registers(_: u64) -> Result<(), &'static str> {
    let ones = u64::MAX;
    // MOV EAX; MOV AL; MOV AX; MOVZX EAX, byte; MOVSX EAX, byte; MOV RAX; OR EAX; at the same address, twice
    // each.
    let forms: [(&[u8], u64); 7] = [
        (&LOAD, VERSION_IS),
        (&LOAD_BYTE, !0xff | 0x14),
        (&[0x66, 0x8b, 0x07], !0xffff | 0x14),
        (&[0x0f, 0xb6, 0x07], 0x14),
        (&[0x0f, 0xbe, 0x07], 0x14),
        (&[0x48, 0x8b, 0x07], VERSION_IS),
        (&[0x0b, 0x07], 0xffff_ffff),
    ];
    for (form, expected) in forms {
        put(0, 0, form);
        for _ in 0..2 {
            check!(run(WINDOW, APIC + VERSION, ones) == expected, "another value than the register's");
        }
    }
    // MOV [RDI], EAX; ADD [RDI], EAX; XOR; then read.
    for (opcode, expected) in [(0x89, 0x21), (0x01, 0x42), (0x31, 0x63)] {
        put(0, 0, &[opcode, 0x07]);
        run(WINDOW, APIC + TASK_PRIORITY, 0x21);
        put(0, 0, &LOAD);
        check!(run(WINDOW, APIC + TASK_PRIORITY, 0) == expected, "the task priority is another");
    }
    put(0, 0, &[0x89, 0x07]);
    run(WINDOW, APIC + TASK_PRIORITY, 0);
    Ok(())
}

/// Code that overwrites the instruction just executed, and executes it again: another width, another
/// register, another operation.
fn overwrites_itself(_: u64) -> Result<(), &'static str> {
    for _ in 0..3 {
        let (first, width, register, operation): (u64, u64, u64, u64);
        // SAFETY: code is writable here; it is restored at the end, and accesses only the local APIC's
        // version.
        unsafe {
            asm!(
                "lea r8, [rip + 2f]",
                "mov r9, rsp",
                "xor r10d, r10d",
                "2:",
                "mov eax, [rdi]",           // 8b 07
                "inc r10d",
                "cmp r10d, 2",
                "jb 3f", "je 4f",
                "cmp r10d, 4",
                "jb 5f", "jmp 6f",
                "3: mov rcx, rax",
                "mov rax, -1",
                "mov byte ptr [r8], 0x8a",  // MOV AL, [RDI]
                "jmp 2b",
                "4: mov rsi, rax",
                "mov byte ptr [r8], 0x8b",
                "mov byte ptr [r8 + 1], 0x17", // MOV EDX, [RDI]
                "jmp 2b",
                "5: mov r11, rdx",
                "mov eax, 1",
                "mov word ptr [r8], 0x0703", // ADD EAX, [RDI]
                "jmp 2b",
                "6:",
                "mov word ptr [r8], 0x078b",
                in("rdi") APIC + VERSION,
                out("rcx") first, out("rsi") width, out("r11") register, out("rax") operation,
                out("rdx") _, out("r8") _, out("r9") _, out("r10") _,
            );
        }
        check!(first == VERSION_IS, "the instruction as it was");
        check!(width == !0xff | 0x14, "the other width is not seen");
        check!(register == VERSION_IS, "the other register is not seen");
        check!(operation == VERSION_IS + 1, "the other operation is not seen");
    }
    Ok(())
}

fn page_remapped(_: u64) -> Result<(), &'static str> {
    put(0, 0x100, &LOAD);
    put(1, 0x100, &LOAD_BYTE);
    for turn in 0..6 {
        let other = turn % 2;
        map(Root::First, 0, Some(other));
        for _ in 0..2 {
            let expected = if other == 0 { VERSION_IS } else { !0xff | 0x14 };
            check!(run(WINDOW + 0x100, APIC + VERSION, u64::MAX) == expected, "code of the other frame ran");
        }
    }
    map(Root::First, 0, Some(0));
    Ok(())
}

/// The processor may know an older place of the page than the tables tell, and what it runs reaches for a device. What the tables lead to
/// does not: it is what is run then.
fn page_remapped_unseen(_: u64) -> Result<(), &'static str> {
    const START: u64 = 0x400;
    const CODE: u64 = 0x410;
    put(0, START, &[]);
    put(1, START, &[]);
    // MOV [RDI], EAX.
    put(0, CODE, &[0x89, 0x07]);
    // NOP; MOV RAX of 64 bits; NOT RAX; LEA RAX, [RSI + 8]; SMSW EAX and MOV EAX, 9. And OUTSB, which reaches for memory, and MOV EAX, 7.
    let others: [(&[u8], u64); 6] = [
        (&[0x90], 5),
        (&[0x48, 0xb8, 8, 7, 6, 5, 4, 3, 2, 1], 0x0102_0304_0506_0708),
        (&[0x48, 0xf7, 0xd0], !5),
        (&[0x48, 0x8d, 0x46, 8], WINDOW + CODE + 8),
        (&[0x0f, 0x01, 0xe0, 0xb8, 9, 0, 0, 0], 9),
        (&[0x6e, 0xb8, 7, 0, 0, 0], 7),
    ];
    let mut right = true;
    for (other, expected) in others {
        put(1, CODE, other);
        map(Root::First, 0, Some(0));
        run(WINDOW + START, 0, 0);
        map_quietly(Root::First, 0, Some(1));
        right &= run(WINDOW + CODE, crate::device::memory::DEVICE, 5) == expected;
    }
    put(1, CODE, &[0x0f, 0x0b]);
    map(Root::First, 0, Some(0));
    run(WINDOW + START, 0, 0);
    map_quietly(Root::First, 0, Some(1));
    let fault = catch!("jmp rsi", "rsi" = WINDOW + CODE, "rdi" = crate::device::memory::DEVICE);
    map(Root::First, 0, Some(0));
    check!(right, "what the tables lead to does not run");
    check!(fault == Some((6, 0)), "UD2 does not run");
    Ok(())
}

fn other_root(_: u64) -> Result<(), &'static str> {
    put(0, 0x200, &LOAD);
    put(2, 0x200, &LOAD_BYTE);
    map(Root::Second, 0, Some(2));
    let first = tables::root();
    let mut right = true;
    for turn in 0..6 {
        tables::set_root(if turn % 2 == 0 { first } else { tables::second_root() });
        let expected = if turn % 2 == 0 { VERSION_IS } else { !0xff | 0x14 };
        right &= run(WINDOW + 0x200, APIC + VERSION, u64::MAX) == expected;
    }
    // Code is the same by both roots, and changes for both.
    map(Root::Second, 0, Some(0));
    for root in [first, tables::second_root()] {
        tables::set_root(root);
        put(0, 0x200, &LOAD_BYTE);
        right &= run(WINDOW + 0x200, APIC + VERSION, u64::MAX) == !0xff | 0x14;
        put(0, 0x200, &LOAD);
        right &= run(WINDOW + 0x200, APIC + VERSION, u64::MAX) == VERSION_IS;
    }
    tables::set_root(first);
    check!(right, "code of the other root ran");
    Ok(())
}

/// Equal bytes at the same address: MOV EAX, [RIP - x] in 64-bit code, MOV EAX, [VERSION] in 32-bit code.
fn other_mode(_: u64) -> Result<(), &'static str> {
    let [a, b, c, d] = ((APIC + VERSION) as u32).to_le_bytes();
    // JMP RDX and JMP EDX.
    write(frame(0) + 0x300, &[0x8b, 0x05, a, b, c, d, 0xff, 0xe2]);
    for _ in 0..3 {
        let (long, narrow): (u64, u64);
        // SAFETY: see `modes.s`: they execute the code and return.
        unsafe {
            asm!("lea rdx, [rip + 2f]", "jmp rsi", "2:", in("rsi") WINDOW + 0x300, out("rax") long, out("rdx") _, options(nostack));
            asm!("call run_32", in("rsi") WINDOW + 0x300, out("rax") narrow, out("rdx") _, out("rcx") _);
        }
        check!(long == 0xffff_ffff, "64-bit code read something where there is nothing");
        check!(narrow == VERSION_IS, "32-bit code did not read the version");
    }
    Ok(())
}

/// The I/O APIC, whose registers no processor virtualizes: Bochs 3.0 itself misses a change of an
/// instruction's second page.
const IO_APIC: u64 = 0xfec0_0000;
/// Offsets of its index register and of the window to the register of that index.
const INDEX: u64 = 0;
const DATA: u64 = 0x10;

/// Chooses its version register, of index 1, and reads it.
fn io_apic_version() -> u64 {
    // SAFETY: the registers are mapped, and selecting one has no other effect.
    unsafe {
        ((IO_APIC + INDEX) as *mut u32).write_volatile(1);
        ((IO_APIC + DATA) as *const u32).read_volatile().into()
    }
}

/// An instruction that begins in one page and ends in the next.
fn across_two_pages(_: u64) -> Result<(), &'static str> {
    // MOV EAX, [RDI + disp32], with the displacement in the second page.
    write(frame(0) + PAGE - 2, &[0x8b, 0x87]);
    let version = io_apic_version();
    let second = |index: usize, offset: u64| put(index, 0, &(offset as u32).to_le_bytes());
    let read = || run(WINDOW + PAGE - 2, IO_APIC, 0);
    second(1, DATA);
    second(2, INDEX);
    for frame in [1, 2, 1, 1, 2] {
        map(Root::First, 1, Some(frame));
        check!(read() == if frame == 1 { version } else { 1 }, "the second page is another");
    }
    // The contents of the second page change, and then those of the first.
    for offset in [DATA, INDEX, DATA] {
        second(2, offset);
        check!(read() == if offset == DATA { version } else { 1 }, "the second page has changed");
    }
    write(frame(0) + PAGE - 2, &[0x8a, 0x87]);
    check!(run(WINDOW + PAGE - 2, IO_APIC, u64::MAX) == !0xff | version & 0xff, "the first page has changed");
    map(Root::First, 1, Some(1));
    Ok(())
}

/// The second page of an instruction is unmapped: a page fault, whether raised by the processor's fetch or by
/// the emulation.
fn at_the_end(_: u64) -> Result<(), &'static str> {
    const PAGE_FAULT: u64 = 14;
    write(frame(0) + PAGE - 2, &[0x8b, 0x87]);
    let version = io_apic_version();
    put(1, 0, &(DATA as u32).to_le_bytes());
    let code = WINDOW + PAGE - 2;
    for quietly in [false, true, false, true] {
        map(Root::First, 1, Some(1));
        check!(run(code, IO_APIC, 0) == version, "it can't be run at all");
        if quietly {
            // The processor may still have the translation.
            map_quietly(Root::First, 1, None);
        } else {
            map(Root::First, 1, None);
        }
        let fault = catch!("jmp rsi", "rsi" = code, "rdi" = IO_APIC);
        let address: u64;
        // SAFETY: reads a control register, which has no side effect at privilege level 0.
        unsafe { asm!("mov {}, cr2", out(reg) address, options(nostack, preserves_flags)) };
        check!(fault == Some((PAGE_FAULT, 0)), "no page fault");
        check!(address == WINDOW + PAGE, "the page fault is at another address");
    }
    // An instruction that ends with the page needs no other.
    write(frame(0) + PAGE - 5, &[0x8b, 0x07]);
    write(frame(0) + PAGE - 3, &BACK);
    check!(run(WINDOW + PAGE - 5, IO_APIC + DATA, 0) == version, "an instruction at the end of a page");
    map(Root::First, 1, Some(1));
    Ok(())
}

/// More instructions than the cache holds, each with its own result: evicted ones are decoded again.
fn more_than_a_cache(_: u64) -> Result<(), &'static str> {
    // ADD EAX, [RDI], in three pages.
    const SITES: u64 = 1500;
    for site in 0..SITES {
        write(WINDOW + 2 * site, &[0x03, 0x07]);
    }
    write(WINDOW + 2 * SITES, &BACK);
    for _ in 0..2 {
        check!(run(WINDOW, APIC + VERSION, 0) == (SITES * VERSION_IS) & 0xffff_ffff, "one of them did something else");
    }
    Ok(())
}

const _: () = assert!(FRAMES as u64 * PAGE > 2 * 1500 + 3);
