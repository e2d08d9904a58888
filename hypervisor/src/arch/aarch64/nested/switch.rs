//! Switches between virtual EL2 and its guest.

use super::state::{Nested, Regime};
use super::{gic, traps};
use crate::arch::aarch64::host::cpu::Cpu;
use crate::arch::aarch64::host::sysreg::isb;

/// Loads the guest's registers, traps, translations and interrupts. Returns whether L1 has an interrupt that the
/// caller must inject before the guest's first instruction.
pub fn enter_guest(cpu: &mut Cpu, nested: &mut Nested) -> bool {
    let vcpu = cpu.vcpu();
    if nested.has_own_serror() {
        traps::note_serror(nested);
    }
    nested.restore_guest();
    nested.lazy_traps.update(&nested.page, || vcpu.vm().arch.masks());
    nested.regime = Regime::Guest;
    traps::load(nested);
    nested.load_shadow(vcpu.vm(), cpu.index);
    let is_interrupted = if gic::routes_to_el2(nested) {
        gic::restore_guest(cpu, vcpu, nested)
    } else {
        gic::enter_unrouted(cpu, vcpu, nested);
        false
    };
    if !is_interrupted {
        nested.stand_in_for_el2();
    }
    is_interrupted
}

/// Switches from the guest to virtual EL2.
pub fn leave_guest(cpu: &mut Cpu, nested: &mut Nested) {
    let vcpu = cpu.vcpu();
    gic::restore_el2(cpu, vcpu, nested);
    gic::hand_back_timers(cpu, vcpu, nested);
    traps::note_serror(nested);
    // First the traps that L1 has set for its guest: they would also trap Stile's moves.
    nested.regime = Regime::El2;
    traps::load(nested);
    isb();
    let (virt, physical) = nested.restore_el2();
    traps::clear_offset();
    nested.stand_in_for_guest(virt, physical);
    nested.load_own_stage(vcpu.vm(), cpu.index);
}
