//! A vCPU: its first registers, its thread, and its exits to user space.

use kvm_bindings::{KVM_ARM_VCPU_POWER_OFF, KVM_ARM_VCPU_PSCI_0_2, kvm_vcpu_init};
use kvm_ioctls::{VcpuExit, VcpuFd, VmFd};

use crate::{Error, memory, uart};

/// KVM's numbers of core registers (Linux, "The Definitive KVM API Documentation", KVM_SET_ONE_REG): 64 bits, by the offset in words.
const X0: u64 = 0x6030_0000_0010_0000;
const PC: u64 = X0 + 64;

/// Makes vCPU `index`. All but the first are off until the guest turns them on.
pub fn create(vm: &VmFd, index: u8) -> Result<VcpuFd, Error> {
    let vcpu = vm.create_vcpu(index.into())?;
    let mut target = kvm_vcpu_init::default();
    vm.get_preferred_target(&mut target)?;
    target.features[0] |= 1 << KVM_ARM_VCPU_PSCI_0_2;
    if index > 0 {
        target.features[0] |= 1 << KVM_ARM_VCPU_POWER_OFF;
    }
    vcpu.vcpu_init(&target)?;
    if index == 0 {
        vcpu.set_one_reg(PC, &(memory::BASE + memory::PROBE as u64).to_le_bytes())?;
        vcpu.set_one_reg(X0, &(memory::BASE + memory::TREE as u64).to_le_bytes())?;
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
pub fn run(vcpu: &mut VcpuFd) -> Result<(), Error> {
    loop {
        match vcpu.run() {
            Ok(VcpuExit::MmioRead(address, data)) if uart::is_here(address) => uart::read(address, data),
            Ok(VcpuExit::MmioWrite(address, data)) if uart::is_here(address) => uart::write(address, data),
            Ok(VcpuExit::SystemEvent(..)) => return Ok(()),
            Ok(VcpuExit::Intr) => {}
            Ok(exit) => return Err(format!("an exit that nobody expects: {exit:?}").into()),
            Err(error) if matches!(error.errno(), libc::EINTR | libc::EAGAIN) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
