//! Requests of functions that the SMMU stopped. Each is reported, up to a limit: then the function can access nothing until its VM starts
//! again, so that it takes no more time from others.

use core::sync::atomic::{AtomicU32, Ordering};

use stile_pci::Address;
use stile_smmu::{Access, Kind, StreamEntry};

use crate::arch::aarch64::host::smmu::{self, STREAMS};
use crate::console::{log, log_of};
use crate::vm;

/// Faults of a function, from a start of its VM on, until it is cut off.
const MOST: u32 = 8;

/// Who owns each stream: the VM and the function's address below a set bit; 0 is nobody.
static OWNERS: [AtomicU32; STREAMS] = [const { AtomicU32::new(0) }; STREAMS];
/// Faults since then.
static COUNTS: [AtomicU32; STREAMS] = [const { AtomicU32::new(0) }; STREAMS];

const OWNED: u32 = 1 << 31;

/// A stream is a VM's from now on, and has no faults yet.
pub fn own(stream: u32, vm: usize, function: Address) {
    if let (Some(owner), Some(count)) = (OWNERS.get(stream as usize), COUNTS.get(stream as usize)) {
        owner.store(OWNED | (vm as u32) << 16 | u32::from(function.routing_id()), Ordering::Relaxed);
        count.store(0, Ordering::Relaxed);
    }
}

/// The SMMU has recorded events.
pub fn take() {
    for event in smmu::take_events() {
        let stream = event.stream as usize;
        let (Some(owner), Some(count)) = (OWNERS.get(stream), COUNTS.get(stream)) else {
            log!("the SMMU stopped stream {stream:#x}, which nobody has");
            continue;
        };
        let before = count.load(Ordering::Relaxed);
        count.store(before.saturating_add(1), Ordering::Relaxed);
        if before >= MOST {
            continue;
        }
        let owner = owner.load(Ordering::Relaxed);
        let function = Address::from_routing_id(owner as u16);
        let Some(vm) = vm::get((owner >> 16) as usize & 0x7fff).filter(|_| owner & OWNED != 0) else {
            log!("the SMMU stopped stream {stream:#x}, which nobody has");
            continue;
        };
        let verb = if event.access == Access::Read { "read" } else { "wrote to" };
        match event.kind {
            Kind::Unmapped | Kind::Permission => {
                log_of!(vm, "{}: PCI function {function} {verb} {:#x}, outside of the VM's memory: blocked", vm.name, event.address);
            }
            Kind::Stream | Kind::Other(_) => log_of!(vm, "{}: the SMMU stopped PCI function {function}: {:?}", vm.name, event.kind),
        }
        if before + 1 == MOST {
            smmu::set_stream(event.stream, vm.number as u16 + 1, StreamEntry::ABORT);
            log_of!(vm, "{}: PCI function {function} is cut off from memory until the VM starts again", vm.name);
        }
    }
}
