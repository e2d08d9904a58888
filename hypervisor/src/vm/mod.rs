//! Virtual machines: their memory, vCPUs and devices, made from the configuration or on request.
//!
//! A VM is reached by its number, or as the VM of a vCPU that is loaded. Both give a `&'static Vm`: it is valid until the CPU that has it next
//! takes a request to reschedule, and longer while one of the VM's vCPUs is loaded on that CPU ([`retire`]). So it must not be kept.

mod create;
mod end;
mod first_touch;
pub mod power;
mod power_state;
mod ram;
pub mod retire;
mod shut_down;
mod stolen;
mod turns;

use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use stile_blob::{Blob, Files, Mode, OnReset, Techniques};
use stile_board::{MAX_VCPUS, MAX_VMS};
use stile_ledger::{Ledger, Row};
use stile_sched::VcpuId;

use crate::arch;
use crate::device::Devices;
use crate::once::Once;
pub use create::{create, create_all};
use power_state::Power;
use ram::Ram;
pub use stolen::Stolen;
pub use turns::Turns;

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
    /// Effect of a reset.
    on_reset: OnReset,
    /// The switches of the exit path.
    pub techniques: Techniques,
    /// It owns PCI functions: all of its RAM is filled before its guest runs.
    has_functions: bool,
    /// Its vCPUs.
    pub vcpus: heapless::Vec<&'static Vcpu, MAX_VCPUS>,
    /// On, off, or on the way.
    pub power: Power,
    /// How long its vCPUs run in turn.
    pub turns: Turns,
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
    /// Its processor mode: one that [`crate::arch::contract::Platform::can_start`] accepts.
    pub mode: Mode,
}

impl Vm {
    /// Bytes of the board's memory that it was made of.
    pub fn memory(&self) -> u64 {
        self.memory.load(Ordering::Relaxed)
    }
}

/// For [`Vcpu::runs_on`]: nowhere.
pub const NOWHERE: u32 = u32::MAX;

/// A virtual CPU.
pub struct Vcpu {
    /// Its name.
    pub id: VcpuId,
    vm: Once<&'static Vm>,
    /// The CPU on which it runs, not merely is loaded; [`NOWHERE`] otherwise.
    pub runs_on: AtomicU32,
    /// Registers, and the interrupt controller's private part.
    pub arch: arch::Vcpu,
    /// The time that its guest knows to be stolen.
    pub stolen: Stolen,
    ledger: *mut Ledger,
}

// SAFETY: all but `ledger` is Sync, and that is reached only as `Loaded::ledger` and `copy_ledger` say.
unsafe impl Sync for Vcpu {}

impl Vcpu {
    /// A vCPU that is off.
    pub fn new(id: VcpuId, arch: arch::Vcpu, ledger: &'static mut Ledger) -> Vcpu {
        ledger.reset();
        Vcpu { id, vm: Once::new(), runs_on: AtomicU32::new(NOWHERE), arch, stolen: Stolen::new(), ledger }
    }

    /// Its VM. Set when that is complete, before the vCPU is started.
    pub fn belongs_to(&self, vm: &'static Vm) {
        self.vm.set(vm);
    }

    /// Its VM.
    #[inline(always)]
    pub fn vm(&self) -> &'static Vm {
        // SAFETY: vCPUs are reached only through their VM, or by running, which both come after `belongs_to`.
        unsafe { self.vm.assume_set() }
    }

    /// Where its ledger is: for [`Loaded`](crate::cpu::Loaded).
    #[inline(always)]
    pub fn ledger(&self) -> *mut Ledger {
        self.ledger
    }

    /// Where the ledger's rows are: for the exit path.
    pub fn ledger_rows(&self) -> *mut Row {
        // SAFETY: a place in the ledger, which lives as long as the vCPU. No reference is made.
        unsafe { (&raw mut (*self.ledger).rows).cast() }
    }

    /// Exits in the ledger: those until the vCPU was last left.
    pub fn exits_taken(&self) -> u64 {
        // SAFETY: a word in the ledger, which lives as long as the vCPU, read as a whole. No reference is made.
        unsafe { (&raw const (*self.ledger).taken).read_volatile() }
    }

    /// Copies the ledger, as far as it is written: exact once the vCPU is off. While it runs, each number is whole, and of some moment.
    pub fn copy_ledger(&self, to: &mut Ledger) {
        const WORDS: usize = size_of::<Ledger>() / size_of::<u64>();
        const _: () = assert!(WORDS * size_of::<u64>() == size_of::<Ledger>());
        let (from, to): (*const u64, *mut u64) = (self.ledger.cast(), (&raw mut *to).cast());
        for word in 0..WORDS {
            // SAFETY: a ledger is an array of such words, and any numbers make one. The CPU that writes them meanwhile writes each at once, and
            // no reference is made to them here.
            unsafe { to.add(word).write(from.add(word).read_volatile()) };
        }
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
