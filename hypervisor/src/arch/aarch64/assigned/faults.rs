//! Faults of functions' DMA in the SMMU. They are logged once per page and direction, up to a limit, at which the
//! function loses all access until its VM restarts: so faults take only a bounded time from other VMs.

use stile_lock::TicketLock;
use stile_pci::{Access, Address, Faults};
use stile_smmu::{Event, Kind, StreamEntry};

use super::failure;
use crate::arch::aarch64::host::gic;
use crate::arch::aarch64::host::smmu::{self, STREAMS};
use crate::arch::aarch64::interrupts;
use crate::console::{log, log_of};
use crate::vm;

/// Owner of a stream (VM and function), and its faults since the owner started; of an unowned stream, the faults
/// since boot.
#[derive(Clone, Copy)]
struct Stream {
    owner: Option<(u8, Address)>,
    faults: Faults,
}

static OWNERS: TicketLock<[Stream; STREAMS]> = TicketLock::new([const { Stream { owner: None, faults: Faults::NONE } }; STREAMS]);

/// Assigns a stream to a VM and resets its fault count.
pub fn own(stream: u32, vm: usize, function: Address) {
    if let Some(state) = OWNERS.lock().get_mut(stream as usize) {
        *state = Stream { owner: Some((vm as u8, function)), faults: Faults::NONE };
    }
}

/// Handles recorded events, at most as many as the queue holds: a function may produce events as fast as they are
/// read.
pub fn take() {
    let events = smmu::take_events();
    events.iter().for_each(take_one);
    if events.is_full()
        && let Some(intid) = interrupts::smmu()
    {
        // The SMMU interrupts again only if its queue was empty: the rest is left to another interrupt, after those
        // of higher priority.
        gic::set_pending_spi(intid);
    }
}

fn take_one(event: &Event) {
    let mut owners = OWNERS.lock();
    let Some(stream) = owners.get_mut(event.stream as usize) else { return };
    let verdict = stream.faults.count(event.address, Some(event.access));
    let Some((vm, function)) = stream.owner else {
        if verdict.report {
            // Unexpected, because its bus mastering is off. From here on it aborts without an event. The lock keeps
            // it unowned meanwhile.
            failure::check(smmu::set_stream(event.stream, 0, StreamEntry::ABORT));
            log!("the SMMU stopped stream {:#x}, which belongs to no VM", event.stream);
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
        failure::check(smmu::set_stream(event.stream, vm.number as u16 + 1, StreamEntry::ABORT));
        log_of!(vm, "{}: PCI function {function} is cut off from memory until the VM starts again", vm.name);
    }
}
