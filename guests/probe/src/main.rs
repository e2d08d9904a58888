//! The probe: what do the operations cost that make a guest leave for its hypervisor?
//!
//! One program at EL1, the same under Stile, KVM, Xen and none. It finds its devices in the device tree, runs each operation many times
//! between two reads of the virtual counter, subtracts the same loop without the operation, and prints one JSON object a line. Where
//! virtual time counts instructions, the figures are instructions.
//!
//! The MMU stays off and the interrupt handler has about twenty instructions, so that little but the hypervisor is measured.
//!
//! Boot arguments: `n=4096`, how often to run each operation; `only=hyp_call,eoi`, which ones.
#![no_std]
#![no_main]

mod cpu;
mod gic;
mod measure;
mod operations;
mod platform;
mod psci;
mod second;
mod start;
mod sysreg;
mod uart;

use platform::Platform;

/// What the first CPU does, with the address of the device tree.
extern "C" fn main(tree: u64) -> ! {
    let platform = Platform::read(tree);
    uart::set_base(platform.uart);
    gic::setup_distributor(&platform);
    gic::setup_cpu(0);
    operations::run_all(&platform);
    psci::system_off(platform.smc)
}

#[panic_handler]
fn panic(info: &core::panic::PanicInfo) -> ! {
    uart::print(format_args!("probe: {info}\n"));
    psci::system_off(false)
}
