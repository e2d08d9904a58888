//! Virtual machines: their memory, vCPUs and devices, made from the configuration or on request.
//!
//! A VM is reached by its number, or as the VM of a vCPU that is loaded. Both give a `&'static Vm`: it is valid until the CPU that has it next
//! takes a request to reschedule, and longer while one of the VM's vCPUs is loaded on that CPU ([`retire`]). So it must not be kept.

mod create;
pub mod power;
mod ram;
pub mod retire;
mod vcpu;

use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use stile_blob::{Blob, Files, Mode, OnReset, Techniques};
use stile_board::{MAX_VCPUS, MAX_VMS};
use stile_sched::VcpuId;

use crate::arch;
use crate::device::Devices;
use crate::once::Once;
pub use create::{create, create_all};
use ram::Ram;
pub use vcpu::Vcpu;

/// A virtual machine.
pub struct Vm {
    /// Below [`MAX_VMS`]; of those in the configuration, the place there. No other VM has it meanwhile.
    pub number: usize,
    /// Its name.
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
    /// Bytes of the board's memory that it was made of.
    memory: AtomicU64,
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

impl Vm {
    /// Bytes of the board's memory that it was made of.
    pub fn memory(&self) -> u64 {
        self.memory.load(Ordering::Relaxed)
    }
}

/// VMs by their numbers; null where there is none.
static VMS: [AtomicPtr<Vm>; MAX_VMS] = [const { AtomicPtr::new(ptr::null_mut()) }; MAX_VMS];
static BLOB: Once<Blob<'static>> = Once::new();

/// All VMs, in the order of their numbers.
pub fn all() -> impl Iterator<Item = &'static Vm> {
    (0..MAX_VMS).filter_map(get)
}

/// A VM by its number.
#[inline]
pub fn get(number: usize) -> Option<&'static Vm> {
    let vm = VMS.get(number)?.load(Ordering::Acquire);
    // SAFETY: a VM is complete when its pointer is stored, and its memory is given back once each CPU has been where it had no reference
    // since the pointer was taken away (`retire`).
    unsafe { vm.as_ref() }
}

/// Lets a complete VM be found.
fn publish(number: usize, vm: *mut Vm) {
    VMS[number].store(vm, Ordering::Release);
}

/// Lets a VM be found no more. Returns where it is.
fn unpublish(number: usize) -> *mut Vm {
    VMS[number].swap(ptr::null_mut(), Ordering::AcqRel)
}

/// The files of the machine's image.
pub fn image() -> Files<'static> {
    BLOB.get().files()
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
