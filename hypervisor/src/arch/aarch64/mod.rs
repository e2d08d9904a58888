//! AArch64 at EL2, with VHE where the CPU has it.

mod assigned;
mod boot;
mod efi;
mod emulation;
mod exit;
mod handler;
mod host;
mod interrupts;
mod nested;
mod panic;
mod physical_cpu;
mod platform;
mod runtime;
mod served;
mod snapshot;
mod vcpu;
mod vm;

use core::fmt::{self, Write};
use core::ops::Range;

use stile_blob::Mitigations;
use stile_board::footprint::{self, Footprint};
use stile_wire::Level;

use super::contract::{Counter, Failure, Host, Layout, SerialLine};
use crate::stacks::Stacks;
use crate::{address_space, runtime_services};
use assigned::injection;
use host::{bulk, features, firmware, mmu, speculation, timer, uart};

pub use emulation::devices;
pub use host::cpu::{Cpu, Local};
pub use host::identity::Identity;
pub use host::mmu::{Format, Permissions, Tables};
pub use vm::{Vcpu, Vm};

/// The AArch64 back end.
pub struct Arch;

/// Device models for guests of this architecture.
pub mod models {
    pub use stile_device::pl011::Pl011 as Uart;
    pub use stile_device::pl011::offset::DR as UART_DATA;
    pub use stile_device::pl031::Pl031 as Clock;
}

impl Host for Arch {
    const HAS_PCS: bool = false;
    const ZEROED_AT_ONCE: u64 = bulk::ZEROED_AT_ONCE;
    const COPIED_AT_ONCE: u64 = bulk::COPIED_AT_ONCE;

    fn level() -> Level {
        if features::get().vhe { Level::Vhe } else { Level::Nvhe }
    }

    #[inline]
    fn physical(address: u64) -> *mut u8 {
        address_space::physical(address)
    }

    unsafe fn zero(memory: *mut u8, length: usize) {
        // SAFETY: the caller guarantees what `bulk::zero` requires; both contracts are those of `Host::zero`.
        unsafe { bulk::zero(memory, length) }
    }

    unsafe fn copy(to: *mut u8, from: *const u8, length: usize) {
        // SAFETY: the caller guarantees what `bulk::copy` requires; both contracts are those of `Host::copy`.
        unsafe { bulk::copy(to, from, length) }
    }

    fn apply_mitigations(mitigations: Mitigations) {
        speculation::apply(mitigations);
    }

    fn describe() {
        host::description::log();
    }

    fn prepare_variables() -> Result<bool, &'static str> {
        runtime_services::prepare(efi::runtime())
    }

    fn set_variable(part: usize, data: &[u8]) -> Result<(), usize> {
        runtime::set_variable(part, data)
    }

    fn wait_for_interrupt() {
        injection::depart_before_wait(host::cpu::this_index());
        host::wait_for_interrupt();
    }

    fn power_off() -> ! {
        firmware::power_off()
    }
}

impl Counter for Arch {
    #[inline(always)]
    fn now() -> u64 {
        timer::now()
    }

    #[inline(always)]
    fn frequency() -> u64 {
        timer::frequency()
    }
}

impl SerialLine for Arch {
    fn try_send(byte: u8) -> bool {
        uart::try_send(byte)
    }

    fn try_receive() -> Option<u8> {
        uart::try_receive()
    }

    fn set_interrupts(receive: bool, send: bool) {
        uart::set_interrupts(receive, send);
    }
}

impl Failure for Arch {
    fn block() -> *const Cpu {
        panic::block()
    }

    #[inline(always)]
    fn frame_pointer() -> u64 {
        panic::frame_pointer()
    }

    fn stack_of(address: u64) -> Option<Range<u64>> {
        address_space::stack_of(address)
    }

    fn code() -> Range<u64> {
        address_space::code()
    }

    fn write_guest(out: &mut dyn Write, cpu: &Cpu) -> fmt::Result {
        panic::write_guest(out, cpu)
    }
}

impl Layout for Arch {
    const PHYSMAP: u64 = mmu::PHYSMAP;
    const DEVICES: u64 = mmu::DEVICES;
    const STACKS: Stacks = mmu::STACKS;
    const CPU_MEMORY: u64 = 0;
    const FOOTPRINT: Footprint = footprint::AARCH64;

    fn complete_map() {
        mmu::complete_map();
    }
}
