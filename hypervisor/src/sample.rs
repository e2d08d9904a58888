//! Live ledgers for the operator: copied when they are exact, and sent in pieces on request.
//!
//! A ledger is exact while its vCPU does not run: each exit is in a row, and the counts of the vectors are included.
//! A running vCPU is kicked, and its own CPU copies the ledger when it takes the reschedule request ([`answer`]).
//! Exits therefore cost nothing more. If the vCPU waits or is off by then, the CPU that takes the request copies the
//! ledger all the same.

use core::sync::atomic::{AtomicU32, Ordering, fence};

use stile_ledger::Ledger;
use stile_lock::TicketLock;
use stile_sched::{CpuId, Locked, State, Times, VcpuId};
use stile_wire::{Event, LedgerRow, Sample};

use crate::arch::Arch;
use crate::arch::contract::Counter;
use crate::cpu::{self, SCHEDULE};
use crate::{console, memory, report, vm};

/// Rows in a piece.
const PIECE: usize = 16;

/// Maximum number of attempts to copy without the lock of the vCPU's CPU.
const ATTEMPTS: usize = 4;

/// No vCPU.
const NONE: u32 = u32::MAX;

/// The pending request: its tag, and its vCPU by VM and vCPU number, a byte each; or [`NONE`].
static WANTED: AtomicU32 = AtomicU32::new(NONE);

/// A copy of a ledger.
struct Copied {
    /// Its request's tag and its vCPU.
    of: Option<(u16, VcpuId)>,
    /// `None` before [`setup`].
    ledger: Option<&'static mut Ledger>,
}

/// The last copy.
static COPY: TicketLock<Copied> = TicketLock::new(Copied { of: None, ledger: None });

/// Allocates the copy's memory, before the amount of free memory is recorded.
///
/// # Errors
/// A description: no memory is left.
pub fn setup() -> Result<(), &'static str> {
    // SAFETY: a ledger consists of integers, for which all zero is valid.
    COPY.lock().ledger = Some(unsafe { memory::allocate::<Ledger>()?.assume_init_mut() });
    cpu::RESCHED_HOOK.set(|loaded| {
        answer(loaded);
        report::advance();
    });
    Ok(())
}

/// Requests a vCPU's ledger for the operator.
pub fn request(tag: u16, vm: u8, vcpu: u8) {
    if find(vm, vcpu).is_none() {
        return console::event(&Event::NoSample { tag, vm, vcpu });
    }
    want(tag, vm, vcpu);
    answer(None);
}

/// From here on each CPU that takes a reschedule request tries to answer.
fn want(tag: u16, vm: u8, vcpu: u8) {
    cpu::AT_RESCHED.fetch_add(1, Ordering::AcqRel);
    if WANTED.swap(u32::from(tag) << 16 | u32::from(vm) << 8 | u32::from(vcpu), Ordering::AcqRel) != NONE {
        // An earlier request is dropped.
        cpu::AT_RESCHED.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Ends a request. Returns false if it has already ended.
fn end(wanted: u32) -> bool {
    let ended = WANTED.compare_exchange(wanted, NONE, Ordering::AcqRel, Ordering::Relaxed).is_ok();
    if ended {
        cpu::AT_RESCHED.fetch_sub(1, Ordering::AcqRel);
    }
    ended
}

/// Tag, VM and vCPU of a request.
fn parts(wanted: u32) -> (u16, u8, u8) {
    let [high, low, vm, vcpu] = wanted.to_be_bytes();
    (u16::from_be_bytes([high, low]), vm, vcpu)
}

fn find(vm: u8, vcpu: u8) -> Option<&'static vm::Vcpu> {
    vm::get(usize::from(vm))?.vcpus.get(usize::from(vcpu)).copied()
}

/// Called when a VM is destroyed: drops the copy of its ledger.
pub fn forget(vm: u8) {
    let mut copy = COPY.lock();
    if copy.of.is_some_and(|(_, id)| id.vm() == vm) {
        copy.of = None;
    }
    drop(copy);
    let wanted = WANTED.load(Ordering::Acquire);
    let (tag, number, vcpu) = parts(wanted);
    if wanted != NONE && number == vm && end(wanted) {
        console::event(&Event::NoSample { tag, vm, vcpu });
    }
}

/// Copies the requested ledger if its vCPU does not run; otherwise kicks the vCPU's CPU. `loaded`: the vCPU loaded on
/// this CPU, whose ledger is exact even if it counts as running.
#[cold]
#[inline(never)]
fn answer(loaded: Option<VcpuId>) {
    let mut copy = COPY.lock();
    let wanted = WANTED.load(Ordering::Acquire);
    let (tag, number, vcpu) = parts(wanted);
    let Some(vcpu) = find(number, vcpu).filter(|_| wanted != NONE) else { return };
    let Copied { of, ledger: Some(ledger) } = &mut *copy else { return };
    *of = None;
    let now = Arch::now();
    let times = match copy_of(vcpu, loaded, ledger, now) {
        Ok(times) => times,
        Err(cpu) => {
            drop(copy);
            return cpu::request_resched(cpu);
        }
    };
    // The operator may have requested another one since.
    if !end(wanted) {
        return;
    }
    *of = Some((tag, vcpu.id));
    let taken = ledger.taken;
    drop(copy);
    let (hz, vm, number) = (Arch::frequency(), vcpu.id.vm(), vcpu.id.vcpu());
    console::event(&Event::Sample(Sample { tag, vm, vcpu: number, hz, now, taken, ran: times.ran, waited: times.waited }));
}

/// Copies a ledger without a lock of the schedule, because the copy is long. On failure returns the CPU on which the
/// vCPU runs, which must take a reschedule request.
fn copy_of(vcpu: &vm::Vcpu, loaded: Option<VcpuId>, to: &mut Ledger, now: u64) -> Result<Times, CpuId> {
    if loaded == Some(vcpu.id) {
        // No other CPU runs it while this CPU has its registers.
        copy_unlocked(vcpu, to);
        return Ok(SCHEDULE.times(vcpu.id, now));
    }
    for _ in 0..ATTEMPTS {
        let (before, times) = at_rest(vcpu, &SCHEDULE.lock_vcpu(vcpu.id), now)?;
        copy_unlocked(vcpu, to);
        // The copy's reads come before the reads that verify it.
        fence(Ordering::Acquire);
        let (after, _) = at_rest(vcpu, &SCHEDULE.lock_vcpu(vcpu.id), now)?;
        // If the vCPU ran in between, it was left by an exit.
        if after == before {
            return Ok(times);
        }
    }
    // The vCPU runs in short bursts. With the lock held it does not.
    let schedule = SCHEDULE.lock_vcpu(vcpu.id);
    let (_, times) = at_rest(vcpu, &schedule, now)?;
    vcpu.copy_ledger(to);
    Ok(times)
}

/// Returns exits and times of a vCPU that does not run; on failure the CPU on which it runs, to be kicked.
fn at_rest(vcpu: &vm::Vcpu, schedule: &Locked<'_>, now: u64) -> Result<(u64, Times), CpuId> {
    match schedule.state(vcpu.id) {
        // A barred CPU would not respond: the copy is a snapshot without consistency between rows.
        State::Running(cpu) if !SCHEDULE.is_barred(cpu) => Err(cpu),
        _ => Ok((vcpu.exits_taken(), schedule.times(vcpu.id, now))),
    }
}

fn copy_unlocked(vcpu: &vm::Vcpu, to: &mut Ledger) {
    #[cfg(test)]
    assert!(!SCHEDULE.is_locked(SCHEDULE.home(vcpu.id)), "a copy takes long");
    vcpu.copy_ledger(to);
}

/// Sends a piece of the copy.
pub fn send_rows(tag: u16, from: u16) {
    let mut rows = heapless::Vec::<LedgerRow, PIECE>::new();
    let mut next = None;
    let copy = COPY.lock();
    if let Copied { of: Some((of, id)), ledger: Some(ledger) } = &*copy
        && *of == tag
    {
        let (vm, vcpu) = (id.vm(), id.vcpu());
        let mut rest = ledger.entries().filter(|entry| entry.id.raw() >= from);
        rows.extend(rest.by_ref().take(PIECE).map(|entry| report::row_of(vm, vcpu, &entry)));
        next = rest.next().map(|entry| entry.id.raw());
    }
    // The serial line may be slow, and another CPU may need the lock when it leaves a vCPU.
    drop(copy);
    let count = rows.len() as u8;
    rows.into_iter().for_each(|row| console::event(&Event::SampleRow(row)));
    console::event(&Event::SampleRows { tag, from, next, rows: count });
}

/// Request state for tests: the vCPU was found running.
#[cfg(test)]
pub fn want_for_tests(vm: u8, vcpu: u8) {
    want(0, vm, vcpu);
}

/// Whether a sample is requested.
#[cfg(test)]
pub fn is_wanted() -> bool {
    WANTED.load(Ordering::Acquire) != NONE
}
