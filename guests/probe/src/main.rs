//! The probe: what do the operations cost that make a guest leave for its hypervisor?
//!
//! One program in kernel mode, the same under every hypervisor and under none. It finds its devices, runs each operation many times
//! between two reads of the CPU's counter, subtracts the same loop without the operation, and prints one JSON object a line. Where the
//! counter counts instructions, the figures are instructions.
//!
//! Interrupt handlers have about twenty instructions, so that little but the hypervisor is measured.
//!
//! Boot arguments: `n=4096`, how often to run each operation; `only=eoi,ipi`, which ones.
//!
//! What an architecture provides, under these names: [`arch::OPERATIONS`], the macro `arch::loop_ticks`, marks for those who count
//! ([`arch::begin_section`], [`arch::end_section`]), a console ([`arch::print`]), a second CPU ([`arch::start_second`]), instructions
//! that are skipped because they are not there ([`arch::faults`]), and the unit of its counter ([`arch::thousandths`]).
#![no_std]
#![no_main]

#[cfg_attr(target_arch = "aarch64", path = "aarch64/mod.rs")]
#[cfg_attr(target_arch = "x86_64", path = "x86_64/mod.rs")]
mod arch;
mod arguments;
mod measure;
mod operations;

#[panic_handler]
fn panic(info: &core::panic::PanicInfo) -> ! {
    arch::print(format_args!("probe: {info}\n"));
    arch::off()
}
