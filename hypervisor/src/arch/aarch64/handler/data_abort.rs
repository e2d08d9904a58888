//! Stage-2 data aborts: accesses to devices, untouched RAM, and unmapped addresses.

use stile_board::map;
use stile_device::pl011;
use stile_ledger::RowId;
use stile_ledger::aarch64::{self as rows, key, reason};
use stile_sysreg::syndrome::{Ec, Esr, Fault, FaultKind};
use stile_wire::{Crash, CrashReason};

use super::skip_instruction;
use crate::arch::aarch64::emulation::devices::Device;
use crate::arch::aarch64::emulation::gicv2;
use crate::arch::aarch64::host::cpu::Cpu;
use crate::arch::aarch64::host::sysreg::{read_sysreg, write_sysreg};
use crate::arch::aarch64::interrupts::direct;
use crate::arch::aarch64::nested::regime::runs_guest;
use crate::arch::aarch64::vcpu::inject;
use crate::arch::aarch64::vm::Doorbells;
use crate::cpu::{Leave, Outcome};
use crate::served::{self, Served};
use crate::vm::power::End;

/// Faulting IPA: bits 11:0 from FAR_EL2, the rest from HPFAR_EL2.FIPA. Bits above that are RES0 in Non-secure state.
#[inline(always)]
pub fn faulting_ipa() -> u64 {
    read_sysreg!(HPFAR_EL2) >> 4 << 12 | read_sysreg!(FAR_EL2) & 0xfff
}

/// Handles EC 0x24.
#[unsafe(no_mangle)]
pub extern "C" fn handle_data_abort(cpu: &mut Cpu, esr: u64) -> Outcome {
    /// Syndrome bits compared with [`LOAD`]: ISV, SSE, S1PTW, CM, WnR, and DFSC without its level.
    const LOAD_MASK: u64 = 1 << 24 | 1 << 21 | 1 << 8 | 1 << 7 | 1 << 6 | 0b111100;
    /// A zero-extended load that took a translation fault.
    const LOAD: u64 = 1 << 24 | 0b000100;
    if esr & LOAD_MASK == LOAD {
        let abort = Esr(esr).data_abort();
        if let Some((row, value)) = read_shadow(cpu, abort.sas()) {
            cpu.frame.set(usize::from(abort.srt()), value);
            return Outcome::done(row);
        }
    }
    match cpu.vcpu().vm().arch.doorbells {
        Doorbells::None => handle_access(cpu, esr, faulting_ipa()),
        Doorbells::Sgis => handle_sgi(cpu, esr, faulting_ipa()),
        Doorbells::Served(served) => handle_served(cpu, esr, faulting_ipa(), served),
    }
}

/// Bits of a syndrome that identify a store: ISV, CM, S1PTW, WnR, and DFSC without the level.
const STORE_MASK: u64 = 1 << 24 | 0x1fc;
/// Value of [`STORE_MASK`]'s bits for a store that took a translation fault.
const STORE: u64 = 1 << 24 | 1 << 6 | 0b000100;

/// Handles data aborts of VMs with a GICv2: a store to GICD_SGIR skips the search of the bus. Not merged with [`handle_served`], whose
/// calls would make both paths save more registers.
#[inline(never)]
fn handle_sgi(cpu: &mut Cpu, esr: u64, ipa: u64) -> Outcome {
    const SAS: u64 = 0b11 << 22;
    const WORD: u64 = 0b10 << 22;
    if ipa == gicv2::SGIR && esr & (STORE_MASK | SAS) == STORE | WORD {
        let value = cpu.frame.get(usize::from(Esr(esr).data_abort().srt()));
        if let Some(outcome) = gicv2::write_sgir(cpu, value) {
            return outcome;
        }
    }
    handle_access(cpu, esr, ipa)
}

/// Handles data aborts of clients and servers: stores to their doorbells skip the search of the bus.
#[inline(never)]
fn handle_served(cpu: &mut Cpu, esr: u64, ipa: u64, served: &'static Served) -> Outcome {
    if esr & STORE_MASK == STORE {
        let abort = Esr(esr).data_abort();
        let value = cpu.frame.get(usize::from(abort.srt()));
        let rows = [rows::MMIO_VIRTIO_KICK, rows::MMIO_SERVER_COMPLETION];
        if let Some(row) = served::ring(served, ipa, 1 << abort.sas(), value, rows[0], rows[1]) {
            return Outcome::done(row);
        }
    }
    handle_access(cpu, esr, ipa)
}

/// Value of a register that guests poll and that needs no lock, for a load of 2^`size` bytes.
#[inline(always)]
fn read_shadow(cpu: &Cpu, size: u8) -> Option<(RowId, u64)> {
    /// HPFAR_EL2 of an address.
    const fn page(ipa: u64) -> u64 {
        ipa >> 12 << 4
    }
    const GICD: u64 = page(map::GICD_BASE);
    const PL011: u64 = page(map::PL011_BASE);
    let offset = read_sysreg!(FAR_EL2) & 0xfff;
    let vm = cpu.vcpu().vm();
    match read_sysreg!(HPFAR_EL2) {
        GICD if size == 2 => vm.arch.read_shadow.read(offset),
        PL011 if offset == u64::from(pl011::offset::FR) => {
            let flags = u64::from(vm.devices.uart.flags());
            Some((rows::pl011(pl011::offset::FR, false), if size == 0 { flags & 0xff } else { flags }))
        }
        _ => None,
    }
}

/// Handles all other accesses.
#[inline(never)]
fn handle_access(cpu: &mut Cpu, esr: u64, ipa: u64) -> Outcome {
    let abort = Esr(esr).data_abort();
    if !abort.isv() || !matches!(abort.fault().kind(), FaultKind::Translation(_) | FaultKind::AccessFlag(_)) {
        return store_or_refuse(cpu, esr, ipa);
    }
    let register = usize::from(abort.srt());
    let stored = abort.store_value(cpu.frame.get(register));
    let bytes = 1 << abort.sas();
    // Devices first: they are outside RAM, and accessed more often than untouched RAM.
    let buses = &cpu.vcpu().vm().devices.buses;
    let Some(hit) = buses.memory.find(ipa, bytes).or_else(|| buses.find_more(ipa, bytes)) else {
        return touch_or_refuse(cpu, Esr(esr), ipa);
    };
    let row = hit.device.row(hit.offset, abort.wnr());
    if !abort.wnr() {
        let Some(loaded) = hit.device.try_read(cpu, hit.offset, bytes) else { return load_again(cpu, hit.device, row) };
        cpu.frame.set(register, abort.loaded_value(loaded));
    } else if let Some(how) = hit.device.write(cpu, hit.offset, bytes, stored) {
        direct::leave_for_scheduler(cpu);
        return cpu.end_vm(row, how);
    }
    Outcome::done(row)
}

/// Executes a load again that has no answer yet.
#[cold]
fn load_again(cpu: &mut Cpu, device: Device, row: RowId) -> Outcome {
    if !device.waits_for_others() {
        return Outcome::again(row);
    }
    direct::leave_for_scheduler(cpu);
    // As by WFI: what ends the wait wakes the vCPU, and so does each of its interrupts, which it may take before the load.
    cpu.leave = Leave::Wait;
    Outcome::leave(row)
}

/// Handles other faults. A store to read-only memory that belongs to a device is an access to the device; another one may be
/// the first store to a page that is tracked. Cache maintenance of a device does nothing.
#[cold]
#[inline(never)]
fn store_or_refuse(cpu: &mut Cpu, esr: u64, ipa: u64) -> Outcome {
    /// ISS.DFSC of a permission fault differs from that of a translation fault by this.
    const PERMISSION: u64 = 1 << 3;
    let abort = Esr(esr).data_abort();
    // RAM that is tracked is written by all kinds of instructions, devices by those with a syndrome.
    let is_written = abort.isv() && abort.wnr() || cpu.vcpu().vm().was_tracked();
    let is_store = is_written && matches!(abort.fault().kind(), FaultKind::Permission(_)) && !abort.s1ptw();
    if abort.is_unmapped_maintenance() && cpu.vcpu().vm().devices.buses.has_device(ipa) {
        // Nothing of a device is cached.
        skip_instruction();
        return Outcome::again(rows::ABORT_NO_SYNDROME);
    }
    if !is_store {
        return touch_or_refuse(cpu, Esr(esr), ipa);
    }
    // HPFAR_EL2 is unknown after a permission fault (Arm ARM, HPFAR_EL2). Another vCPU may have changed the first stage since,
    // which is no fault of this access: it is retried unless the second stage denies it at the address that is found.
    let Some(ipa) = translated(read_sysreg!(FAR_EL2)) else { return Outcome::again(rows::FAULT_WALK) };
    let vm = cpu.vcpu().vm();
    if vm.is_ram(ipa) {
        // Read-only only where it is tracked. RAM that is not mapped faults again, by a translation fault.
        vm.handle_write_fault(ipa);
        return Outcome::again(rows::FAULT_WRITE);
    }
    if !vm.arch.tables.is_read_only(ipa) {
        return Outcome::again(rows::FAULT_WALK);
    }
    if vm.devices.buses.has_device(ipa) && abort.isv() && abort.wnr() {
        handle_access(cpu, esr & !PERMISSION, ipa)
    } else {
        touch_or_refuse(cpu, Esr(esr), ipa)
    }
}

/// Translates an address by the guest's first stage, as for a read at the exception level that the exit came from.
fn translated(address: u64) -> Option<u64> {
    /// SPSR_EL2.M, without the stack pointer's selection: zero at EL0.
    const EL: u64 = 0b1100;
    let before = read_sysreg!(PAR_EL1);
    if read_sysreg!(SPSR_EL2) & EL == 0 {
        // SAFETY: AT writes PAR_EL1 only, which is restored.
        unsafe { core::arch::asm!("at s1e0r, {}", "isb", in(reg) address, options(nostack, preserves_flags)) };
    } else {
        // SAFETY: AT writes PAR_EL1 only, which is restored.
        unsafe { core::arch::asm!("at s1e1r, {}", "isb", in(reg) address, options(nostack, preserves_flags)) };
    }
    let par = read_sysreg!(PAR_EL1);
    write_sysreg!(PAR_EL1, before);
    (par & 1 == 0).then_some(par & 0x000f_ffff_ffff_f000 | address & 0xfff)
}

/// Handles an access to an address without a device.
#[cold]
#[inline(never)]
pub fn touch_or_refuse(cpu: &mut Cpu, esr: Esr, ipa: u64) -> Outcome {
    if let Some(outcome) = direct::regained(cpu, ipa, rows::FAULT_REGAINED) {
        return outcome;
    }
    match first_touch(cpu, esr, ipa) {
        Some(row) => Outcome::again(row),
        None => refuse(cpu, esr, ipa),
    }
}

/// Fills a bounded part of RAM if the address is in RAM that the second stage does not map yet, or tracks a write to it; the
/// guest then retries. Returns the ledger's row.
pub fn first_touch(cpu: &Cpu, esr: Esr, ipa: u64) -> Option<RowId> {
    let abort = esr.data_abort();
    let vm = cpu.vcpu().vm();
    let is_ram = match abort.fault().kind() {
        FaultKind::Translation(_) => vm.touch(ipa) || served::touch(vm, ipa),
        // HPFAR_EL2 has the address of a table only, which a walk updates; a fetch itself is not denied by tracking.
        FaultKind::Permission(_) if abort.s1ptw() || esr.ec() != Ec::INSTRUCTION_ABORT_LOWER => vm.handle_write_fault(ipa),
        _ => false,
    };
    if !is_ram {
        return None;
    }
    Some(if abort.s1ptw() {
        rows::FAULT_WALK
    } else if esr.ec() == Ec::INSTRUCTION_ABORT_LOWER {
        rows::FAULT_FETCH
    } else if abort.wnr() {
        rows::FAULT_WRITE
    } else {
        rows::FAULT_READ
    })
}

fn is_second_stage(fault: Fault) -> bool {
    matches!(fault.kind(), FaultKind::Translation(_) | FaultKind::AccessFlag(_) | FaultKind::Permission(_))
}

/// Injects an external abort: the address is unmapped, or this instruction cannot access it.
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
    } else if vcpu.vm().devices.buses.has_device(ipa) {
        rows::ABORT_NO_SYNDROME
    } else {
        cpu.loaded().ledger().row_for(reason::MMIO, key::page(ipa, abort.wnr()))
    };
    let (pc, far) = (read_sysreg!(ELR_EL2), read_sysreg!(FAR_EL2));
    if fetch && pc == inject::synchronous_vector() && !runs_guest(vcpu) {
        // The vector of that exception cannot be fetched either, and would abort forever. (An L2 in this state is
        // left to its hypervisor.)
        let crash = Crash { reason: CrashReason::BadFetch, vcpu: vcpu.id.vcpu(), pc, syndrome: esr.0, address: far };
        direct::leave_for_scheduler(cpu);
        return cpu.end_vm(row, End::Crash(crash));
    }
    inject::external_abort(esr, far);
    Outcome::again(row)
}
