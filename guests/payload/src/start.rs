//! Start code, from the first instruction to the suite's `main`, for the first CPU and for the others.

use core::cell::UnsafeCell;

use crate::entry::{Entry, HCR};
use crate::{board, machine, mmu, smp, uart};

/// Bytes of stack for each CPU.
const STACK_SIZE: usize = 32 * 1024;

#[repr(C, align(4096))]
struct Stacks(UnsafeCell<[[u8; STACK_SIZE]; board::MAX_CPUS]>);

// SAFETY: each CPU uses only its own stack, and no Rust reference to it exists.
unsafe impl Sync for Stacks {}

static STACKS: Stacks = Stacks(UnsafeCell::new([[0; STACK_SIZE]; board::MAX_CPUS]));

core::arch::global_asm!(
    include_str!("boot.s"),
    stacks = sym STACKS,
    stack_size = const STACK_SIZE,
    cpus = const board::MAX_CPUS,
    first = sym first,
    secondary = sym smp::secondary,
    root = sym mmu::ROOT,
    mair = const mmu::MAIR,
    tcr = const mmu::TCR,
    sctlr = const mmu::SCTLR,
    hcr = const HCR,
);

unsafe extern "Rust" {
    /// The suite, defined by `program!`.
    safe fn guest_main(entry: &Entry) -> !;
}

extern "C" fn first(entry: &Entry) -> ! {
    machine::init(entry.x0);
    uart::init();
    smp::arrived(entry);
    guest_main(entry)
}

/// Defines the guest's program: `program!(main)` with `fn main(entry: &Entry) -> !`.
#[macro_export]
macro_rules! program {
    ($main:path) => {
        // SAFETY: the only definition of this symbol in the program, with the signature that the start code declares.
        #[unsafe(no_mangle)]
        fn guest_main(entry: &$crate::entry::Entry) -> ! {
            $main(entry)
        }
    };
}
