//! The physical CPUs that a virtual machine may use.

use crate::config::VmConfig;

/// The physical CPUs of a vCPU: the hypervisor's own rule.
pub fn cpus_of(vm: &VmConfig, vcpu: usize, present: u64) -> u64 {
    stile_blob::cpus_of(vm.cpus, vm.pinned, vcpu, present)
}

/// The physical CPUs that any vCPU of a virtual machine may run on.
pub fn cpus_of_vm(vm: &VmConfig, present: u64) -> u64 {
    (0..usize::from(vm.vcpus)).fold(0, |mask, vcpu| mask | cpus_of(vm, vcpu, present))
}
