//! Task switches that end in a fault: of the old task, of the new one, of the event that they were to deliver.

use pc::tasks::selector::*;
use pc::tasks::{End, Machine, Run, at, descriptor, task_gate, word};

use super::paged::{LAST, paged};
use crate::exception;
use crate::lapic;
use crate::machine::out8;
use crate::tests::firmware;
use crate::tests::test::check;

const DOUBLE_FAULT: u32 = 8;
const INVALID_TASK: u32 = 10;
const NOT_PRESENT: u32 = 11;
const STACK: u32 = 12;
const PROTECTION: u32 = 13;
const PAGE_FAULT: u32 = 14;

/// A corruption of the machine, and the resulting exception with its error code.
type Case = (fn(&Machine), u32, u32);

fn ends(run: &Run, vector: u32, code: u32) -> bool {
    if (run.end.vector, run.end.code) != (vector, code) {
        crate::console::println!("it is {:x?}, not {vector} with {code:#x}", run.end);
    }
    (run.end.vector, run.end.code) == (vector, code)
}

/// Faults before the commit point: in the main task, at the instruction.
pub fn before(_: u64) -> Result<(), &'static str> {
    let calls: [Case; 6] = [
        (|m| *m.gdt(OTHER) &= !(0x80 << 40), NOT_PRESENT, OTHER),
        (|m| *m.gdt(OTHER) |= 2 << 40, PROTECTION, OTHER),
        (|m| *m.gdt(OTHER) -= 1, INVALID_TASK, OTHER),
        // The main task's TSS is too small to save its state.
        (|m| *m.gdt(MAIN) -= 103 - 0x5e, INVALID_TASK, MAIN),
        (|m| *m.gdt(OTHER) = *m.gdt(LDT), PROTECTION, OTHER),
        (|m| *m.gdt(OTHER) = 0, PROTECTION, OTHER),
    ];
    for (change, vector, code) in calls {
        let machine = Machine::new(at!(other_return));
        change(&machine);
        let run = machine.run(at!(main_call));
        check!(ends(&run, vector, code), "another exception of CALL");
        check!(run.count == 0 && run.end.tr == MAIN && run.end.eip == at!(main_call), "it comes elsewhere");
        check!(machine.other()[word::LINK] == 0 && machine.main()[word::EIP] == 0, "something has changed");
    }
    let returns: [Case; 5] = [
        (|_| {}, INVALID_TASK, OTHER),
        (|m| *m.gdt(OTHER) = *m.gdt(OTHER) & !(0x80 << 40) | 2 << 40, NOT_PRESENT, OTHER),
        (|m| m.main()[word::LINK] = END, INVALID_TASK, END),
        (|m| m.main()[word::LINK] = OTHER | 4, INVALID_TASK, OTHER | 4),
        (|m| m.main()[word::LINK] = 0, INVALID_TASK, 0),
    ];
    for (change, vector, code) in returns {
        let machine = Machine::new(at!(other_return));
        machine.main()[word::LINK] = OTHER;
        change(&machine);
        let run = machine.run(at!(main_return));
        check!(ends(&run, vector, code), "another exception of IRET");
        check!(run.count == 0 && run.end.tr == MAIN, "it comes elsewhere");
    }
    Ok(())
}

/// Invalid state of the other task: the exception belongs to that task.
pub fn after(_: u64) -> Result<(), &'static str> {
    /// Access bytes.
    const DATA_READ_ONLY: u64 = 0x91;
    const CODE_EXECUTE_ONLY: u64 = 0x99;
    const fn flat(access: u64) -> u64 {
        descriptor(0, 0xf_ffff, access, 0xc)
    }
    let cases: [Case; 23] = [
        (|m| m.other()[word::LDT] = DATA, INVALID_TASK, DATA),
        (|m| m.other()[word::LDT] = END, INVALID_TASK, END),
        (|m| m.other()[word::LDT] = LDT | 4, INVALID_TASK, LDT | 4),
        (
            |m| {
                m.other()[word::LDT] = LDT;
                *m.gdt(LDT) &= !(0x80 << 40);
            },
            INVALID_TASK,
            LDT,
        ),
        (|m| m.other()[word::SS] = 0, INVALID_TASK, 0),
        (|m| m.other()[word::SS] = END, INVALID_TASK, END),
        (|m| m.other()[word::SS] = CODE, INVALID_TASK, CODE),
        (|m| m.other()[word::SS] = USER_DATA, INVALID_TASK, USER_DATA & !3),
        (|m| m.other()[word::SS] = DATA | 1, INVALID_TASK, DATA),
        // Without an LDT.
        (|m| m.other()[word::SS] = 8 | 4, INVALID_TASK, 8 | 4),
        (|m| odd(m, word::SS, flat(DATA_READ_ONLY)), INVALID_TASK, ODD),
        (|m| odd(m, word::SS, flat(0x13)), STACK, ODD),
        (|m| m.other()[word::DS] = END, INVALID_TASK, END),
        (|m| m.other()[word::DS] = MAIN, INVALID_TASK, MAIN),
        (|m| m.other()[word::ES] = DATA | 3, INVALID_TASK, DATA),
        (|m| odd(m, word::DS + 1, flat(CODE_EXECUTE_ONLY)), INVALID_TASK, ODD),
        (|m| odd(m, word::DS + 2, flat(0x13)), NOT_PRESENT, ODD),
        (|m| m.other()[word::CS] = 0, INVALID_TASK, 0),
        (|m| m.other()[word::CS] = DATA, INVALID_TASK, DATA),
        (|m| m.other()[word::CS] = USER_CODE & !3, INVALID_TASK, USER_CODE & !3),
        (|m| m.other()[word::CS] = END, INVALID_TASK, END),
        (|m| odd(m, word::CS, flat(0x1b)), NOT_PRESENT, ODD),
        // The code ends before it begins.
        (|m| odd(m, word::CS, descriptor(0, 0xfff, 0x9b, 4)), PROTECTION, 0),
    ];
    for (n, (change, vector, code)) in cases.into_iter().enumerate() {
        let machine = Machine::new(at!(other_return));
        change(&machine);
        let run = machine.run(at!(main_call));
        if !ends(&run, vector, code) {
            crate::console::println!("it is case {n}");
            return Err("another exception");
        }
        let End { eip, tr, cs, .. } = run.end;
        check!(run.count == 0 && tr == OTHER && eip == at!(other_return), "it comes elsewhere");
        check!(cs == machine.other()[word::CS], "CS is another");
        check!(machine.other()[word::LINK] == MAIN && machine.is_busy(OTHER), "the switch is not done");
        check!(machine.main()[word::EIP] == at!(main_call) + 7, "the main task is not saved");
    }
    // With an LDT that stack is valid, and null selectors are allowed in other segments.
    let machine = Machine::new(at!(other_return));
    let other = machine.other();
    (other[word::LDT], other[word::SS], other[word::DS + 1], other[word::DS + 2]) = (LDT, 8 | 4, 0, 3);
    let run = machine.run(at!(main_call));
    check!(run.is_complete(2) && run.notes[0].ss == 8 | 4 && run.notes[0].gs == 3, "a stack of the LDT's");
    Ok(())
}

/// Points a word of the other task's TSS to a descriptor of the test.
fn odd(machine: &Machine, word: usize, descriptor: u64) {
    machine.other()[word] = ODD;
    *machine.gdt(ODD) = descriptor;
}

/// Task gates of events: the effect of a fault depends on the event.
pub fn of_events(_: u64) -> Result<(), &'static str> {
    lapic::enable();
    // The program and its vector; whether the event is external; and whether it and another exception are
    // combined to a double fault.
    let events = [
        (at!(main_int), 0x50, 0, false),
        (at!(main_int3), 3, 0, false),
        (at!(main_ud), 6, 1, false),
        (at!(main_interrupt), 0xf0, 1, false),
        (at!(main_divide), 0, 1, true),
    ];
    for (program, vector, external, doubles) in events {
        let expected = |vector: u32, code: u32| if doubles { (DOUBLE_FAULT, 0) } else { (vector, code | external) };
        let new = || {
            let machine = Machine::new(at!(other_return));
            machine.lead_to_other(vector);
            machine
        };
        let start = |machine: &Machine| {
            let run = machine.run(program);
            lapic::end();
            run
        };
        // Before the switch: no such task.
        let machine = new();
        *machine.idt(vector) = task_gate(END, 0xe5);
        let run = start(&machine);
        let (end, code) = expected(PROTECTION, END);
        check!(ends(&run, end, code) && run.end.tr == MAIN, "a gate to nowhere");
        // After the switch: no data segment; no space for the error code.
        let machine = new();
        machine.other()[word::DS] = END;
        let run = start(&machine);
        let (end, code) = expected(INVALID_TASK, END);
        check!(ends(&run, end, code) && run.end.tr == OTHER, "a task without data");
        let machine = new();
        odd(&machine, word::CS, descriptor(0, 0xfff, 0x9b, 4));
        let run = start(&machine);
        let (end, code) = expected(PROTECTION, 0);
        check!(ends(&run, end, code) && run.end.tr == OTHER, "a task without code");
    }
    // The main task's TSS is too small, which is detected only during the switch.
    let machine = Machine::new(at!(other_return));
    machine.lead_to_other(0);
    *machine.gdt(MAIN) -= 103 - 0x5e;
    check!(ends(&machine.run(at!(main_divide)), DOUBLE_FAULT, 0), "a fault of the switch itself is no double fault");
    Ok(())
}

/// TSSs in pages that are not present, and stacks without room.
pub fn pages(_: u64) -> Result<(), &'static str> {
    const HOLE: u32 = 0x4000_0000;
    for pae in [false, true] {
        // The other TSS begins at the end of a present page, and continues in a not-present one.
        let (machine, _) = paged(at!(other_return), pae);
        *machine.gdt(OTHER) = descriptor(HOLE + 4096 - 50, 103, 0x89, 0);
        let run = machine.run(at!(main_call));
        check!(ends(&run, PAGE_FAULT, 0) && run.end.tr == MAIN, "a TSS of which half is there");
        check!(run.end.cr2 == HOLE + 4096 + 53 || run.end.cr2 == HOLE + 4096, "CR2 is another address");
        check!(run.end.eip == at!(main_call) && run.count == 0, "it comes elsewhere");
    }
    // The other task's error code can't be pushed: its stack is not present, or has no room. In user mode, as
    // the double fault needs another stack.
    for (pae, small) in [(false, false), (true, false), (false, true)] {
        let (machine, _) = paged(at!(other_return), pae);
        machine.lead_to_other(14);
        let other = machine.other();
        other[word::CS] = USER_CODE;
        for segment in [word::ES, word::SS, word::DS, word::DS + 1, word::DS + 2] {
            other[segment] = USER_DATA;
        }
        other[word::ESP] = HOLE + 4096 + 64;
        if small {
            other[word::SS] = ODD | 3;
            *machine.gdt(ODD) = descriptor(0, 0xffff, 0xf3, 0);
            other[word::ESP] = 2;
        }
        // SAFETY: the program's memory is accessed by its own code only, which does not run between two calls of `run`.
        unsafe { LAST[0].0[0] = 0 };
        let run = machine.run(at!(main_touch));
        check!(ends(&run, DOUBLE_FAULT, 0) && run.end.tr == OTHER, "an error code without room");
    }
    Ok(())
}

/// An interrupt in user mode whose stack is not aligned: the alignment check comes first, and the interrupt is still
/// pending.
pub fn odd_stack(_: u64) -> Result<(), &'static str> {
    const VECTOR: u8 = 0x56;
    lapic::enable();
    exception::handle(VECTOR, None);
    lapic::send(0, lapic::command::SELF | u32::from(VECTOR));
    check!(is_checked_first(VECTOR), "another exception");
    check!(exception::take(VECTOR) == 1, "the interrupt does not come");
    Ok(())
}

/// An alignment check of a user's stack precedes an interrupt of the 8259s, which is taken then, and which the local APIC does not
/// serve. Its vector is one that no APIC delivers, and another.
pub fn odd_stack_of_the_8259s(_: u64) -> Result<(), &'static str> {
    const LINE: u8 = 3;
    const EXTERNAL: u32 = 7 << 8;
    lapic::enable();
    lapic::write(lapic::register::LINT0, EXTERNAL);
    let mut right = [(false, false, false); 2];
    for (base, right) in [0x00, 0x50].into_iter().zip(&mut right) {
        let vector = base + LINE;
        firmware::start_8259s(base);
        firmware::mask_8259(!(1 << LINE));
        // SAFETY: an end of interrupt, to the first 8259.
        exception::handle(vector, Some(|_| unsafe { out8(0x20, 0x20) }));
        firmware::set_test_line(LINE, true);
        let checked = is_checked_first(vector);
        firmware::set_test_line(LINE, false);
        let serves = (0..8).any(|word| lapic::read(lapic::register::ISR + 16 * word) != 0);
        *right = (checked, exception::take(vector) == 1, !serves);
        firmware::mask_8259(0xff);
        exception::handle(vector, None);
    }
    lapic::write(lapic::register::LINT0, lapic::IO_MASKED);
    check!(right.iter().all(|right| right.0), "another exception");
    check!(right.iter().all(|right| right.1), "the interrupt does not come");
    check!(right.iter().all(|right| right.2), "the local APIC serves it");
    Ok(())
}

/// Whether the alignment check of a user's stack precedes a pending interrupt, which is taken then.
fn is_checked_first(vector: u8) -> bool {
    const ALIGNMENT: u32 = 17;
    let machine = Machine::new(0);
    let handler = u64::from(at!(tasks_done));
    // At the privilege of user mode.
    *machine.idt(vector.into()) = handler & 0xffff | u64::from(USER_CODE) << 16 | 0x8e << 40 | handler >> 16 << 48;
    let run = machine.run(at!(main_odd_stack));
    crate::machine::sti();
    crate::machine::cli();
    ends(&run, ALIGNMENT, run.end.code)
}

/// An access in user mode through a page table where there is no RAM: the error code has U/S set.
pub fn user_through_no_memory(_: u64) -> Result<(), &'static str> {
    const USER: u32 = 1 << 2;
    let (machine, roots) = paged(0, false);
    let root = roots[0] as *mut u32;
    // SAFETY: the table belongs to these tests, and no program runs.
    unsafe {
        for entry in 0..1024 {
            *root.add(entry) |= USER;
        }
        *root.add(256) = 0xf000_0007;
    }
    let run = machine.run(at!(main_user_touch));
    check!(ends(&run, PAGE_FAULT, USER) && run.end.cr2 == 0x4000_0000, "another exception");
    Ok(())
}
