//! Ledgers of vCPUs that run, for the operator: copied at a moment at which they are exact, and sent in pieces on request.
//!
//! A ledger is exact while its vCPU does not run: each exit is in a row, and those that the vectors counted are added up. One that runs is made
//! to leave, by a kick, and its own CPU copies the ledger on the way ([`answer`], from `cpu::leave`). So nothing is added to any other exit.

use core::sync::atomic::{AtomicU32, Ordering};

use stile_ledger::Ledger;
use stile_sched::lock::TicketLock;
use stile_sched::{State, VcpuId};
use stile_wire::{Event, LedgerRow, Sample};

use crate::arch::Arch;
use crate::arch::contract::Counter;
use crate::cpu::{self, SCHEDULE};
use crate::{console, memory, report, vm};

/// Rows of a piece.
const PIECE: usize = 16;

/// No vCPU.
const NONE: u32 = u32::MAX;

/// The vCPU whose sample is wanted: VM and number, a byte each; or [`NONE`].
static WANTED: AtomicU32 = AtomicU32::new(NONE);

/// The last copy, and whose it is.
static COPY: TicketLock<(Option<VcpuId>, Option<&'static mut Ledger>)> = TicketLock::new((None, None));

/// Makes room for the copy, before Stile's free memory is noted.
///
/// # Errors
/// In words: there is no memory.
pub fn setup() -> Result<(), &'static str> {
    // SAFETY: all zero is a valid ledger.
    COPY.lock().1 = Some(unsafe { memory::allocate::<Ledger>()?.assume_init_mut() });
    cpu::RESCHED_HOOK.set(|left| answer(Some(left)));
    Ok(())
}

/// The operator wants a vCPU's ledger.
pub fn request(vm: u8, vcpu: u8) {
    if find(vm, vcpu).is_none() {
        return console::event(&Event::NoSample { vm, vcpu });
    }
    WANTED.store(u32::from(vm) << 8 | u32::from(vcpu), Ordering::Release);
    answer(None);
}

fn find(vm: u8, vcpu: u8) -> Option<&'static vm::Vcpu> {
    vm::get(usize::from(vm))?.vcpus.get(usize::from(vcpu)).copied()
}

/// A VM is gone: nobody has its ledgers any more.
pub fn forget(vm: u8) {
    let mut copy = COPY.lock();
    if copy.0.is_some_and(|id| id.vm() == vm) {
        copy.0 = None;
    }
    drop(copy);
    let wanted = WANTED.load(Ordering::Acquire);
    let [_, _, number, vcpu] = wanted.to_be_bytes();
    if wanted != NONE && number == vm && WANTED.compare_exchange(wanted, NONE, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
        console::event(&Event::NoSample { vm, vcpu });
    }
}

/// Copies the wanted ledger, if one is wanted whose vCPU does not run. Otherwise has its CPU come here. `left`: the vCPU that leaves, whose ledger
/// is exact although it counts as running.
#[cold]
#[inline(never)]
fn answer(left: Option<VcpuId>) {
    let wanted = WANTED.load(Ordering::Acquire);
    let [_, _, number, vcpu] = wanted.to_be_bytes();
    let Some(vcpu) = find(number, vcpu).filter(|_| wanted != NONE) else { return };
    let mut copy = COPY.lock();
    let now = Arch::now();
    let schedule = SCHEDULE.lock();
    if let State::Running(cpu) = schedule.scheduler.state(vcpu.id)
        && left != Some(vcpu.id)
        // It would never come: the numbers are of some moment.
        && !schedule.scheduler.is_barred(cpu)
    {
        drop(schedule);
        return cpu::request_resched(cpu);
    }
    // Another CPU may have been here first.
    if WANTED.compare_exchange(wanted, NONE, Ordering::AcqRel, Ordering::Relaxed).is_err() {
        return;
    }
    let (id, Some(ledger)) = &mut *copy else { return };
    *id = Some(vcpu.id);
    // Under the schedule's lock, so that the vCPU is not run meanwhile.
    vcpu.copy_ledger(ledger);
    let times = schedule.scheduler.times(vcpu.id, now);
    drop(schedule);
    let taken = ledger.taken;
    drop(copy);
    let (hz, vm, number) = (Arch::frequency(), vcpu.id.vm(), vcpu.id.vcpu());
    console::event(&Event::Sample(Sample { vm, vcpu: number, hz, now, taken, ran: times.ran, waited: times.waited }));
}

/// Sends a piece of the copy.
pub fn send_rows(vm: u8, vcpu: u8, from: u16) {
    let mut rows = heapless::Vec::<LedgerRow, PIECE>::new();
    let mut next = None;
    let copy = COPY.lock();
    if let (Some(id), Some(ledger)) = &*copy
        && (id.vm(), id.vcpu()) == (vm, vcpu)
    {
        let mut rest = ledger.entries().filter(|entry| entry.id.raw() >= from);
        rows.extend(rest.by_ref().take(PIECE).map(|entry| report::row_of(vm, vcpu, &entry)));
        next = rest.next().map(|entry| entry.id.raw());
    }
    // The line may be slow, and another CPU wants the lock as it leaves a vCPU.
    drop(copy);
    rows.into_iter().for_each(|row| console::event(&Event::SampleRow(row)));
    console::event(&Event::SampleRows { vm, vcpu, next });
}
