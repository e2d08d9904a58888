//! Physical CPUs that start: each gets its stack and block; the first one starts the others, one after the other.

use core::fmt::Display;
use core::sync::atomic::{AtomicU64, Ordering};

use stile_board::MAX_CPUS;

use crate::arch::contract::{Counter, Host, Layout, PhysicalCpu};
use crate::arch::{Arch, Cpu};
use crate::console::log;
use crate::cpu::{Block, patience};
use crate::{address_space, memory, stacks};

/// Arguments of a CPU that starts: each back end's `boot.S` knows the first two.
#[repr(C, align(64))]
pub struct Handoff {
    /// Physical address of the root of the final tables.
    root: AtomicU64,
    /// Where its stack begins, in them.
    stack: AtomicU64,
    /// Its number.
    index: AtomicU64,
    /// Progress of the start.
    state: AtomicU64,
}

/// [`Handoff::state`]: it is on its way.
const AWAITED: u64 = 0;
/// It runs vCPUs from now on.
const ARRIVED: u64 = 1;
/// It is there, and is not used.
const UNUSABLE: u64 = 2;

/// The CPU that starts now finds this.
#[unsafe(no_mangle)]
pub static HANDOFF: Handoff =
    Handoff { root: AtomicU64::new(0), stack: AtomicU64::new(0), index: AtomicU64::new(0), state: AtomicU64::new(AWAITED) };

/// How long a CPU may take to start, in seconds.
const PATIENCE: u64 = 5;

/// Gives the first CPU its block.
pub fn first() -> &'static mut Cpu {
    let top = own_stack(0).unwrap_or_else(|why| panic!("{why}"));
    // SAFETY: the stack was just mapped, and the first CPU comes here once.
    unsafe { Cpu::install(top, 0) }
}

/// Maps memory for the stack and block of a CPU, and returns its upper end.
///
/// # Errors
/// In words: there is none.
fn own_stack(cpu: usize) -> Result<u64, &'static str> {
    Ok(address_space::stack(cpu, memory::allocate_pages(stacks::SIZE)?))
}

/// Starts the other CPUs, which `start` knows by the names that the board has for them.
pub fn others<E: Display>(names: impl Iterator<Item = u64>, start: impl Fn(u64) -> Result<(), E>) {
    for (index, name) in (1..MAX_CPUS).zip(names) {
        let stack = match own_stack(index) {
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
        let has_come = || HANDOFF.state.load(Ordering::Acquire) != AWAITED;
        if !patience::wait_for(has_come, Arch::now, PATIENCE * Arch::frequency()) {
            // It may still come, and must not find another one's stack.
            log!("CPU {index} ({name:#x}) has not come in {PATIENCE} s: it is not waited for, and no other is started");
            return;
        }
    }
}

/// Every other CPU, with the final tables, on its own stack.
#[unsafe(no_mangle)]
extern "C" fn secondary_boot() -> ! {
    let index = HANDOFF.index.load(Ordering::Relaxed) as usize;
    let top = Arch::STACKS.of_cpu(index).end;
    // SAFETY: `others` mapped this CPU's stack, and a CPU boots once.
    let cpu = unsafe { Cpu::install(top, index) };
    if let Err(why) = cpu.join() {
        log!("CPU {index} can't be used: {why}");
        HANDOFF.state.store(UNUSABLE, Ordering::Release);
        loop {
            Arch::wait_for_interrupt();
        }
    }
    HANDOFF.state.store(ARRIVED, Ordering::Release);
    crate::start_other(cpu)
}
