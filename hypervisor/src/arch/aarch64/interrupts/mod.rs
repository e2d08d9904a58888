//! Which physical interrupt is what, and a vCPU's interrupt controller at load and put.

mod behind;
pub mod claims;
pub mod delivery;
pub mod direct;
pub mod interface;
mod physical_interface;
pub mod place;
pub mod read_shadow;

use core::sync::atomic::{AtomicU32, Ordering};

use stile_board::intid;
use stile_vgic::Delivery;

use crate::arch::aarch64::host::board::Board;
use crate::arch::aarch64::host::cpu::Cpu;
use crate::arch::aarch64::host::features;
use crate::arch::aarch64::host::sysreg::write_sysreg;
use crate::vm::Vcpu;
use behind::set_active;
pub use behind::{BEHIND, in_front, linked, physical};
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

/// Takes a vCPU's interrupts off this CPU. Returns whether the vCPU, if it sleeps, must be woken.
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
