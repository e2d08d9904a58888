//! Which physical interrupt is what, and a vCPU's interrupt controller at load and put.

pub mod claims;
pub mod delivery;
pub mod direct;
pub mod interface;
mod physical_interface;
pub mod read_shadow;

use core::sync::atomic::{AtomicU32, Ordering};

use stile_board::intid;
use stile_vgic::Delivery;

use crate::arch::aarch64::host::board::Board;
use crate::arch::aarch64::host::cpu::Cpu;
use crate::arch::aarch64::host::sysreg::write_sysreg;
use crate::arch::aarch64::host::{features, gic};
use crate::vm::Vcpu;
use interface::Interface;

static TIMER: AtomicU32 = AtomicU32::new(u32::MAX);
static MAINTENANCE: AtomicU32 = AtomicU32::new(u32::MAX);
static UART: AtomicU32 = AtomicU32::new(u32::MAX);
static SMMU: AtomicU32 = AtomicU32::new(u32::MAX);

/// Remembers the board's interrupts.
///
/// # Errors
/// In words, if one is missing, or is not where guests' timers can be linked to it.
pub fn setup(board: &Board) -> Result<(), &'static str> {
    let [physical, virt, hypervisor] = board.timers.ok_or("the device tree has no arm,armv8-timer with four interrupts")?;
    // A list register links a virtual interrupt to the physical one of the same number, so that no table is asked on the way.
    if physical != intid::TIMER_EL1_PHYSICAL || virt != intid::TIMER_EL1_VIRTUAL {
        return Err("EL1's timers have other interrupts than the architecture recommends (PPI 30 and 27)");
    }
    TIMER.store(hypervisor, Ordering::Relaxed);
    MAINTENANCE.store(board.maintenance.ok_or("the GIC has no maintenance interrupt")?, Ordering::Relaxed);
    if let Some(uart) = board.uart.as_ref().and_then(|uart| uart.intid) {
        UART.store(uart, Ordering::Relaxed);
    }
    Ok(())
}

/// EL2's physical timer.
pub fn timer() -> u32 {
    TIMER.load(Ordering::Relaxed)
}

/// The GIC's maintenance interrupt.
pub fn maintenance() -> u32 {
    MAINTENANCE.load(Ordering::Relaxed)
}

/// The console's interrupt.
pub fn uart() -> Option<u32> {
    Some(UART.load(Ordering::Relaxed)).filter(|&intid| intid != u32::MAX)
}

/// Remembers the interrupt of the SMMU's events.
pub fn set_smmu(intid: u32) {
    SMMU.store(intid, Ordering::Relaxed);
}

/// The interrupt of the SMMU's events.
pub fn smmu() -> Option<u32> {
    Some(SMMU.load(Ordering::Relaxed)).filter(|&intid| intid != u32::MAX)
}

/// The private interrupts that every CPU takes.
pub fn private() -> [u32; 5] {
    [timer(), maintenance(), intid::TIMER_EL1_VIRTUAL, intid::TIMER_EL1_PHYSICAL, intid::TIMER_EL2_VIRTUAL]
}

/// The physical interrupts behind guests' private ones, from INTID 16 on: that of the same number, or, in a guest that has an EL2, EL1's
/// timers behind EL2's, which are what virtual EL2 uses as its own.
pub const BEHIND: [u8; 16] = {
    let mut behind = stile_vgic::SAME_PPIS;
    behind[(intid::TIMER_EL2_PHYSICAL - intid::PPI_BASE) as usize] = intid::TIMER_EL1_PHYSICAL as u8;
    behind[(intid::TIMER_EL2_VIRTUAL - intid::PPI_BASE) as usize] = intid::TIMER_EL1_VIRTUAL as u8;
    behind
};

/// The guest's private interrupts that have a physical one behind them, a bit each.
pub const fn linked(has_el2: bool) -> u32 {
    match has_el2 {
        false => 1 << intid::TIMER_EL1_VIRTUAL | 1 << intid::TIMER_EL1_PHYSICAL,
        true => 1 << intid::TIMER_EL2_VIRTUAL | 1 << intid::TIMER_EL2_PHYSICAL,
    }
}

/// Makes the physical interrupts behind these virtual ones active or inactive.
fn set_active(cpu: usize, ppis: u32, active: bool) {
    let mut rest = ppis & (linked(false) | linked(true));
    while rest != 0 {
        let physical = BEHIND[(rest.trailing_zeros() - intid::PPI_BASE) as usize & 15];
        gic::set_active(cpu, physical.into(), active);
        rest &= rest - 1;
    }
}

/// The physical interrupts behind virtual ones, a bit each.
pub fn physical(ppis: u32) -> u32 {
    let mut rest = ppis & (linked(false) | linked(true));
    let mut physical = 0;
    while rest != 0 {
        physical |= 1 << BEHIND[(rest.trailing_zeros() - intid::PPI_BASE) as usize & 15];
        rest &= rest - 1;
    }
    physical
}

/// The virtual interrupt of a vCPU that a physical timer interrupt stands behind while virtual EL2, if it has one, runs.
pub fn in_front(vcpu: &Vcpu, physical: u32) -> u32 {
    match (physical, vcpu.arch.has_el2) {
        (intid::TIMER_EL1_VIRTUAL, true) => intid::TIMER_EL2_VIRTUAL,
        (intid::TIMER_EL1_PHYSICAL, true) => intid::TIMER_EL2_PHYSICAL,
        _ => physical,
    }
}

/// Makes the physical interrupt behind a virtual one inactive.
pub fn deactivate(cpu: usize, intid: u32) {
    set_active(cpu, 1 << (intid & 31), false);
}

/// Brings a vCPU's interrupts onto this CPU. Its timers are loaded.
pub fn load(cpu: &mut Cpu, vcpu: &Vcpu) {
    let mut interface = Interface::new(cpu.index, vcpu);
    let requests = vcpu.arch.requests.take();
    let mut redistributor = vcpu.arch.redistributor.lock();
    redistributor.accept(requests);
    interface.load(redistributor.interface());
    let loaded = redistributor.load(&mut interface);
    drop(redistributor);
    set_active(cpu.index, loaded.active_ppis, true);
    if loaded.delivery != Delivery::Done || requests.spis() {
        delivery::synchronize(vcpu, cpu.index);
    }
}

/// The reverse. Returns whether the vCPU, if it sleeps, must be woken.
pub fn put(cpu: &mut Cpu, vcpu: &Vcpu) -> bool {
    let mut interface = Interface::new(cpu.index, vcpu);
    let mut redistributor = vcpu.arch.redistributor.lock();
    let active = redistributor.unload(&mut interface);
    interface.put(redistributor.interface());
    // All else that is pending has woken it already.
    let pending = redistributor.maintenance_was_under_way() && redistributor.has_deliverable_saved();
    drop(redistributor);
    set_active(cpu.index, active, false);
    pending
}

/// CNTV_CTL_EL0.ENABLE, CNTP_CTL_EL0.ENABLE.
pub const TIMER_ENABLE: u64 = 1;

/// Stops EL1's timers on this CPU, if one of them is enabled by these values of their control registers.
pub fn stop_timers(controls: u64) {
    if controls & TIMER_ENABLE == 0 {
        return;
    }
    if features::get().vhe {
        write_sysreg!(CNTV_CTL_EL02, 0);
        write_sysreg!(CNTP_CTL_EL02, 0);
    } else {
        write_sysreg!(CNTV_CTL_EL0, 0);
        write_sysreg!(CNTP_CTL_EL0, 0);
    }
}

/// Whether an interrupt is pending that would wake the loaded vCPU, which has no pending requests.
pub fn is_pending(cpu: &Cpu, vcpu: &Vcpu) -> bool {
    // The common case: what is pending would be in a list register.
    if Interface::is_empty() {
        return false;
    }
    vcpu.arch.redistributor.lock().has_deliverable(&Interface::new(cpu.index, vcpu))
}
