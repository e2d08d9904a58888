//! Requests of functions that the SMMU stopped. They are reported, one for each page and direction, up to a limit: then the function can
//! access nothing until its VM starts again, so that it takes no more time from others.

use stile_pci::Address;
use stile_sched::lock::TicketLock;
use stile_smmu::{Access, Event, Faults, Kind, StreamEntry};

use crate::arch::aarch64::host::gic;
use crate::arch::aarch64::host::smmu::{self, STREAMS};
use crate::arch::aarch64::interrupts;
use crate::console::{log, log_of};
use crate::vm;

/// The owner of a stream, VM and function, and the faults since the owner started; those of a stream that nobody has, since the start.
#[derive(Clone, Copy)]
struct Stream {
    owner: Option<(u8, Address)>,
    faults: Faults,
}

static OWNERS: TicketLock<[Stream; STREAMS]> = TicketLock::new([const { Stream { owner: None, faults: Faults::NONE } }; STREAMS]);

/// A stream is a VM's from now on, and has no faults yet.
pub fn own(stream: u32, vm: usize, function: Address) {
    if let Some(state) = OWNERS.lock().get_mut(stream as usize) {
        *state = Stream { owner: Some((vm as u8, function)), faults: Faults::NONE };
    }
}

/// The SMMU has recorded events. Takes no more than its queue has room for: a function may make them as fast as they are taken.
pub fn take() {
    let events = smmu::take_events();
    events.iter().for_each(take_one);
    if events.is_full()
        && let Some(intid) = interrupts::smmu()
    {
        // It interrupts again only when its queue was empty: the rest is another interrupt's, after others of higher priority.
        gic::set_pending_spi(intid);
    }
}

fn take_one(event: &Event) {
    let place = event.address & !0xfff | u64::from(event.access == Access::Write);
    let mut owners = OWNERS.lock();
    let Some(stream) = owners.get_mut(event.stream as usize) else { return };
    let verdict = stream.faults.count(place);
    let Some((vm, function)) = stream.owner else {
        if verdict.report {
            // It has no bus mastering, so this should not be; from now on it aborts without an event. While nobody can become its owner.
            smmu::set_stream(event.stream, 0, StreamEntry::ABORT);
            log!("the SMMU stopped stream {:#x}, which nobody has", event.stream);
        }
        return;
    };
    drop(owners);
    let Some(vm) = vm::get(vm.into()) else { return };
    if verdict.report {
        let verb = if event.access == Access::Read { "read" } else { "wrote to" };
        match event.kind {
            Kind::Unmapped | Kind::Permission => {
                log_of!(vm, "{}: PCI function {function} {verb} {:#x}, outside of the VM's memory: blocked", vm.name, event.address);
            }
            Kind::Stream | Kind::Other(_) => log_of!(vm, "{}: the SMMU stopped PCI function {function}: {:?}", vm.name, event.kind),
        }
    }
    if verdict.cut_off {
        smmu::set_stream(event.stream, vm.number as u16 + 1, StreamEntry::ABORT);
        log_of!(vm, "{}: PCI function {function} is cut off from memory until the VM starts again", vm.name);
    }
}
