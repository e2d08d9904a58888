//! Messages of functions on their way to VMs: an LPI for each vector, and the SPI that the guest wants it to be.

use core::sync::atomic::{AtomicU32, Ordering};

use stile_board::{MAX_FUNCTIONS, MAX_VMS, intid, map};
use stile_pci::{MAX_VECTORS, Vector};

use crate::arch::aarch64::host::gic;
use crate::arch::aarch64::host::its::FIRST_LPI;
use crate::arch::aarch64::interrupts::delivery;
use crate::vm;

/// LPIs of all functions.
const LPIS: usize = MAX_FUNCTIONS * MAX_VMS * MAX_VECTORS;

/// For each LPI: the VM in the upper half, its SPI in the lower one. No SPI: the guest wants none.
static ROUTES: [AtomicU32; LPIS] = [const { AtomicU32::new(0) }; LPIS];

/// The first LPI of the `number`th function, which is VM `vm`'s.
pub fn first_lpi(vm: usize, number: u32) -> u32 {
    let first = number as usize * MAX_VECTORS;
    for route in ROUTES.iter().skip(first).take(MAX_VECTORS) {
        route.store((vm as u32) << 16, Ordering::Relaxed);
    }
    FIRST_LPI + first as u32
}

/// Has an LPI become what a guest wrote into its MSI-X table. Returns whether that is an interrupt: a message to anywhere else is none.
pub fn route(lpi: u32, vector: Option<Vector>) -> bool {
    const MESSAGES: core::ops::Range<u32> = intid::MSI_BASE..intid::MSI_BASE + intid::MSI_COUNT;
    let at_doorbell = vector.filter(|vector| vector.address == map::MSI_FRAME_BASE + map::MSI_DOORBELL);
    let spi = at_doorbell.map(|vector| vector.data).filter(|data| MESSAGES.contains(data));
    if let Some(route) = ROUTES.get((lpi - FIRST_LPI) as usize) {
        route.store(route.load(Ordering::Relaxed) & 0xffff_0000 | spi.unwrap_or(0), Ordering::Relaxed);
    }
    spi.is_some()
}

/// An LPI was acknowledged: takes it, and makes the guest's SPI pending. (LPIs are not active, so none is deactivated.)
pub fn deliver(lpi: u32) {
    gic::drop_priority(lpi);
    let route = lpi.checked_sub(FIRST_LPI).and_then(|index| ROUTES.get(index as usize));
    let route = route.map_or(0, |route| route.load(Ordering::Relaxed));
    let (vm, spi) = ((route >> 16) as usize, route & 0xffff);
    if spi != 0
        && let Some(vm) = vm::get(vm)
    {
        let kick = vm.arch.distributor.lock().pulse(spi);
        delivery::deliver(vm, kick);
    }
}
