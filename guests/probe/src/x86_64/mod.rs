//! A PC: in 64-bit mode, started by Multiboot. The same under Stile, KVM and none.

mod apic;
mod console;
mod cpu;
mod interrupts;
mod measure;
mod operations;
mod second;

pub use console::print;
pub use cpu::{faults, off};
pub(crate) use measure::loop_ticks;
pub use measure::{begin_section, end_section, thousandths};
pub use operations::OPERATIONS;
pub use second::start as start_second;

use crate::arguments::Arguments;

core::arch::global_asm!(include_str!("../../../pc/src/multiboot.s"));
core::arch::global_asm!(include_str!("../../../pc/src/boot.s"));

/// Multiboot's word to a program, in EAX (Multiboot Specification 0.6.96, "Machine state").
const MULTIBOOT: u32 = 0x2bad_b002;

/// The machine, and what the command line asks for.
pub struct Platform {
    /// Requests of the command line.
    pub arguments: Arguments,
}

#[unsafe(no_mangle)]
extern "C" fn main(magic: u32, information: u32) -> ! {
    console::setup();
    interrupts::setup();
    assert!(magic == MULTIBOOT, "not started by Multiboot");
    let platform = Platform { arguments: Arguments::parse(command_line(u64::from(information))) };
    apic::setup();
    crate::operations::run_all(&platform);
    off()
}

/// The command line in Multiboot's information ("Boot information format").
fn command_line(information: u64) -> &'static str {
    const HAS_COMMAND_LINE: u32 = 1 << 2;
    // SAFETY: the loader put its information there, nothing writes to it, and the first 4 GiB are mapped.
    let word = |at: u64| unsafe { ((information + at) as *const u32).read() };
    if word(0) & HAS_COMMAND_LINE == 0 {
        return "";
    }
    // SAFETY: the loader put its information there, nothing writes to it, and the first 4 GiB are mapped; the text ends with a NUL.
    let text = unsafe { core::ffi::CStr::from_ptr(u64::from(word(16)) as *const core::ffi::c_char) };
    text.to_str().unwrap_or("")
}
