//! Arm: at EL1, with the MMU off, and devices from the device tree. The same under Stile, KVM, Xen and
//! without a hypervisor.

mod cpu;
mod gic;
mod measure;
mod operations;
mod others;
mod platform;
mod psci;
mod reset;
mod second;
mod start;
mod sysreg;
mod uart;

pub use cpu::{cycles, faults, instructions, now};
pub(crate) use measure::loop_ticks;
pub use measure::{begin_section, end_section, thousandths};
pub use operations::OPERATIONS;
pub use platform::Platform;
pub use reset::{KEPT, reset};
pub use second::start as start_second;
pub use uart::print;

/// Main program of the first CPU, with the address of the device tree.
extern "C" fn main(tree: u64) -> ! {
    let platform = Platform::read(tree);
    uart::set_base(platform.uart);
    gic::setup_distributor(&platform);
    gic::setup_cpu(0);
    crate::run::run_all(&platform);
    psci::system_off(platform.smc)
}

/// Powers the machine off, by any available conduit.
pub fn off() -> ! {
    psci::system_off(false)
}
