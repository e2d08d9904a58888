//! Explains whether the deadline timer of a PC's local APICs is passed through.

use stile_blob::TimerAccess;

use super::affinity::{cpus_of, cpus_of_vm};
use crate::config::MachineConfig;

/// Explains which of Stile and the guest programs the timers of the `index`th virtual machine, and why.
pub fn explain(config: &MachineConfig, index: usize) -> String {
    let (vm, present) = (&config.vms[index], config.present_cpus());
    if vm.techniques.timer == TimerAccess::Trapped {
        return "trapped, as configured: each write of IA32_TSC_DEADLINE exits".to_owned();
    }
    if vm.share.cap.is_some() {
        return "trapped: Stile needs the CPU's timer for the cap".to_owned();
    }
    let cpus = cpus_of_vm(vm, present);
    let others = config.vms.iter().enumerate().filter(|(other, vm)| *other != index && cpus_of_vm(vm, present) & cpus != 0);
    let mut others: Vec<&str> = others.map(|(_, vm)| &vm.name[..]).collect();
    // vCPUs that may meet on a CPU: pinned ones on the same CPU, others on any if there are more than CPUs.
    let mut taken = 0;
    let siblings = match vm.pinned {
        true => (0..usize::from(vm.vcpus)).any(|vcpu| {
            let cpu = cpus_of(vm, vcpu, present);
            let meets = taken & cpu != 0;
            taken |= cpu;
            meets
        }),
        false => vm.vcpus > 1,
    };
    if siblings {
        others.push("its own vCPUs");
    }
    match others.is_empty() {
        true => "passed through: nothing else may run on its CPUs".to_owned(),
        false => format!("passed through while a vCPU has its CPU for itself; those that may share it: {}", others.join(", ")),
    }
}
