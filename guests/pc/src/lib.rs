//! What the guests for x86-64 are made of: they are started by Multiboot, in protected mode.
//!
//! A program has `extern "C" fn main(magic, information)` and [`program!`], which ends it where it can't go on.
#![no_std]

pub mod console;
pub mod exception;
pub mod lapic;
pub mod machine;
pub mod others;

core::arch::global_asm!(include_str!("boot.s"));
core::arch::global_asm!(include_str!("exception.s"));
core::arch::global_asm!(include_str!("others.s"));

/// What each program has: the ends of what nobody expects.
#[macro_export]
macro_rules! program {
    () => {
        #[unsafe(no_mangle)]
        extern "C" fn unexpected(vector: u64, rip: u64) -> ! {
            $crate::console::println!("FAIL: exception {vector} at {rip:#x}\nEXIT: STATUS=2");
            $crate::machine::off()
        }

        #[panic_handler]
        fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
            $crate::console::println!("FAIL: {info}\nEXIT: STATUS=2");
            $crate::machine::off()
        }
    };
}
