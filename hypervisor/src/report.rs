//! Transmission of ledgers to the operator.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use stile_board::MAX_VMS;
use stile_ledger::{Entry, Ledger, RowId, RowKey};
use stile_lock::TicketLock;
use stile_wire::{CpuTime, Event, LedgerRow, LedgerTotal, Row};

use crate::arch::Arch;
use crate::arch::contract::{Counter, Platform};
use crate::cpu::SCHEDULE;
use crate::{arena, console, memory, vm};

static WANTED: AtomicBool = AtomicBool::new(false);
static STARTED: AtomicU64 = AtomicU64::new(0);
/// Total of free memory and memory of VMs, in bytes: constant.
static FREE: AtomicU64 = AtomicU64::new(0);
/// The copy of the ledger that is being sent, whose vCPU may continue.
static COPY: TicketLock<Option<&'static mut Ledger>> = TicketLock::new(None);

/// Records whether to send ledgers at the end, the start time of the first VM, and the memory that was free then.
/// Called when all VMs have been created.
///
/// # Errors
/// A description: no memory is left.
pub fn setup(wanted: bool) -> Result<(), &'static str> {
    WANTED.store(wanted, Ordering::Relaxed);
    // SAFETY: a ledger consists of integers, for which all zero is valid.
    *COPY.lock() = Some(unsafe { memory::allocate::<Ledger>()?.assume_init_mut() });
    STARTED.store(Arch::now(), Ordering::Relaxed);
    FREE.store(memory::available() + of_vms(), Ordering::Relaxed);
    Ok(())
}

/// Memory in use by VMs, or claimed for VMs that are being created, in bytes.
fn of_vms() -> u64 {
    (0..MAX_VMS).map(|number| vm::get(number).map_or_else(|| arena::of_vm(number).size(), vm::Vm::memory)).sum()
}

/// Sends the ledgers if the configuration requests it. They are exact, because all vCPUs are off.
pub fn send_if_wanted() {
    if WANTED.load(Ordering::Relaxed) {
        send();
    }
}

/// Sums the times of a VM's vCPUs.
fn cpu_time(vm: &vm::Vm) -> CpuTime {
    let mut sum = CpuTime { vm: vm.number as u8, ran: 0, waited: 0 };
    for vcpu in &vm.vcpus {
        let now = Arch::now();
        let times = SCHEDULE.lock().scheduler.times(vcpu.id, now);
        sum.ran += times.ran;
        sum.waited += times.waited;
    }
    sum
}

/// A ledger's entry in the format of the operator's channel.
pub fn row_of(vm: u8, vcpu: u8, entry: &Entry) -> LedgerRow {
    let row = row_of_key(entry.key);
    let stile_ledger::Row { count, ticks, min, max } = entry.row;
    LedgerRow { vm, vcpu, row, count, ticks, min, max }
}

/// Returns the meaning of a row of a vCPU's ledger.
pub fn row_of_number(vcpu: &vm::Vcpu, id: RowId) -> Option<Row> {
    let mut copy = COPY.lock();
    let ledger = copy.as_mut()?;
    vcpu.copy_ledger(ledger);
    ledger.key(id).map(row_of_key)
}

fn row_of_key(key: RowKey) -> Row {
    match key {
        RowKey::Static(id) => Row::Static(id.raw()),
        RowKey::Dynamic { reason, key } => Row::Dynamic { kind: reason.raw().into(), key },
    }
}

/// Sends the ledgers of all vCPUs.
pub fn send() {
    console::event(&Event::CounterFrequency { hz: Arch::frequency() });
    let alive = Arch::now().wrapping_sub(STARTED.load(Ordering::Relaxed));
    let mut copy = COPY.lock();
    let Some(ledger) = copy.as_mut() else { return };
    for vm in vm::all() {
        for vcpu in &vm.vcpus {
            vcpu.copy_ledger(ledger);
            let (vm, vcpu) = (vm.number as u8, vcpu.id.vcpu());
            for entry in ledger.entries() {
                console::event(&Event::LedgerRow(row_of(vm, vcpu, &entry)));
            }
            let sum = ledger.sum();
            console::event(&Event::LedgerTotal(LedgerTotal {
                vm,
                vcpu,
                taken: ledger.taken,
                counted: sum.count,
                outside_ticks: sum.ticks,
                alive_ticks: alive,
            }));
        }
        console::event(&Event::CpuTime(cpu_time(vm)));
        let decoded = Arch::decoded(vm);
        if decoded.hits + decoded.misses != 0 {
            console::event(&Event::Decoded(decoded));
        }
    }
    let before = FREE.load(Ordering::Relaxed).saturating_sub(of_vms());
    console::event(&Event::Memory { before, now: memory::available() });
    console::event(&Event::LedgerEnd);
}
