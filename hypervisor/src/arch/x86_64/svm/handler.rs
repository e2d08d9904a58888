//! Exit codes to handlers.

use stile_apic::GeneralProtection;
use stile_board::pc::port;
use stile_ledger::x86_64::{self as rows, key, reason};
use stile_svm::{Field, IO_ADDRESS, exception, exit, io_info_of_read, io_qualification, npf_qualification, task_qualification};
use stile_wire::CrashReason;
use stile_x86_decode::Kind;

use super::halt::handle_svm_hlt;
use super::physical_interrupt::handle_svm_intr;
use super::{amd_msrs, at_once, control_registers, extension, length, physical_interrupt, ports, state};
use crate::arch::x86_64::handler::cpuid::handle_cpuid;
use crate::arch::x86_64::handler::instruction::handle_vmcall;
use crate::arch::x86_64::handler::io::handle_io;
use crate::arch::x86_64::handler::{
    counters, crash, handle_rdmsr, handle_wrmsr, mmio, resume_or_leave, skip_instruction, task, window as windows, xsetbv,
};
use crate::arch::x86_64::host::cpu::{Cpu, gpr};
use crate::arch::x86_64::host::instructions::msr;
use crate::arch::x86_64::interrupts::{deadline, delivery};
use crate::arch::x86_64::vcpu::cr0;
use crate::arch::x86_64::vcpu::inject::{self, vector as exceptions};
use crate::arch::x86_64::vcpu::loaded::WholeCpu;
use crate::cpu::{Leave, Outcome};

/// Handles IN and OUT. The caller-saved registers are in the frame.
///
/// Fast paths of IN AL, and of it from the serial port's line status, which guests poll for each byte. Not if more than RIP changes, as
/// after STI or with RFLAGS.TF or RF.
#[unsafe(no_mangle)]
extern "C" fn handle_svm_io(cpu: &mut WholeCpu) -> Outcome {
    let vmcb = state::loaded();
    let (info, mut next) = (vmcb.read(Field::EXIT_INFO_1), vmcb.read(Field::EXIT_INFO_2));
    if (next ^ vmcb.read(Field::GUEST_RIP)) >> 32 != 0 {
        next = beyond_4_gib(next);
    }
    let access = info & !IO_ADDRESS;
    let only_rip = || vmcb.read(Field::GUEST_RFLAGS) & (state::TF | inject::RF) == 0 && !vmcb.has_shadow();
    if access == io_info_of_read(port::COM1_STATUS) && only_rip() {
        vmcb.write(Field::GUEST_RIP, next);
        let flags = cpu.vcpu().vm().devices.uart.flags();
        let rax = &mut cpu.frame.registers[gpr::RAX];
        *rax = *rax & !0xff | u64::from(flags as u8);
        return Outcome::again(rows::com1(port::COM1_STATUS - port::COM1, false));
    }
    if access & 0xffff == io_info_of_read(0) && only_rip() {
        vmcb.write(Field::GUEST_RIP, next);
        return ports::read_byte(cpu, (access >> 16) as u16);
    }
    vmcb.write(Field::EXIT_QUALIFICATION, io_qualification(info));
    vmcb.write(Field::NEXT_RIP, next);
    handle_io(cpu)
}

/// The next RIP of an instruction that ends at a multiple of 4 GiB: code of 32 bits wraps around, which QEMU's exit information does not.
#[cold]
fn beyond_4_gib(next: u64) -> u64 {
    if cr0::runs_64_bit_code() { next } else { next & u64::from(u32::MAX) }
}

/// Handles an exit that has no stub of its own. All general registers are in the frame.
#[unsafe(no_mangle)]
extern "C" fn handle_svm(cpu: &mut WholeCpu) -> Outcome {
    const EXCEPTIONS: core::ops::RangeInclusive<u64> = exit::EXCEPTION..=exit::EXCEPTION + 31;
    const CR4_WRITE: u64 = exit::CR_WRITE + 4;
    const CR8_WRITE: u64 = exit::CR_WRITE + 8;
    let code = state::read(Field::EXIT_REASON);
    match code {
        exit::NMI => physical_interrupt::handle(cpu, reason::NMI.other()),
        exit::CPUID if length::find(cpu, Kind::Cpuid) => handle_cpuid(cpu),
        exit::VMMCALL if length::find(cpu, Kind::Vmmcall) => handle_vmcall(cpu),
        exit::VINTR => windows::interrupt(cpu),
        exit::XSETBV if length::find(cpu, Kind::Xsetbv) => xsetbv::set(cpu),
        // No effect, since caches are coherent and shared with other guests.
        exit::INVD | exit::WBINVD if length::find(cpu, Kind::Invd) => {
            skip_instruction();
            Outcome::again(reason::INVD.other())
        }
        exit::PAUSE if length::find(cpu, Kind::Pause) => {
            // It spins for another vCPU, and others want this CPU.
            skip_instruction();
            cpu.leave = Leave::Yield;
            Outcome::leave(reason::PAUSE.other())
        }
        // The instruction in memory was another one.
        exit::CPUID | exit::VMMCALL | exit::XSETBV | exit::INVD | exit::WBINVD | exit::PAUSE => {
            Outcome::again(cpu.loaded().ledger().row_for(reason::UNKNOWN, code as u32))
        }
        _ if EXCEPTIONS.contains(&code) => intercepted_exception(cpu, (code - exit::EXCEPTION) as u8),
        exit::CR0_WRITE => control_registers::write_cr0(cpu),
        CR4_WRITE => control_registers::write_cr4(cpu),
        CR8_WRITE => control_registers::write_cr8(cpu),
        exit::IRET => end_of_nmi(cpu),
        exit::INIT | exit::SMI => Outcome::again(rows::INTERRUPT_SPURIOUS),
        exit::TASK_SWITCH => task_switch(cpu),
        exit::SHUTDOWN => crash(cpu, reason::TRIPLE_FAULT.other(), CrashReason::TripleFault, code, 0),
        exit::RDPMC => {
            // Without next-RIP saving the instruction's length is not known. Processors with a PMU have it.
            if extension::features().next_rip {
                counters::read(cpu)
            } else {
                inject::general_protection()
            }
            Outcome::again(reason::RDPMC.other())
        }
        exit::MONITOR | exit::MWAIT | exit::MWAIT_ARMED => {
            inject::undefined();
            Outcome::again(reason::MWAIT.other())
        }
        // Instructions of features that the guest's CPUID hides.
        exit::RSM | exit::INVLPGA | exit::VMRUN | exit::VMLOAD..=exit::SKINIT | exit::RDPRU | exit::INVLPGB..=exit::TLBSYNC => {
            inject::undefined();
            Outcome::again(reason::VMX.other())
        }
        exit::INVALID | exit::INVALID_OF_32_BITS => crash(cpu, reason::ENTRY.other(), CrashReason::EntryFailed, code, 0),
        _ => {
            let row = cpu.loaded().ledger().row_for(reason::UNKNOWN, code as u32);
            crash(cpu, row, CrashReason::UnknownExit, code, 0)
        }
    }
}

/// Handles any exit, on CPUs that need mitigations at exits. All general registers are in the frame.
#[unsafe(no_mangle)]
extern "C" fn handle_svm_mitigated(cpu: &mut WholeCpu) -> Outcome {
    match state::read(Field::EXIT_REASON) {
        exit::IO => handle_svm_io(cpu),
        exit::MSR => handle_svm_msr(cpu),
        exit::HLT => handle_svm_hlt(cpu),
        exit::INTR => handle_svm_intr(cpu),
        exit::NPF => {
            let outcome = mmio::handle_ept_violation(cpu);
            if outcome.wants_all_registers() { handle_svm_npf_full(cpu) } else { outcome }
        }
        _ => handle_svm(cpu),
    }
}

/// Handles an access outside mapped RAM, or to a protected page, that [`handle_ept_violation`](mmio::handle_ept_violation) does not. All
/// general registers are in the frame.
#[unsafe(no_mangle)]
extern "C" fn handle_svm_npf_full(cpu: &mut WholeCpu) -> Outcome {
    /// Bit of the exit information: the access was to one of the guest's tables.
    const IN_TABLES: u64 = 1 << 33;
    /// An exit qualification of no port.
    const NO_PORT: u64 = 7;
    let address = state::read(Field::GUEST_PHYSICAL);
    if state::read(Field::EXIT_INFO_1) & IN_TABLES != 0 && !inject::was_delivering() && cpu.vcpu().vm().arch.physical(address).is_none() {
        // Entries outside RAM read as not present. The linear address is not known: emulation finds it.
        state::write(Field::EXIT_QUALIFICATION, NO_PORT);
        let row = cpu.loaded().ledger().row_for(reason::MMIO, key::page(address, false));
        return mmio::emulate(cpu, row, mmio::NO_ADDRESS);
    }
    state::write(Field::EXIT_QUALIFICATION, npf_qualification(state::read(Field::EXIT_INFO_1)));
    mmio::handle_ept_violation_full(cpu)
}

/// Handles RDMSR and WRMSR. The caller-saved registers are in the frame.
#[unsafe(no_mangle)]
extern "C" fn handle_svm_msr(cpu: &mut WholeCpu) -> Outcome {
    let is_write = state::read(Field::EXIT_INFO_1) & 1 != 0;
    let register = cpu.frame.registers[gpr::RCX] as u32;
    let reason = if is_write { reason::WRMSR } else { reason::RDMSR };
    let found = match at_once::site(register).filter(|_| is_write) {
        Some(site) => length::find_write(cpu, site),
        None => length::find(cpu, if is_write { Kind::Wrmsr } else { Kind::Rdmsr }),
    };
    if !found {
        return Outcome::again(reason.other());
    }
    let value = cpu.frame.registers[gpr::RDX] << 32 | cpu.frame.registers[gpr::RAX] & 0xffff_ffff;
    if is_write && register == msr::IA32_TSC_DEADLINE && deadline::write_relayed(value) {
        skip_instruction();
        return Outcome::again(rows::WRMSR_TSC_DEADLINE);
    }
    let vcpu = cpu.vcpu();
    let done = match is_write {
        _ if !amd_msrs::may_have(register) => None,
        true => amd_msrs::write(cpu, register, value),
        false => amd_msrs::read(vcpu, register).map(|value| give(cpu, value)),
    };
    match done {
        None if is_write => return handle_wrmsr(cpu),
        None => return handle_rdmsr(cpu),
        Some(Ok(())) => {
            if is_write {
                // EFER may have changed.
                cpu.virt.forget_sites();
            }
            skip_instruction();
        }
        Some(Err(GeneralProtection)) => inject::general_protection(),
    }
    Outcome::again(cpu.loaded().ledger().row_for(reason, key::msr(register)))
}

/// Sets RDMSR's result.
fn give(cpu: &mut WholeCpu, value: u64) -> Result<(), GeneralProtection> {
    cpu.frame.registers[gpr::RAX] = value & 0xffff_ffff;
    cpu.frame.registers[gpr::RDX] = value >> 32;
    Ok(())
}

/// Handles an intercepted exception: #DB, whose effects on DR6 and DR7 the processor has applied, and #AC. Its delivery
/// can raise the next one in an endless loop during which the processor takes no interrupt (CVE-2015-5307, CVE-2015-8104).
fn intercepted_exception(cpu: &mut WholeCpu, vector: u8) -> Outcome {
    let mut ended = None;
    if vector == exceptions::DEBUG {
        ended = state::end_step_over_iret(true);
        if ended == Some(false) {
            delivery::pull(cpu);
            return resume_or_leave(cpu, reason::NMI_WINDOW.other());
        }
        state::end_branch_steps();
    }
    let interrupted = inject::was_delivering().then(|| state::read(Field::VECTORING));
    inject::event(exception(vector), state::read(Field::EXIT_INFO_1));
    // A benign exception replaces the event being delivered.
    if let Some(event) = interrupted {
        delivery::put_back(cpu, event);
    } else if ended.is_some() {
        // The NMI that waited for IRET follows the guest's own step.
        delivery::pull(cpu);
    }
    let row = if vector == exceptions::ALIGNMENT { rows::EXCEPTION_ALIGNMENT } else { rows::EXCEPTION_DEBUG };
    resume_or_leave(cpu, row)
}

/// Handles IRET of a guest that handles an NMI. If another one is pending, it is injected behind IRET, which has not been executed yet.
fn end_of_nmi(cpu: &Cpu) -> Outcome {
    if cpu.vcpu().arch.events.any() {
        state::step_over_iret();
    } else {
        inject::unblock_nmis();
    }
    Outcome::again(reason::NMI_WINDOW.other())
}

/// Handles a task switch.
fn task_switch(cpu: &mut WholeCpu) -> Outcome {
    let (selector, cause) = (state::read(Field::EXIT_INFO_1), state::read(Field::EXIT_INFO_2));
    let by_event = inject::was_delivering();
    // IRET to another task.
    let ends_nmi = state::end_step_over_iret(false).is_some();
    state::write(Field::EXIT_QUALIFICATION, task_qualification(selector, cause, by_event));
    // The instruction of a software interrupt or of a jump.
    if length::decode(cpu, &[Kind::TaskSwitch]).is_none() {
        state::write(Field::NEXT_RIP, state::read(Field::GUEST_RIP));
    }
    let outcome = task::switch(cpu);
    if ends_nmi && !outcome.has(Outcome::LEAVE_BIT) {
        delivery::pull(cpu);
    }
    outcome
}
