//! Exits of a vCPU that has an EL2 of its own: which of them are L1's business, and which are answered as any guest's.

use stile_board::intid;
use stile_ledger::aarch64 as rows;
use stile_nested::inject::Kind;
use stile_sysreg::syndrome::Esr;

use super::{Nested, Regime, e2h, eret, sysreg, timers};
use crate::arch::aarch64::exit::Outcome;
use crate::arch::aarch64::handler;
use crate::arch::aarch64::host::cpu::Cpu;
use crate::arch::aarch64::host::gic;
use crate::arch::aarch64::interrupts::{self, delivery};

/// ESR_EL2.EC.
mod class {
    pub const WFX: u64 = 0x01;
    pub const HVC: u64 = 0x16;
    pub const SMC: u64 = 0x17;
    pub const SYSREG: u64 = 0x18;
    pub const ERET: u64 = 0x1a;
    pub const DATA_ABORT: u64 = 0x24;
    pub const MOPS: u64 = 0x27;
}

/// All synchronous exits but the fast ERET. All general registers are in the frame.
#[unsafe(no_mangle)]
pub extern "C" fn handle_nested(cpu: &mut Cpu, esr: u64) -> Outcome {
    let Some(nested) = super::of(cpu.vcpu()) else { unreachable!("a vCPU without EL2 has other vectors") };
    match nested.regime {
        Regime::El2 => at_el2(cpu, nested, esr),
        Regime::Guest => super::guest::exit(cpu, nested, esr),
    }
}

/// The same of a vCPU whose HCR_EL2.E2H is clear.
#[unsafe(no_mangle)]
extern "C" fn handle_plain(cpu: &mut Cpu, esr: u64) -> Outcome {
    let Some(nested) = super::of(cpu.vcpu()) else { unreachable!("a vCPU without EL2 has other vectors") };
    if nested.regime == Regime::Guest {
        return super::guest::exit(cpu, nested, esr);
    }
    if nested.settle() {
        return Outcome::again(rows::NESTED_E2H);
    }
    match esr >> 26 {
        class::SYSREG => sysreg::at_el2(cpu, nested, esr, |_, reg| e2h::home(reg)),
        _ => at_el2(cpu, nested, esr),
    }
}

/// From virtual EL2, or from its EL0.
fn at_el2(cpu: &mut Cpu, nested: &mut Nested, esr: u64) -> Outcome {
    match esr >> 26 {
        class::SYSREG => sysreg::at_el2(cpu, nested, esr, Nested::home),
        class::ERET => Outcome::again(eret::eret(cpu, nested, Esr(esr))),
        class::HVC => {
            eret::take(cpu, nested, Kind::Synchronous, Some(esr), None);
            Outcome::again(rows::NESTED_HVC)
        }
        class::SMC => handler::secure_call(cpu, esr),
        // HCRX_EL2.MCE2 is Stile's.
        class::MOPS => {
            eret::take(cpu, nested, Kind::Synchronous, Some(esr), None);
            Outcome::again(rows::NESTED_MOPS)
        }
        _ => answer(cpu, esr),
    }
}

/// As for any guest.
pub fn answer(cpu: &mut Cpu, esr: u64) -> Outcome {
    match esr >> 26 {
        class::WFX => handler::wfx(cpu, esr),
        class::SYSREG => handler::sysreg(cpu, esr),
        class::DATA_ABORT => handler::data_abort(cpu, esr),
        _ => handler::other(cpu, esr),
    }
}

/// A physical IRQ.
#[unsafe(no_mangle)]
extern "C" fn handle_nested_irq(cpu: &mut Cpu, _esr: u64) -> Outcome {
    let Some(nested) = super::of(cpu.vcpu()) else { unreachable!("a vCPU without EL2 has other vectors") };
    match nested.regime {
        Regime::El2 => irq_at_el2(cpu, nested),
        Regime::Guest => super::guest::irq(cpu, nested),
    }
}

/// EL1's timers are virtual EL2's now; all else is as for any guest.
fn irq_at_el2(cpu: &mut Cpu, nested: &mut Nested) -> Outcome {
    let intid = gic::acknowledge();
    let row = match intid {
        intid::TIMER_EL1_VIRTUAL => rows::IRQ_VIRTUAL_TIMER,
        intid::TIMER_EL1_PHYSICAL => rows::IRQ_PHYSICAL_TIMER,
        timers::STAND_IN => return super::guest::stand_in(cpu, nested),
        _ => {
            if intid == interrupts::maintenance() {
                // Perhaps for an end of an interrupt whose line L1 lowers in memory, unseen.
                super::gic::sample_at_el2(cpu.vcpu(), nested);
            }
            return handler::other_irq::<false>(cpu, intid);
        }
    };
    gic::drop_priority(intid);
    let vcpu = cpu.vcpu();
    let intid = interrupts::in_front(vcpu, intid);
    if !delivery::raise_timer(cpu, vcpu, intid) {
        delivery::inject_timer(vcpu, cpu.index, intid);
    }
    Outcome::again(row)
}
