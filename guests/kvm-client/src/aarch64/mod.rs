//! Arm: a GICv3, a PL011.

mod board;
mod gic;
mod uart;
mod vcpu;

use std::sync::Arc;

use kvm_ioctls::{DeviceFd, Kvm, VcpuExit, VcpuFd, VmFd};

use crate::description::Description;
use crate::error::Error;
use board::CLOCK;
use uart::Uart;

pub use board::RAM;

/// Prepares the host: its KVM is built in.
pub fn prepare_host() -> Result<(), Error> {
    Ok(())
}

/// Creates the vCPUs.
pub fn vcpus(_kvm: &Kvm, vm: &VmFd, description: &Description) -> Result<Vec<VcpuFd>, Error> {
    (0..description.vcpus).map(|index| vcpu::create(vm, index, description)).collect()
}

/// The VM's devices.
pub struct Devices {
    uart: Uart,
    _gic: DeviceFd,
}

impl Devices {
    /// Creates the devices. The vCPUs must exist already.
    pub fn new(vm: Arc<VmFd>, description: &Description) -> Result<Self, Error> {
        Ok(Self { _gic: gic::create(&vm, description.el2)?, uart: Uart::new(vm) })
    }

    /// Runs a vCPU until the guest turns the machine off.
    pub fn run(&self, vcpu: &mut VcpuFd) -> Result<(), Error> {
        loop {
            match vcpu.run() {
                Ok(VcpuExit::MmioRead(address, data)) if uart::PLACE.contains(&address) => {
                    self.uart.read(address - uart::PLACE.start, data)
                }
                Ok(VcpuExit::MmioWrite(address, data)) if uart::PLACE.contains(&address) => {
                    self.uart.write(address - uart::PLACE.start, data)?
                }
                Ok(VcpuExit::MmioRead(address, data)) if CLOCK.contains(&address) => data.fill(0),
                Ok(VcpuExit::SystemEvent(..)) => return Ok(()),
                Ok(VcpuExit::Intr) => {}
                Ok(exit) => return Err(format!("unexpected exit: {exit:?}").into()),
                Err(error) if matches!(error.errno(), libc::EINTR | libc::EAGAIN) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Flushes an unfinished line.
    pub fn finish(&self) {
        self.uart.finish();
    }
}
