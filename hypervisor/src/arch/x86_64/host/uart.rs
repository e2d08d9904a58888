//! Serial port of a PC, a relative of the 16550 in I/O ports or in memory, under the console.

use core::sync::atomic::{AtomicUsize, Ordering};

use stile_firmware::serial::Kind;
use stile_firmware::serial_tables::{Interrupt, Port, Space};

use super::board::Board;
use super::instructions::{in8, out8};
use super::mmu;
use crate::address_space::{self, Span};
use crate::once::Once;
use crate::uart_16550::{DATA, INTERRUPT_ENABLE, LINE_CONTROL, LINE_STATUS, Registers, Uart16550};

const SCRATCH: u8 = 7;
/// LINE_CONTROL.DLAB: the first two registers are the divisor.
const DIVISOR: u8 = 1 << 7;
/// LINE_STATUS.TEMT.
const TRANSMITTED: u8 = 1 << 6;
/// Number of looks at a transmitter, a microsecond each in ports, until it counts as broken: firmware's last 17 characters take 150 ms at
/// 1200 baud.
const PATIENCE: u32 = 1 << 20;

/// The first serial port of a PC whose tables name no console, and the others at their usual ports.
const FIRST: Port = usual(0x3f8, 4);
const OTHERS: [Port; 3] = [usual(0x2f8, 3), usual(0x3e8, 4), usual(0x2e8, 3)];

/// A serial port at 115,200 baud.
const fn usual(address: u64, interrupt: u8) -> Port {
    Port {
        kind: Kind::Compatible { shift: 0, wide: false, fifo: 16 },
        space: Space::Ports,
        address,
        interrupt: Some(Interrupt::Isa(interrupt)),
        divisor: Some(1),
    }
}

/// A UART's registers.
enum Window {
    /// I/O ports from this one on.
    Ports(u16),
    Memory {
        /// Address of the first one in Stile's address space: at boot in the boot tables' mapping, which ends, then in that of devices.
        base: AtomicUsize,
        /// Physical address of the first one.
        physical: u64,
        /// Log2 of their distance in bytes.
        shift: u8,
        /// Accesses have 32 bits, not 8.
        wide: bool,
    },
}

impl Window {
    /// The registers of a port. `None` if it is no relative of the 16550, or the boot tables don't map it.
    fn new(port: &Port) -> Option<Window> {
        let Kind::Compatible { shift, wide, .. } = port.kind else { return None };
        match port.space {
            Space::Ports => u16::try_from(port.address).ok().map(Window::Ports),
            Space::Memory => {
                let end = port.address.checked_add(8 << shift)?;
                let base = AtomicUsize::new(address_space::physical(port.address) as usize);
                // Wide registers are words.
                (end <= mmu::first_mapped() && (!wide || port.address.is_multiple_of(4))).then_some(Window::Memory {
                    base,
                    physical: port.address,
                    shift,
                    wide,
                })
            }
        }
    }

    /// Whether there is a UART that sends: its scratch register keeps what is written, and its transmitter becomes empty.
    fn is_present(&self) -> bool {
        let keeps = |value: u8| {
            self.write(SCRATCH, value);
            self.read(SCRATCH) == value
        };
        keeps(0x5a) && keeps(0xa5) && (0..PATIENCE).any(|_| self.read(LINE_STATUS) & TRANSMITTED != 0)
    }
}

impl Registers for &Window {
    fn read(&self, register: u8) -> u8 {
        Window::read(self, register)
    }

    fn write(&self, register: u8, value: u8) {
        Window::write(self, register, value);
    }
}

impl Window {
    fn read(&self, register: u8) -> u8 {
        match self {
            // SAFETY: the port is the UART's, which only the console uses.
            Window::Ports(base) => unsafe { in8(base + u16::from(register)) },
            Window::Memory { base, shift, wide, .. } => {
                let address = base.load(Ordering::Relaxed) + (usize::from(register) << shift);
                // SAFETY: `new` and `setup_mapping` store addresses at which the registers are mapped; wide ones are aligned.
                unsafe { if *wide { (address as *const u32).read_volatile() as u8 } else { (address as *const u8).read_volatile() } }
            }
        }
    }

    fn write(&self, register: u8, value: u8) {
        match self {
            // SAFETY: the port is the UART's, which only the console uses.
            Window::Ports(base) => unsafe { out8(base + u16::from(register), value) },
            Window::Memory { base, shift, wide, .. } => {
                let address = base.load(Ordering::Relaxed) + (usize::from(register) << shift);
                // SAFETY: `new` and `setup_mapping` store addresses at which the registers are mapped; wide ones are aligned.
                unsafe {
                    if *wide { (address as *mut u32).write_volatile(value.into()) } else { (address as *mut u8).write_volatile(value) }
                }
            }
        }
    }
}

/// The console's port.
struct Uart {
    window: &'static Window,
    device: Uart16550<&'static Window>,
    interrupt: Option<Interrupt>,
}

static WINDOW: Once<Window> = Once::new();
static UART: Once<Uart> = Once::new();

/// Takes over the console: the port of the tables' SPCR, or else the first serial port, or else that of DBG2, or else another serial port
/// that is there. Called while the boot tables are in use.
pub fn setup(board: Option<&Board>) {
    let (console, debug) = board.map_or((None, None), |board| (board.tables.console, board.tables.debug_port));
    // No register is in RAM, whatever the tables say.
    let is_apart = |port: &Port| {
        let registers = port.address..port.address.saturating_add(0x1000);
        let is_in = |ram: &Span| registers.start < ram.end && ram.start < registers.end;
        port.space == Space::Ports || !board.is_some_and(|board| board.ram.iter().any(is_in))
    };
    for port in [console, Some(FIRST), debug].into_iter().flatten().chain(OTHERS).filter(is_apart) {
        if let Some(window) = Window::new(&port).filter(Window::is_present) {
            take(window, &port);
            return;
        }
    }
}

/// Takes over a port: 8N1, FIFOs enabled, interrupts disabled.
fn take(window: Window, port: &Port) {
    WINDOW.set(window);
    let window = WINDOW.get();
    if let Some(divisor) = port.divisor {
        let [low, high] = divisor.to_le_bytes();
        window.write(INTERRUPT_ENABLE, 0);
        window.write(LINE_CONTROL, DIVISOR);
        window.write(DATA, low);
        window.write(INTERRUPT_ENABLE, high);
    }
    let fifo = if let Kind::Compatible { fifo, .. } = port.kind { fifo } else { 1 };
    UART.set(Uart { window, device: Uart16550::new(window, fifo), interrupt: port.interrupt });
}

/// Maps registers that are in memory, when Stile's own tables have replaced the boot tables.
pub fn setup_mapping() {
    if let Some(Window::Memory { base, physical, shift, .. }) = WINDOW.try_get() {
        base.store(address_space::device(*physical..*physical + (8 << shift)), Ordering::Relaxed);
    }
}

/// The console's interrupt, if it has one.
pub fn interrupt() -> Option<Interrupt> {
    UART.try_get()?.interrupt
}

/// Sends a byte if the FIFO has room. Without a UART it is lost.
pub fn try_send(byte: u8) -> bool {
    UART.try_get().is_none_or(|uart| uart.device.try_send(byte))
}

/// Waits until the transmitter is empty, or is broken.
pub fn finish() {
    if let Some(uart) = UART.try_get() {
        let _ = (0..PATIENCE).any(|_| uart.window.read(LINE_STATUS) & TRANSMITTED != 0);
    }
}

/// Returns a received byte.
pub fn try_receive() -> Option<u8> {
    UART.try_get()?.device.try_receive()
}

/// Clears the interrupt, and selects the next ones.
pub fn set_interrupts(receive: bool, send: bool) {
    if let Some(uart) = UART.try_get() {
        uart.device.set_interrupts(receive, send);
    }
}
