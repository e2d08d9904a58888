//! Virtual machines: their memory, vCPUs and devices, made from the configuration.

mod create;
pub mod power;
mod ram;
mod vcpu;

use stile_blob::{Blob, Mode, OnReset, Techniques};
use stile_board::{MAX_VCPUS, MAX_VMS};
use stile_sched::VcpuId;

use crate::arch;
use crate::device::Devices;
use crate::once::Once;
pub use create::create;
use ram::Ram;
pub use vcpu::Vcpu;

/// A virtual machine.
pub struct Vm {
    /// Its place in the configuration.
    pub number: usize,
    /// Its name there.
    pub name: &'static str,
    /// How its first vCPU starts.
    start: Start,
    /// Its memory, and what is loaded into it.
    ram: Ram,
    /// What a reset means.
    on_reset: OnReset,
    /// The switches of the exit path.
    pub techniques: Techniques,
    /// It owns PCI functions: all of its RAM is filled before its guest runs.
    has_functions: bool,
    /// Its vCPUs.
    pub vcpus: heapless::Vec<&'static Vcpu, MAX_VCPUS>,
    /// On, off, or on the way.
    pub power: power::Power,
    /// UART and clock.
    pub devices: Devices,
    /// Second stage, interrupt controller, and what else the architecture has for each VM.
    pub arch: arch::Vm,
}

/// How a VM's first vCPU starts.
pub struct Start {
    /// Its first instruction.
    pub pc: u64,
    /// The guest-physical address of what the guest is told about its machine.
    pub info: u64,
    /// What state it is in: one of those that [`crate::arch::contract::Platform::can_start`] says yes to.
    pub mode: Mode,
}

static VMS: [Once<&'static Vm>; MAX_VMS] = [const { Once::new() }; MAX_VMS];
static BLOB: Once<Blob<'static>> = Once::new();

/// All VMs, in the order of the configuration.
pub fn all() -> impl Iterator<Item = &'static Vm> {
    VMS.iter().map_while(|vm| vm.try_get().copied())
}

/// A VM by its number.
pub fn get(number: usize) -> Option<&'static Vm> {
    VMS.get(number)?.try_get().copied()
}

/// A vCPU by its name.
///
/// # Panics
/// If there is none: the scheduler knows only vCPUs that were made.
pub fn vcpu(id: VcpuId) -> &'static Vcpu {
    get(usize::from(id.vm()))
        .and_then(|vm| vm.vcpus.get(usize::from(id.vcpu())).copied())
        .expect("the scheduler names a vCPU that is there")
}

/// The function of Stile's that an offset in the image belongs to, and the offset in it.
pub fn symbol(offset: u32) -> Option<(&'static str, u32)> {
    BLOB.try_get()?.symbols.lookup(offset)
}
