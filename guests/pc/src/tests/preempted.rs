//! The byte of KVM's interface that says whether a vCPU has lost its CPU.

use core::arch::asm;
use core::sync::atomic::{AtomicU8, Ordering};

use super::firmware::cpus;
use super::test::check;
use crate::lapic;
use crate::machine::wrmsr;
use crate::others::{self, BEATS, DONE, pass, wait};

const MSR_KVM_STEAL_TIME: u32 = 0x4b56_4d03;
/// Index of the byte in the structure.
const PREEMPTED: usize = 16;

#[repr(C, align(64))]
struct Structure([AtomicU8; 64]);

/// Those of the first two CPUs.
static STRUCTURES: [Structure; 2] = [const { Structure([const { AtomicU8::new(0) }; 64]) }; 2];

fn is_preempted(cpu: usize) -> bool {
    STRUCTURES[cpu].0[PREEMPTED].load(Ordering::SeqCst) & 1 != 0
}

/// Registers this CPU's structure, or none.
fn register(on: bool) {
    if let Some(structure) = STRUCTURES.get(lapic::id() as usize) {
        // SAFETY: the register names a structure that nothing else writes, and that is accessed as atomics.
        unsafe { wrmsr(MSR_KVM_STEAL_TIME, if on { &raw const *structure as u64 | 1 } else { 0 }) };
    }
}

/// A CPU sees that another one that does not run has lost its CPU, and of itself that it has it.
pub fn seen(_: u64) -> Result<(), &'static str> {
    const ROUNDS: u32 = 100;
    if cpus() == 1 {
        return Ok(());
    }
    lapic::enable();
    register(true);
    others::give(|| register(true));
    check!(wait(|| DONE.load(Ordering::SeqCst) == cpus() - 1), "they do not begin");
    let (mut still, mut flagged, mut own) = (0, 0, 0);
    for _ in 0..ROUNDS {
        // Others run meanwhile.
        pass(100_000);
        let (before, beats) = (is_preempted(1), BEATS.load(Ordering::SeqCst));
        // SAFETY: counts a register down.
        unsafe { asm!("2: dec {n}", "jnz 2b", n = inout(reg) 10_000u64 => _, options(nomem, nostack)) };
        still += u32::from(beats == BEATS.load(Ordering::SeqCst));
        flagged += u32::from(before && is_preempted(1));
        own += u32::from(is_preempted(0));
    }
    register(false);
    others::give(|| register(false));
    check!(wait(|| DONE.load(Ordering::SeqCst) == cpus() - 1), "they do not end");
    check!(own == 0, "it has lost its CPU, by what it sees, while it runs");
    check!(still <= ROUNDS / 2 || flagged > 0, "others that do not run have not lost their CPU");
    Ok(())
}
