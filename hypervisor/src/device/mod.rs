//! The devices of a VM: the architecture's models (crate `stile-device`) behind a lock each, and where their bytes and interrupt lines go.

pub mod alarm;

use stile_sched::lock::TicketLock;

use heapless::Deque;

use crate::arch::models::{Clock, UART_DATA, Uart as Model};
use crate::console;
use crate::{arch, vm::Vm};

/// Bytes for a guest that it has not yet read.
const BACKLOG: usize = 1024;

struct Uart {
    model: Model,
    backlog: Deque<u8, BACKLOG>,
}

/// A VM's devices.
pub struct Devices {
    vm: usize,
    uart: TicketLock<Uart>,
    clock: TicketLock<Clock>,
}

/// The interrupt lines of [`Devices`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Line {
    /// The UART's.
    Uart,
    /// The clock's.
    Clock,
}

impl Devices {
    /// The devices of VM `vm` after reset.
    pub fn new(vm: usize) -> Devices {
        Devices {
            vm,
            uart: TicketLock::new(Uart { model: Model::new(), backlog: Deque::new() }),
            clock: TicketLock::new(Clock::new(arch::wall_clock() as u32, arch::wall_clock())),
        }
    }

    /// Back to that state. What was typed and not read is kept: the next boot may want it.
    pub fn reset(&self) {
        self.uart.lock().model = Model::new();
        *self.clock.lock() = Clock::new(arch::wall_clock() as u32, arch::wall_clock());
        alarm::set(self.vm, None);
    }

    /// A load from the UART.
    #[inline]
    pub fn uart_read(&self, offset: u32, vm: &Vm) -> u32 {
        let mut uart = self.uart.lock();
        let read = uart.model.read(offset);
        let mut irq = read.irq;
        if offset == UART_DATA && !uart.backlog.is_empty() {
            irq = uart.refill().or(irq);
        }
        // The line is moved under the lock, so that its levels arrive in order.
        if let Some(level) = irq {
            arch::set_line(vm, Line::Uart, level);
        }
        read.value
    }

    /// A store to the UART.
    pub fn uart_write(&self, offset: u32, value: u32, vm: &Vm) {
        let mut uart = self.uart.lock();
        let write = uart.model.write(offset, value);
        let mut irq = write.irq;
        if let Some(byte) = write.tx {
            let room = console::send(self.vm, byte);
            irq = uart.model.set_tx_full(!room).or(irq);
        }
        irq = uart.refill().or(irq);
        if let Some(level) = irq {
            arch::set_line(vm, Line::Uart, level);
        }
    }

    /// The line took some bytes: the transmitter may have room again.
    pub fn uart_drained(&self, vm: &Vm) {
        let room = console::has_room(self.vm);
        let mut uart = self.uart.lock();
        if let Some(level) = uart.model.set_tx_full(!room) {
            arch::set_line(vm, Line::Uart, level);
        }
    }

    /// A byte came over the line for this VM. If its guest does not read, bytes beyond the backlog are lost.
    pub fn uart_receive(&self, byte: u8, vm: &Vm) {
        let mut uart = self.uart.lock();
        let _ = uart.backlog.push_back(byte);
        if let Some(level) = uart.refill() {
            arch::set_line(vm, Line::Uart, level);
        }
    }

    /// A load from the clock.
    pub fn clock_read(&self, offset: u32) -> u32 {
        self.clock.lock().read(offset, arch::wall_clock())
    }

    /// A store to the clock.
    pub fn clock_write(&self, offset: u32, value: u32, vm: &Vm) {
        let mut clock = self.clock.lock();
        if let Some(level) = clock.write(offset, value, arch::wall_clock()) {
            arch::set_line(vm, Line::Clock, level);
        }
        alarm::set(self.vm, clock.deadline());
    }

    /// The time of the clock's alarm may have come.
    pub fn clock_alarm(&self, vm: &Vm) {
        let mut clock = self.clock.lock();
        if let Some(level) = clock.expire(arch::wall_clock()) {
            arch::set_line(vm, Line::Clock, level);
        }
        alarm::set(self.vm, clock.deadline());
    }
}

impl Uart {
    /// Moves bytes from the backlog into the FIFO. Returns the interrupt line's level if it changed.
    fn refill(&mut self) -> Option<bool> {
        let mut irq = None;
        while let Some(&byte) = self.backlog.front() {
            let received = self.model.receive(byte);
            irq = received.irq.or(irq);
            if !received.accepted {
                break;
            }
            self.backlog.pop_front();
        }
        irq
    }
}
