//! Trapped system registers except ID registers, which `exit.S` answers. Arm ARM, ISS encoding for an exception from
//! MSR, MRS, or System instruction execution in AArch64 state.

use stile_ledger::aarch64::{self as rows, key, reason};
use stile_sysreg::SysReg;
use stile_sysreg::syndrome::Esr;
use stile_sysreg::trapped::{self, Answer, Class};
use stile_vgic::{ListRegisters, SgiRegister};

use super::other::grant_keys;
use super::skip_instruction;
use crate::arch::aarch64::emulation::gic;
use crate::arch::aarch64::host::cpu::Cpu;
use crate::arch::aarch64::host::pmu;
use crate::arch::aarch64::interrupts::direct;
use crate::arch::aarch64::interrupts::interface::Interface;
use crate::arch::aarch64::vcpu::inject;
use crate::arch::aarch64::vcpu::loaded::Parts;
use crate::cpu::Outcome;

/// All fields but Rt.
const NAME_FIELDS: u64 = 0x3f_fc1f;
/// A write of ICC_SGI1R_EL1: op0 = 3, op2 = 5, op1 = 0, CRn = 12, CRm = 11.
const SGI1R_WRITE: u64 = 3 << 20 | 5 << 17 | 12 << 10 | 11 << 1;

/// Handles EC 0x18.
#[unsafe(no_mangle)]
pub extern "C" fn handle_sysreg(cpu: &mut Cpu, esr: u64) -> Outcome {
    let register = (esr >> 5 & 0x1f) as usize;
    if esr & NAME_FIELDS == SGI1R_WRITE {
        return gic::write_sgi1r(cpu, cpu.frame.get(register));
    }
    rare(cpu, esr, register)
}

/// Handles a write of ICC_SGI1R_EL1 by a vCPU with direct interrupts.
#[unsafe(no_mangle)]
extern "C" fn handle_direct_sgi(cpu: &mut Cpu, esr: u64) -> Outcome {
    gic::write_direct_sgi1r(cpu, cpu.frame.get((esr >> 5 & 0x1f) as usize))
}

#[inline(never)]
fn rare(cpu: &mut Cpu, esr: u64, register: usize) -> Outcome {
    let esr = Esr(esr);
    let access = esr.msr();
    let reg = access.reg();
    let vcpu = cpu.vcpu();
    if access.is_read()
        && let Some(index) = reg.id_index()
    {
        // Only during single step; otherwise `exit.S` answers.
        cpu.frame.set(register, vcpu.vm().arch.id_registers[index]);
        return Outcome::done(rows::id_register(reg.crm(), reg.op2()));
    }
    let row = cpu.loaded().ledger().row_for(reason::SYSREG, key::sysreg(esr.iss()));
    if is_key(reg) && grant_keys(cpu) {
        return Outcome::again(row);
    }
    let class = trapped::classify(reg);
    match class.answer() {
        Answer::ReadZeroWriteIgnored => {
            if access.is_read() {
                cpu.frame.set(register, 0);
            }
            skip_instruction();
        }
        Answer::Undefined if class == Class::Pmu && access.is_read() && vcpu.vm().techniques.counters => match pmu::read(reg) {
            Some(value) => {
                cpu.frame.set(register, value);
                skip_instruction();
            }
            None => inject::undefined(esr),
        },
        Answer::Undefined => inject::undefined(esr),
        Answer::Emulate => emulate(cpu, esr, reg, class, register),
    }
    Outcome::again(row)
}

/// Whether the register is half of a pointer-authentication key: AP<x>Key<half>_EL1.
fn is_key(reg: SysReg) -> bool {
    (reg.op0(), reg.op1(), reg.crn()) == (3, 0, 2) && matches!(reg.crm(), 1..=3)
}

/// ICC_DIR_EL1.
#[cold]
#[inline(never)]
fn deactivate(cpu: &mut Cpu, intid: u32) {
    if direct::deactivate(cpu.vcpu(), intid) {
        return;
    }
    gic::write_dir(cpu, intid);
}

fn emulate(cpu: &mut Cpu, esr: Esr, reg: SysReg, class: Class, register: usize) {
    // ICH_HCR_EL2.TC traps these together with ICC_DIR_EL1.
    const PMR: SysReg = SysReg::ICC_PMR_EL1;
    const CTLR: SysReg = SysReg::ICC_CTLR_EL1;
    const RPR: SysReg = SysReg::ICC_RPR_EL1;
    let write = !esr.msr().is_read();
    let value = cpu.frame.get(register);
    match class {
        Class::Sgi if write => {
            let which = if reg == SysReg::ICC_SGI0R_EL1 { SgiRegister::Sgi0r } else { SgiRegister::Asgi1r };
            gic::send_sgi(cpu, which, value);
            skip_instruction();
        }
        Class::Gic if write && reg == SysReg::ICC_DIR_EL1 => {
            deactivate(cpu, value as u32);
            skip_instruction();
        }
        Class::Gic if matches!(reg, PMR | CTLR) || reg == RPR && !write => {
            let vcpu = cpu.vcpu();
            let mut interface = Interface::new(cpu.index, vcpu);
            match (reg, write) {
                (PMR, true) => interface.set_priority_mask(value),
                (CTLR, true) => interface.set_control(value),
                (PMR, false) => cpu.frame.set(register, interface.priority_mask()),
                (CTLR, false) => cpu.frame.set(register, interface.control()),
                _ => cpu.frame.set(register, direct::running_priority(vcpu).unwrap_or_else(|| interface.running_priority().into())),
            }
            if write {
                direct::written(cpu);
            }
            skip_instruction();
        }
        Class::Gic if write && reg == SysReg::ICC_IGRPEN1_EL1 && direct::traps_group_enables() => {
            direct::set_group1(cpu, value);
            skip_instruction();
        }
        Class::Gic if write && reg == SysReg::ICC_IGRPEN0_EL1 && direct::traps_group_enables() => {
            Interface::new(cpu.index, cpu.vcpu()).set_group0(value & 1 != 0);
            skip_instruction();
        }
        // Falls back to virtual interrupts; the guest retries the access.
        Class::Gic if direct::is_here(cpu.vcpu()) => direct::leave_for_handler(cpu),
        Class::Debug | Class::OsLock => {
            let Parts { context, frame, .. } = cpu.parts();
            let debug = &mut context.debug;
            if class == Class::Debug && reg != SysReg::MDRAR_EL1 && debug.grant() {
                // The guest retries the access, which no longer traps.
                return;
            }
            let done = match write {
                true => debug.write(reg, value),
                false => debug.read(reg).map(|value| frame.set(register, value)),
            };
            match done {
                Some(()) => skip_instruction(),
                None => inject::undefined(esr),
            }
        }
        // Not among the traps that `traps` sets.
        _ => inject::undefined(esr),
    }
}
