//! Executes instruction words with given values in all general registers.

use core::cell::UnsafeCell;

use crate::board::MAX_CPUS;
use crate::exception::{Fault, catch_with_landing};
use crate::smp;

/// Maximum number of instructions per run.
pub const MAX_WORDS: usize = 512;
const BUFFER: usize = 1024;

#[repr(C, align(4096))]
struct Code([UnsafeCell<[u32; BUFFER]>; MAX_CPUS]);

// SAFETY: each CPU uses only its own buffer, in `place` and `execute` alone.
unsafe impl Sync for Code {}

static CODE: Code = Code([const { UnsafeCell::new([0; BUFFER]) }; MAX_CPUS]);

core::arch::global_asm!(include_str!("probe.s"));

unsafe extern "C" {
    static probe_load: u32;
    static probe_store: u32;
    static probe_end: u32;
}

/// x0 to x30.
pub type Registers = [u64; 31];

/// Registers with pairwise different values.
pub fn pattern(seed: u64) -> Registers {
    core::array::from_fn(|index| crate::random::mix(seed << 8 | index as u64))
}

/// Executes instructions; each that takes a synchronous exception is skipped. Returns the first exception;
/// `registers` receives the final values. Instructions may use the stack pointer as base, but must not change
/// it. They may change FP registers: no Rust code uses FP.
pub fn run(words: &[u32], registers: &mut Registers) -> Option<Fault> {
    let landing = place(words);
    execute(landing, registers)
}

/// Executes instructions repeatedly, as [`run`] does, each time with the registers that `next` returns. An emulator retranslates code after
/// each write: executing the same code is some hundred times faster.
pub fn repeat(words: &[u32], times: u64, mut next: impl FnMut() -> Registers) {
    let landing = place(words);
    for _ in 0..times {
        execute(landing, &mut next());
    }
}

/// Writes this CPU's function: it loads all registers, executes the words and stores all registers. Returns where it stores them.
fn place(words: &[u32]) -> u64 {
    let code = CODE.0[smp::this()].get();
    let (load, store, end) = (&raw const probe_load, &raw const probe_store, &raw const probe_end);
    let words = &words[..words.len().min(MAX_WORDS)];
    // SAFETY: the three symbols are in one section in this order, and their total length plus `MAX_WORDS`
    // fits into this CPU's buffer.
    unsafe {
        let loads = store.offset_from(load) as usize;
        let stores = end.offset_from(store) as usize;
        let start = code.cast::<u32>();
        let middle = start.add(loads);
        let last = middle.add(words.len());
        // The halves never change, but copying them is cheap.
        core::ptr::copy_nonoverlapping(load, start, loads);
        core::ptr::copy_nonoverlapping(words.as_ptr(), middle, words.len());
        core::ptr::copy_nonoverlapping(store, last, stores);
        synchronise(start as u64, last.add(stores) as u64);
        last as u64
    }
}

/// Calls what [`place`] has written.
fn execute(landing: u64, registers: &mut Registers) -> Option<Fault> {
    catch_with_landing(landing, || {
        // SAFETY: the buffer holds a function of this type. RAM is mapped executable.
        let function: extern "C" fn(*mut Registers) = unsafe { core::mem::transmute(CODE.0[smp::this()].get()) };
        function(registers);
    })
}

/// Address of [`run`]'s first instruction on this CPU.
pub fn address() -> u64 {
    // SAFETY: the symbols are in one section in this order.
    let loads = unsafe { (&raw const probe_store).byte_offset_from(&raw const probe_load) };
    CODE.0[smp::this()].get() as u64 + loads as u64
}

/// Makes written instructions visible to fetches.
pub fn synchronise(start: u64, end: u64) {
    // 16 bytes: the minimum cache line size.
    for address in (start..end).step_by(16) {
        // SAFETY: cache maintenance moves contents between caches and memory, and changes none.
        unsafe { core::arch::asm!("dc cvau, {}", in(reg) address, options(nostack, preserves_flags)) };
    }
    crate::instruction!("dsb ish");
    for address in (start..end).step_by(16) {
        // SAFETY: cache maintenance moves contents between caches and memory, and changes none.
        unsafe { core::arch::asm!("ic ivau, {}", in(reg) address, options(nostack, preserves_flags)) };
    }
    crate::instruction!("dsb ish");
    crate::instruction!("isb");
}

/// Executes one instruction with `x0` in x0; returns x0 afterwards, and the exception.
pub fn one(word: u32, x0: u64) -> (u64, Option<Fault>) {
    let mut registers = [0; 31];
    registers[0] = x0;
    let fault = run(&[word], &mut registers);
    (registers[0], fault)
}
