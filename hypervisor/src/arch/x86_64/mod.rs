//! x86-64. What depends on the virtualization extension is in `vmx/` (Intel's VMX) and `svm/` (AMD-V): one of them is compiled, by
//! the feature `svm`, and other files name its modules by `virt`. [`contract`] lists what both have.

#![cfg_attr(feature = "svm", allow(dead_code, reason = "the common modules have parts that only VMX uses"))]

mod assigned;
mod boot;
mod contract;
mod efi;
mod emulation;
mod frame;
mod handler;
mod host;
mod interrupts;
mod panic;
mod physical_cpu;
mod platform;
mod runtime;
mod served;
mod snapshot;
#[cfg(feature = "svm")]
mod svm;
mod vcpu;
mod vm;
#[cfg(not(feature = "svm"))]
mod vmx;

use core::fmt::{self, Write};
use core::ops::Range;

use stile_blob::Mitigations;
use stile_board::footprint::Footprint;
use stile_paging::PAGE_SIZE;
use stile_wire::Level;

use super::contract::{Counter, Failure, Host, Layout, SerialLine};
use crate::stacks::Stacks;
use crate::{address_space, runtime_services};
use host::{firmware, mmu, speculation, timer, uart};
#[cfg(feature = "svm")]
use svm as virt;
use virt::extension;
#[cfg(not(feature = "svm"))]
use vmx as virt;

pub use emulation::devices;
pub use host::cpu::{Cpu, Local};
pub use host::identity::Identity;
pub use host::mmu::{Format, Permissions, Tables};
pub use vm::{Vcpu, Vm};

/// The models of the devices that the guests of this architecture have.
pub mod models {
    pub use super::emulation::clock::Clock;
    pub use stile_device::uart16550::Uart16550 as Uart;
    pub use stile_device::uart16550::offset::DATA as UART_DATA;
}

/// This back end.
pub struct Arch;

impl Host for Arch {
    const HAS_PCS: bool = true;
    /// Eight bytes at each step of REP STOSQ.
    const ZEROED_AT_ONCE: u64 = 1 << 20;
    /// Likewise.
    const COPIED_AT_ONCE: u64 = 1 << 20;

    fn level() -> Level {
        extension::LEVEL
    }

    #[inline]
    fn physical(address: u64) -> *mut u8 {
        address_space::physical(address)
    }

    unsafe fn zero(memory: *mut u8, length: usize) {
        // SAFETY: by the contract of `Host::zero` the caller has exclusive access to `length` bytes.
        unsafe { memory.write_bytes(0, length) }
    }

    unsafe fn copy(to: *mut u8, from: *const u8, length: usize) {
        // SAFETY: by the contract of `Host::copy` both ranges are valid and do not overlap.
        unsafe { to.copy_from_nonoverlapping(from, length) }
    }

    fn apply_mitigations(mitigations: Mitigations) {
        speculation::apply(mitigations);
    }

    fn describe() {
        boot::describe();
    }

    fn prepare_variables() -> Result<bool, &'static str> {
        runtime_services::prepare(efi::runtime())
    }

    fn set_variable(part: usize, data: &[u8]) -> Result<(), usize> {
        runtime::set_variable(part, data)
    }

    fn wait_for_interrupt() {
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

    /// The table begins with the functions of the program with VMX, which is as long as this one.
    #[cfg(feature = "svm")]
    fn symbol_offset(offset: u32) -> u32 {
        let image = mmu::image();
        offset + (image.end - image.start) as u32
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
    const CPU_MEMORY: u64 = extension::CPU_PAGES * PAGE_SIZE;
    const FOOTPRINT: Footprint = extension::FOOTPRINT;

    fn complete_map() {
        mmu::complete_map();
    }
}
