//! A VM's UART: the architecture's model behind a lock, with the console on its line.

use core::sync::atomic::{AtomicU32, Ordering};

use heapless::Deque;
use stile_sched::lock::TicketLock;

use crate::arch::models::{UART_DATA, Uart as Model};
use crate::console;

/// Bytes for a guest that it has not yet read.
const BACKLOG: usize = 1024;

struct State {
    model: Model,
    backlog: Deque<u8, BACKLOG>,
}

/// The UART.
pub struct Uart {
    /// Its VM's number, which is that of the console.
    vm: usize,
    state: TicketLock<State>,
    /// A copy of the flag register, which guests read before each byte.
    flags: AtomicU32,
}

impl Uart {
    /// The UART of VM `vm` after reset.
    pub fn new(vm: usize) -> Uart {
        let model = Model::new();
        let flags = AtomicU32::new(model.flags());
        Uart { vm, state: TicketLock::new(State { model, backlog: Deque::new() }), flags }
    }

    /// Resets it. Bytes that the guest has not read are kept: the next boot may want them.
    pub fn reset(&self) {
        let mut state = self.state.lock();
        state.model = Model::new();
        self.flags.store(state.model.flags(), Ordering::Relaxed);
    }

    /// Returns the flag register, without the lock.
    #[inline(always)]
    pub fn flags(&self) -> u32 {
        self.flags.load(Ordering::Relaxed)
    }

    /// Changes the state, which may change the flags and move the interrupt line: `change` returns its new level, `set_line` moves [`Line::Uart`](super::Line::Uart).
    fn with<T>(&self, set_line: impl FnOnce(bool), change: impl FnOnce(&mut State) -> (T, Option<bool>)) -> T {
        let mut state = self.state.lock();
        let (result, irq) = change(&mut state);
        self.flags.store(state.model.flags(), Ordering::Relaxed);
        // The line is moved under the lock, so that its levels arrive in order.
        if let Some(level) = irq {
            set_line(level);
        }
        result
    }

    /// The guest reads the register at `offset`. `set_line` moves [`Line::Uart`](super::Line::Uart).
    pub fn read(&self, offset: u32, set_line: impl FnOnce(bool)) -> u32 {
        self.with(set_line, |state| {
            let read = state.model.read(offset);
            let refilled = if offset == UART_DATA { state.refill() } else { None };
            (read.value, refilled.or(read.irq))
        })
    }

    /// The guest writes the register at `offset`. `set_line` moves [`Line::Uart`](super::Line::Uart).
    pub fn write(&self, offset: u32, value: u32, set_line: impl FnOnce(bool)) {
        self.with(set_line, |state| {
            let write = state.model.write(offset, value);
            let mut irq = write.irq;
            if let Some(byte) = write.tx {
                let room = console::send(self.vm, byte);
                irq = state.model.set_tx_full(!room).or(irq);
            }
            ((), state.refill().or(irq))
        });
    }

    /// The line took some bytes: the transmitter may have room again. `set_line` moves [`Line::Uart`](super::Line::Uart).
    pub fn drained(&self, set_line: impl FnOnce(bool)) {
        let room = console::has_room(self.vm);
        self.with(set_line, |state| ((), state.model.set_tx_full(!room)));
    }

    /// A byte came over the line for this VM. If its guest does not read, bytes beyond the backlog are lost. `set_line` moves
    /// [`Line::Uart`](super::Line::Uart).
    pub fn receive(&self, byte: u8, set_line: impl FnOnce(bool)) {
        self.with(set_line, |state| {
            let _ = state.backlog.push_back(byte);
            ((), state.refill())
        });
    }
}

impl State {
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
