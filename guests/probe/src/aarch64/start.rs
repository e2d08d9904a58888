//! Entry code for all CPUs, and the exception vectors.

use core::cell::UnsafeCell;

use super::cpu::{self, CPUS};

/// Bytes of stack of each CPU.
const STACK_SIZE: usize = 16 * 1024;

#[repr(C, align(16))]
struct Stacks(UnsafeCell<[[u8; STACK_SIZE]; CPUS]>);

// SAFETY: each CPU uses only its own stack, and no Rust reference to it exists.
unsafe impl Sync for Stacks {}

static STACKS: Stacks = Stacks(UnsafeCell::new([[0; STACK_SIZE]; CPUS]));

core::arch::global_asm!(
    include_str!("start.s"),
    stacks = sym STACKS,
    stack_size = const STACK_SIZE,
    slots = sym cpu::SLOTS,
    slot_shift = const cpu::SLOT_SHIFT,
    taken = const cpu::TAKEN,
    stamp = const cpu::STAMP,
    faults = const cpu::FAULTS,
    main = sym super::main,
    other = sym super::others::main,
);
