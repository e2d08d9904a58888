//! Start of physical CPUs: each gets its stack and block. The boot CPU starts the others, one after the other.

use core::fmt::Display;
use core::sync::atomic::{AtomicU64, Ordering};

use stile_board::MAX_CPUS;
use stile_sched::CpuId;

use crate::arch::contract::{Counter, Host, Layout, PhysicalCpu};
use crate::arch::{Arch, Cpu};
use crate::console::log;
use crate::cpu::{Block, patience, schedule_memory};
use crate::{address_space, memory, nodes, stacks};

/// Arguments of a secondary CPU: each back end's `boot.S` reads the first two.
#[repr(C, align(64))]
pub struct Handoff {
    /// Physical address of the root of the final tables.
    root: AtomicU64,
    /// Initial stack pointer, a virtual address in the final tables.
    stack: AtomicU64,
    /// CPU number.
    index: AtomicU64,
    /// Progress of the start: one of the constants below.
    state: AtomicU64,
}

/// [`Handoff::state`]: started, not yet arrived.
const AWAITED: u64 = 0;
/// [`Handoff::state`]: available to the scheduler.
const ARRIVED: u64 = 1;
/// [`Handoff::state`]: arrived, but unused.
const UNUSABLE: u64 = 2;
/// [`Handoff::state`]: arrived, sets itself up.
const JOINING: u64 = 3;
/// [`Handoff::state`]: did not arrive in time: it does nothing if it still does.
const GIVEN_UP: u64 = 4;

/// Read by the CPU that is being started.
#[unsafe(no_mangle)]
pub static HANDOFF: Handoff =
    Handoff { root: AtomicU64::new(0), stack: AtomicU64::new(0), index: AtomicU64::new(0), state: AtomicU64::new(AWAITED) };

/// Time-out of a CPU's start, in seconds.
const PATIENCE: u64 = 5;

/// Makes room for the schedule of a machine of at most `cpus` CPUs, and installs the boot CPU's block.
///
/// # Errors
/// There is no memory.
pub fn first(cpus: usize) -> Result<&'static mut Cpu, &'static str> {
    let top = schedule_memory::setup(cpus).and_then(|()| own_memory(0))?;
    // SAFETY: the stack was just mapped, and the boot CPU runs this once.
    Ok(unsafe { Cpu::install(top, 0) })
}

/// Maps memory for a CPU's queue, and for its stack and block, whose upper end it returns.
///
/// # Errors
/// A description: no memory is left.
fn own_memory(cpu: usize) -> Result<u64, &'static str> {
    let id = CpuId::wrapping(cpu);
    schedule_memory::add_cpu(id)?;
    Ok(address_space::stack(cpu, memory::allocate_pages_near(stacks::SIZE, &nodes::near(&id.into()))?))
}

/// Starts the secondary CPUs. `start` takes the board's identifiers of CPUs. `stop` makes sure that one which has not arrived does not
/// execute any of Stile's code, or returns false.
pub fn others<E: Display>(names: impl Iterator<Item = u64>, start: impl Fn(u64) -> Result<(), E>, stop: impl Fn(u64) -> bool) {
    for (index, name) in (1..MAX_CPUS).zip(names) {
        let stack = match own_memory(index) {
            Ok(stack) => stack,
            Err(why) => {
                log!("CPU {index} ({name:#x}) is not started: {why}");
                return;
            }
        };
        HANDOFF.root.store(address_space::root(), Ordering::Relaxed);
        HANDOFF.stack.store(Block::address(stack), Ordering::Relaxed);
        HANDOFF.index.store(index as u64, Ordering::Relaxed);
        HANDOFF.state.store(AWAITED, Ordering::Release);
        if let Err(error) = start(name) {
            log!("CPU {index} ({name:#x}) does not start: {error}");
            continue;
        }
        if has_come() {
            continue;
        }
        let is_late = HANDOFF.state.compare_exchange(AWAITED, GIVEN_UP, Ordering::AcqRel, Ordering::Acquire).is_ok();
        if is_late && stop(name) {
            log!("CPU {index} ({name:#x}) has not started within {PATIENCE} s: Stile continues without it");
        } else if is_late || !has_come() {
            // The CPU may still arrive late, and must not find another CPU's stack.
            log!("CPU {index} ({name:#x}) has not started within {PATIENCE} s: Stile continues without it, and starts no further CPU");
            return;
        }
    }
}

/// Waits for the CPU that is being started. Returns whether it is set up, or found to be unusable.
fn has_come() -> bool {
    let is_done = || matches!(HANDOFF.state.load(Ordering::Acquire), ARRIVED | UNUSABLE);
    patience::wait_for(is_done, Arch::now, PATIENCE * Arch::frequency())
}

/// Entry of secondary CPUs, with the final tables, on their own stacks.
#[unsafe(no_mangle)]
extern "C" fn secondary_boot() -> ! {
    if HANDOFF.state.compare_exchange(AWAITED, JOINING, Ordering::AcqRel, Ordering::Acquire).is_err() {
        halt();
    }
    let index = HANDOFF.index.load(Ordering::Relaxed) as usize;
    let top = Arch::STACKS.of_cpu(index).end;
    // SAFETY: `others` mapped this CPU's stack for it alone, and a CPU boots once.
    let cpu = unsafe { Cpu::install(top, index) };
    if let Err(why) = cpu.join() {
        log!("CPU {index} can't be used: {why}");
        HANDOFF.state.store(UNUSABLE, Ordering::Release);
        halt();
    }
    HANDOFF.state.store(ARRIVED, Ordering::Release);
    // No vCPU runs yet: the CPU sleeps until a reschedule request.
    super::work(cpu)
}

fn halt() -> ! {
    loop {
        Arch::wait_for_interrupt();
    }
}
