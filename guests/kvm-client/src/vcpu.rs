//! A vCPU: its first registers, its thread, and its exits to user space.

use std::ops::Range;

use kvm_bindings::{KVM_ARM_VCPU_HAS_EL2, KVM_ARM_VCPU_POWER_OFF, KVM_ARM_VCPU_PSCI_0_2, kvm_vcpu_init};
use kvm_ioctls::{VcpuExit, VcpuFd, VmFd};

use crate::description::Description;
use crate::uart::{self, Uart};
use crate::{Error, memory};

/// KVM's numbers of core registers (Linux, "The Definitive KVM API Documentation", KVM_SET_ONE_REG): 64 bits, by the offset in words.
const X0: u64 = 0x6030_0000_0010_0000;
const PC: u64 = X0 + 64;

/// The place of the board's clock, which is left out: without its identification, a driver leaves it alone.
const CLOCK: Range<u64> = 0x0901_0000..0x0901_1000;

/// Makes vCPU `index`. All but the first are off until the guest turns them on.
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
        vcpu.set_one_reg(PC, &(memory::BASE + description.entry as u64).to_le_bytes())?;
        vcpu.set_one_reg(X0, &(memory::BASE + description.tree as u64).to_le_bytes())?;
    }
    Ok(vcpu)
}

/// Keeps this thread on one CPU, if there are so many.
pub fn pin(cpu: usize) {
    // SAFETY: the set is a plain bit mask of this function's own, valid when zeroed; a failure changes nothing.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set);
    }
}

/// Runs a vCPU until the guest turns the machine off.
pub fn run(vcpu: &mut VcpuFd, uart: &Uart) -> Result<(), Error> {
    loop {
        match vcpu.run() {
            Ok(VcpuExit::MmioRead(address, data)) if uart::PLACE.contains(&address) => uart.read(address - uart::PLACE.start, data),
            Ok(VcpuExit::MmioWrite(address, data)) if uart::PLACE.contains(&address) => uart.write(address - uart::PLACE.start, data)?,
            Ok(VcpuExit::MmioRead(address, data)) if CLOCK.contains(&address) => data.fill(0),
            Ok(VcpuExit::SystemEvent(..)) => return Ok(()),
            Ok(VcpuExit::Intr) => {}
            Ok(exit) => return Err(format!("an exit that nobody expects: {exit:?}").into()),
            Err(error) if matches!(error.errno(), libc::EINTR | libc::EAGAIN) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
