//! A VM with the board's memory map: RAM, a GICv3, a UART, vCPUs.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;

use kvm_bindings::{
    KVM_DEV_ARM_VGIC_CTRL_INIT, KVM_DEV_ARM_VGIC_GRP_ADDR, KVM_DEV_ARM_VGIC_GRP_CTRL, KVM_DEV_ARM_VGIC_GRP_MAINT_IRQ,
    KVM_DEV_ARM_VGIC_GRP_NR_IRQS,
    KVM_VGIC_V3_ADDR_TYPE_DIST, KVM_VGIC_V3_ADDR_TYPE_REDIST, kvm_create_device, kvm_device_attr, kvm_device_type_KVM_DEV_TYPE_ARM_VGIC_V3,
    kvm_userspace_memory_region,
};
use kvm_ioctls::{DeviceFd, Kvm, VmFd};

use crate::description::Description;
use crate::memory::{self, Ram};
use crate::uart::Uart;
use crate::{Error, vcpu};

// The GIC's attributes, which are passed by address.
static DISTRIBUTOR: u64 = 0x0800_0000;
static REDISTRIBUTORS: u64 = 0x080A_0000;
/// SGIs, PPIs and 64 SPIs.
static INTERRUPTS: u32 = 96;
/// The interrupt of the virtual CPU interface, in a VM with an EL2.
static MAINTENANCE: u32 = 25;

/// Runs a VM to its end.
pub fn run(name: &str) -> Result<(), Error> {
    let path = format!("/{name}.vm");
    let text = std::fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
    let description = Description::parse(&text)?;
    let mut ram = Ram::new(description.memory)?;
    for (file, place) in &description.loads {
        ram.load(*place, file)?;
    }

    let vm = Arc::new(Kvm::new()?.create_vm()?);
    let region = kvm_userspace_memory_region {
        slot: 0,
        flags: 0,
        guest_phys_addr: memory::BASE,
        memory_size: ram.len() as u64,
        userspace_addr: ram.address(),
    };
    // SAFETY: the region is mapped as long as the process lives, and nothing else in it refers to it from now on.
    unsafe { vm.set_user_memory_region(region)? };
    let fds = (0..description.vcpus).map(|index| vcpu::create(&vm, index, &description)).collect::<Result<Vec<_>, _>>()?;
    let _gic = interrupt_controller(&vm, description.el2)?;
    let uart = Arc::new(Uart::new(vm));

    let (ended, end) = channel();
    for (index, mut fd) in fds.into_iter().enumerate() {
        let (ended, uart) = (ended.clone(), uart.clone());
        thread::spawn(move || {
            vcpu::pin(index);
            let _ = ended.send(vcpu::run(&mut fd, &uart));
        });
    }
    drop(ended);
    // The first vCPU that ends is the one that turned the machine off. The others end with the process.
    let result = end.recv()?;
    uart.finish();
    result
}

/// A GICv3, for vCPUs with an EL2 or without; they must be there already.
fn interrupt_controller(vm: &VmFd, el2: bool) -> Result<DeviceFd, Error> {
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
