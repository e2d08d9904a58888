//! The physical CPUs that a virtual machine may use.

use stile_board::{CpuId, CpuSet};

use crate::config::{MachineConfig, VmConfig, units};

/// The physical CPUs of a vCPU: the hypervisor's own rule.
pub fn cpus_of(vm: &VmConfig, vcpu: usize, present: &CpuSet) -> CpuSet {
    stile_blob::cpus_of(&vm.cpus, vm.pinned, vcpu, present)
}

/// The physical CPUs that any vCPU of a virtual machine may run on.
pub fn cpus_of_vm(vm: &VmConfig, present: &CpuSet) -> CpuSet {
    (0..usize::from(vm.vcpus)).fold(CpuSet::EMPTY, |all, vcpu| all.or(&cpus_of(vm, vcpu, present)))
}

/// The NUMA nodes of a virtual machine's CPUs, which its memory comes from; `None` on a machine with a single node.
pub fn nodes_of_vm(config: &MachineConfig, vm: &VmConfig) -> Option<String> {
    let all = config.node_cpus();
    let cpus = cpus_of_vm(vm, &config.present_cpus());
    let is_near = |cpu: u32| CpuId::new(cpu as usize).is_some_and(|cpu| cpus.contains(cpu));
    let nodes: Vec<usize> = (0..).zip(&all).filter(|(_, of_node)| (*of_node).clone().any(is_near)).map(|(node, _)| node).collect();
    match nodes.len() {
        0 => None,
        n if n == all.len() => Some("all: its memory may be on any".to_owned()),
        _ => Some(format!("{}: its memory is there if it fits", units::runs(nodes))),
    }
}

/// Others that may run on a CPU of one of the `index`th virtual machine's vCPUs.
pub fn rivals(config: &MachineConfig, index: usize) -> Vec<&str> {
    let (vm, present) = (&config.vms[index], &config.present_cpus());
    let cpus = cpus_of_vm(vm, present);
    let others = config.vms.iter().enumerate().filter(|(other, vm)| *other != index && !cpus_of_vm(vm, present).and(&cpus).is_empty());
    let mut others: Vec<&str> = others.map(|(_, vm)| &vm.name[..]).collect();
    // vCPUs that may meet on a CPU: pinned ones on the same CPU, others on any if there are more than CPUs.
    let mut taken = CpuSet::EMPTY;
    let siblings = match vm.pinned {
        true => (0..usize::from(vm.vcpus)).any(|vcpu| {
            let cpu = cpus_of(vm, vcpu, present);
            let meets = !taken.and(&cpu).is_empty();
            taken = taken.or(&cpu);
            meets
        }),
        false => vm.vcpus > 1,
    };
    if siblings {
        others.push("its own vCPUs");
    }
    others
}
