//! Data aborts that the second stage takes to EL2: accesses to devices, and to where there is nothing.

use stile_board::Region;
use stile_ledger::RowId;
use stile_ledger::aarch64::{self as rows, key, reason};
use stile_sysreg::syndrome::{DataAbort, Ec, Esr, Fault, FaultKind};
use stile_wire::CrashReason;

use super::hypercall::crash;
use super::{interrupt, skip_instruction};
use crate::arch::aarch64::cpu::Cpu;
use crate::arch::aarch64::exit::Outcome;
use crate::arch::aarch64::inject;
use crate::arch::aarch64::sysreg::read_sysreg;

/// The guest-physical address that faulted: HPFAR_EL2.FIPA is bits 47 to 12 of it, and the rest is FAR_EL2's.
#[inline(always)]
pub fn faulting_ipa() -> u64 {
    (read_sysreg!("hpfar_el2") & 0x0fff_ffff_fff0) << 8 | read_sysreg!("far_el2") & 0xfff
}

/// EC 0x24.
#[unsafe(no_mangle)]
extern "C" fn handle_data_abort(cpu: &mut Cpu, esr: u64) -> Outcome {
    let abort = Esr(esr).data_abort();
    let ipa = faulting_ipa();
    if !abort.isv() || !is_second_stage(abort.fault()) {
        return refuse(cpu, Esr(esr), ipa);
    }
    let register = usize::from(abort.srt());
    let stored = abort.store_value(cpu.frame.get(register));
    let Some((row, loaded)) = access(cpu, Region::of(ipa), abort, stored) else {
        return refuse(cpu, Esr(esr), ipa);
    };
    if !abort.wnr() {
        cpu.frame.set(register, abort.loaded_value(loaded));
    }
    skip_instruction();
    Outcome::again(row)
}

/// Accesses a device. Returns the ledger's row and what a load gives, or nothing if there is no device.
#[inline(always)]
fn access(cpu: &mut Cpu, region: Region, abort: DataAbort, stored: u64) -> Option<(RowId, u64)> {
    let vm = cpu.vcpu().vm();
    let write = abort.wnr();
    Some(match region {
        Region::Gicd { offset } => (rows::gicd(offset, write), interrupt::distributor_access(cpu, offset, abort, stored)),
        Region::Gicr { vcpu, offset } if usize::from(vcpu) < vm.vcpus.len() => {
            (rows::gicr(offset, write), interrupt::redistributor_access(cpu, usize::from(vcpu), offset, abort, stored))
        }
        Region::Pl011 { offset } if write => {
            vm.devices.uart_write(offset, stored as u32, vm);
            (rows::pl011(offset, true), 0)
        }
        Region::Pl011 { offset } => (rows::pl011(offset, false), u64::from(vm.devices.uart_read(offset, vm))),
        Region::Pl031 { offset } if write => {
            vm.devices.clock_write(offset, stored as u32, vm);
            (rows::pl031(offset, true), 0)
        }
        Region::Pl031 { offset } => (rows::pl031(offset, false), u64::from(vm.devices.clock_read(offset))),
        Region::Gicr { .. } | Region::Ram { .. } | Region::None => return None,
    })
}

fn is_second_stage(fault: Fault) -> bool {
    matches!(fault.kind(), FaultKind::Translation(_) | FaultKind::AccessFlag(_) | FaultKind::Permission(_))
}

/// There is nothing, or nothing that this instruction can reach: the guest takes an external abort.
#[cold]
pub fn refuse(cpu: &mut Cpu, esr: Esr, ipa: u64) -> Outcome {
    let vcpu = cpu.vcpu();
    let fetch = esr.ec() == Ec::INSTRUCTION_ABORT_LOWER;
    let abort = esr.data_abort();
    let row = if !is_second_stage(abort.fault()) {
        rows::ABORT_EXTERNAL
    } else if abort.s1ptw() {
        rows::ABORT_WALK
    } else if fetch {
        rows::ABORT_FETCH
    } else if !matches!(Region::of(ipa), Region::None | Region::Ram { .. }) {
        rows::ABORT_NO_SYNDROME
    } else {
        vcpu.with_ledger(|ledger| ledger.row_for(reason::MMIO, key::page(ipa, abort.wnr())))
    };
    let (pc, far) = (read_sysreg!("elr_el2"), read_sysreg!("far_el2"));
    if fetch && pc == inject::synchronous_vector() {
        // The vector of the exception that it would take can't be fetched either: it would abort for ever.
        return crash(cpu, row, CrashReason::BadFetch, pc, esr.0, far);
    }
    inject::external_abort(esr, far);
    Outcome::again(row)
}
