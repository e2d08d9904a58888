//! Exception handling: dispatches to the test that expects one, or to the interrupt handler, or ends the
//! guest.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use crate::{board, harness, irq, mrs, println, smp};

/// The registers saved by the vectors.
#[repr(C)]
pub struct Frame {
    /// x0 to x30.
    pub x: [u64; 31],
    /// ELR_EL1: the return address.
    pub pc: u64,
    /// SPSR_EL1.
    pub pstate: u64,
    _alignment: u64,
}

/// A synchronous exception that was expected.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// ESR_EL1.
    pub esr: u64,
    /// FAR_EL1.
    pub far: u64,
    /// ELR_EL1.
    pub pc: u64,
    /// SPSR_EL1.
    pub pstate: u64,
}

/// Exception class: unknown reason, as for undefined instructions.
pub const EC_UNKNOWN: u64 = 0x00;
/// Exception class: trapped FP access.
pub const EC_FP: u64 = 0x07;
/// Exception class: illegal execution state.
pub const EC_ILLEGAL_STATE: u64 = 0x0E;
/// Exception class: SVC.
pub const EC_SVC: u64 = 0x15;
/// Exception class: instruction abort without a change of exception level.
pub const EC_INSTRUCTION_ABORT: u64 = 0x21;
/// Exception class: PC alignment.
pub const EC_PC_ALIGNMENT: u64 = 0x22;
/// Exception class: data abort without a change of exception level.
pub const EC_DATA_ABORT: u64 = 0x25;
/// Exception class: BRK.
pub const EC_BRK: u64 = 0x3C;

impl Fault {
    /// The exception class, ESR_EL1.EC.
    pub fn class(&self) -> u64 {
        self.esr >> 26 & 0x3F
    }

    /// The fault status code of an abort, ESR_EL1.DFSC or IFSC.
    pub fn status(&self) -> u64 {
        self.esr & 0x3F
    }

    /// Whether this is an undefined instruction at EL1.
    pub fn is_undefined(&self) -> bool {
        // EC 0, IL 1, ISS 0.
        self.esr & 0xFFFF_FFFF == 1 << 25
    }

    /// Whether this is a synchronous external abort of a data access, not on a table walk.
    pub fn is_external_abort(&self) -> bool {
        self.class() == EC_DATA_ABORT && self.status() == 0x10
    }
}

/// A CPU's expectation of synchronous exceptions.
struct Expectation {
    armed: AtomicBool,
    count: AtomicU64,
    first: [AtomicU64; 4],
    /// Address at which to continue after an exception without a next instruction, such as a failed fetch.
    landing: AtomicU64,
}

static EXPECTATIONS: [Expectation; board::MAX_CPUS] = [const {
    Expectation {
        armed: AtomicBool::new(false),
        count: AtomicU64::new(0),
        first: [const { AtomicU64::new(0) }; 4],
        landing: AtomicU64::new(0),
    }
}; board::MAX_CPUS];

core::arch::global_asm!(
    include_str!("vectors.s"),
    frame_size = const size_of::<Frame>(),
    exception = sym exception,
);

/// Runs code with each instruction that takes a synchronous exception skipped. Returns the first exception.
/// Failed instruction fetches continue at `landing`.
pub fn catch_with_landing(landing: u64, code: impl FnOnce()) -> Option<Fault> {
    let expectation = &EXPECTATIONS[smp::this()];
    expectation.count.store(0, Relaxed);
    expectation.landing.store(landing, Relaxed);
    expectation.armed.store(true, Relaxed);
    core::sync::atomic::compiler_fence(core::sync::atomic::Ordering::SeqCst);
    code();
    core::sync::atomic::compiler_fence(core::sync::atomic::Ordering::SeqCst);
    expectation.armed.store(false, Relaxed);
    let [esr, far, pc, pstate] = &expectation.first;
    (expectation.count.load(Relaxed) > 0).then(|| Fault {
        esr: esr.load(Relaxed),
        far: far.load(Relaxed),
        pc: pc.load(Relaxed),
        pstate: pstate.load(Relaxed),
    })
}

/// Runs code with each instruction that takes a synchronous exception skipped. Returns the first exception. A
/// jump to an unmapped address continues at its return address (x30).
pub fn catch(code: impl FnOnce()) -> Option<Fault> {
    catch_with_landing(0, code)
}

/// Number of exceptions skipped by the last [`catch`] on this CPU.
pub fn caught() -> u64 {
    EXPECTATIONS[smp::this()].count.load(Relaxed)
}

extern "C" fn exception(frame: &mut Frame, vector: u64) {
    match vector {
        // Synchronous, from EL1 with SP_EL0 or SP_EL1, or from EL0 in AArch64 or AArch32 state.
        0 | 4 | 8 | 12 if expected(frame) => {}
        // IRQ.
        1 | 5 | 9 => irq::handle(),
        _ => unexpected(frame, vector),
    }
}

fn expected(frame: &mut Frame) -> bool {
    let expectation = &EXPECTATIONS[smp::this()];
    if !expectation.armed.load(Relaxed) {
        return false;
    }
    let fault = Fault { esr: mrs!("ESR_EL1"), far: mrs!("FAR_EL1"), pc: frame.pc, pstate: frame.pstate };
    if expectation.count.fetch_add(1, Relaxed) == 0 {
        for (cell, value) in expectation.first.iter().zip([fault.esr, fault.far, fault.pc, fault.pstate]) {
            cell.store(value, Relaxed);
        }
    }
    let landing = expectation.landing.load(Relaxed);
    frame.pc = match fault.class() {
        // The instruction was not executed: retry it with PSTATE.IL clear.
        EC_ILLEGAL_STATE => {
            frame.pstate &= !(1 << 20);
            frame.pc
        }
        EC_INSTRUCTION_ABORT | EC_PC_ALIGNMENT if landing != 0 => landing,
        EC_INSTRUCTION_ABORT | EC_PC_ALIGNMENT => frame.x[30],
        // The preferred return address of a system call is the next instruction.
        EC_SVC => frame.pc,
        // EL0 code can only continue at the landing, at EL1.
        _ if frame.pstate & 0xF == 0 => frame.pc,
        _ => frame.pc + 4,
    };
    // Ends execution at EL0.
    if frame.pstate & 0xF == 0 && landing != 0 {
        frame.pc = landing;
        frame.pstate = 0x3C1 | mrs!("CurrentEL");
    }
    true
}

fn unexpected(frame: &Frame, vector: u64) -> ! {
    const KINDS: [&str; 4] = ["synchronous exception", "IRQ", "FIQ", "SError"];
    const FROM: [&str; 4] = ["EL1t", "EL1h", "EL0", "EL0 (AArch32)"];
    crate::console::seize();
    println!(
        "CPU {}: unexpected {} from {}: ESR {:#x} FAR {:#x} ELR {:#x} SPSR {:#x}",
        smp::this(),
        KINDS[vector as usize & 3],
        FROM[vector as usize >> 2 & 3],
        mrs!("ESR_EL1"),
        mrs!("FAR_EL1"),
        frame.pc,
        frame.pstate,
    );
    for (index, value) in frame.x.iter().enumerate() {
        println!("x{index:<2} {value:#018x}");
    }
    harness::die("unexpected exception")
}
