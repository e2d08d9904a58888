//! A PC: the kernel's APICs, PICs and PIT, and a 16550.

mod host;
mod stats;
mod uart;
mod vcpu;

use std::sync::{Arc, Mutex, PoisonError};

use kvm_bindings::{KVM_PIT_SPEAKER_DUMMY, kvm_pit_config};
use kvm_ioctls::{Kvm, VcpuExit, VcpuFd, VmFd};

use crate::description::Description;
use crate::error::Error;
pub use host::prepare as prepare_host;
use stats::Stats;
use uart::Uart;

/// Start of RAM in the VM.
pub const RAM: u64 = 0;

/// Pages that KVM needs on Intel CPUs (Linux, "The Definitive KVM API Documentation", KVM_SET_TSS_ADDR), in a
/// PC's BIOS area.
const TSS: usize = 0xfffb_d000;

/// ACPI's registers for power-off, each implemented for that only: of a PC with legacy devices, and of one that is hardware-reduced.
const POWER: u16 = 0x604;
const SLEEP_CONTROL: u16 = 0x600;
/// SLEEP_CONTROL: SLP_EN, enter the state (ACPI Specification 6.5, "Sleep Control Register").
const ENTER: u8 = 1 << 5;

/// The port by which a guest resets the machine.
const RESET: u16 = 0xcf9;

/// The clock's data. All of it reads as zero, which drivers take for a clock that does not run.
const CLOCK_DATA: u16 = 0x71;

/// The POST code port, to which the probe writes at the beginning and end of a measurement.
const MARK: u16 = 0x80;
const BEGIN: u8 = 1;
const END: u8 = 2;

/// Creates the interrupt controllers, and then the vCPUs.
pub fn vcpus(kvm: &Kvm, vm: &VmFd, description: &Description) -> Result<Vec<VcpuFd>, Error> {
    vm.set_tss_address(TSS)?;
    vm.create_irq_chip()?;
    vm.create_pit2(kvm_pit_config { flags: KVM_PIT_SPEAKER_DUMMY, ..Default::default() })?;
    (0..description.vcpus).map(|index| vcpu::create(kvm, vm, index, description)).collect()
}

/// The VM's devices outside the kernel.
pub struct Devices {
    state: Mutex<State>,
}

struct State {
    uart: Uart,
    /// A vCPU's counters at the beginning of the measurement.
    begin: Option<Stats>,
}

/// Describes an error that KVM reports (Linux, "The Definitive KVM API Documentation", KVM_EXIT_INTERNAL_ERROR): where, and its data.
fn internal_error(vcpu: &mut VcpuFd) -> String {
    let rip = vcpu.get_regs().map_or(0, |registers| registers.rip);
    // SAFETY: the exit's reason says that this part of the union is valid, and any bits are numbers.
    let internal = unsafe { vcpu.get_kvm_run().__bindgen_anon_1.internal };
    let data: Vec<String> = internal.data.iter().take(internal.ndata as usize).map(|word| format!("{word:#x}")).collect();
    format!("KVM's error {} at {rip:#x}: {}", internal.suberror, data.join(" "))
}

impl Devices {
    /// Creates the devices.
    pub fn new(vm: Arc<VmFd>, _description: &Description) -> Result<Self, Error> {
        Ok(Self { state: Mutex::new(State { uart: Uart::new(vm), begin: None }) })
    }

    /// Runs a vCPU until the guest turns the machine off.
    pub fn run(&self, vcpu: &mut VcpuFd) -> Result<(), Error> {
        loop {
            let mark = match vcpu.run() {
                Ok(VcpuExit::IoOut(POWER, _)) => return Ok(()),
                Ok(VcpuExit::IoOut(SLEEP_CONTROL, &[value])) if value & ENTER != 0 => return Ok(()),
                Ok(VcpuExit::IoOut(RESET, _)) => return Err("the guest reset the machine".into()),
                Ok(VcpuExit::IoOut(MARK, &[code])) => code,
                Ok(VcpuExit::IoOut(port, &[value])) if uart::PORTS.contains(&port) => {
                    self.state().uart.write(port, value)?;
                    continue;
                }
                Ok(VcpuExit::IoIn(port, [value])) if uart::PORTS.contains(&port) => {
                    *value = self.state().uart.read(port);
                    continue;
                }
                Ok(VcpuExit::IoIn(CLOCK_DATA, data)) => {
                    data.fill(0);
                    continue;
                }
                // Nothing is at other addresses.
                Ok(VcpuExit::IoIn(_, data) | VcpuExit::MmioRead(_, data)) => {
                    data.fill(0xff);
                    continue;
                }
                Ok(VcpuExit::IoOut(..)) => continue,
                Ok(VcpuExit::MmioWrite(..) | VcpuExit::Intr) => continue,
                Ok(VcpuExit::InternalError) => return Err(internal_error(vcpu).into()),
                Ok(exit) => return Err(format!("unexpected exit: {exit:?}").into()),
                Err(error) if matches!(error.errno(), libc::EINTR | libc::EAGAIN) => continue,
                Err(error) => return Err(error.into()),
            };
            self.mark(vcpu, mark)?;
        }
    }

    /// Begins or ends a measurement: prints its number of exits, by KVM's own counters.
    fn mark(&self, vcpu: &VcpuFd, code: u8) -> Result<(), Error> {
        let mut state = self.state();
        match code {
            BEGIN => state.begin = Some(Stats::read(vcpu)?),
            END => {
                if let Some(begin) = state.begin.take() {
                    let line = Stats::read(vcpu)?.since(&begin);
                    state.uart.add(&line);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Flushes an unfinished line.
    pub fn finish(&self) {
        self.state().uart.finish();
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
