//! Task switches, which the processor leaves to the hypervisor (crate `stile-x86-decode`, module `task`; the manual,
//! "Treatment of Task Switches").

use stile_ledger::x86_64::reason;
use stile_wire::CrashReason;
use stile_x86_decode::task::{self, Cause, Request, Task, Tasks};
use stile_x86_decode::{Event, Fault, SystemSegment, follow};

use super::{crash, exception};
use crate::arch::x86_64::emulation::processor::{By, MOST, Processor};
use crate::arch::x86_64::emulation::registers::fields;
use crate::arch::x86_64::interrupts::delivery;
use crate::arch::x86_64::vcpu::loaded::WholeCpu;
use crate::arch::x86_64::vcpu::{cr0, inject};
use crate::arch::x86_64::virt::basic;
use crate::arch::x86_64::virt::state::{self, Field};
use crate::cpu::Outcome;

/// Handles a task switch. All general registers are in the frame.
pub fn switch(cpu: &mut WholeCpu) -> Outcome {
    let row = reason::TASK_SWITCH.other();
    let qualification = state::read(Field::EXIT_QUALIFICATION);
    let cause = Cause::from_qualification(qualification);
    let event = Event::new(state::read(Field::VECTORING)).filter(|_| cause == Cause::Gate);
    if cause == Cause::Return {
        // Also if the rest faults.
        inject::unblock_nmis();
    }
    if event.is_some_and(Event::is_nmi) {
        inject::block_nmis();
    }
    let request = Request { selector: qualification as u16, cause, next: next(cpu, cause, event), error_code: error_code(event) };
    let mut changed = false;
    let done = run(cpu, &request, &mut changed);
    match done {
        Ok(false) => {}
        Ok(true) => {
            const BY_TASK_SWITCH: u64 = 1 << 15;
            exception::debug(BY_TASK_SWITCH);
            inject::debug();
        }
        Err(fault) => {
            let Some(exception) = follow(event, fault) else {
                return crash(cpu, row, CrashReason::TripleFault, basic::TASK_SWITCH, 0);
            };
            if let Fault::Page(fault) = fault {
                inject::set_fault_address(fault.linear);
            }
            inject::exception(exception.vector, exception.code);
        }
    }
    if changed {
        delivery::pull(cpu);
    }
    if done == Ok(false) { Outcome::again(row) } else { exception::resume_or_leave(cpu, row) }
}

/// Resume point of the old task: after the instruction that switches, or where an interrupt or exception was taken.
fn next(cpu: &mut WholeCpu, cause: Cause, event: Option<Event>) -> u64 {
    let rip = state::read(Field::GUEST_RIP);
    match cause == Cause::Gate && !event.is_some_and(Event::is_software) {
        true => rip,
        false => cpu.context().size().advance(rip, state::read(Field::EXIT_LENGTH) as u8),
    }
}

fn error_code(event: Option<Event>) -> Option<u32> {
    event.filter(|event| event.has_code()).map(|_| state::read(Field::VECTORING_CODE) as u32)
}

/// Executes the switch. Returns whether a debug exception precedes the new task's first instruction, or the fault in
/// the old or new task.
fn run(cpu: &mut WholeCpu, request: &Request, changed: &mut bool) -> Result<bool, Fault> {
    let task: Task = with(cpu, changed, |processor| task::leave(processor, request))?;
    with(cpu, changed, |processor| task::load_segments(processor, &task))?;
    with(cpu, changed, |processor| task::begin(processor, &task, request))
}

/// Gives `work` access to memory in the vCPU's current context.
fn with<T>(cpu: &mut WholeCpu, changed: &mut bool, step: impl FnOnce(&mut Processor<'_>) -> T) -> T {
    let context = cpu.context();
    let mut processor = Processor::new(cpu, &context);
    let done = step(&mut processor);
    *changed |= processor.changed;
    done
}

impl Tasks for Processor<'_> {
    fn task(&self) -> (u64, u32, u32) {
        let [base, limit, rights, _] = fields(SystemSegment::Tr).map(state::read);
        (base, limit as u32, rights as u32)
    }

    fn set_rip(&mut self, rip: u64) {
        state::write(Field::GUEST_RIP, rip);
    }

    fn load_system(&mut self, linear: u64, bytes: &mut [u8]) -> Result<(), Fault> {
        let pieces = self.pieces(linear, bytes.len() as u64, false, By::Processor)?;
        self.move_pieces(pieces, bytes, false);
        Ok(())
    }

    fn store_system(&mut self, linear: u64, bytes: &[u8]) -> Result<(), Fault> {
        bytes.chunks(MOST).zip((linear..).step_by(MOST)).try_for_each(|(part, linear)| self.store_by(linear, part, By::Processor))
    }

    fn check_system(&mut self, linear: u64, bytes: u64, write: bool) -> Result<(), Fault> {
        self.pieces(linear, bytes, write, By::Processor).map(drop)
    }

    fn set_cr3(&mut self, cr3: u32) -> Result<(), Fault> {
        if state::read(Field::GUEST_CR3) == cr3.into() {
            return Ok(());
        }
        state::write(Field::GUEST_CR3, cr3.into());
        state::invalidate_translations();
        if cr0::load_cr3(self.cpu.vcpu().vm()) { Ok(()) } else { Err(Fault::InvalidTask(0)) }
    }

    fn mark_switched(&mut self) {
        const TS: u64 = 1 << 3;
        /// L0 to L3, and LE.
        const LOCAL: u64 = 0b1_0101_0101;
        state::write(Field::GUEST_CR0, state::read(Field::GUEST_CR0) | TS);
        state::write(Field::GUEST_DR7, state::read(Field::GUEST_DR7) & !LOCAL);
        inject::end_shadow();
        inject::end_step();
    }
}
