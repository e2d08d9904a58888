//! The common library of x86-64 guests: started by Multiboot or by PVH, in protected mode.
//!
//! A program has `extern "C" fn main(magic, information)` and [`program!`], which selects the boot protocol
//! and the handlers of fatal errors.
#![no_std]

/// Assembly from a file, relative to `src`, with the macros of `saved.s`; and operands, as those of `global_asm!`.
#[macro_export]
macro_rules! assembly {
    ($file:literal $(, $($operands:tt)*)?) => {
        core::arch::global_asm!(
            include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/saved.s")),
            include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/", $file)),
            // All assembly of a program is assembled together, so a macro is defined once.
            ".irp name, push_preserved, pop_preserved, push_scratch, pop_scratch, call_aligned",
            ".purgem \\name",
            ".endr",
            $($($operands)*)?
        );
    };
}

pub mod acpi;
pub mod console;
pub mod exception;
pub mod gate;
pub mod hypercall;
pub mod lapic;
pub mod machine;
pub mod others;
pub mod tasks;

core::arch::global_asm!(include_str!("boot.s"));
assembly!("exception.s");
core::arch::global_asm!(include_str!("others.s"));

/// The common parts of each program: the loader's header (Multiboot, unless it is `program!(pvh)`), and
/// handlers of unexpected events.
#[macro_export]
macro_rules! program {
    () => {
        $crate::program!(@ "multiboot.s");
    };
    (pvh) => {
        $crate::program!(@ "pvh.s");
    };
    (@ $header:literal) => {
        core::arch::global_asm!(include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/", $header)));

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
