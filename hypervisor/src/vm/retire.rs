//! Retirement of VMs: the memory of a destroyed VM is freed once no reference to the VM is left.
//!
//! A CPU holds references to VMs only between two reschedule requests that it takes ([`crate::cpu::take_resched`]):
//! while it handles an exit, an interrupt, or an operator's request. The exceptions are the VM of its loaded vCPU,
//! and references that [`PhysicalCpu::forget_vms`] drops. A VM whose vCPUs are all off is first removed from lookups;
//! then each CPU is asked to reschedule. When all have taken that request, the VM's memory is cleared and freed, and
//! its number can be reused.
//!
//! A CPU whose guest has direct interrupts may never take the request. Retirement does not wait for it: it refers
//! only to its own guest's VM, and can no longer look up the retired one ([`PhysicalCpu::is_confined`]).

use core::sync::atomic::{AtomicBool, Ordering};

use stile_board::MAX_VMS;
use stile_lock::TicketLock;
use stile_sched::CpuId;
use stile_wire::{Answer, Event, VmState};

use super::epoch::Epochs;
use super::{Vm, shut_down, unpublish};
use crate::arch::Cpu;
use crate::arch::contract::PhysicalCpu;
use crate::cpu::{self, SCHEDULE};
use crate::device::alarm;
use crate::once::Once;
use crate::{arena, console, sample};

/// A VM that was removed from lookups.
struct Leaving {
    number: usize,
    /// Notice for the operator once the number is free.
    notice: Notice,
    /// Address of the VM until all CPUs have dropped their references; afterwards only its arena is left to free.
    vm: Option<*mut Vm>,
    /// The epoch that each CPU must have seen before the VM can be dropped.
    epoch: u64,
}

/// Message to the operator once a number is free.
enum Notice {
    /// None: the operator never learned of the VM.
    Silent,
    /// The VM is destroyed.
    Destroyed,
    /// The answer to a command with this tag.
    Answer(u32),
}

// SAFETY: only `drop_vm` dereferences the pointer, on the CPU that took the entry out of the list, once no CPU has a
// reference to the VM.
unsafe impl Send for Leaving {}

static LEAVING: TicketLock<heapless::Vec<Leaving, MAX_VMS>> = TicketLock::new(heapless::Vec::new());
/// Accessed with [`LEAVING`] locked.
static EPOCHS: Epochs = Epochs::new();
/// Numbers in use, also by VMs that are being created or retired.
static NUMBERS: [AtomicBool; MAX_VMS] = [const { AtomicBool::new(false) }; MAX_VMS];

/// Claims a number for a new VM. Returns false if it is in use or out of range.
pub fn claim(number: usize) -> bool {
    NUMBERS.get(number).is_some_and(|used| !used.swap(true, Ordering::AcqRel))
}

/// Called with the number of a VM whose memory was freed, and which can be claimed again.
pub static FREED_HOOK: Once<fn(usize)> = Once::new();

/// Whether a VM is being retired.
#[inline]
pub fn is_any() -> bool {
    shut_down::LEAVING.load(Ordering::Acquire) != 0
}

/// Starts the retirement of a VM whose vCPUs are all off permanently, and whose RAM is clear.
pub fn begin(vm: &'static Vm) {
    // Before the VM is removed from lookups: `shut_down::if_all_off` must see it either there or in this count.
    shut_down::LEAVING.fetch_add(1, Ordering::AcqRel);
    add(vm.number, Some(unpublish(vm.number)), Notice::Destroyed);
}

/// Frees the parts of a VM whose creation failed.
pub fn abandon(number: usize) {
    shut_down::LEAVING.fetch_add(1, Ordering::AcqRel);
    add(number, None, Notice::Silent);
}

/// [`abandon`], and answers a command with this tag once the parts are free.
pub fn abandon_for(tag: u32, number: usize) {
    shut_down::LEAVING.fetch_add(1, Ordering::AcqRel);
    add(number, None, Notice::Answer(tag));
}

/// Adds a VM to the list, in a new epoch, and asks each CPU to reschedule.
fn add(number: usize, vm: Option<*mut Vm>, notice: Notice) {
    let online = SCHEDULE.online();
    {
        let mut leaving = LEAVING.lock();
        let epoch = EPOCHS.begin();
        let added = leaving.push(Leaving { number, notice, vm, epoch });
        debug_assert!(added.is_ok(), "each number is there once");
    }
    cpu::AT_RESCHED.fetch_add(1, Ordering::AcqRel);
    online.iter().for_each(cpu::request_resched);
}

/// Makes CPUs that take a reschedule request advance retirements.
pub fn setup() {
    cpu::LEAVING_HOOK.set(|cpu| {
        if is_any() {
            pass(cpu);
        }
    });
}

/// Called when this CPU holds no reference to a VM but that of its loaded vCPU. Does a bounded piece of the work of a
/// retirement that waited for this CPU, or whose memory is to be cleared.
#[cold]
#[inline(never)]
fn pass(cpu: &Cpu) {
    cpu.forget_vms();
    let online = SCHEDULE.online();
    let next = {
        let mut leaving = LEAVING.lock();
        EPOCHS.see(cpu.index);
        let oldest = EPOCHS.seen_by_all(online.iter().map(CpuId::index), Cpu::is_confined);
        let ready = leaving.iter().position(|leaving| leaving.epoch <= oldest);
        ready.map(|index| leaving.swap_remove(index))
    };
    let Some(mut leaving) = next else { return };
    if let Some(vm) = leaving.vm.take() {
        drop_vm(leaving.number, vm);
    }
    if arena::of_vm(leaving.number).give_back() {
        finish(&leaving);
    } else {
        let added = LEAVING.lock().push(leaving);
        debug_assert!(added.is_ok(), "its place is free");
    }
    if is_any()
        && let Some(cpu) = CpuId::new(cpu.index)
    {
        cpu::request_resched(cpu);
    }
}

/// Frees a VM's RAM, and removes its number from tables that are indexed by it.
fn drop_vm(number: usize, vm: *mut Vm) {
    // SAFETY: every CPU has seen the VM's epoch, or is confined (`pass`), so that none has a reference; the VM was removed
    // from lookups before, so that none can obtain one. Only the caller has taken the pointer out of the list.
    unsafe {
        (*vm).ram.give_back();
        vm.drop_in_place();
    }
    alarm::set(number, None);
    sample::forget(number as u8);
    cpu::remove_vm(number as u8);
}

/// Frees the VM's number, and notifies the operator.
fn finish(gone: &Leaving) {
    NUMBERS[gone.number % MAX_VMS].store(false, Ordering::Release);
    // Before `shut_down::LEAVING` falls, as the machine may end then.
    match gone.notice {
        Notice::Silent => {}
        Notice::Destroyed => console::event(&Event::Vm { vm: gone.number as u8, state: VmState::Destroyed }),
        Notice::Answer(tag) => console::event(&Event::Answer { tag, answer: Answer::Done }),
    }
    cpu::AT_RESCHED.fetch_sub(1, Ordering::AcqRel);
    shut_down::LEAVING.fetch_sub(1, Ordering::AcqRel);
    if let Some(hook) = FREED_HOOK.try_get() {
        hook(gone.number);
    }
    shut_down::if_all_off();
}
