//! The probe: measures operations that cause exits to the hypervisor.
//!
//! One program in kernel mode, the same under every hypervisor and without one. It finds its devices, runs
//! each operation many times between two reads of the CPU's counter, subtracts the same loop without the
//! operation, and prints one JSON object per line. If the counter counts instructions, the figures are
//! instructions.
//!
//! Interrupt handlers have about twenty instructions, so that the hypervisor dominates the measurement.
//!
//! Boot arguments: `n=4096`, the number of iterations; `only=eoi,ipi`, the selected operations; `endless`, to run the
//! first of them forever, as a load beside another VM; `counters`, for figures in the CPU's cycles and instructions, on hardware.
//!
//! The interface of an architecture: [`arch::OPERATIONS`], the macro `arch::loop_ticks`, marks for counting
//! plugins ([`arch::begin_section`], [`arch::end_section`]), a console ([`arch::print`]), a second CPU
//! ([`arch::start_second`]), the number of skipped undefined instructions ([`arch::faults`]), the unit of
//! its counter ([`arch::thousandths`]), the CPU's counters of cycles and instructions ([`arch::cycles`],
//! [`arch::instructions`]), and, to restart the machine, [`arch::reset`], the counter ([`arch::now`]) and RAM that
//! a reset preserves ([`arch::KEPT`]).
#![no_std]
#![no_main]

#[cfg_attr(target_arch = "aarch64", path = "aarch64/mod.rs")]
#[cfg_attr(target_arch = "x86_64", path = "x86_64/mod.rs")]
mod arch;
mod arguments;
mod counted;
mod measure;
mod operation;
mod restart;
mod run;

#[panic_handler]
fn panic(info: &core::panic::PanicInfo) -> ! {
    arch::print(format_args!("probe: {info}\n"));
    arch::off()
}
