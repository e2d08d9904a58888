//! The ledgers, told to the operator.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use stile_ledger::RowKey;
use stile_wire::{Event, LedgerRow, LedgerTotal, Row};

use crate::{arch, console, memory, vm};

static WANTED: AtomicBool = AtomicBool::new(false);
static STARTED: AtomicU64 = AtomicU64::new(0);
static FREE: AtomicU64 = AtomicU64::new(0);

/// Remembers whether the ledgers are to be sent at the end, and when the first VM started and how much memory was free then. All VMs are made.
pub fn setup(wanted: bool) {
    WANTED.store(wanted, Ordering::Relaxed);
    STARTED.store(arch::timer::now(), Ordering::Relaxed);
    FREE.store(memory::available(), Ordering::Relaxed);
}

/// Sends the ledgers if the configuration asks for it. Exact, because all vCPUs are off.
pub fn send_if_wanted() {
    if WANTED.load(Ordering::Relaxed) {
        send();
    }
}

/// Sends the ledgers of all vCPUs.
pub fn send() {
    console::event(&Event::CounterFrequency { hz: arch::timer::frequency() });
    let alive = arch::timer::now().wrapping_sub(STARTED.load(Ordering::Relaxed));
    for vm in vm::all() {
        for vcpu in &vm.vcpus {
            let (vm, vcpu, ledger) = (vm.number as u8, vcpu.id.vcpu(), vcpu.finished_ledger());
            for entry in ledger.entries() {
                let row = match entry.key {
                    RowKey::Static(id) => Row::Static(id.raw()),
                    RowKey::Dynamic { reason, key } => Row::Dynamic { kind: reason.raw().into(), key },
                };
                let stile_ledger::Row { count, ticks, min, max } = entry.row;
                console::event(&Event::LedgerRow(LedgerRow { vm, vcpu, row, count, ticks, min, max }));
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
        let decoded = arch::decoded(vm);
        if decoded.hits + decoded.misses != 0 {
            console::event(&Event::Decoded(decoded));
        }
    }
    console::event(&Event::Memory { before: FREE.load(Ordering::Relaxed), now: memory::available() });
    console::event(&Event::LedgerEnd);
}
