//! From virtual EL2 to its guest, and back.

use stile_nested::inject::Kind;

use super::{Nested, Regime, eret, gic, traps};
use crate::arch::aarch64::host::cpu::Cpu;
use crate::arch::aarch64::host::sysreg::isb;

/// The guest's registers, traps, translations and interrupts come onto the CPU; or an interrupt of L1's comes before its first
/// instruction.
pub fn enter_guest(cpu: &mut Cpu, nested: &mut Nested) {
    let vcpu = cpu.vcpu();
    nested.bring_guest();
    nested.update_lazy_traps(vcpu.vm());
    nested.regime = Regime::Guest;
    traps::load(nested);
    nested.load_shadow(vcpu.vm(), cpu.index);
    if gic::bring_guest(cpu, vcpu, nested) {
        eret::take(cpu, nested, Kind::Irq, None, None);
    } else {
        nested.stand_in_for_el2();
    }
}

/// The reverse.
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
