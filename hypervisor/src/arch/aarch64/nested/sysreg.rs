//! Registers and instructions of EL2 that trap at virtual EL2: with FEAT_NV2 those that it does not redirect to memory,
//! otherwise all.

use stile_ledger::RowId;
use stile_ledger::aarch64::{key, reason};
use stile_nested_arm::vncr::{self, Slot};
use stile_sysreg::SysReg;
use stile_sysreg::syndrome::Esr;

use super::at::Executed;
use super::home::{Home, Live, Plain};
use super::state::Nested;
use super::{at, gic, tlbi};
use crate::arch::aarch64::handler;
use crate::arch::aarch64::host::cpu::Cpu;
use crate::arch::aarch64::host::sysreg::isb;
use crate::arch::aarch64::host::timer;
use crate::arch::aarch64::vcpu::inject;
use crate::cpu::Outcome;

impl Nested {
    /// Returns the value of virtual EL2's register with this home.
    #[inline(always)]
    pub fn read(&self, home: Home) -> u64 {
        match home {
            Home::Live(live) => live.read(),
            Home::Sctlr => Live::Sctlr.read(),
            Home::Plain(plain) => self.read_plain(plain),
            Home::VirtualCount => self.virtual_count(),
            Home::Own(own) => self.own[own as usize],
            Home::Split(live, own, fields) => live.read() & fields | self.own[own as usize] & !fields,
            // TimerValue: the low 32 bits of the difference; a write extends their sign (Arm ARM, CNTP_TVAL_EL0).
            Home::Timer(compare) => compare.read().wrapping_sub(timer::now()) & 0xffff_ffff,
            Home::GuestTimer(compare) => self.page.get(compare).wrapping_sub(self.guest_time(compare)) & 0xffff_ffff,
            Home::Page(slot) => self.page.get(slot),
            Home::Constant(value) => value,
            Home::ListRegisters(which) => which(&gic::status(self)),
            Home::Mdscr => self.page.get(vncr::MDSCR_EL1),
        }
    }

    /// Returns the counter of L1's guest whose timer has the compare value `compare`: for the virtual timer less L1's CNTVOFF_EL2.
    pub(super) fn guest_time(&self, compare: Slot) -> u64 {
        let offset = if compare == vncr::CNTV_CVAL_EL0 { self.page.get(vncr::CNTVOFF_EL2) } else { 0 };
        timer::now().wrapping_sub(offset)
    }

    /// Writes virtual EL2's register with this home. Ignored for constants and read-only registers.
    #[inline(always)]
    pub fn write(&mut self, home: Home, value: u64) {
        match home {
            Home::Live(live) => live.write(value),
            Home::Sctlr if self.settle() => self.write_plain(Plain::Sctlr, value),
            Home::Sctlr => Live::Sctlr.write(value),
            Home::Plain(plain) => self.write_plain(plain, value),
            Home::Own(own) => self.own[own as usize] = value,
            Home::Split(live, own, fields) => {
                live.write(value & fields);
                self.own[own as usize] = value & !fields;
            }
            Home::Timer(compare) => compare.write(timer::now().wrapping_add(value as i32 as u64)),
            Home::GuestTimer(compare) => self.page.set(compare, self.guest_time(compare).wrapping_add(value as i32 as u64)),
            Home::Page(slot) => self.page.set(slot, value),
            Home::Mdscr => self.write_mdscr(value),
            Home::Constant(_) | Home::VirtualCount | Home::ListRegisters(_) => {}
        }
    }
}

/// Handles EC 0x18 at virtual EL2, or at its EL0; `home` gives the registers' homes.
#[inline(always)]
pub fn at_el2(cpu: &mut Cpu, nested: &mut Nested, esr: u64, home: impl Fn(&Nested, SysReg) -> Option<Home>) -> Outcome {
    let access = Esr(esr).msr();
    let reg = access.reg();
    if reg.op0() == 1 {
        return instruction(cpu, nested, esr);
    }
    let register = (esr >> 5 & 0x1f) as usize;
    let Some(home) = home(nested, reg) else { return unknown(cpu, nested, esr) };
    let row = row(cpu, esr);
    if access.is_read() {
        cpu.frame.set(register, nested.read(home));
    } else {
        nested.write(home, cpu.frame.get(register));
        isb();
    }
    handler::skip_instruction();
    Outcome::again(row)
}

/// The ledger's row of the trapped access.
#[inline(always)]
fn row(cpu: &mut Cpu, esr: u64) -> RowId {
    cpu.loaded().ledger().row_for(reason::NESTED, key::sysreg(Esr(esr).iss()))
}

/// Handles TLB maintenance and address translation; other instructions as for vCPUs without an EL2.
#[inline(never)]
fn instruction(cpu: &mut Cpu, nested: &mut Nested, esr: u64) -> Outcome {
    let reg = Esr(esr).msr().reg();
    let operand = cpu.frame.get((esr >> 5 & 0x1f) as usize);
    let vm = cpu.vcpu().vm();
    let done = match (reg.crn(), reg.crm()) {
        (8 | 9, _) => tlbi::execute(nested, vm, cpu.index, reg, operand),
        (7, 8 | 9) => match at::execute(nested, vm, reg, operand) {
            Executed::Done => true,
            Executed::Unknown => false,
            Executed::Incomplete => return Outcome::again(row(cpu, esr)),
        },
        _ => false,
    };
    if !done {
        return handler::sysreg(cpu, esr);
    }
    handler::skip_instruction();
    Outcome::again(row(cpu, esr))
}

/// Handles a register that virtual EL2 does not have, or has like any guest.
#[cold]
fn unknown(cpu: &mut Cpu, nested: &mut Nested, esr: u64) -> Outcome {
    let access = Esr(esr).msr();
    if access.reg() == SysReg::ICC_DIR_EL1 && !access.is_read() {
        // The deactivated interrupt must not become pending again by a line that L1 lowered in memory without a trap.
        gic::sample_at_el2(cpu.vcpu(), nested);
    }
    // Encodings with op1 below 4 are those of EL0 and EL1; the others are those of EL2 and above.
    if access.reg().op1() < 4 {
        return handler::sysreg(cpu, esr);
    }
    inject::undefined(Esr(esr));
    Outcome::again(row(cpu, esr))
}
