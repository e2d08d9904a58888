//! Requests of functions that the SMMU stopped. They are reported, one for each page and direction, up to a limit: then the function can
//! access nothing until its VM starts again, so that it takes no more time from others.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use stile_pci::Address;
use stile_smmu::{Access, Event, Kind, StreamEntry};

use crate::arch::aarch64::host::smmu::{self, STREAMS};
use crate::console::{log, log_of};
use crate::vm;

/// Reports of a function's faults, from a start of its VM on, until it is cut off.
const MOST_REPORTS: u32 = 8;
/// Its faults until then, reported or not: a transfer has one for each few bytes.
const MOST_FAULTS: u32 = 4096;

/// The owner of a stream, and its faults since the owner started.
struct Stream {
    /// The VM and the function's address below [`OWNED`]; 0 is nobody.
    owner: AtomicU32,
    faults: AtomicU32,
    reports: AtomicU32,
    /// Page and direction of the last fault.
    last: AtomicU64,
}

static OWNERS: [Stream; STREAMS] =
    [const { Stream { owner: AtomicU32::new(0), faults: AtomicU32::new(0), reports: AtomicU32::new(0), last: AtomicU64::new(0) } };
        STREAMS];

const OWNED: u32 = 1 << 31;

/// A stream is a VM's from now on, and has no faults yet.
pub fn own(stream: u32, vm: usize, function: Address) {
    if let Some(state) = OWNERS.get(stream as usize) {
        state.owner.store(OWNED | (vm as u32) << 16 | u32::from(function.routing_id()), Ordering::Relaxed);
        state.faults.store(0, Ordering::Relaxed);
        state.reports.store(0, Ordering::Relaxed);
        state.last.store(u64::MAX, Ordering::Relaxed);
    }
}

/// The SMMU has recorded events. It interrupts again only when its queue was empty, and that is soon: a function that goes on is cut off.
pub fn take() {
    loop {
        let events = smmu::take_events();
        if events.is_empty() {
            return;
        }
        events.iter().for_each(take_one);
    }
}

fn take_one(event: &Event) {
    match OWNERS.get(event.stream as usize) {
        Some(stream) if stream.owner.load(Ordering::Relaxed) & OWNED != 0 => stream.fault(event),
        // It has no bus mastering, so it does not come here often.
        _ => log!("the SMMU stopped stream {:#x}, which nobody has", event.stream),
    }
}

impl Stream {
    fn fault(&self, event: &Event) {
        let (faults, reports) = (self.faults.load(Ordering::Relaxed) + 1, self.reports.load(Ordering::Relaxed));
        if faults > MOST_FAULTS || reports == MOST_REPORTS {
            // Recorded before it was cut off.
            return;
        }
        self.faults.store(faults, Ordering::Relaxed);
        let owner = self.owner.load(Ordering::Relaxed);
        let function = Address::from_routing_id(owner as u16);
        let Some(vm) = vm::get((owner >> 16) as usize & 0x7fff) else { return };
        let place = event.address & !0xfff | u64::from(event.access == Access::Write);
        let is_new = self.last.swap(place, Ordering::Relaxed) != place;
        if is_new {
            self.reports.store(reports + 1, Ordering::Relaxed);
            let verb = if event.access == Access::Read { "read" } else { "wrote to" };
            match event.kind {
                Kind::Unmapped | Kind::Permission => {
                    log_of!(vm, "{}: PCI function {function} {verb} {:#x}, outside of the VM's memory: blocked", vm.name, event.address);
                }
                Kind::Stream | Kind::Other(_) => log_of!(vm, "{}: the SMMU stopped PCI function {function}: {:?}", vm.name, event.kind),
            }
        }
        if faults == MOST_FAULTS || is_new && reports + 1 == MOST_REPORTS {
            smmu::set_stream(event.stream, vm.number as u16 + 1, StreamEntry::ABORT);
            log_of!(vm, "{}: PCI function {function} is cut off from memory until the VM starts again", vm.name);
        }
    }
}
