//! A PC: the kernel's APICs, PICs and PIT, and a 16550.

mod host;
mod stats;
mod vcpu;

use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};

use kvm_bindings::{KVM_PIT_SPEAKER_DUMMY, kvm_pit_config};
use kvm_ioctls::{Kvm, VcpuExit, VcpuFd, VmFd};

use crate::Error;
use crate::description::Description;
pub use host::prepare as prepare_host;
use stats::Stats;

/// Start of RAM in the VM.
pub const RAM: u64 = 0;

/// Pages that KVM needs on Intel CPUs (Linux, "The Definitive KVM API Documentation", KVM_SET_TSS_ADDR), in a
/// PC's BIOS area.
const TSS: usize = 0xfffb_d000;

/// The 16550's registers, all but two without function.
const UART: std::ops::Range<u16> = 0x3f8..0x400;
const UART_DATA: u16 = 0x3f8;
const UART_LINE_CONTROL: u16 = 0x3fb;
const UART_LINE_STATUS: u16 = 0x3fd;
/// UART_LINE_STATUS: transmitter empty.
const EMPTY: u8 = 0x60;
/// UART_LINE_CONTROL: DLAB, the data register is the divisor.
const DIVISOR: u8 = 1 << 7;

/// ACPI's power-management register, implemented for power-off only.
const POWER: u16 = 0x604;

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

#[derive(Default)]
struct State {
    /// The current line.
    line: Vec<u8>,
    line_control: u8,
    /// A vCPU's counters at the beginning of the measurement.
    begin: Option<Stats>,
}

impl State {
    fn flush(&mut self) {
        // Console errors can't be reported.
        let _ = std::io::stdout().write_all(&self.line).and_then(|()| std::io::stdout().flush());
        self.line.clear();
    }

    fn write(&mut self, port: u16, value: u8) {
        match port {
            UART_DATA if self.line_control & DIVISOR == 0 => {
                self.line.push(value);
                if value == b'\n' {
                    self.flush();
                }
            }
            UART_LINE_CONTROL => self.line_control = value,
            _ => {}
        }
    }
}

impl Devices {
    /// Creates the devices.
    pub fn new(_vm: Arc<VmFd>, _description: &Description) -> Result<Self, Error> {
        Ok(Self { state: Mutex::default() })
    }

    /// Runs a vCPU until the guest turns the machine off.
    pub fn run(&self, vcpu: &mut VcpuFd) -> Result<(), Error> {
        loop {
            let mark = match vcpu.run() {
                Ok(VcpuExit::IoOut(POWER, _)) => return Ok(()),
                Ok(VcpuExit::IoOut(MARK, &[code])) => code,
                Ok(VcpuExit::IoOut(port, data)) => {
                    if let (true, [value]) = (UART.contains(&port), data) {
                        self.state().write(port, *value);
                    }
                    continue;
                }
                Ok(VcpuExit::IoIn(UART_LINE_STATUS, data)) => {
                    data.fill(EMPTY);
                    continue;
                }
                // Other addresses read as zero.
                Ok(VcpuExit::IoIn(_, data) | VcpuExit::MmioRead(_, data)) => {
                    data.fill(0xff);
                    continue;
                }
                Ok(VcpuExit::MmioWrite(..) | VcpuExit::Intr) => continue,
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
                    state.line.extend(format!("{line}\n").bytes());
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Flushes an unfinished line.
    pub fn finish(&self) {
        self.state().flush();
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
