//! Interrupts and NMIs of an L2 whose delivery an alignment check replaces. The handlers are code of user mode, on a stack that is not aligned, so that
//! L2 is 32-bit code: in 64-bit mode the processor aligns it.

use pc::exception;
use pc::lapic;
use pc::machine::{cli, in8, out8, sti};

use crate::exits::VMCALL;
use crate::field::{self, pin};
use crate::pae::{self, fresh_with_pae};
use crate::test::{Outcome, Test, is_guest, same};
use crate::vmcs::{AREA, Done, Registers, STACK, VIRTUAL_NMIS, code, enable, get, page, poke, run, set};

pub const ALL: &[Test] = &[
    ("injected_interrupt_behind_an_alignment_check", injected),
    ("own_interrupt_behind_an_alignment_check", own),
    ("interrupt_behind_an_alignment_check_that_exits_meanwhile", across_exits),
    ("external_interrupt_behind_an_alignment_check_goes_to_l1", external),
    ("injected_nmi_behind_an_alignment_check", nmi),
    ("injected_virtual_nmi_behind_an_alignment_check", virtual_nmi),
];

const VECTOR: u64 = 0x41;
/// Of the 8259s' first line.
const TIMER: u64 = 0x40;
const NMI: u64 = 2;
const ALIGNMENT: u64 = 17;
const VALID: u64 = 1 << 31;
const IF: u64 = 1 << 9;
const AC: u64 = 1 << 18;
/// CR0.
const AM: u64 = 1 << 18;

/// Rounds in which L2 takes an interrupt.
const SPINS: u64 = 100_000;

/// Selectors of L2's GDT.
const CODE: u64 = 0x08;
const DATA: u64 = 0x10;
const USER_CODE: u64 = 0x1b;
const USER_DATA: u64 = 0x23;
const TSS: u64 = 0x28;
/// Code that runs at the privilege level of the interrupted code.
const CONFORMING: u64 = 0x30;
/// Words of the page with L2's GDT, its TSS and its IDT.
const TABLES: usize = AREA;
const TSS_WORD: usize = 8;
const IDT_WORD: usize = 32;

/// Enters an L2 in user mode whose stack is not aligned, with interrupts enabled. `information`: of the event that the entry injects;
/// `controls`: pin-based ones. Its handlers count alignment checks in ESI, and interrupts in EDI. `meanwhile`: that of the alignment check executes CPUID, which exits.
fn enter(information: u64, controls: u32, meanwhile: bool) -> (Result<u64, Done>, Registers) {
    // The error code is dropped, and the stack that IRET returns to aligned.
    let alignment = code!(
        ".code32",
        "inc esi",
        "test ebp, ebp",
        "jz 5f",
        "cpuid",
        "5: add esp, 4",
        "and dword ptr [esp + 12], -16",
        "iretd",
        ".code64"
    );
    let handler = code!(".code32", "inc edi", ".code64");
    let spin = code!(".code32", "2: loop 2b", ".code64");
    fresh_with_pae(spin);
    enable(field::PIN_CONTROLS, controls);
    pae::let_user_in();
    let gate = |handler: u64, selector: u64| handler & 0xffff | selector << 16 | 0x8e << 40 | handler >> 16 << 48;
    let (tables, tss) = (page(TABLES), page(TABLES) + 8 * TSS_WORD as u64);
    let task = 0x67 | (tss & 0xff_ffff) << 16 | 0x8b << 40 | tss >> 24 << 56;
    let descriptors =
        [0, 0x00cf_9b00_0000_ffff, 0x00cf_9300_0000_ffff, 0x00cf_fb00_0000_ffff, 0x00cf_f300_0000_ffff, task, 0x00cf_9f00_0000_ffff];
    for (word, descriptor) in descriptors.into_iter().enumerate() {
        poke(TABLES, word, descriptor);
    }
    // ESP0 and SS0.
    poke(TABLES, TSS_WORD, page(STACK + 1) << 32);
    poke(TABLES, TSS_WORD + 1, DATA);
    poke(TABLES, IDT_WORD + VECTOR as usize, gate(handler, USER_CODE));
    poke(TABLES, IDT_WORD + TIMER as usize, gate(handler, USER_CODE));
    poke(TABLES, IDT_WORD + NMI as usize, gate(handler, CONFORMING));
    poke(TABLES, IDT_WORD + ALIGNMENT as usize, gate(alignment, CODE));
    let fields = [
        (field::GUEST_CR0, get(field::GUEST_CR0) | AM),
        (field::GUEST_RFLAGS, 2 | IF | AC),
        (field::GUEST_RSP, page(STACK) + 0x801),
        (field::GUEST_CS, USER_CODE),
        (field::GUEST_CS_RIGHTS, 0xc0fb),
        (field::GUEST_SS, USER_DATA),
        (field::GUEST_SS_RIGHTS, 0xc0f3),
        (field::GUEST_DS, USER_DATA),
        (field::GUEST_DS_RIGHTS, 0xc0f3),
        (field::GUEST_ES, USER_DATA),
        (field::GUEST_ES_RIGHTS, 0xc0f3),
        (field::GUEST_FS_RIGHTS, 1 << 16),
        (field::GUEST_GS_RIGHTS, 1 << 16),
        (field::GUEST_TR, TSS),
        (field::GUEST_TR_BASE, tss),
        (field::GUEST_GDTR_BASE, tables),
        (field::GUEST_GDTR_LIMIT, 0x37),
        (field::GUEST_IDTR_BASE, tables + 8 * IDT_WORD as u64),
        (field::GUEST_IDTR_LIMIT, 8 * VECTOR + 7),
        (field::EXCEPTION_BITMAP, u64::from(u32::MAX) & !(1 << ALIGNMENT)),
        (field::ENTRY_INTERRUPTION, information),
    ];
    fields.into_iter().for_each(|(field, value)| set(field, value));
    let mut registers = [0, SPINS, 0, 0, meanwhile.into(), 0, 0, 0];
    let exit = run(&mut registers, false);
    (exit, registers)
}

/// Alignment checks and interrupts of L2.
fn counts(registers: &Registers) -> (u64, u64) {
    (registers[5], registers[6])
}

/// Bochs 3.0, as a processor may, loses the interrupt.
const LOST: Outcome = Outcome::Skip("the processor need not keep the interrupt");

fn injected() -> Outcome {
    if !is_guest() {
        return LOST;
    }
    let (exit, registers) = enter(VALID | VECTOR, 0, false);
    same!((exit, counts(&registers)), (VMCALL, (1, 1)), "the exit, and the numbers of alignment checks and interrupts");
    Outcome::Pass
}

/// An interrupt of L1's APIC, without exits by interrupts.
fn own() -> Outcome {
    if !is_guest() {
        return LOST;
    }
    lapic::enable();
    exception::handle(VECTOR as u8, Some(|_| lapic::end()));
    lapic::send(0, VECTOR as u32 | lapic::command::SELF);
    let (exit, registers) = enter(0, 0, false);
    lapic::end();
    same!((exit, counts(&registers)), (VMCALL, (1, 1)), "the exit, and the numbers of alignment checks and interrupts");
    sti();
    cli();
    same!(exception::take(VECTOR as u8), 0, "the number of interrupts in L1");
    exception::handle(VECTOR as u8, None);
    Outcome::Pass
}

/// L1 handles an exit before L2 can take the interrupt.
fn across_exits() -> Outcome {
    const CPUID: Result<u64, Done> = Ok(10);
    if !is_guest() {
        return LOST;
    }
    let (exit, mut registers) = enter(VALID | VECTOR, 0, true);
    same!((exit, counts(&registers)), (CPUID, (1, 0)), "the exit, and the numbers of alignment checks and interrupts");
    set(field::GUEST_RIP, get(field::GUEST_RIP) + 2);
    registers[1] = SPINS;
    let exit = run(&mut registers, true);
    same!((exit, counts(&registers)), (VMCALL, (1, 1)), "the next exit, and the numbers");
    Outcome::Pass
}

/// An interrupt of L1's 8259s, without exits by interrupts: if L2 exits before it can take it, L1 does.
fn external() -> Outcome {
    const CPUID: Result<u64, Done> = Ok(10);
    const EXTERNAL: u32 = 7 << 8;
    /// Ports of the first 8259, and of the PIT.
    const COMMAND: u16 = 0x20;
    const DATA_OF_8259: u16 = 0x21;
    const PIT: u16 = 0x40;
    if !is_guest() {
        return LOST;
    }
    lapic::enable();
    lapic::write(lapic::register::LINT0, EXTERNAL);
    exception::handle(TIMER as u8, Some(|_| ()));
    // SAFETY: the devices are the tests'. Vectors from 40H on, a line of the timer; and a count of the PIT's channel 0 in mode 0.
    unsafe {
        [(COMMAND, 0x11), (DATA_OF_8259, TIMER as u8), (DATA_OF_8259, 4), (DATA_OF_8259, 1), (DATA_OF_8259, 0xfe)]
            .into_iter()
            .chain([(PIT + 3, 0x30), (PIT, 0x10), (PIT, 0)])
            .for_each(|(port, value)| out8(port, value));
        // IRR.
        out8(COMMAND, 0x0a);
        while in8(COMMAND) & 1 == 0 {}
    }
    let (exit, registers) = enter(0, 0, true);
    same!((exit, counts(&registers)), (CPUID, (1, 0)), "the exit, and the numbers of alignment checks and interrupts");
    sti();
    cli();
    same!(exception::take(TIMER as u8), 1, "the number of interrupts in L1");
    // SAFETY: ends the interrupt, and masks all.
    unsafe {
        out8(COMMAND, 0x20);
        out8(DATA_OF_8259, 0xff);
    }
    lapic::write(lapic::register::LINT0, 1 << 16 | EXTERNAL);
    exception::handle(TIMER as u8, None);
    Outcome::Pass
}

/// Enters an L2 with an NMI, whose handler is conforming code. `checks`: alignment checks that are handled before it.
fn inject_nmi(controls: u32, checks: u64) -> Outcome {
    if !is_guest() {
        return LOST;
    }
    let (exit, registers) = enter(VALID | 2 << 8 | NMI, controls, false);
    same!((exit, counts(&registers)), (VMCALL, (checks, 1)), "the exit, and the numbers of alignment checks and NMIs");
    Outcome::Pass
}

/// With exits by NMIs, and without virtual ones, there is no end of blocking to wait for: it comes before the first instruction of the
/// exception's handler.
fn nmi() -> Outcome {
    inject_nmi(pin::NMIS, 0)
}

/// Virtual NMIs are blocked from the first delivery on, until IRET.
fn virtual_nmi() -> Outcome {
    inject_nmi(VIRTUAL_NMIS, 1)
}
