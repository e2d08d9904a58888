//! Explains what follows from `ipi = "direct"`.

use stile_blob::{ApicVirtualization, TimerAccess};

use super::affinity::{cpus_of, cpus_of_vm};
use crate::config::{Arch, MachineConfig};

/// Explains whether `ipi = "direct"` of the `index`th virtual machine is in force, and what follows: a line each.
pub fn explain(config: &MachineConfig, index: usize) -> Vec<String> {
    let vm = &config.vms[index];
    if config.arch == Arch::Aarch64 {
        return vec!["trapped: ipi = \"direct\" is not supported on this architecture yet".to_owned()];
    }
    if vm.techniques.apic_virtualization != ApicVirtualization::Posted {
        return vec!["trapped: ipi = \"direct\" needs apic_virtualization = \"posted\"".to_owned()];
    }
    let mut lines = vec![
        "direct, once the guest asks for it in x2APIC mode, on a CPU with posted interrupts (docs/x86-ipi.md)".to_owned(),
        "every other VM must trust this one: it can interrupt any physical CPU, with any vector, NMI or INIT".to_owned(),
    ];
    let present = config.present_cpus();
    let others = config.vms.iter().enumerate().filter(|(other, _)| *other != index).fold(0, |cpus, (_, vm)| cpus | cpus_of_vm(vm, present));
    let own = (0..usize::from(vm.vcpus)).try_fold(others, |taken, vcpu| {
        let cpus = cpus_of(vm, vcpu, present);
        (taken & cpus == 0).then_some(taken | if vm.pinned { cpus } else { 0 })
    });
    if own.is_none() || !vm.pinned && vm.vcpus > 1 {
        lines.push("HLT exits while a CPU is shared: `cpus` of its own and `pinned = true` avoid that".to_owned());
    }
    if vm.techniques.timer == TimerAccess::Trapped {
        lines.push("the timer stays trapped, as configured".to_owned());
    }
    lines
}
