//! MSIs of assigned PCI functions ("messages"): each vector has a physical LPI, which becomes the LPI of the VM to which
//! the guest's ITS translates it.

use core::sync::atomic::{AtomicU32, Ordering};

use stile_board::{MAX_ASSIGNED, MAX_VMS};
use stile_its::{Arrival, MappedEvent, Route};
use stile_pci::{Action, MAX_VECTORS, Misses};
use stile_vgic::Kick;

use super::{failure, injection};
use crate::arch::aarch64::host::cpu::Cpu;
use crate::arch::aarch64::host::its::{FIRST_DOORBELL, FIRST_LPI, LPIS};
use crate::arch::aarch64::host::{gic, its, timer};
use crate::arch::aarch64::interrupts::delivery;
use crate::cpu;
use crate::vm::{self, Vcpu, Vm};

/// For each physical LPI: its [`Route`].
static ROUTES: [AtomicU32; LPIS] = [const { AtomicU32::new(0) }; LPIS];

/// DeviceID of each function.
static DEVICES: [AtomicU32; MAX_ASSIGNED] = [const { AtomicU32::new(0) }; MAX_ASSIGNED];
/// For each LPI: number of arrivals on CPUs where its vCPU did not run.
static MISSES: [AtomicU32; LPIS] = [const { AtomicU32::new(0) }; LPIS];

/// For each function: bit mask of LPIs that are disabled until a vCPU of its VM runs.
static HELD: [AtomicU32; MAX_ASSIGNED] = [const { AtomicU32::new(0) }; MAX_ASSIGNED];
const _: () = assert!(MAX_VECTORS <= u32::BITS as usize);

/// Misses of all LPIs of each VM in the current time slice.
static MISSES_OF_VM: [Misses; MAX_VMS] = [const { Misses::new() }; MAX_VMS];

/// Assigns LPIs to the `number`th function, which VM `vm` owns and which has this DeviceID: [`MAX_VECTORS`] of them, whose
/// messages are dropped until [`route`]. Returns the INTID of the first.
pub fn first_lpi(vm: usize, number: u32, device: u32) -> u32 {
    if let Some(place) = DEVICES.get(number as usize) {
        place.store(device, Ordering::Relaxed);
    }
    let first = number as usize * MAX_VECTORS;
    for route in ROUTES.iter().skip(first).take(MAX_VECTORS) {
        route.store(Route::new(vm, 0).bits(), Ordering::Relaxed);
    }
    FIRST_LPI + first as u32
}

/// Sets the VM's LPI for a physical LPI; 0: its messages are dropped. The caller has the lock of the function, and is thus
/// the only writer of its routes.
pub fn route(lpi: u32, target: u16) {
    if let Some(route) = ROUTES.get((lpi - FIRST_LPI) as usize) {
        let vm = Route::from_bits(route.load(Ordering::Relaxed)).vm();
        route.store(Route::new(vm, target).bits(), Ordering::Relaxed);
    }
}

/// Handles an LPI that this CPU acknowledged: makes the VM's LPI pending. (LPIs have no active state to clear.)
pub fn deliver(here: &Cpu, lpi: u32) {
    gic::drop_priority(lpi);
    let Some(route) = lpi.checked_sub(FIRST_LPI).and_then(|index| ROUTES.get(index as usize)) else { return doorbell(lpi) };
    let route = Route::from_bits(route.load(Ordering::Relaxed));
    match here.vcpu.map(|vcpu| (vcpu, route.arrive(Some(vcpu.vm().number)))) {
        // Common case: the target is loaded here, and had the LPI in a list register before.
        Some((vcpu, Arrival::Own(target))) if delivery::pulse_resident(vcpu, here.index, target) => {}
        Some((_, Arrival::Dropped)) => {}
        _ => deliver_slowly(here, lpi, route),
    }
}

/// Handles an LPI beyond those of functions: a doorbell of a vPE, or none of Stile's.
#[cold]
#[inline(never)]
fn doorbell(lpi: u32) {
    if let Some(vpe) = lpi.checked_sub(FIRST_DOORBELL) {
        injection::doorbell(vpe);
    }
}

/// Makes the VM's LPI pending in its distributor, for any of its vCPUs. If no vCPU that it wakes runs here, that is a miss, as is
/// a message that leads nowhere: frequent ones move or hold the physical LPI ([`Misses`]).
#[cold]
#[inline(never)]
fn deliver_slowly(here: &Cpu, lpi: u32, route: Route) {
    let number = route.vm();
    let Some(vm) = vm::get(number) else { return };
    let kick = if route.lpi() == 0 { Kick::NONE } else { vm.arch.distributor.lock().pulse(route.lpi()) };
    let runs_on = |vcpu: &&'static Vcpu| cpu::running_on(vcpu);
    let target = kick.into_iter().next().and_then(|index| vm.vcpus.get(index)).and_then(runs_on);
    let index = (lpi - FIRST_LPI) as usize % LPIS;
    let missed = |runs: bool| {
        let of_lpi = MISSES[index].fetch_add(1, Ordering::Relaxed);
        MISSES_OF_VM[number % MAX_VMS].add(of_lpi, 1, runs, timer::now(), cpu::slice())
    };
    // An LPI that wakes no vCPU, because it is disabled or already pending, may be moved to any CPU that runs a vCPU
    // of the VM.
    let target = target.or_else(|| vm.vcpus.iter().find_map(runs_on));
    match target {
        Some(cpu) if cpu == here.index => {}
        Some(cpu) if missed(true) == Action::Move => failure::check(its::move_to(event(index), cpu)),
        None if missed(false) == Action::Hold => hold(vm, index, here.index),
        Some(_) | None => {}
    }
    delivery::deliver(vm, kick);
}

/// The event of the LPI of this index, which is that of its INTID less [`FIRST_LPI`].
fn event(lpi: usize) -> MappedEvent {
    let device = DEVICES[lpi / MAX_VECTORS % DEVICES.len()].load(Ordering::Relaxed);
    MappedEvent { device, event: event_id(lpi), lpi }
}

/// EventID of the LPI of this index.
const fn event_id(lpi: usize) -> u32 {
    (lpi % MAX_VECTORS) as u32
}

/// Disables an LPI that arrived while no vCPU of its VM ran, until one does. A function thus takes time from other
/// VMs for only a few LPIs each time that its own VM leaves the CPUs.
fn hold(vm: &'static Vm, index: usize, here: usize) {
    failure::check(its::enable(event(index), false));
    HELD[index / MAX_VECTORS].fetch_or(1 << event_id(index), Ordering::Release);
    // The next vCPU that is loaded or woken finds the request, and calls `release`.
    vm.vcpus.iter().for_each(|vcpu| vcpu.arch.requests.announce_spis());
    if vm.vcpus.iter().any(|vcpu| cpu::running_on(vcpu).is_some()) {
        // That vCPU may have checked for requests before this one was added.
        release(vm.number, here);
    }
}

/// Enables the held LPIs of VM `number`, one of whose vCPUs is on this CPU, and routes them here.
pub fn release(number: usize, here: usize) {
    for (function, held) in HELD.iter().enumerate() {
        let index = function * MAX_VECTORS;
        if held.load(Ordering::Relaxed) == 0 || Route::from_bits(ROUTES[index].load(Ordering::Relaxed)).vm() != number {
            continue;
        }
        let held = held.swap(0, Ordering::Acquire);
        for index in (index..index + MAX_VECTORS).filter(|&index| held >> event_id(index) & 1 != 0) {
            let moved = its::move_to(event(index), here);
            failure::check(moved.and_then(|()| its::enable(event(index), true)));
        }
    }
}
