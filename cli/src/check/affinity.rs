//! The physical CPUs that a virtual machine may use.

use crate::config::{MachineConfig, VmConfig};

/// The physical CPUs of a vCPU: the hypervisor's own rule.
pub fn cpus_of(vm: &VmConfig, vcpu: usize, present: u64) -> u64 {
    stile_blob::cpus_of(vm.cpus, vm.pinned, vcpu, present)
}

/// The physical CPUs that any vCPU of a virtual machine may run on.
pub fn cpus_of_vm(vm: &VmConfig, present: u64) -> u64 {
    (0..usize::from(vm.vcpus)).fold(0, |mask, vcpu| mask | cpus_of(vm, vcpu, present))
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
