//! Exits of a vCPU with an EL2: forwarded to L1, or answered as for other vCPUs.

use stile_board::intid;
use stile_ledger::aarch64 as rows;
use stile_nested_arm::inject::Kind;
use stile_nested_arm::vncr;
use stile_sysreg::syndrome::Esr;

use super::answer::{answer, class};
use super::controls::HCD;
use super::home::home;
use super::state::{Nested, Regime};
use super::{e2h, eret, exception, gic as guest_gic, guest, sysreg, timer_interrupts, timers};
use crate::arch::aarch64::handler;
use crate::arch::aarch64::host::cpu::Cpu;
use crate::arch::aarch64::host::gic;
use crate::arch::aarch64::host::sysreg::read_sysreg;
use crate::arch::aarch64::interrupts::{self, delivery};
use crate::arch::aarch64::vcpu::inject;
use crate::arch::aarch64::vcpu::loaded::WholeCpu;
use crate::cpu::Outcome;

/// Handles all synchronous exits except fast ERETs. All general registers are in the frame.
#[unsafe(no_mangle)]
pub extern "C" fn handle_nested(whole: &mut WholeCpu, esr: u64) -> Outcome {
    let (cpu, Some(nested)) = whole.split() else { unreachable!("a vCPU without EL2 has other vectors") };
    match nested.regime {
        Regime::El2 => at_el2(cpu, nested, esr),
        Regime::Guest => guest::exit(cpu, nested, esr),
    }
}

/// Handles synchronous exits of a vCPU whose HCR_EL2.E2H is clear.
#[unsafe(no_mangle)]
extern "C" fn handle_plain(whole: &mut WholeCpu, esr: u64) -> Outcome {
    let (cpu, Some(nested)) = whole.split() else { unreachable!("a vCPU without EL2 has other vectors") };
    if nested.regime == Regime::Guest {
        return guest::exit(cpu, nested, esr);
    }
    if nested.settle() {
        return Outcome::again(rows::NESTED_E2H);
    }
    match esr >> 26 {
        class::SYSREG => sysreg::at_el2(cpu, nested, esr, |_, reg| e2h::home(reg)),
        _ => at_el2(cpu, nested, esr),
    }
}

/// Handles all synchronous exits without FEAT_NV2. All general registers are in the frame.
#[unsafe(no_mangle)]
extern "C" fn handle_trapping(whole: &mut WholeCpu, esr: u64) -> Outcome {
    if let (_, Some(nested)) = whole.split()
        && nested.regime == Regime::El2
    {
        // FEAT_NV does not trap its accesses: virtual EL2 and its guest share the register.
        nested.page.set(vncr::MDSCR_EL1, read_sysreg!(MDSCR_EL1));
    }
    handle_nested(whole, esr)
}

/// Handles an exit from virtual EL2, or from EL0 under it (HCR_EL2.TGE).
fn at_el2(cpu: &mut Cpu, nested: &mut Nested, esr: u64) -> Outcome {
    match esr >> 26 {
        class::SYSREG => sysreg::at_el2(cpu, nested, esr, |nested, reg| home(nested.nv_mode, reg)),
        class::ERET => Outcome::again(eret::eret(cpu, nested, Esr(esr))),
        class::HVC if nested.page.get(vncr::HCR_EL2) & HCD != 0 => {
            inject::undefined_hvc(Esr(esr));
            Outcome::again(rows::NESTED_UNDEFINED)
        }
        class::HVC => {
            exception::take(cpu, nested, Kind::Synchronous, Some(esr), None);
            Outcome::again(rows::NESTED_HVC)
        }
        class::SMC => handler::secure_call(cpu, esr),
        // HCRX_EL2.MCE2 is set by Stile.
        class::MOPS => {
            exception::take(cpu, nested, Kind::Synchronous, Some(esr), None);
            Outcome::again(rows::NESTED_MOPS)
        }
        _ => answer(cpu, esr),
    }
}

/// Handles a physical IRQ.
#[unsafe(no_mangle)]
extern "C" fn handle_nested_irq(whole: &mut WholeCpu, _esr: u64) -> Outcome {
    let (cpu, Some(nested)) = whole.split() else { unreachable!("a vCPU without EL2 has other vectors") };
    match nested.regime {
        Regime::El2 => irq_at_el2(cpu, nested),
        Regime::Guest => guest::irq(cpu, nested),
    }
}

/// EL1's timers are virtual EL2's now; other interrupts are handled as for other vCPUs.
fn irq_at_el2(cpu: &mut Cpu, nested: &mut Nested) -> Outcome {
    let intid = gic::acknowledge();
    let row = match intid {
        intid::TIMER_EL1_VIRTUAL => rows::IRQ_VIRTUAL_TIMER,
        intid::TIMER_EL1_PHYSICAL => rows::IRQ_PHYSICAL_TIMER,
        timers::STAND_IN => return timer_interrupts::stand_in(cpu, nested),
        _ => {
            if intid == interrupts::maintenance() {
                // Possibly an end of interrupt whose line L1 lowers in memory, without a trap.
                guest_gic::sample_at_el2(cpu.vcpu(), nested);
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
