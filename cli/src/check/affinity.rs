//! The physical CPUs that a virtual machine may use.

use crate::config::{MachineConfig, VmConfig, units};

/// The physical CPUs of a vCPU: the hypervisor's own rule.
pub fn cpus_of(vm: &VmConfig, vcpu: usize, present: u64) -> u64 {
    stile_blob::cpus_of(vm.cpus, vm.pinned, vcpu, present)
}

/// The physical CPUs that any vCPU of a virtual machine may run on.
pub fn cpus_of_vm(vm: &VmConfig, present: u64) -> u64 {
    (0..usize::from(vm.vcpus)).fold(0, |mask, vcpu| mask | cpus_of(vm, vcpu, present))
}

/// The NUMA nodes of a virtual machine's CPUs, which its memory comes from; `None` on a machine with a single node.
pub fn nodes_of_vm(config: &MachineConfig, vm: &VmConfig) -> Option<String> {
    let all = config.node_cpus();
    let cpus = cpus_of_vm(vm, config.present_cpus());
    let nodes = (0..).zip(&all).filter(|(_, of_node)| (*of_node).clone().any(|cpu| cpus >> cpu & 1 != 0));
    let mask = nodes.fold(0u64, |mask, (node, _)| mask | 1 << node);
    match mask.count_ones() as usize {
        0 => None,
        n if n == all.len() => Some("all: its memory may be on any".to_owned()),
        _ => Some(format!("{}: its memory is there if it fits", units::cpus(mask))),
    }
}

/// Others that may run on a CPU of one of the `index`th virtual machine's vCPUs.
pub fn rivals(config: &MachineConfig, index: usize) -> Vec<&str> {
    let (vm, present) = (&config.vms[index], config.present_cpus());
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
    others
}
