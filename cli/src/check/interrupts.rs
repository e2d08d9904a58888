//! Explains whether the interrupts of an Arm guest's timers and SGIs are direct.

use stile_blob::{Interrupts, Nested};
use stile_board::CpuSet;

use super::affinity::{cpus_of_vm, rivals};
use crate::config::{MachineConfig, VmConfig};

/// Explains whether `interrupts = "direct"` of the `index`th virtual machine is in force.
pub fn explain(config: &MachineConfig, index: usize) -> String {
    if config.vms[index].techniques.interrupts == Interrupts::Virtual {
        return "virtual, as configured: each that arrives exits (`interrupts` in [vm.techniques])".to_owned();
    }
    if let Some(why) = refusal(config, index) {
        return format!("virtual, although direct ones are asked for: {why}");
    }
    let others = rivals(config, index);
    match others.is_empty() {
        true => "direct: timers and SGIs come without an exit".to_owned(),
        false => format!("direct while a vCPU has its CPU for itself; those that may share it: {}", others.join(", ")),
    }
}

/// Reason for which the `index`th virtual machine, which requests direct interrupts, has virtual ones; if any.
pub fn refusal(config: &MachineConfig, index: usize) -> Option<&'static str> {
    let (vm, present) = (&config.vms[index], &config.present_cpus());
    let is_direct = |vm: &&VmConfig| vm.techniques.interrupts == Interrupts::Direct && own_obstacle(vm).is_none();
    let why = if let Some(why) = own_obstacle(vm) {
        why
    } else if config.vms.iter().any(|vm| !vm.functions.is_empty()) {
        "messages of assigned PCI functions may come to any CPU"
    } else if config.vms.iter().any(|vm| vm.techniques.ablate.is_some()) {
        "a virtual machine ablates, for measurements"
    } else if config.vms.iter().filter(is_direct).fold(CpuSet::EMPTY, |cpus, vm| cpus.or(&cpus_of_vm(vm, present))) == *present {
        "no CPU is left for Stile's own interrupts: leave one out of cpus"
    } else {
        return None;
    };
    Some(why)
}

/// Reason, among the VM's own settings, for which direct interrupts that it requests are virtual; if any.
fn own_obstacle(vm: &VmConfig) -> Option<&'static str> {
    if vm.techniques.nested != Nested::Off {
        Some("it has an EL2 of its own")
    } else if !vm.pinned {
        Some("its vCPUs must be pinned (pinned = true)")
    } else if !vm.techniques.wfi_passthrough {
        Some("WFI traps (wfi_passthrough = false)")
    } else if vm.share.cap.is_some() {
        Some("Stile needs the CPU's timer for the cap")
    } else if !vm.served.is_empty() || vm.serves != 0 {
        Some("signals of served devices come from other VMs")
    } else {
        None
    }
}
