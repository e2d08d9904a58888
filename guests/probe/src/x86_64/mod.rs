//! A PC: in 64-bit mode, started by Multiboot. The same under Stile, KVM and none.

mod apic;
mod console;
mod cpu;
#[path = "../../../pc/src/gate.rs"]
#[allow(dead_code, reason = "the tests need more of it")]
mod gate;
mod interrupts;
mod measure;
mod operations;
mod others;
mod platform;
mod ports;
mod reset;
mod second;

pub use console::print;
pub use cpu::{cycles, faults, instructions, now, off};
pub(crate) use measure::loop_ticks;
pub use measure::{begin_section, end_section, thousandths};
pub use operations::OPERATIONS;
pub use platform::Platform;
pub use reset::{KEPT, reset};
pub use second::start as start_second;

core::arch::global_asm!(include_str!("../../../pc/src/multiboot.s"));
core::arch::global_asm!(include_str!("../../../pc/src/boot.s"));

/// Multiboot's word to a program, in EAX (Multiboot Specification 0.6.96, "Machine state").
const MULTIBOOT: u32 = 0x2bad_b002;

#[unsafe(no_mangle)]
extern "C" fn main(magic: u32, information: u32) -> ! {
    console::setup();
    interrupts::setup();
    assert!(magic == MULTIBOOT, "not started by Multiboot");
    let platform = Platform::read(information);
    apic::setup();
    crate::run::run_all(&platform);
    off()
}
