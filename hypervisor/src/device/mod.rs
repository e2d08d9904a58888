//! The devices of a VM: models (crate `stile-device`) behind a lock each, and where their bytes and interrupt lines go.

pub mod alarm;

use core::sync::atomic::{AtomicU32, Ordering};

use stile_sched::lock::TicketLock;

use heapless::Deque;

use crate::arch::models::{Clock, UART_DATA, Uart as Model};
use crate::vm::Vm;
use crate::{arch, console, wall_clock};

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
    /// A copy of the UART's flag register, which guests read before each byte.
    uart_flags: AtomicU32,
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
            uart_flags: AtomicU32::new(Model::new().flags()),
            clock: TicketLock::new(Clock::new(wall_clock::seconds() as u32, wall_clock::seconds())),
        }
    }

    /// Back to that state. What was typed and not read is kept: the next boot may want it.
    pub fn reset(&self) {
        let mut uart = self.uart.lock();
        uart.model = Model::new();
        self.uart_flags.store(uart.model.flags(), Ordering::Relaxed);
        drop(uart);
        *self.clock.lock() = Clock::new(wall_clock::seconds() as u32, wall_clock::seconds());
        alarm::set(self.vm, None);
    }

    /// The register with the UART's flags, without the lock.
    #[inline(always)]
    pub fn uart_flags(&self) -> u32 {
        self.uart_flags.load(Ordering::Relaxed)
    }

    /// Does something with the UART that may move its interrupt line, which `change` returns then, and its flags.
    fn with_uart<T>(&self, vm: &Vm, change: impl FnOnce(&mut Uart) -> (T, Option<bool>)) -> T {
        let mut uart = self.uart.lock();
        let (result, irq) = change(&mut uart);
        self.uart_flags.store(uart.model.flags(), Ordering::Relaxed);
        // The line is moved under the lock, so that its levels arrive in order.
        if let Some(level) = irq {
            arch::set_line(vm, Line::Uart, level);
        }
        result
    }

    /// A load from the UART.
    pub fn uart_read(&self, offset: u32, vm: &Vm) -> u32 {
        self.with_uart(vm, |uart| {
            let read = uart.model.read(offset);
            let refilled = if offset == UART_DATA { uart.refill() } else { None };
            (read.value, refilled.or(read.irq))
        })
    }

    /// A store to the UART.
    pub fn uart_write(&self, offset: u32, value: u32, vm: &Vm) {
        self.with_uart(vm, |uart| {
            let write = uart.model.write(offset, value);
            let mut irq = write.irq;
            if let Some(byte) = write.tx {
                let room = console::send(self.vm, byte);
                irq = uart.model.set_tx_full(!room).or(irq);
            }
            ((), uart.refill().or(irq))
        });
    }

    /// The line took some bytes: the transmitter may have room again.
    pub fn uart_drained(&self, vm: &Vm) {
        let room = console::has_room(self.vm);
        self.with_uart(vm, |uart| ((), uart.model.set_tx_full(!room)));
    }

    /// A byte came over the line for this VM. If its guest does not read, bytes beyond the backlog are lost.
    pub fn uart_receive(&self, byte: u8, vm: &Vm) {
        self.with_uart(vm, |uart| {
            let _ = uart.backlog.push_back(byte);
            ((), uart.refill())
        });
    }

    /// A load from the clock.
    pub fn clock_read(&self, offset: u32) -> u32 {
        self.clock.lock().read(offset, wall_clock::seconds())
    }

    /// A store to the clock.
    pub fn clock_write(&self, offset: u32, value: u32, vm: &Vm) {
        let mut clock = self.clock.lock();
        if let Some(level) = clock.write(offset, value, wall_clock::seconds()) {
            arch::set_line(vm, Line::Clock, level);
        }
        alarm::set(self.vm, clock.deadline());
    }

    /// The time of the clock's alarm may have come.
    pub fn clock_alarm(&self, vm: &Vm) {
        let mut clock = self.clock.lock();
        if let Some(level) = clock.expire(wall_clock::seconds()) {
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
