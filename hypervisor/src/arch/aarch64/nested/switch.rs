//! From virtual EL2 to its guest, and back.

use super::state::{Nested, Regime};
use super::{gic, traps};
use crate::arch::aarch64::host::cpu::Cpu;
use crate::arch::aarch64::host::sysreg::isb;

/// The guest's registers, traps, translations and interrupts come onto the CPU. Returns whether an interrupt of L1's, which the caller has it
/// take, comes before the first instruction.
pub fn enter_guest(cpu: &mut Cpu, nested: &mut Nested) -> bool {
    let vcpu = cpu.vcpu();
    nested.bring_guest();
    nested.lazy_traps.update(&nested.page, || vcpu.vm().arch.masks());
    nested.regime = Regime::Guest;
    traps::load(nested);
    nested.load_shadow(vcpu.vm(), cpu.index);
    let is_interrupted = gic::bring_guest(cpu, vcpu, nested);
    if !is_interrupted {
        nested.stand_in_for_el2();
    }
    is_interrupted
}

/// Switches from the guest to virtual EL2.
pub fn leave_guest(cpu: &mut Cpu, nested: &mut Nested) {
    let vcpu = cpu.vcpu();
    gic::bring_el2(cpu, vcpu, nested);
    gic::hand_back_timers(cpu.index, nested);
    traps::note_serror(nested);
    // First what L1 has trapped for its guest, or moving it would trap.
    nested.regime = Regime::El2;
    traps::load(nested);
    isb();
    let (virt, physical) = nested.bring_el2();
    traps::clear_offset();
    nested.stand_in_for_guest(virt, physical);
    nested.load_own_stage(vcpu.vm(), cpu.index);
}
