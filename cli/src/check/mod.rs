//! Explanation of a configuration, in words and tables, or as JSON: the output of `stile check`.

mod affinity;
mod devices;
mod explanation;
mod interrupts;
mod ipi;
mod map;
mod timer;
mod vm;

use std::{fmt::Write as _, ops::Range};

use affinity::{cpus_of, cpus_of_vm};
use explanation::{Explanation, Fact, Rows};
use stile_board::CpuSet;
use stile_board::footprint::{self, Footprint};

use crate::{
    config::{Arch, MachineConfig, VmConfig, units},
    image::VmPlan,
};

/// Explains a machine. `plans` has the memory layout of each virtual machine, or `None` if its files aren't
/// available; `image_len` is the image's length in bytes, if it was made.
pub fn explain(config: &MachineConfig, plans: &[Option<VmPlan>], image_len: Option<u64>) -> Explanation {
    let plan = |index: usize| plans.get(index).and_then(Option::as_ref);
    Explanation {
        arch: config.arch.name(),
        cpu_model: config.cpu_model.clone(),
        cpus: config.cpus,
        facts: machine(config, image_len),
        shared: cpus(config),
        vms: (0..config.vms.len()).map(|index| vm::explain(config, index, &cpu_time(config, index), plan(index))).collect(),
        notes: notes(config),
    }
}

fn machine(config: &MachineConfig, image_len: Option<u64>) -> Vec<Fact> {
    let vm_memory = units::rounded_size(config.vm_memory());
    let memory = match config.physical_memory(image_len.unwrap_or(0)) {
        Ok(memory) if image_len.is_some() || config.memory.is_some() => units::rounded_size(memory),
        Ok(memory) => format!("{} and the size of the image", units::rounded_size(memory)),
        Err(too_little) => too_little,
    };
    let mut facts = vec![
        Fact::new("architecture", &format!("{}, CPU model {}", config.arch.name(), config.cpu_model)),
        Fact::new("physical CPUs", &config.cpus.to_string()),
    ];
    for (node, cpus) in config.node_cpus().into_iter().enumerate() {
        let cpus = units::runs(cpus.map(|cpu| cpu as usize));
        facts.push(Fact::new(&format!("NUMA node {node}"), &format!("CPU {cpus}, and its part of the memory")));
    }
    facts.push(Fact::new("memory", &format!("{memory}; {vm_memory} of it for virtual machines")));
    facts.push(Fact::new("Stile's own", &footprint(config)));
    facts.push(Fact::new("time slice", &format!("{:?}", config.slice)));
    facts.extend(image_len.map(|len| Fact::new("image", &units::rounded_size(len))));
    facts
}

/// Stile's memory beside the guests' RAM, without that of each VM as a whole.
fn footprint(config: &MachineConfig) -> String {
    let Footprint { cpu, vcpu } = match config.arch {
        Arch::Aarch64 => footprint::AARCH64,
        Arch::X86_64 if config.arch.has_amd_v(&config.cpu_model) => footprint::X86_64_SVM,
        Arch::X86_64 => footprint::X86_64,
    };
    let vcpus: u64 = config.vms.iter().map(|vm| u64::from(vm.vcpus)).sum();
    let all = u64::from(config.cpus) * cpu + vcpus * vcpu;
    let [cpu, vcpu, all] = [cpu, vcpu, all].map(units::rounded_size);
    format!("{all}: {cpu} per CPU, {vcpu} per vCPU; and a VM's tables")
}

/// vCPUs by physical CPU.
fn cpus(config: &MachineConfig) -> Rows {
    let present = &config.present_cpus();
    let mut header = vec!["CPU"];
    header.extend(config.vms.iter().map(|vm| &vm.name[..]));
    let of_vm = |vm: &VmConfig| (0..usize::from(vm.vcpus)).map(|vcpu| cpus_of(vm, vcpu, present)).collect::<Vec<_>>();
    let of_vms: Vec<Vec<CpuSet>> = config.vms.iter().map(of_vm).collect();
    let mut rows: Vec<(Range<usize>, Vec<String>)> = Vec::new();
    for cpu in present.iter() {
        let vcpus = |of_vm: &Vec<CpuSet>| {
            let list = units::runs((0..).zip(of_vm).filter(|(_, cpus)| cpus.contains(cpu)).map(|(vcpu, _)| vcpu));
            if list.is_empty() { "-".to_owned() } else { list }
        };
        let row: Vec<String> = of_vms.iter().map(vcpus).collect();
        let cpu = cpu.index();
        // CPUs that are alike share a row.
        match rows.last_mut() {
            Some((cpus, last)) if *last == row => cpus.end = cpu + 1,
            _ => rows.push((cpu..cpu + 1, row)),
        }
    }
    let rows = rows.into_iter().map(|(cpus, row)| {
        let cpus = match cpus.len() {
            1 => cpus.start.to_string(),
            _ => format!("{}-{}", cpus.start, cpus.end - 1),
        };
        std::iter::once(cpus).chain(row).collect()
    });
    Rows::new(&header, rows.collect())
}

/// A virtual machine's share of CPU time.
fn cpu_time(config: &MachineConfig, index: usize) -> String {
    let (vm, present) = (&config.vms[index], &config.present_cpus());
    let cpus = cpus_of_vm(vm, present);
    let rivals: Vec<_> =
        config.vms.iter().enumerate().filter(|(other, vm)| *other != index && !cpus_of_vm(vm, present).and(&cpus).is_empty()).collect();
    let weight = vm.share.weight;
    let total: u32 = rivals.iter().map(|(_, vm)| u32::from(vm.share.weight)).sum::<u32>() + u32::from(weight);
    let mut text = match rivals.is_empty() {
        true => format!("weight {weight}; no other VM uses its CPUs"),
        false => format!("weight {weight}, of {total} together with the VMs that it shares CPUs with"),
    };
    if let Some(cap) = vm.share.cap {
        let _ = write!(text, "; at most {cap}% of one CPU");
    }
    text
}

/// Possibly unintended settings.
fn notes(config: &MachineConfig) -> Vec<String> {
    let present = &config.present_cpus();
    let mut notes = Vec::new();
    let mut wanted = CpuSet::EMPTY;
    for vm in &config.vms {
        let cpus = cpus_of_vm(vm, present);
        wanted = wanted.or(&cpus);
        let (cpus, vcpus) = (cpus.len(), usize::from(vm.vcpus));
        if cpus < vcpus {
            notes.push(format!("{}: {} on {}: they take turns", vm.name, units::plural(vcpus, "vCPU"), units::plural(cpus, "CPU")));
        }
    }
    for vm in config.vms.iter().filter(|vm| vm.class.is_some()) {
        notes.push(format!("{}: the CPUs of its class are determined on the board; the emulated CPUs are all alike", vm.name));
    }
    let idle = present.without(&wanted);
    if !idle.is_empty() {
        notes.push(format!("nothing may run on CPU {}", units::cpus(&idle)));
    }
    for (index, vm) in config.vms.iter().enumerate() {
        let mine = cpus_of_vm(vm, present);
        let others: Vec<&str> = config.vms[index + 1..]
            .iter()
            .filter(|other| (vm.pinned || other.pinned) && !cpus_of_vm(other, present).and(&mine).is_empty())
            .map(|other| &other.name[..])
            .collect();
        if !others.is_empty() {
            notes.push(format!("{} shares CPUs with {}, though vCPUs are pinned", vm.name, others.join(", ")));
        }
    }
    notes
}

#[cfg(test)]
mod tests;
