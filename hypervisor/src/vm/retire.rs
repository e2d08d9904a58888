//! The end of a VM: its memory is given back once nothing refers to it.
//!
//! A CPU has references to VMs only between two requests to reschedule that it takes ([`crate::cpu::take_resched`]): while it handles an exit, an
//! interrupt, or an operator's request. The exceptions are the VM of the vCPU that it has loaded, and what [`PhysicalCpu::forget_vms`] forgets. So
//! a VM of which all vCPUs are off is first made unfindable; then each CPU is made to reschedule. When all have taken that request, its memory
//! is cleared and free, and its number may be another VM's.
//!
//! A CPU whose guest has its interrupts to itself may never take the request. It is not waited for: it has no reference but to its own guest's VM,
//! and can find the VM that leaves no more ([`PhysicalCpu::is_confined`]).

use core::sync::atomic::{AtomicU64, Ordering, fence};

use stile_board::{MAX_CPUS, MAX_VMS};
use stile_sched::CpuId;
use stile_sched::lock::TicketLock;
use stile_wire::{Event, VmState};

use super::{Vm, shut_down, unpublish};
use crate::arch::Cpu;
use crate::arch::contract::PhysicalCpu;
use crate::cpu::{self, SCHEDULE};
use crate::device::alarm;
use crate::{arena, console, sample};

/// A VM that nothing finds any more.
struct Leaving {
    number: usize,
    /// The operator knows it.
    known: bool,
    /// Where it is, until all CPUs have forgotten it; then only its arena is to be given back.
    vm: Option<*mut Vm>,
    /// The epoch that each CPU must have [seen](SEEN).
    epoch: u64,
}

// SAFETY: it is only in the list, behind its lock, or with the CPU that took it out.
unsafe impl Send for Leaving {}

static LEAVING: TicketLock<heapless::Vec<Leaving, MAX_VMS>> = TicketLock::new(heapless::Vec::new());
/// How many have begun to.
static EPOCH: AtomicU64 = AtomicU64::new(0);
/// How many had begun to when each CPU last had no reference. Written with the list locked.
static SEEN: [AtomicU64; MAX_CPUS] = [const { AtomicU64::new(0) }; MAX_CPUS];
/// Numbers that VMs have, also while they are made or are leaving: a bit each.
static NUMBERS: AtomicU64 = AtomicU64::new(0);

const _: () = assert!(MAX_VMS <= u64::BITS as usize);

/// Takes a number for a new VM. False if another VM has it, or there is no such number.
pub fn claim(number: usize) -> bool {
    number < MAX_VMS && NUMBERS.fetch_or(1 << number, Ordering::AcqRel) & 1 << number == 0
}

/// Whether a VM is leaving.
#[inline]
pub fn is_any() -> bool {
    shut_down::LEAVING.load(Ordering::Acquire) != 0
}

/// A VM leaves: all its vCPUs are off, for good, and its RAM is clear.
pub fn begin(vm: &'static Vm) {
    add(vm.number, Some(unpublish(vm.number)));
}

/// A VM could not be made: gives back what was made of it.
pub fn abandon(number: usize) {
    add(number, None);
}

fn add(number: usize, vm: Option<*mut Vm>) {
    let online = SCHEDULE.lock().scheduler.online();
    {
        let mut leaving = LEAVING.lock();
        // A CPU that sees this number finds the VM no more.
        let epoch = EPOCH.fetch_add(1, Ordering::AcqRel) + 1;
        let added = leaving.push(Leaving { number, known: vm.is_some(), vm, epoch });
        debug_assert!(added.is_ok(), "each number is there once");
    }
    shut_down::LEAVING.fetch_add(1, Ordering::AcqRel);
    cpu::AT_RESCHED.fetch_add(1, Ordering::AcqRel);
    online.iter().for_each(cpu::request_resched);
}

/// Lets CPUs that take a request to reschedule do what VMs that leave need.
pub fn setup() {
    cpu::LEAVING_HOOK.set(|cpu| {
        if is_any() {
            pass(cpu);
        }
    });
}

/// This CPU has no reference to a VM but to that of the vCPU that it has loaded. If it is the last one of which that was to be known, or a VM is
/// to be cleared, does a piece of what follows, of bounded length.
#[cold]
#[inline(never)]
fn pass(cpu: &Cpu) {
    cpu.forget_vms();
    let online = SCHEDULE.lock().scheduler.online();
    let next = {
        let mut leaving = LEAVING.lock();
        SEEN[cpu.index % MAX_CPUS].store(EPOCH.load(Ordering::Acquire), Ordering::Relaxed);
        // Each VM of the list was made unfindable before: a CPU that is found confined now has no reference to it, and finds none later.
        fence(Ordering::SeqCst);
        let waited_for = online.iter().filter(|cpu| !Cpu::is_confined(cpu.index()));
        let oldest = waited_for.map(|cpu| SEEN[cpu.index()].load(Ordering::Relaxed)).min().unwrap_or(0);
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

/// Takes a VM's RAM, and its number out of the tables that are indexed by it.
fn drop_vm(number: usize, vm: *mut Vm) {
    // SAFETY: no CPU has a reference, and none can get one: see the module's documentation.
    unsafe {
        (*vm).ram.give_back();
        vm.drop_in_place();
    }
    alarm::set(number, None);
    sample::forget(number as u8);
    cpu::remove_vm(number as u8);
}

fn finish(gone: &Leaving) {
    NUMBERS.fetch_and(!(1 << gone.number), Ordering::AcqRel);
    cpu::AT_RESCHED.fetch_sub(1, Ordering::AcqRel);
    shut_down::LEAVING.fetch_sub(1, Ordering::AcqRel);
    if gone.known {
        console::event(&Event::Vm { vm: gone.number as u8, state: VmState::Destroyed });
    }
    shut_down::if_all_off();
}
