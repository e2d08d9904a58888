//! Transmission of ledgers to the operator.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use stile_board::MAX_VMS;
use stile_ledger::{Entry, Ledger, RowId, RowKey};
use stile_lock::TicketLock;
use stile_sched::CpuId;
use stile_wire::{CpuTime, Event, LedgerRow, LedgerTotal, Row};

use crate::arch::contract::{Counter, PhysicalCpu, Platform};
use crate::arch::{Arch, Cpu};
use crate::cpu::{self, SCHEDULE};
use crate::{arena, console, memory, vm};

static WANTED: AtomicBool = AtomicBool::new(false);
static STARTED: AtomicU64 = AtomicU64::new(0);
/// Total of free memory and memory of VMs, in bytes: constant.
static FREE: AtomicU64 = AtomicU64::new(0);
/// The copy of a ledger in which the meaning of a row is looked up.
static COPY: TicketLock<Option<&'static mut Ledger>> = TicketLock::new(None);

/// Rows in a piece.
const PIECE: usize = 16;

/// The operator wants the ledgers of a running machine, and not all are sent.
static IS_SENDING: AtomicBool = AtomicBool::new(false);
static REPORT: TicketLock<Report> = TicketLock::new(Report { copy: None, place: Place { vm: 0, vcpu: 0, row: 0 } });

/// Ledgers that are being sent.
struct Report {
    /// The copy of the ledger that is being sent, whose vCPU may continue.
    copy: Option<&'static mut Ledger>,
    place: Place,
}

/// Beginning of the next piece.
#[derive(Default)]
struct Place {
    vm: usize,
    vcpu: usize,
    row: u16,
}

/// Records whether to send ledgers at the end, the start time of the first VM, and the memory that was free then.
/// Called when all VMs have been created.
///
/// # Errors
/// A description: no memory is left.
pub fn setup(wanted: bool) -> Result<(), &'static str> {
    WANTED.store(wanted, Ordering::Relaxed);
    // SAFETY: a ledger consists of integers, for which all zero is valid.
    let allocate = || Ok(unsafe { memory::allocate::<Ledger>()?.assume_init_mut() });
    *COPY.lock() = Some(allocate()?);
    REPORT.lock().copy = Some(allocate()?);
    STARTED.store(Arch::now(), Ordering::Relaxed);
    FREE.store(memory::available() + of_vms(), Ordering::Relaxed);
    Ok(())
}

/// Memory in use by VMs, or claimed for VMs that are being created, in bytes; and what the schedule keeps for the next ones.
fn of_vms() -> u64 {
    let of_each = (0..MAX_VMS).map(|number| vm::get(number).map_or_else(|| arena::of_vm(number).size(), vm::Vm::memory));
    of_each.sum::<u64>() + cpu::memory_of_vms()
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
        let times = SCHEDULE.times(vcpu.id, now);
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
    let mut report = REPORT.lock();
    report.restart();
    while report.send_piece() {}
}

/// Starts to send the ledgers for the operator, while the machine goes on.
pub fn begin() {
    REPORT.lock().restart();
    if !IS_SENDING.swap(true, Ordering::AcqRel) {
        cpu::AT_RESCHED.fetch_add(1, Ordering::AcqRel);
    }
    advance();
}

/// Sends a piece of the ledgers that the operator wants, if any and if there is room. Called by a CPU that takes a
/// reschedule request, and when the serial line has sent something.
pub fn advance() {
    if !IS_SENDING.load(Ordering::Acquire) || !console::has_room_for_answer() {
        return;
    }
    // Another CPU that sends a piece also goes on.
    let Some(mut report) = REPORT.try_lock() else { return };
    if !IS_SENDING.load(Ordering::Acquire) {
        return;
    }
    if !report.send_piece() {
        IS_SENDING.store(false, Ordering::Release);
        cpu::AT_RESCHED.fetch_sub(1, Ordering::AcqRel);
    } else if let Some(cpu) = CpuId::new(Cpu::this_index()) {
        cpu::request_resched(cpu);
    }
}

impl Report {
    fn restart(&mut self) {
        console::event(&Event::CounterFrequency { hz: Arch::frequency() });
        self.place = Place::default();
    }

    /// Sends the next piece. Returns false after the last.
    fn send_piece(&mut self) -> bool {
        let Some(ledger) = self.copy.as_mut() else { return false };
        let Some(vm) = (self.place.vm..MAX_VMS).find_map(vm::get) else {
            let before = FREE.load(Ordering::Relaxed).saturating_sub(of_vms());
            console::event(&Event::Memory { before, now: memory::available() });
            console::event(&Event::LedgerEnd);
            return false;
        };
        if vm.number != self.place.vm {
            self.place = Place { vm: vm.number, ..Place::default() };
        }
        let Place { vcpu: index, row, .. } = self.place;
        let Some(vcpu) = vm.vcpus.get(index) else {
            console::event(&Event::CpuTime(cpu_time(vm)));
            let decoded = Arch::decoded(vm);
            if decoded.hits + decoded.misses != 0 {
                console::event(&Event::Decoded(decoded));
            }
            self.place = Place { vm: vm.number + 1, ..Place::default() };
            return true;
        };
        if row == 0 {
            vcpu.copy_ledger(ledger);
        }
        let mut rest = ledger.entries().filter(|entry| entry.id.raw() >= row);
        for entry in rest.by_ref().take(PIECE) {
            console::event(&Event::LedgerRow(row_of(vm.number as u8, vcpu.id.vcpu(), &entry)));
        }
        if let Some(next) = rest.next() {
            self.place.row = next.id.raw();
            return true;
        }
        let sum = ledger.sum();
        console::event(&Event::LedgerTotal(LedgerTotal {
            vm: vm.number as u8,
            vcpu: vcpu.id.vcpu(),
            taken: ledger.taken,
            counted: sum.count,
            outside_ticks: sum.ticks,
            alive_ticks: Arch::now().wrapping_sub(STARTED.load(Ordering::Relaxed)),
        }));
        self.place = Place { vm: vm.number, vcpu: index + 1, row: 0 };
        true
    }
}
