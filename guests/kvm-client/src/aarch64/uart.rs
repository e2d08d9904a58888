//! The part of a PL011 that Linux and the probe need for output: PrimeCell UART (PL011) Technical Reference
//! Manual, "Programmers Model".

use std::io::Write;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use kvm_ioctls::VmFd;

use crate::error::Error;

/// Its address range.
pub const PLACE: Range<u64> = 0x0900_0000..0x0900_1000;

/// Its interrupt in KVM's encoding: shared, INTID 33.
const INTERRUPT: u32 = 1 << 24 | 33;

/// Data register.
const DR: u64 = 0x00;
/// Flag register.
const FR: u64 = 0x18;
/// Interrupt mask.
const IMSC: u64 = 0x38;
/// Raw interrupt status.
const RIS: u64 = 0x3c;
/// Masked interrupt status.
const MIS: u64 = 0x40;
/// The identification registers, to the end.
const ID: u64 = 0xfe0;

/// FR: the transmit FIFO is empty, and so is the receive FIFO.
const EMPTY: u32 = 1 << 7 | 1 << 4;
/// RIS, MIS, IMSC: the transmit FIFO has room.
const TRANSMIT: u32 = 1 << 5;
/// UARTPeriphID0 to 3, UARTPCellID0 to 3.
const IDENTIFICATION: [u32; 8] = [0x11, 0x10, 0x14, 0x00, 0x0d, 0xf0, 0x05, 0xb1];

/// The UART.
pub struct Uart {
    vm: Arc<VmFd>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The current line.
    line: Vec<u8>,
    /// The values of registers up to IMSC; most of them are only stored.
    registers: [u32; 15],
    /// Whether anything was sent: the FIFO becomes empty only after that.
    sent: bool,
    /// Whether the interrupt is asserted.
    asserted: bool,
}

impl State {
    fn raw(&self) -> u32 {
        if self.sent { TRANSMIT } else { 0 }
    }

    fn masked(&self) -> u32 {
        self.raw() & self.registers[IMSC as usize / 4]
    }

    fn read(&self, offset: u64) -> u32 {
        match offset {
            DR => 0,
            FR => EMPTY,
            RIS => self.raw(),
            MIS => self.masked(),
            ID.. => IDENTIFICATION.get((offset - ID) as usize / 4).copied().unwrap_or(0),
            _ => self.registers.get(offset as usize / 4).copied().unwrap_or(0),
        }
    }

    /// Writes the line to standard output.
    fn flush(&mut self) {
        // Console errors can't be reported.
        let _ = std::io::stdout().write_all(&self.line).and_then(|()| std::io::stdout().flush());
        self.line.clear();
    }
}

impl Uart {
    /// The UART of a VM.
    pub fn new(vm: Arc<VmFd>) -> Self {
        Self { vm, state: Mutex::default() }
    }

    /// A guest's read of a register.
    pub fn read(&self, offset: u64, data: &mut [u8]) {
        let value = self.state.lock().unwrap_or_else(PoisonError::into_inner).read(offset);
        data.fill(0);
        data.iter_mut().zip(value.to_le_bytes()).for_each(|(to, from)| *to = from);
    }

    /// A guest's write of a register. Fails if KVM refuses the interrupt.
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<(), Error> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let value = data.iter().rev().fold(0, |value, byte| value << 8 | u32::from(*byte));
        match state.registers.get_mut(offset as usize / 4) {
            _ if offset == DR => {
                state.line.push(value as u8);
                state.sent = true;
                if value as u8 == b'\n' {
                    state.flush();
                }
            }
            Some(register) => *register = value,
            None => {}
        }
        let asserted = state.masked() != 0;
        if asserted != state.asserted {
            state.asserted = asserted;
            self.vm.set_irq_line(INTERRUPT, asserted)?;
        }
        Ok(())
    }

    /// Flushes an unfinished line.
    pub fn finish(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).flush();
    }
}
