//! Explains how interprocessor interrupts are sent: the effect of `ipi`.

use stile_blob::{ApicVirtualization, BinaryPoint, Interrupts, IpiAccess, TimerAccess};
use stile_board::{CpuId, CpuSet};

use super::affinity::{cpus_of, cpus_of_vm};
use super::interrupts;
use crate::config::{Arch, MachineConfig};

/// Explains whether `ipi` of the `index`th virtual machine is in force, and its consequences: a line each.
pub fn explain(config: &MachineConfig, index: usize) -> Vec<String> {
    match config.arch {
        _ if config.vms[index].techniques.ipi == IpiAccess::Trapped => {
            vec!["trapped, as configured: each exits at its sender (`ipi` in [vm.techniques])".to_owned()]
        }
        Arch::Aarch64 => explain_arm(config, index),
        Arch::X86_64 => explain_pc(config, index),
    }
}

fn explain_arm(config: &MachineConfig, index: usize) -> Vec<String> {
    if config.vms[index].techniques.ipi == IpiAccess::Gate {
        return vec!["trapped: ipi = \"gate\" is for x86-64".to_owned()];
    }
    let (vm, present) = (&config.vms[index], &config.present_cpus());
    // SGIs name targets by affinity. vCPU n's affinity is assumed to be that of CPU n, as on QEMU's board.
    let misplaced = (0..usize::from(vm.vcpus)).find(|&vcpu| cpus_of(vm, vcpu, present).only() != CpuId::new(vcpu));
    let why = if vm.techniques.interrupts != Interrupts::Direct {
        "ipi = \"direct\" needs interrupts = \"direct\"".to_owned()
    } else if interrupts::refusal(config, index).is_some() {
        "its interrupts are virtual".to_owned()
    } else if vm.techniques.binary_point == BinaryPoint::Common {
        "binary_point = \"common\" is for virtual interrupts".to_owned()
    } else if let Some(vcpu) = misplaced {
        format!("vCPU {vcpu} must have CPU {vcpu}, whose affinity it has: cpus = \"0-{}\"", vm.vcpus - 1)
    } else {
        return vec![
            "direct while its interrupts are, if the board numbers its CPUs as QEMU's does: sending an SGI takes no exit".to_owned(),
            "every other VM must trust this one: it can send any SGI to any physical CPU".to_owned(),
        ];
    };
    vec![format!("trapped: {why}")]
}

fn explain_pc(config: &MachineConfig, index: usize) -> Vec<String> {
    let vm = &config.vms[index];
    let gate = vm.techniques.ipi == IpiAccess::Gate;
    if vm.techniques.apic_virtualization != ApicVirtualization::Posted {
        let word = if gate { "gate" } else { "direct" };
        return vec![format!("trapped: ipi = \"{word}\" needs apic_virtualization = \"posted\"")];
    }
    let direct = vec![
        "direct, once the guest asks for it in x2APIC mode, on a CPU with posted interrupts (docs/x86-ipi.md)".to_owned(),
        "every other VM must trust this one: it can interrupt any physical CPU, with any vector, NMI or INIT".to_owned(),
    ];
    let through_gate = vec![
        "through the gate, once the guest asks for it in x2APIC mode, on the CPU models that docs/x86-gate.md lists".to_owned(),
        "no other VM has to trust this one; all CPUs' APICs are in xAPIC mode".to_owned(),
        "each access of Stile's to an APIC takes 30 instructions more, whatever VM it is for".to_owned(),
    ];
    let mut lines = if gate { through_gate } else { direct };
    // The mode of the APICs is chosen at boot, for all VMs of the image. A machine that refuses the gate leaves them direct.
    if !gate && let Some(other) = config.vms.iter().find(|vm| vm.techniques.ipi == IpiAccess::Gate) {
        lines.insert(
            0,
            format!("trapped on a machine where {} gets its gate, as all APICs are in xAPIC mode there; on others:", other.name),
        );
    }
    let present = &config.present_cpus();
    let others = config.vms.iter().enumerate().filter(|(other, _)| *other != index);
    let others = others.fold(CpuSet::EMPTY, |cpus, (_, vm)| cpus.or(&cpus_of_vm(vm, present)));
    let own = (0..usize::from(vm.vcpus)).try_fold(others, |taken, vcpu| {
        let cpus = cpus_of(vm, vcpu, present);
        taken.and(&cpus).is_empty().then(|| if vm.pinned { taken.or(&cpus) } else { taken })
    });
    if own.is_none() || !vm.pinned && vm.vcpus > 1 {
        lines.push("HLT exits while a CPU is shared: `cpus` of its own and `pinned = true` avoid that".to_owned());
    }
    if vm.techniques.timer == TimerAccess::Trapped {
        lines.push("the timer stays trapped, as configured".to_owned());
    }
    lines
}
