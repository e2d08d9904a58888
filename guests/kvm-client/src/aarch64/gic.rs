//! The interrupt controller.

use kvm_bindings::{
    KVM_DEV_ARM_VGIC_CTRL_INIT, KVM_DEV_ARM_VGIC_GRP_ADDR, KVM_DEV_ARM_VGIC_GRP_CTRL, KVM_DEV_ARM_VGIC_GRP_MAINT_IRQ,
    KVM_DEV_ARM_VGIC_GRP_NR_IRQS, KVM_VGIC_V3_ADDR_TYPE_DIST, KVM_VGIC_V3_ADDR_TYPE_REDIST, kvm_create_device, kvm_device_attr,
    kvm_device_type_KVM_DEV_TYPE_ARM_VGIC_V3,
};
use kvm_ioctls::{DeviceFd, VmFd};

use crate::error::Error;

// The GIC's attributes, which are passed by address.
static DISTRIBUTOR: u64 = 0x0800_0000;
static REDISTRIBUTORS: u64 = 0x080A_0000;
/// SGIs, PPIs and 64 SPIs.
static INTERRUPTS: u32 = 96;
/// The interrupt of the virtual CPU interface, in a VM with an EL2.
static MAINTENANCE: u32 = 25;

/// Creates a GICv3, for vCPUs with or without an EL2; the vCPUs must exist already.
pub fn create(vm: &VmFd, el2: bool) -> Result<DeviceFd, Error> {
    let mut request = kvm_create_device { type_: kvm_device_type_KVM_DEV_TYPE_ARM_VGIC_V3, fd: 0, flags: 0 };
    let gic = vm.create_device(&mut request)?;
    let set =
        |group: u32, attr: u32, address: u64| gic.set_device_attr(&kvm_device_attr { flags: 0, group, attr: attr.into(), addr: address });
    set(KVM_DEV_ARM_VGIC_GRP_ADDR, KVM_VGIC_V3_ADDR_TYPE_DIST, &raw const DISTRIBUTOR as u64)?;
    set(KVM_DEV_ARM_VGIC_GRP_ADDR, KVM_VGIC_V3_ADDR_TYPE_REDIST, &raw const REDISTRIBUTORS as u64)?;
    set(KVM_DEV_ARM_VGIC_GRP_NR_IRQS, 0, &raw const INTERRUPTS as u64)?;
    if el2 {
        set(KVM_DEV_ARM_VGIC_GRP_MAINT_IRQ, 0, &raw const MAINTENANCE as u64)?;
    }
    set(KVM_DEV_ARM_VGIC_GRP_CTRL, KVM_DEV_ARM_VGIC_CTRL_INIT, 0)?;
    Ok(gic)
}
