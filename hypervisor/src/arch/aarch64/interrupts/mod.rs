//! Physical interrupts of the machine, and load and put of a vCPU's interrupt state.

mod behind;
pub mod claims;
pub mod delivery;
pub mod direct;
pub mod interface;
mod physical_interface;
pub mod place;
pub mod read_shadow;
pub mod trusted;

use core::sync::atomic::{AtomicU32, Ordering};

use stile_board::intid;
use stile_vgic::Delivery;

use crate::arch::aarch64::host::board::Board;
use crate::arch::aarch64::host::cpu::Cpu;
use crate::arch::aarch64::host::features;
use crate::arch::aarch64::host::sysreg::{isb, write_sysreg};
use crate::console::log;
use crate::vm::Vcpu;
use behind::set_active;
pub use behind::{BEHIND, in_front, linked, physical};
use interface::Interface;

static TIMER: AtomicU32 = AtomicU32::new(u32::MAX);
static MAINTENANCE: AtomicU32 = AtomicU32::new(u32::MAX);
static UART: AtomicU32 = AtomicU32::new(u32::MAX);
static SMMU: AtomicU32 = AtomicU32::new(u32::MAX);

/// Sets the board's interrupts.
///
/// # Errors
/// A description: one is missing, or not at the INTID that list registers can link to guests' timers.
pub fn setup(board: &Board) -> Result<(), &'static str> {
    let [physical, virt, hypervisor] = board.timers.ok_or("the device tree has no arm,armv8-timer with four interrupts")?;
    // A virtual interrupt is linked to the physical one of the same INTID, so that no table is looked up on the exit
    // path.
    if physical != intid::TIMER_EL1_PHYSICAL || virt != intid::TIMER_EL1_VIRTUAL {
        return Err("EL1's timers have other interrupts than the architecture recommends (PPI 30 and 27)");
    }
    TIMER.store(hypervisor, Ordering::Relaxed);
    let maintenance =
        board.maintenance.ok_or("the GIC has no maintenance interrupt, or ACPI tables give the usual one, INTID 25, to a timer")?;
    if board.assumes_maintenance {
        log!("the ACPI table MADT names no private maintenance interrupt of the GIC: INTID {maintenance} is assumed");
    }
    MAINTENANCE.store(maintenance, Ordering::Relaxed);
    if let Some(uart) = board.uart.as_ref().and_then(|uart| uart.intid) {
        UART.store(uart, Ordering::Relaxed);
    }
    Ok(())
}

/// INTID of EL2's physical timer.
pub fn timer() -> u32 {
    TIMER.load(Ordering::Relaxed)
}

/// INTID of the maintenance interrupt.
pub fn maintenance() -> u32 {
    MAINTENANCE.load(Ordering::Relaxed)
}

/// INTID of the console.
pub fn uart() -> Option<u32> {
    Some(UART.load(Ordering::Relaxed)).filter(|&intid| intid != u32::MAX)
}

/// Sets the INTID of SMMU events.
pub fn set_smmu(intid: u32) {
    SMMU.store(intid, Ordering::Relaxed);
}

/// INTID of SMMU events.
pub fn smmu() -> Option<u32> {
    Some(SMMU.load(Ordering::Relaxed)).filter(|&intid| intid != u32::MAX)
}

/// Private interrupts that every CPU takes.
pub fn private() -> [u32; 5] {
    [timer(), maintenance(), intid::TIMER_EL1_VIRTUAL, intid::TIMER_EL1_PHYSICAL, intid::TIMER_EL2_VIRTUAL]
}

/// Loads a vCPU's interrupt state onto this CPU, after its timers.
#[inline(always)]
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
        delivery::synchronize_posted(vcpu, cpu.index, requests);
    }
}

/// Puts a vCPU's interrupt state. Returns whether the vCPU, if it sleeps, must be woken, and its active private interrupts,
/// for [`deactivate`].
#[must_use = "a physical interrupt that stays active comes no more"]
#[inline(always)]
pub fn put(cpu: &mut Cpu, vcpu: &Vcpu) -> (bool, u32) {
    let mut interface = Interface::new(cpu.index, vcpu);
    let mut redistributor = vcpu.arch.redistributor.lock();
    let active = redistributor.unload(&mut interface);
    interface.put(redistributor.interface());
    // Any other pending interrupt has already woken it.
    let pending = redistributor.maintenance_was_under_way() && redistributor.has_deliverable_saved();
    drop(redistributor);
    (pending, active)
}

/// Deactivates the physical interrupts of a vCPU that was put, whose timers are stopped: a line that is still high would
/// interrupt the next vCPU.
#[inline(always)]
pub fn deactivate(cpu: &Cpu, active: u32) {
    if active != 0 {
        // A store to a device does not wait for the writes of system registers before it.
        isb();
        set_active(cpu.index, active, false);
    }
}

/// CNTV_CTL_EL0.ENABLE, CNTP_CTL_EL0.ENABLE.
pub const TIMER_ENABLE: u64 = 1;

/// Stops EL1's timers on this CPU if one is enabled according to these values of their control registers.
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

/// Whether a pending interrupt would wake the loaded vCPU, which has no pending requests.
pub fn is_pending(cpu: &Cpu, vcpu: &Vcpu) -> bool {
    // Common case: pending interrupts are in list registers.
    if Interface::is_empty() {
        return false;
    }
    vcpu.arch.redistributor.lock().has_deliverable(&Interface::new(cpu.index, vcpu))
}
