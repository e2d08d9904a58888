//! A PC: in 64-bit mode, started by Multiboot, or by PVH under Xen. The same under Stile, KVM, Xen and none.

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
mod paravirtual_eoi;
mod platform;
mod ports;
mod reset;
mod second;
mod xen;

pub use console::print;
pub use cpu::{cycles, faults, instructions, now, off};
pub(crate) use measure::loop_ticks;
pub use measure::{begin_section, end_section, thousandths};
pub use operations::OPERATIONS;
use platform::Loader;
pub use platform::Platform;
pub use reset::{KEPT, reset};
pub use second::start as start_second;

core::arch::global_asm!(include_str!("../../../pc/src/multiboot.s"));
core::arch::global_asm!(include_str!("../../../pc/src/pvh.s"));
core::arch::global_asm!(include_str!("../../../pc/src/boot.s"));

#[unsafe(no_mangle)]
extern "C" fn main(word: u32, information: u32) -> ! {
    let loader = Loader::of(word, information);
    if loader == Some(Loader::Xen) {
        xen::found();
    }
    console::setup();
    interrupts::setup();
    let Some(loader) = loader else { panic!("started neither by Multiboot nor by PVH") };
    let platform = Platform::read(loader, information);
    apic::setup();
    crate::run::run_all(&platform);
    off()
}
