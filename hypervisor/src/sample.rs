//! Ledgers of vCPUs that run, for the operator: copied at a moment at which they are exact, and sent in pieces on request.
//!
//! A ledger is exact while its vCPU does not run: each exit is in a row, and those that the vectors counted are added up. One that runs is made
//! to leave, by a kick, and its own CPU copies the ledger as it takes the request to reschedule ([`answer`]). So nothing is added to any other exit.
//! If the vCPU waits or is off by then, the CPU that takes the request copies it all the same.

use core::sync::atomic::{AtomicU32, Ordering, fence};

use stile_ledger::Ledger;
use stile_sched::lock::TicketLock;
use stile_sched::{CpuId, State, Times, VcpuId};
use stile_wire::{Event, LedgerRow, Sample};

use crate::arch::Arch;
use crate::arch::contract::Counter;
use crate::cpu::{self, SCHEDULE, Schedule};
use crate::{console, memory, report, vm};

/// Rows of a piece.
const PIECE: usize = 16;

/// How often a copy without the schedule's lock is tried.
const ATTEMPTS: usize = 4;

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
    cpu::RESCHED_HOOK.set(answer);
    Ok(())
}

/// The operator wants a vCPU's ledger.
pub fn request(vm: u8, vcpu: u8) {
    if find(vm, vcpu).is_none() {
        return console::event(&Event::NoSample { vm, vcpu });
    }
    want(vm, vcpu);
    answer(None);
}

/// From now on, each CPU that takes a request to reschedule tries to answer.
fn want(vm: u8, vcpu: u8) {
    cpu::AT_RESCHED.fetch_add(1, Ordering::AcqRel);
    if WANTED.swap(u32::from(vm) << 8 | u32::from(vcpu), Ordering::AcqRel) != NONE {
        // The operator's earlier wish is counted, and forgotten.
        cpu::AT_RESCHED.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Ends a wish. False if it has ended already.
fn end(wanted: u32) -> bool {
    let ended = WANTED.compare_exchange(wanted, NONE, Ordering::AcqRel, Ordering::Relaxed).is_ok();
    if ended {
        cpu::AT_RESCHED.fetch_sub(1, Ordering::AcqRel);
    }
    ended
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
    if wanted != NONE && number == vm && end(wanted) {
        console::event(&Event::NoSample { vm, vcpu });
    }
}

/// Copies the wanted ledger, if one is wanted whose vCPU does not run. Otherwise has its CPU come here. `loaded`: the vCPU that this CPU has
/// loaded, whose ledger is exact although it may count as running.
#[cold]
#[inline(never)]
fn answer(loaded: Option<VcpuId>) {
    let mut copy = COPY.lock();
    let wanted = WANTED.load(Ordering::Acquire);
    let [_, _, number, vcpu] = wanted.to_be_bytes();
    let Some(vcpu) = find(number, vcpu).filter(|_| wanted != NONE) else { return };
    let (id, Some(ledger)) = &mut *copy else { return };
    *id = None;
    let now = Arch::now();
    let times = match copy_of(vcpu, loaded, ledger, now) {
        Ok(times) => times,
        Err(cpu) => {
            drop(copy);
            return cpu::request_resched(cpu);
        }
    };
    // The operator may want another by now.
    if !end(wanted) {
        return;
    }
    *id = Some(vcpu.id);
    let taken = ledger.taken;
    drop(copy);
    let (hz, vm, number) = (Arch::frequency(), vcpu.id.vm(), vcpu.id.vcpu());
    console::event(&Event::Sample(Sample { vm, vcpu: number, hz, now, taken, ran: times.ran, waited: times.waited }));
}

/// Copies a ledger without the schedule's lock, for it is long. The error is the CPU that must come here, because the vCPU runs there.
fn copy_of(vcpu: &vm::Vcpu, loaded: Option<VcpuId>, to: &mut Ledger, now: u64) -> Result<Times, CpuId> {
    if loaded == Some(vcpu.id) {
        // No other CPU runs it while this one has its registers.
        copy_unlocked(vcpu, to);
        return Ok(SCHEDULE.lock().scheduler.times(vcpu.id, now));
    }
    for _ in 0..ATTEMPTS {
        let (before, times) = at_rest(vcpu, &SCHEDULE.lock(), now)?;
        copy_unlocked(vcpu, to);
        // The copy's reads come before those that show that it is whole.
        fence(Ordering::Acquire);
        let (after, _) = at_rest(vcpu, &SCHEDULE.lock(), now)?;
        // A vCPU that ran meanwhile was left again, by an exit.
        if after == before {
            return Ok(times);
        }
    }
    // Its guest has it run for moments only. With the lock it does not.
    let schedule = SCHEDULE.lock();
    let (_, times) = at_rest(vcpu, &schedule, now)?;
    vcpu.copy_ledger(to);
    Ok(times)
}

/// Exits and times of a vCPU that does not run; the error is the CPU on which it does, and which can be kicked.
fn at_rest(vcpu: &vm::Vcpu, schedule: &Schedule, now: u64) -> Result<(u64, Times), CpuId> {
    match schedule.scheduler.state(vcpu.id) {
        // One that is barred would never come: the numbers are of some moment.
        State::Running(cpu) if !schedule.scheduler.is_barred(cpu) => Err(cpu),
        _ => Ok((vcpu.exits_taken(), schedule.scheduler.times(vcpu.id, now))),
    }
}

fn copy_unlocked(vcpu: &vm::Vcpu, to: &mut Ledger) {
    #[cfg(test)]
    assert!(!SCHEDULE.is_locked(), "a copy takes long");
    vcpu.copy_ledger(to);
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

/// The wish for tests: its CPU was seen to run the vCPU.
#[cfg(test)]
pub fn want_for_tests(vm: u8, vcpu: u8) {
    want(vm, vcpu);
}

/// Whether a sample is wanted.
#[cfg(test)]
pub fn is_wanted() -> bool {
    WANTED.load(Ordering::Acquire) != NONE
}
