//! Virtual machines: their memory, vCPUs and devices, created from the configuration or on request.
//!
//! A VM is looked up by its number, or as the VM of a loaded vCPU. Both return a `&'static Vm` that is valid until
//! the CPU next takes a reschedule request, and longer while a vCPU of the VM is loaded on that CPU ([`retire`]). It
//! must not be stored.

pub mod balloon;
mod create;
mod creation;
mod end;
mod epoch;
mod first_touch;
mod load;
pub mod power;
mod power_state;
mod ram;
pub mod retire;
mod shut_down;
pub mod snapshot;
mod stolen;
mod tracking;
mod turns;

use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use stile_blob::{Mode, OnReset, Techniques};
use stile_board::{MAX_VCPUS, MAX_VMS};
use stile_ledger::{Ledger, Row};
use stile_sched::VcpuId;

use crate::arch;
use crate::device::Devices;
use crate::once::Once;
#[cfg(test)]
pub use create::create;
pub use create::{Change, begin, create_all};
pub use creation::Creation;
use power_state::Power;
use ram::Ram;
pub use stolen::Stolen;
pub use turns::Turns;

/// A virtual machine.
pub struct Vm {
    /// Number below [`MAX_VMS`], unique among existing VMs; for VMs of the configuration, the index there.
    pub number: usize,
    /// Name.
    pub name: &'static str,
    /// Initial state of the first vCPU.
    start: Start,
    /// RAM, and the files loaded into it.
    ram: Ram,
    /// Effect of a reset.
    on_reset: OnReset,
    /// Techniques in force on the exit path.
    pub techniques: Techniques,
    /// The VM owns PCI functions: all of its RAM is mapped before its guest runs.
    has_functions: bool,
    /// The VM serves devices, or others serve it: they may refer to it as long as the machine runs.
    has_links: bool,
    /// vCPUs by number.
    pub vcpus: heapless::Vec<&'static Vcpu, MAX_VCPUS>,
    /// Power state.
    pub power: Power,
    /// Length of its vCPUs' turns.
    pub turns: Turns,
    /// UART and clock.
    pub devices: Devices,
    /// Memory allocated for the VM, in bytes.
    memory: AtomicU64,
    /// Second stage, interrupt controller and other architecture-specific state.
    pub arch: arch::Vm,
}

/// Initial state of a VM's first vCPU.
pub struct Start {
    /// Entry point.
    pub pc: u64,
    /// Guest-physical address of the boot information (device tree or tables).
    pub info: u64,
    /// Processor mode, one that [`crate::arch::contract::Platform::can_start`] accepts.
    pub mode: Mode,
}

impl Vm {
    /// Memory allocated for the VM, in bytes.
    pub fn memory(&self) -> u64 {
        self.memory.load(Ordering::Relaxed)
    }
}

/// Value of [`Vcpu::runs_on`] for a vCPU that does not run.
pub const NOWHERE: u32 = u32::MAX;

/// A virtual CPU.
pub struct Vcpu {
    /// VM and vCPU number.
    pub id: VcpuId,
    vm: Once<&'static Vm>,
    /// The CPU on which it runs, which excludes being merely loaded; [`NOWHERE`] otherwise.
    pub runs_on: AtomicU32,
    /// Whether it may use only one CPU.
    is_bound: bool,
    /// The CPU that it is bound to, plus 1, while it is blocked and put there; 0 otherwise. A hint: a waking CPU may be about
    /// to reset it.
    sleeps_on: AtomicU32,
    /// Registers, and the private part of the interrupt controller.
    pub arch: arch::Vcpu,
    /// Stolen time as published to its guest.
    pub stolen: Stolen,
    ledger: *mut Ledger,
}

// SAFETY: all fields but `ledger` are Sync. The ledger is accessed only through `Loaded::ledger`, by the one CPU that
// has the vCPU loaded, and by volatile reads (`exits_taken`, `copy_ledger`).
unsafe impl Sync for Vcpu {}

impl Vcpu {
    /// Creates a vCPU that is off.
    pub fn new(id: VcpuId, arch: arch::Vcpu, ledger: &'static mut Ledger, is_bound: bool) -> Vcpu {
        ledger.reset();
        let (runs_on, sleeps_on) = (AtomicU32::new(NOWHERE), AtomicU32::new(0));
        Vcpu { id, vm: Once::new(), runs_on, is_bound, sleeps_on, arch, stolen: Stolen::new(), ledger }
    }

    /// Records that it is blocked, and put by a CPU.
    #[inline(always)]
    pub fn fall_asleep(&self, cpu: usize) {
        if self.is_bound {
            self.sleeps_on.store(cpu as u32 + 1, Ordering::Relaxed);
        }
    }

    /// Records that it is woken.
    #[inline(always)]
    pub fn wake_up(&self) {
        self.sleeps_on.store(0, Ordering::Relaxed);
    }

    /// Whether it is blocked, and bound to this CPU, which calls this.
    #[inline(always)]
    pub fn sleeps_on(&self, cpu: usize) -> bool {
        self.sleeps_on.load(Ordering::Relaxed) == cpu as u32 + 1
    }

    /// Sets its VM once that is complete, before the vCPU is started.
    pub fn belongs_to(&self, vm: &'static Vm) {
        self.vm.set(vm);
    }

    /// Returns its VM.
    #[inline(always)]
    pub fn vm(&self) -> &'static Vm {
        // SAFETY: a vCPU is reached only through its VM or by running, both of which come after `belongs_to`.
        unsafe { self.vm.assume_set() }
    }

    /// Pointer to its ledger, for [`Loaded`](crate::cpu::Loaded).
    #[inline(always)]
    pub fn ledger(&self) -> *mut Ledger {
        self.ledger
    }

    /// Pointer to the ledger's rows, for the exit path.
    pub fn ledger_rows(&self) -> *mut Row {
        // SAFETY: the pointer stays within the ledger, which lives as long as the vCPU; no reference is created.
        unsafe { (&raw mut (*self.ledger).rows).cast() }
    }

    /// Number of exits in the ledger, up to the last time that the vCPU was left.
    pub fn exits_taken(&self) -> u64 {
        // SAFETY: an aligned word in the ledger, which lives as long as the vCPU; no reference is created.
        unsafe { (&raw const (*self.ledger).taken).read_volatile() }
    }

    /// Copies the ledger. Exact if the vCPU is off; while it runs, each number is valid but they are not consistent
    /// with each other.
    pub fn copy_ledger(&self, to: &mut Ledger) {
        const WORDS: usize = size_of::<Ledger>() / size_of::<u64>();
        const _: () = assert!(WORDS * size_of::<u64>() == size_of::<Ledger>());
        let (from, to): (*const u64, *mut u64) = (self.ledger.cast(), (&raw mut *to).cast());
        for word in 0..WORDS {
            // SAFETY: a ledger is an array of such words, for which all values are valid. The CPU that may write them
            // concurrently writes each word with one store; no reference is created.
            unsafe { to.add(word).write(from.add(word).read_volatile()) };
        }
    }
}

/// VMs by number; null for unused numbers.
static VMS: [AtomicPtr<Vm>; MAX_VMS] = [const { AtomicPtr::new(ptr::null_mut()) }; MAX_VMS];

/// All VMs in the order of their numbers.
pub fn all() -> impl Iterator<Item = &'static Vm> {
    (0..MAX_VMS).filter_map(get)
}

/// Looks up a VM by number.
#[inline]
pub fn get(number: usize) -> Option<&'static Vm> {
    place(number)?.get()
}

/// The place of a VM, of a number below [`MAX_VMS`].
#[derive(Clone, Copy)]
pub struct Place(&'static AtomicPtr<Vm>);

/// The place of VM `number`, which need not exist; `None` if there can be no such VM.
#[inline]
pub fn place(number: usize) -> Option<Place> {
    VMS.get(number).map(Place)
}

impl Place {
    /// The VM, if it exists.
    #[inline]
    pub fn get(self) -> Option<&'static Vm> {
        let vm = self.0.load(Ordering::Acquire);
        // SAFETY: a VM is complete when its pointer is stored, and freed only after its pointer was removed and each CPU
        // has passed a point at which it held no reference (`retire`).
        unsafe { vm.as_ref() }
    }
}

/// Makes a complete VM visible to lookups.
fn publish(number: usize, vm: *mut Vm) {
    VMS[number].store(vm, Ordering::Release);
}

/// Removes a VM from lookups and returns its address.
fn unpublish(number: usize) -> *mut Vm {
    VMS[number].swap(ptr::null_mut(), Ordering::AcqRel)
}

/// Looks up a vCPU.
///
/// # Panics
/// If it does not exist: the scheduler knows only vCPUs that were created.
pub fn vcpu(id: VcpuId) -> &'static Vcpu {
    get(usize::from(id.vm()))
        .and_then(|vm| vm.vcpus.get(usize::from(id.vcpu())).copied())
        .expect("the scheduler names a vCPU that is there")
}
