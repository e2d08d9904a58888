//! INIT and resets of a processor that runs an L2 with posted interrupts, a pending interrupt and a timer.

use core::sync::atomic::{AtomicU64, Ordering::SeqCst};

use pc::lapic::{self, command};
use pc::others::{self, DONE, UP, pass, wait};

use crate::exits::VMCALL;
use crate::field::{self, exit, pin};
use crate::instructions;
use crate::test::{Outcome, check, same};
use crate::virtual_interrupts::{NOTIFICATION, VECTOR, notified, post};
use crate::vmcs::{Done, FIRST, code, enable, get, page, run, set, vmclear, vmptrld, vmptrst, vmxoff};

/// The second processor's identifier.
const SECOND: u32 = 1;
const INIT: Result<u64, Done> = Ok(3);
/// More than the tests take, at each rate of the preemption timer.
const LONG: u64 = 0xffff_ffff;
/// Ticks in which the second processor reaches L2.
const WHILE: u64 = 3_000_000;

/// The state of the second processor's L1: a step, or a failure.
static STEP: AtomicU64 = AtomicU64::new(0);
const FAILED: u64 = 100;

/// Enters an L2 that runs until it is interrupted: interrupts posted for it stay pending.
fn enter() -> Result<u64, Done> {
    let loops = code!("2: inc rax", "jmp 2b");
    if !notified(loops) || !enable(field::PIN_CONTROLS, pin::PREEMPTION_TIMER) || !enable(field::EXIT_CONTROLS, exit::SAVE_PREEMPTION_TIMER)
    {
        return Err(Done::FailInvalid);
    }
    set(field::GUEST_RFLAGS, 2);
    set(field::PREEMPTION_TIMER, LONG);
    STEP.fetch_add(1, SeqCst);
    run(&mut [0; 8], false)
}

/// INIT ends L2, and is blocked after that until VMXOFF.
fn first() -> Outcome {
    check!(matches!(instructions::enter(), Outcome::Pass), "VMXON");
    same!(enter(), INIT, "the exit of INIT");
    same!(get(field::GUEST_INTERRUPT_STATUS), VECTOR, "an interrupt posted before");
    check!(get(field::PREEMPTION_TIMER) < LONG, "the timer");
    STEP.fetch_add(1, SeqCst);
    check!(wait(|| STEP.load(SeqCst) == 3), "the next INIT");
    vmclear(page(FIRST));
    vmxoff();
    pass(10 * WHILE);
    Outcome::Fail("INIT does not stop it")
}

/// After INIT and SIPI there is neither VMX operation nor a current VMCS. The VMCS in memory has kept L2's state.
fn again() -> Outcome {
    check!(matches!(instructions::enter(), Outcome::Pass), "VMXON after INIT");
    same!(vmptrst(), u64::MAX, "a current VMCS after INIT");
    same!(vmptrld(page(FIRST)), Done::Succeed, "VMPTRLD");
    same!(get(field::GUEST_INTERRUPT_STATUS), VECTOR, "the interrupt");
    set(field::GUEST_RIP, code!("sti", "nop", "nop"));
    same!((run(&mut [0; 8], false), get(field::GUEST_INTERRUPT_STATUS)), (VMCALL, VECTOR << 8), "the exit, and the interrupt");
    // It stays in L2, with a posted interrupt, until the machine is reset.
    let exit = enter();
    same!(exit, Err(Done::Succeed), "an exit");
    Outcome::Pass
}

fn report(outcome: Outcome) {
    if let Outcome::Fail(why) = outcome {
        pc::console::println!("FAIL second processor: {why}");
        STEP.store(FAILED, SeqCst);
    }
}

fn await_step(step: u64) -> bool {
    wait(|| STEP.load(SeqCst) >= step) && STEP.load(SeqCst) == step
}

fn start() -> bool {
    others::forget();
    others::start();
    wait(|| UP.load(SeqCst) == 1)
}

/// Posts an interrupt for the second processor's L2, and notifies it.
fn notify() {
    pass(WHILE);
    post(VECTOR);
    lapic::send(SECOND, NOTIFICATION as u32 | command::ASSERT);
    pass(WHILE);
}

fn init() {
    lapic::send(SECOND, command::INIT | command::ASSERT);
}

/// Leaves the second processor in an L2. `is_first`: tests INIT before that.
pub fn leave_in_l2(is_first: bool) -> Outcome {
    lapic::enable();
    check!(start(), "the second processor does not start");
    STEP.store(0, SeqCst);
    if is_first {
        others::give(|| report(first()));
        check!(await_step(1), "it does not reach L2");
        notify();
        init();
        check!(await_step(2), "INIT does not end L2");
        init();
        pass(WHILE);
        check!(STEP.load(SeqCst) == 2 && DONE.load(SeqCst) == 0, "INIT is not blocked");
        STEP.store(3, SeqCst);
        pass(2 * WHILE);
        check!(STEP.load(SeqCst) == 3, "it goes on after VMXOFF");
        check!(start(), "it does not start again");
        STEP.store(0, SeqCst);
        others::give(|| report(again()));
    } else {
        others::give(|| {
            report(instructions::enter());
            let _ = enter();
        });
    }
    check!(await_step(1), "it does not reach L2 again");
    notify();
    check!(STEP.load(SeqCst) == 1, "it leaves L2");
    Outcome::Pass
}
