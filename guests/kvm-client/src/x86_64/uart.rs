//! A 16550 that prints whole lines.

use std::io::Write;
use std::sync::Arc;

use kvm_ioctls::VmFd;
use vm_superio::serial::NoEvents;
use vm_superio::{Serial, Trigger};

use crate::error::Error;

/// Its ports.
pub const PORTS: std::ops::Range<u16> = 0x3f8..0x400;

/// Its input at the interrupt controllers.
const INPUT: u32 = 4;

/// The interrupt line.
struct Line(Arc<VmFd>);

impl Trigger for Line {
    type E = kvm_ioctls::Error;

    /// The input is edge-triggered.
    fn trigger(&self) -> Result<(), Self::E> {
        self.0.set_irq_line(INPUT, true)?;
        self.0.set_irq_line(INPUT, false)
    }
}

/// The output up to the end of a line.
#[derive(Default)]
struct Lines(Vec<u8>);

impl Lines {
    fn print(&mut self) {
        // Console errors can't be reported.
        let _ = std::io::stdout().write_all(&self.0).and_then(|()| std::io::stdout().flush());
        self.0.clear();
    }
}

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.extend(bytes);
        if bytes.contains(&b'\n') {
            self.print();
        }
        Ok(bytes.len())
    }

    /// The model flushes after each byte: lines are printed as a whole.
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The UART.
pub struct Uart(Serial<Line, NoEvents, Lines>);

impl Uart {
    /// Creates it; its interrupts go to `vm`.
    pub fn new(vm: Arc<VmFd>) -> Self {
        Self(Serial::new(Line(vm), Lines::default()))
    }

    /// Reads the register at one of [`PORTS`].
    pub fn read(&mut self, port: u16) -> u8 {
        self.0.read((port - PORTS.start) as u8)
    }

    /// Writes the register at one of [`PORTS`].
    pub fn write(&mut self, port: u16, value: u8) -> Result<(), Error> {
        self.0.write((port - PORTS.start) as u8, value).map_err(|error| format!("the UART: {error:?}").into())
    }

    /// Adds a line that is not the guest's.
    pub fn add(&mut self, line: &str) {
        let _ = writeln!(self.0.writer_mut(), "{line}");
    }

    /// Prints an unfinished line.
    pub fn finish(&mut self) {
        self.0.writer_mut().print();
    }
}
