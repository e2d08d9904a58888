//! Creation of vCPUs, and their initial registers.

use kvm_bindings::{KVM_ARM_VCPU_HAS_EL2, KVM_ARM_VCPU_POWER_OFF, KVM_ARM_VCPU_PSCI_0_2, kvm_vcpu_init};
use kvm_ioctls::{VcpuFd, VmFd};

use super::board::RAM;
use crate::description::Description;
use crate::error::Error;

/// KVM's identifiers of core registers (Linux, "The Definitive KVM API Documentation", KVM_SET_ONE_REG): 64
/// bits, by offset in words.
const X0: u64 = 0x6030_0000_0010_0000;
const PC: u64 = X0 + 64;

/// Creates vCPU `index`. All but the first are off until the guest turns them on.
pub fn create(vm: &VmFd, index: u8, description: &Description) -> Result<VcpuFd, Error> {
    let vcpu = vm.create_vcpu(index.into())?;
    let mut target = kvm_vcpu_init::default();
    vm.get_preferred_target(&mut target)?;
    target.features[0] |= 1 << KVM_ARM_VCPU_PSCI_0_2;
    if description.el2 {
        target.features[0] |= 1 << KVM_ARM_VCPU_HAS_EL2;
    }
    if index > 0 {
        target.features[0] |= 1 << KVM_ARM_VCPU_POWER_OFF;
    }
    vcpu.vcpu_init(&target)?;
    if index == 0 {
        vcpu.set_one_reg(PC, &(RAM + description.entry as u64).to_le_bytes())?;
        vcpu.set_one_reg(X0, &(RAM + description.tree as u64).to_le_bytes())?;
    }
    Ok(vcpu)
}
