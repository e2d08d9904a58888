//! Faults of functions' DMA in the IOMMU. They are logged once per page and direction, up to a limit, at which the function
//! loses all access until its VM restarts: so faults take only a bounded time from other VMs.

use core::sync::atomic::{AtomicBool, Ordering, fence};

use stile_amd_iommu::{DeviceEntry, Event, Kind};
use stile_lock::TicketLock;
use stile_pci::{Access, Address, Faults, stop_master};

use super::failure;
use crate::arch::x86_64::host::{iommu, pcie};
use crate::console::{log, log_of};
use crate::vm;

/// Number of functions that can be assigned: those of bus 0.
const FUNCTIONS: usize = 1 << 8;

/// Owner of a function, and its faults since the owner started; of an unowned function, the faults since boot.
#[derive(Clone, Copy)]
struct State {
    vm: Option<u8>,
    faults: Faults,
}

static OWNERS: TicketLock<[State; FUNCTIONS]> = TicketLock::new([const { State { vm: None, faults: Faults::NONE } }; FUNCTIONS]);

/// Functions of bus 0 that are cut off from memory: their bus mastering stays off, whatever their guests write.
static CUT_OFF: [AtomicBool; FUNCTIONS] = [const { AtomicBool::new(false) }; FUNCTIONS];

/// Whether a function is cut off. A caller that has turned on bus mastering, and read it back, asks afterwards.
pub fn is_cut_off(function: Address) -> bool {
    // Pairs with the fence in `cut_off`: either the caller finds the function cut off, or `cut_off` finds its write.
    fence(Ordering::SeqCst);
    CUT_OFF.get(usize::from(function.routing_id())).is_some_and(|is_cut_off| is_cut_off.load(Ordering::Relaxed))
}

/// Takes a function's access to memory until its VM starts again, and its bus mastering: the IOMMU logs some requests
/// (INVALID_DEVICE_REQUEST), such as reads of the addresses of messages, whatever the device-table entry says.
fn cut_off(function: Address) {
    if let Some(is_cut_off) = CUT_OFF.get(usize::from(function.routing_id())) {
        is_cut_off.store(true, Ordering::Relaxed);
    }
    fence(Ordering::SeqCst);
    if let Some(bridge) = pcie::bridge() {
        stop_master(&mut bridge.config(function));
    }
    failure::check(iommu::set_device(function, DeviceEntry::BLOCKED));
}

/// Assigns a function to a VM and resets its fault count. Its bus mastering is off.
pub fn own(function: Address, vm: usize) {
    if let Some(is_cut_off) = CUT_OFF.get(usize::from(function.routing_id())) {
        is_cut_off.store(false, Ordering::Relaxed);
    }
    if let Some(state) = OWNERS.lock().get_mut(usize::from(function.routing_id())) {
        *state = State { vm: Some(vm as u8), faults: Faults::NONE };
    }
}

/// Whether an event was logged since [`report_unlogged`].
static ARE_LOGGED: AtomicBool = AtomicBool::new(false);

/// Reports requests that an IOMMU has blocked, if it logged none of them.
pub fn report_unlogged() {
    let are_logged = ARE_LOGGED.swap(false, Ordering::Relaxed);
    if iommu::has_blocked() && !are_logged {
        log!("the IOMMU has blocked requests of PCI functions, and does not say which");
    }
}

/// Handles logged events, at most as many as are taken at once: a function may produce events as fast as they are read.
pub fn take() {
    let events = iommu::take_events();
    ARE_LOGGED.fetch_or(!events.is_empty(), Ordering::Relaxed);
    events.iter().for_each(take_one);
}

fn take_one(event: &Event) {
    let function = Address::from_routing_id(event.device);
    let mut owners = OWNERS.lock();
    let Some(state) = owners.get_mut(usize::from(event.device)) else { return };
    let verdict = state.faults.count(event.address, event.access);
    let owner = state.vm;
    drop(owners);
    let Some(vm) = owner.and_then(|vm| vm::get(vm.into())) else {
        if verdict.report {
            log!("the IOMMU stopped PCI function {function}, which belongs to no VM: {:?}", event.kind);
        }
        return;
    };
    if verdict.report {
        match (event.kind, event.access) {
            (Kind::PageFault, access) => {
                let verb = match access {
                    Some(Access::Read) => "read",
                    Some(Access::Write) => "wrote to",
                    None => "accessed",
                };
                log_of!(vm, "{}: PCI function {function} {verb} {:#x}, outside of the VM's memory: blocked", vm.name, event.address);
            }
            (kind, _) => log_of!(vm, "{}: the IOMMU stopped PCI function {function}: {kind:?}", vm.name),
        }
    }
    if verdict.cut_off {
        cut_off(function);
        log_of!(vm, "{}: PCI function {function} is cut off from memory until the VM starts again", vm.name);
    }
}
