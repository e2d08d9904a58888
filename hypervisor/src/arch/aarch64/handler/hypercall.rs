//! HVC and SMC: PSCI and the rest of the SMC Calling Convention (Arm DEN 0028, DEN 0022).

use stile_device::psci::{self, Call, Entry};
use stile_device::smccc::{self, Answer, NOT_SUPPORTED, PvTime, Service};
use stile_ledger::RowId;
use stile_ledger::aarch64::{self as rows, reason};
use stile_sysreg::syndrome::Esr;

use crate::arch::aarch64::host::cpu::Cpu;
use crate::arch::aarch64::host::speculation;
use crate::arch::aarch64::interrupts::{delivery, direct};
use crate::arch::aarch64::nested::gic;
use crate::arch::aarch64::vcpu::inject;
use crate::arch::aarch64::vm::stolen_time::StolenTime;
use crate::cpu::{self, Leave, Outcome};
use crate::vm::Vm;
use crate::vm::power::End;

/// Handles EC 0x16. ELR_EL2 points after the HVC.
#[unsafe(no_mangle)]
extern "C" fn handle_hvc(cpu: &mut Cpu, esr: u64) -> Outcome {
    let function = cpu.frame.x[0] as u32;
    let service = service(esr, function);
    if service == Service::Unknown {
        cpu.frame.x[0] = NOT_SUPPORTED;
        return Outcome::again(if esr & 0xffff == 0 { reason::HVC.other() } else { rows::HVC_IMMEDIATE });
    }
    call(cpu, service, function, rows::hvc(function))
}

/// Handles EC 0x17. Without EL3, SMC is UNDEFINED (Arm ARM, SMC): guests have none, and their device tree names HVC.
#[unsafe(no_mangle)]
extern "C" fn handle_smc(_cpu: &mut Cpu, esr: u64) -> Outcome {
    inject::undefined(Esr(esr));
    Outcome::again(reason::SMC.other())
}

/// Handles SMC of a guest with an EL2, which is its conduit to firmware because its HVC goes to its own EL2.
pub fn secure_call(cpu: &mut Cpu, esr: u64) -> Outcome {
    super::skip_instruction();
    let function = cpu.frame.x[0] as u32;
    call(cpu, service(esr, function), function, rows::hvc(function))
}

/// The service that a guest calls by an HVC or SMC with this syndrome: the convention reserves all immediates but 0.
fn service(esr: u64, function: u32) -> Service {
    if esr & 0xffff == 0 { smccc::service(function) } else { Service::Unknown }
}

#[inline(never)]
fn call(cpu: &mut Cpu, service: Service, function: u32, row: RowId) -> Outcome {
    let answer = match service {
        Service::Psci => return power_call(cpu, row),
        Service::Arch => smccc::arch(function, cpu.frame.x[1], &speculation::workarounds()),
        Service::VendorHyp => smccc::vendor_hyp(function),
        Service::PvTime => Answer::X0(paravirtual_time(cpu, function)),
        Service::Unknown => Answer::X0(NOT_SUPPORTED),
    };
    match answer {
        Answer::X0(value) => cpu.frame.x[0] = value,
        Answer::X0To3(values) => cpu.frame.x[..4].copy_from_slice(&values),
        Answer::Forward => {
            speculation::forward(cpu.index, function);
            cpu.frame.x[0] = psci::SUCCESS;
        }
    }
    Outcome::again(row)
}

/// Handles stolen-time calls (DEN 0057A).
fn paravirtual_time(cpu: &Cpu, function: u32) -> u64 {
    match smccc::paravirtual_time(function, cpu.frame.x[1]) {
        PvTime::X0(value) => value,
        PvTime::StolenTime => {
            cpu::stolen::begin(cpu.vcpu());
            StolenTime::address(cpu.vcpu().arch.index)
        }
    }
}

/// Handles PSCI calls.
fn power_call(cpu: &mut Cpu, row: RowId) -> Outcome {
    let [x0, x1, x2, x3] = [cpu.frame.x[0], cpu.frame.x[1], cpu.frame.x[2], cpu.frame.x[3]];
    let vcpu = cpu.vcpu();
    let vm = vcpu.vm();
    let answer = match psci::decode(x0, x1, x2, x3) {
        Err(error) => error.x0(),
        Ok(Call::Version) => psci::VERSION_1_1,
        Ok(Call::MigrateInfoType) => psci::MIGRATE_NOT_REQUIRED,
        Ok(Call::Features { function_id }) => psci::features(function_id),
        Ok(Call::AffinityInfo { target, level }) => vm.arch.power.lock().affinity_info(target, level).unwrap_or_else(|error| error.x0()),
        Ok(Call::CpuOn { target, entry }) => cpu_on(vm, target, entry),
        Ok(Call::CpuSuspend) => {
            cpu.frame.x[0] = psci::SUCCESS;
            direct::leave_for_scheduler(cpu);
            cpu.leave = Leave::Wait;
            return Outcome::leave(row);
        }
        Ok(Call::CpuOff) => {
            direct::leave_for_scheduler(cpu);
            cpu.leave = Leave::Off;
            return Outcome::leave(row);
        }
        Ok(call @ (Call::SystemOff | Call::SystemReset)) => {
            direct::leave_for_scheduler(cpu);
            return cpu.end_vm(row, if call == Call::SystemOff { End::Off } else { End::Reset });
        }
    };
    cpu.frame.x[0] = answer;
    Outcome::again(row)
}

/// Handles CPU_ON. Returns X0 of the caller.
fn cpu_on(vm: &Vm, target: u64, entry: Entry) -> u64 {
    let mut power = vm.arch.power.lock();
    let index = match power.cpu_on(target, entry, &vm.arch.ram) {
        Err(error) => return error.x0(),
        Ok(index) => index,
    };
    // Under the lock no other CPU can turn the vCPU on, and a CPU_OFF has finished with its registers.
    let other = vm.vcpus[index];
    other.arch.set_entry(entry.address, entry.context_id);
    power.start(index);
    // A late `powered_off` of its last CPU_OFF sees that it is on again, or has updated the distributor before.
    drop(power);
    let mut distributor = vm.arch.distributor.lock();
    let mut kicked = distributor.set_online(index, true);
    let mut redistributor = other.arch.redistributor.lock();
    kicked |= redistributor.reset_interface(&mut distributor);
    if other.arch.has_el2 {
        gic::lower_all_lines(&mut redistributor);
    }
    drop(redistributor);
    drop(distributor);
    delivery::deliver(vm, kicked);
    cpu::start(other);
    psci::SUCCESS
}
