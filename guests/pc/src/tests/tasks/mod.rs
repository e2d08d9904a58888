//! Hardware task switches, which exist outside of long mode only: emulation must equal the processor.

mod faults;
mod paged;

use crate::lapic;
use crate::tests::test::{On, Test, check};
use paged::{LAST, PAGES, paged};
use pc::tasks::selector::*;
use pc::tasks::{Machine, NT, at, task_gate, word};

/// All of them, in order.
pub const ALL: &[Test] = &[
    ("tasks_called", On::Any, called),
    ("tasks_jumped_to", On::Any, jumped_to),
    ("tasks_by_instructions", On::Any, by_instructions),
    ("tasks_by_a_fault", On::Any, by_a_fault),
    ("tasks_by_an_nmi", On::Any, by_an_nmi),
    ("tasks_by_an_interrupt", On::Any, by_an_interrupt),
    ("tasks_with_other_tables", On::Any, with_other_tables),
    ("tasks_by_a_page_fault", On::Any, by_a_page_fault),
    ("tasks_of_16_bits", On::Any, of_16_bits),
    ("tasks_of_users", On::Any, of_users),
    ("tasks_in_virtual_8086_mode", On::Any, in_virtual_8086_mode),
    ("tasks_and_debug_registers", On::Any, and_debug_registers),
    ("tasks_that_are_wrong", On::Any, faults::before),
    ("tasks_that_can_not_begin", On::Any, faults::after),
    ("tasks_by_events_that_fault", On::Any, faults::of_events),
    ("tasks_that_are_not_there", On::Any, faults::pages),
    ("interrupt_on_an_odd_stack", On::Any, faults::odd_stack),
    ("interrupt_of_the_8259s_on_an_odd_stack", On::Stile, faults::odd_stack_of_the_8259s),
    ("user_through_no_memory", On::Stile, faults::user_through_no_memory),
];

/// CR0.TS in a record.
const TASK_SWITCHED: u32 = 1 << 3;

fn called(_: u64) -> Result<(), &'static str> {
    for program in [at!(main_call), at!(main_call_gate)] {
        let machine = Machine::new(at!(other_return));
        machine.other()[word::LDT] = LDT;
        let run = machine.run(program);
        check!(run.is_complete(2), "it does not come back");
        let [first, second, ..] = run.notes;
        let (main, other) = (machine.main(), machine.other());
        check!(first.tr == OTHER && first.ldt == LDT, "TR and LDTR of the other task");
        check!((first.eax, first.ecx, first.ebp, first.edi) == (0x0101_0101, 0x0202_0202, 0x0606_0606, 0x0808_0808), "its registers");
        check!(first.esp == other[word::ESP] - 8, "its stack");
        check!(first.eflags == 2 | NT, "its flags");
        check!(first.status & TASK_SWITCHED != 0, "CR0.TS");
        check!(other[word::LINK] & 0xffff == MAIN, "the link back");
        check!((main[word::EAX], main[word::EAX + 1], main[word::EAX + 7]) == (0xa1a1_a1a1, 0xc2c2_c2c2, 0xd1d1_d1d1), "what was saved");
        check!(main[word::EIP] == program + 7, "where the main task goes on");
        check!((main[word::CS] & 0xffff, main[word::ES] & 0xffff) == (CODE, DATA), "the selectors that were saved");
        check!(main[word::EFLAGS] == 2, "the flags that were saved");
        check!((second.eax, second.ecx, second.ebx, second.edi) == (0xa1a1_a1a1, 0xc2c2_c2c2, 0xb4b4_b4b4, 0xd1d1_d1d1), "what came back");
        check!(second.eflags == 2 && second.ldt == 0, "the flags or LDTR that came back");
        check!(other[word::EFLAGS] & NT == 0, "IRET does not clear NT");
        // MAIN was made available at the end.
        check!(!machine.is_busy(OTHER), "the other task is still busy");
    }
    // It continues after IRET.
    let machine = Machine::new(at!(other_return));
    let run = machine.run(at!(main_call_twice));
    check!(run.is_complete(4), "the second call does not come back");
    check!(run.notes[2].tr == OTHER && run.notes[2].eip > run.notes[0].eip, "the second call begins at the first's beginning");
    // By the stack's own link: the other task must be busy.
    let machine = Machine::new(at!(other_jump));
    machine.main()[word::LINK] = OTHER;
    *machine.gdt(OTHER) |= 2 << 40;
    let run = machine.run(at!(main_return));
    check!(run.is_complete(2) && run.notes[0].tr == OTHER, "IRET to a task that has not called");
    check!(run.notes[0].eflags == 2 && machine.main()[word::EFLAGS] & NT == 0, "IRET's flags");
    Ok(())
}

fn jumped_to(_: u64) -> Result<(), &'static str> {
    for program in [at!(main_jump), at!(main_jump_gate)] {
        let machine = Machine::new(at!(other_jump));
        machine.other()[word::LINK] = 0x5555;
        let run = machine.run(program);
        check!(run.is_complete(2), "it does not come back");
        let [first, second, ..] = run.notes;
        check!(first.tr == OTHER && first.eflags == 2, "the other task");
        check!(machine.other()[word::LINK] == 0x5555, "JMP writes a link");
        check!(second.eax == 0xa1a1_a1a1 && second.eflags == 2, "what came back");
        check!(!machine.is_busy(OTHER), "the other task is still busy");
        check!(machine.main()[word::EIP] == program + 7, "where the main task goes on");
    }
    Ok(())
}

/// INT n, INT3 and INTO: the task continues after them.
fn by_instructions(_: u64) -> Result<(), &'static str> {
    for (vector, program, length) in [(0x50, at!(main_int), 2), (3, at!(main_int3), 1), (4, at!(main_into), 5)] {
        let machine = Machine::new(at!(other_return));
        machine.lead_to_other(vector);
        let run = machine.run(program);
        check!(run.is_complete(2), "it does not come back");
        check!(run.notes[0].tr == OTHER && run.notes[0].eflags & NT != 0, "the other task");
        check!(machine.main()[word::EIP] == program + length, "where the main task goes on");
    }
    Ok(())
}

fn by_a_fault(_: u64) -> Result<(), &'static str> {
    const RF: u32 = 1 << 16;
    let machine = Machine::new(at!(other_divide));
    machine.lead_to_other(0);
    let run = machine.run(at!(main_divide));
    check!(run.is_complete(2) && run.notes[0].tr == OTHER, "it does not come back");
    check!(machine.main()[word::EIP] == at!(main_divide) + 6, "the place of the fault");
    check!(machine.main()[word::EFLAGS] & RF != 0, "RF was not saved");
    check!(run.notes[1].eax == 150, "the instruction is not done again");
    Ok(())
}

/// The second NMI waits for the first one's IRET.
fn by_an_nmi(_: u64) -> Result<(), &'static str> {
    lapic::enable();
    let machine = Machine::new(at!(other_nmi));
    machine.lead_to_other(2);
    let run = machine.run(at!(main_nmi));
    check!(run.count > 1 && run.notes[0].tr == OTHER && run.notes[1].tr == OTHER, "no NMI");
    check!(run.notes[1].eip != run.notes[0].eip, "an NMI in an NMI");
    check!(run.is_complete(4), "not two NMIs");
    check!(run.notes[2].tr == OTHER, "the second NMI is not the other task");
    check!(run.notes[3].ecx == 0, "the main task does not go on where it was");
    Ok(())
}

fn by_an_interrupt(_: u64) -> Result<(), &'static str> {
    const IF: u32 = 1 << 9;
    lapic::enable();
    let machine = Machine::new(at!(other_interrupt));
    machine.lead_to_other(0xf0);
    let run = machine.run(at!(main_interrupt));
    check!(run.is_complete(2), "not one interrupt");
    check!(run.notes[0].tr == OTHER && run.notes[0].eflags == 2 | NT, "the other task");
    check!(machine.main()[word::EFLAGS] & IF != 0 && run.notes[1].ecx == 0, "the main task does not go on where it was");
    Ok(())
}

fn with_other_tables(_: u64) -> Result<(), &'static str> {
    for pae in [false, true] {
        let (machine, roots) = paged(at!(other_tables), pae);
        let run = machine.run(at!(main_call_twice));
        check!(run.is_complete(4), "it does not come back");
        check!((run.notes[0].eax, run.notes[0].ebx) == (roots[1], 0x2222), "CR3 is not the other task's");
        check!(run.notes[1].tr == MAIN && machine.main()[word::CR3] == roots[0], "CR3 was saved");
        // Translations of the first task's tables are flushed.
        let (machine, _) = paged(at!(other_end), pae);
        machine.lead_to_other(14);
        // SAFETY: only the first CPU runs these tests, and no program runs.
        unsafe { LAST[0].0[0] = 0 };
        let run = machine.run(at!(main_touch));
        check!(run.count == 1 && run.notes[0].top == 2, "no error code");
    }
    Ok(())
}

/// The error code is on the other task's stack; after that task has mapped the page, the instruction is
/// retried.
fn by_a_page_fault(_: u64) -> Result<(), &'static str> {
    for pae in [false, true] {
        let (machine, _) = paged(at!(other_map), pae);
        machine.lead_to_other(14);
        // SAFETY: only the first CPU runs these tests, and no program runs.
        let (entry, value) = unsafe {
            let entry = LAST[0].0[0];
            LAST[0].0[0] = 0;
            (&raw const LAST[0].0 as u32, entry)
        };
        machine.set_entry(entry, value);
        let run = machine.run(at!(main_touch));
        check!(run.is_complete(2), "it does not come back");
        let first = run.notes[0];
        check!(first.tr == OTHER && first.top == 2, "the error code");
        check!(first.esp == machine.other()[word::ESP] - 4 - 8, "its place");
        check!(machine.main()[word::EIP] == at!(main_touch), "the place of the fault");
        // SAFETY: the page is in the program's memory, and no program runs.
        check!(unsafe { (&raw const PAGES[0].0[0]).read_volatile() } == 0xa1a1_a1a1, "the instruction is not done again");
    }
    Ok(())
}

fn of_16_bits(_: u64) -> Result<(), &'static str> {
    let machine = Machine::new(0);
    let run = machine.run(at!(main_call_small));
    check!(run.is_complete(1), "it does not come back");
    let [tr, eax, esp, eflags] = machine.seen();
    check!(tr & 0xffff == SMALL, "TR");
    check!(eax & 0xffff == 0x1234 && esp & 0xffff == 0x0800 && eflags == 2 | NT, "registers");
    check!(run.notes[0].eax == 0xa1a1_a1a1 && run.notes[0].fs == DATA, "what came back");
    let small = machine.small();
    check!(u32::from(small[0]) == MAIN && small[7] > 20 && u32::from(small[8]) & NT == 0, "what was saved");
    check!((small[9], small[13]) == (0x1234, 0x0800), "the registers that were saved");
    check!(!machine.is_busy(SMALL), "it is still busy");
    Ok(())
}

/// A task of user mode, and one of user mode in a conforming segment of the system's.
fn of_users(_: u64) -> Result<(), &'static str> {
    const ACCESSED: u64 = 1 << 40;
    for code in [USER_CODE, CONFORMING | 3] {
        let machine = Machine::new(at!(other_return));
        let other = machine.other();
        other[word::CS] = code;
        for segment in [word::ES, word::SS, word::DS, word::DS + 1, word::DS + 2] {
            other[segment] = USER_DATA;
        }
        for segment in [code, USER_DATA] {
            *machine.gdt(segment) &= !ACCESSED;
        }
        let run = machine.run(at!(main_call));
        check!(run.is_complete(2), "it does not come back");
        check!(run.notes[0].cs == code && run.notes[0].ss == USER_DATA, "the other task");
        check!(run.notes[1].cs == CODE && run.notes[1].ss == DATA, "the main task");
        check!([code, USER_DATA].iter().all(|&segment| *machine.gdt(segment) & ACCESSED != 0), "a segment is not marked as accessed");
    }
    Ok(())
}

/// IRET to a task of virtual-8086 mode, of which an exception leads back to the main task.
fn in_virtual_8086_mode(_: u64) -> Result<(), &'static str> {
    const VM: u32 = 1 << 17;
    const PAGE: u32 = 0x9000;
    // SAFETY: an unused page below 1 MiB. UD2.
    unsafe { (PAGE as *mut u16).write_volatile(0x0b0f) };
    let machine = Machine::new(0);
    *machine.gdt(OTHER) |= 2 << 40;
    *machine.idt(6) = task_gate(MAIN, 0x85);
    machine.main()[word::LINK] = OTHER;
    let other = machine.other();
    other[word::EFLAGS] = VM | 2;
    other[word::CS] = PAGE >> 4;
    other[word::SS] = 0x0800;
    other[word::ESP] = 0x800;
    (other[word::DS], other[word::ES]) = (0x1234, 0x2345);
    let run = machine.run(at!(main_return));
    check!(run.is_complete(1), "it does not come back");
    check!(run.notes[0].eflags & (VM | NT) == NT, "the main task's flags");
    check!(machine.main()[word::LINK] & 0xffff == OTHER, "the link back");
    let other = machine.other();
    check!(other[word::EFLAGS] & VM != 0 && other[word::EIP] == 0, "the other task");
    check!((other[word::CS] & 0xffff, other[word::DS] & 0xffff) == (PAGE >> 4, 0x1234), "its segments");
    Ok(())
}

/// A switch clears local breakpoints; a task with the T flag begins with a debug exception; single steps
/// belong to the old task.
fn and_debug_registers(_: u64) -> Result<(), &'static str> {
    const DEBUG: u32 = 1;
    const RF: u32 = 1 << 16;
    // SAFETY: writes DR6, which only reports debug exceptions that have happened.
    let forget = || unsafe { core::arch::asm!("mov dr6, {}", in(reg) 0xffff_0ff0u64, options(nostack)) };
    forget();
    let machine = Machine::new(at!(other_debug));
    let run = machine.run(at!(main_debug));
    check!(run.count > 0 && run.notes[0].eax & 0x7ff == 0x4aa, "DR7");
    let machine = Machine::new(at!(other_return));
    machine.other()[word::TRAP] = 1;
    let run = machine.run(at!(main_call));
    check!(run.end.vector == DEBUG && run.count == 0, "no debug exception");
    check!(run.end.tr == OTHER && run.end.eip == at!(other_return), "it comes elsewhere");
    check!(run.end.dr6 & 0xe00f == 0x8000, "DR6 does not tell of it");
    check!(run.end.eflags & RF == 0, "it is no fault: RF is the task's");
    forget();
    let machine = Machine::new(at!(other_return));
    let run = machine.run(at!(main_step));
    forget();
    check!(run.end.vector == DEBUG && run.count == 1, "no step");
    check!(run.end.tr == MAIN && run.end.eip == at!(main_step) + 16 + 1, "the step is another's");
    Ok(())
}
