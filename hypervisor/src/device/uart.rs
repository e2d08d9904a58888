//! A VM's UART: the architecture's model behind a lock, connected to the VM's console.

use core::sync::atomic::{AtomicU32, Ordering};

use heapless::Deque;
use stile_lock::TicketLock;

use crate::arch::models::{UART_DATA, Uart as Model};
use crate::console;

/// Input backlog for a guest that does not read, in bytes.
pub const BACKLOG: usize = 1024;

struct State {
    model: Model,
    backlog: Deque<u8, BACKLOG>,
}

/// The UART.
pub struct Uart {
    /// Number of the VM, and of its console.
    vm: usize,
    state: TicketLock<State>,
    /// Copy of the flag register, which guests poll before each byte.
    flags: AtomicU32,
}

impl Uart {
    /// Returns the UART of VM `vm` in its reset state.
    pub fn new(vm: usize) -> Uart {
        let model = Model::new();
        let flags = AtomicU32::new(model.flags());
        Uart { vm, state: TicketLock::new(State { model, backlog: Deque::new() }), flags }
    }

    /// Resets the UART. Unread input is kept for the next boot.
    pub fn reset(&self) {
        let mut state = self.state.lock();
        state.model = Model::new();
        self.flags.store(state.model.flags(), Ordering::Relaxed);
    }

    /// Reads the flag register without the lock.
    #[inline(always)]
    pub fn flags(&self) -> u32 {
        self.flags.load(Ordering::Relaxed)
    }

    /// Changes the state: `change` returns the new level of the interrupt line, which `set_line` sets
    /// ([`Line::Uart`](super::Line::Uart)). Updates the copy of the flags.
    fn with<T>(&self, set_line: impl FnOnce(bool), change: impl FnOnce(&mut State) -> (T, Option<bool>)) -> T {
        let mut state = self.state.lock();
        let (result, irq) = change(&mut state);
        self.flags.store(state.model.flags(), Ordering::Relaxed);
        // Under the lock, so that levels arrive in order.
        if let Some(level) = irq {
            set_line(level);
        }
        result
    }

    /// Reads the register at `offset` for the guest. `set_line` sets [`Line::Uart`](super::Line::Uart).
    pub fn read(&self, offset: u32, set_line: impl FnOnce(bool)) -> u32 {
        self.with(set_line, |state| {
            let read = state.model.read(offset);
            let refilled = if offset == UART_DATA { state.refill() } else { None };
            (read.value, refilled.or(read.irq))
        })
    }

    /// Writes the register at `offset` for the guest. `set_line` sets [`Line::Uart`](super::Line::Uart).
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

    /// Calls `act` with the model and the input that waits for its FIFO, and updates the copy of the flags. Does not set the
    /// interrupt line. An interrupt of the console then updates the transmitter's flags for its room.
    #[allow(dead_code, reason = "not every architecture has snapshots")]
    pub fn inspect<T>(&self, act: impl FnOnce(&mut Model, &mut Deque<u8, BACKLOG>) -> T) -> T {
        let result = self.with(|_| {}, |state| (act(&mut state.model, &mut state.backlog), None));
        console::expect_room(self.vm);
        result
    }

    /// Called when the serial line accepted output, of a VM that waits for room. `set_line` sets
    /// [`Line::Uart`](super::Line::Uart).
    pub fn drained(&self, set_line: impl FnOnce(bool)) {
        let room = console::has_room(self.vm);
        self.with(set_line, |state| ((), state.model.set_tx_full(!room)));
    }

    /// Receives a byte for the guest from the serial line. Input beyond the backlog is dropped. `set_line` sets
    /// [`Line::Uart`](super::Line::Uart).
    pub fn receive(&self, byte: u8, set_line: impl FnOnce(bool)) {
        self.with(set_line, |state| {
            let _ = state.backlog.push_back(byte);
            ((), state.refill())
        });
    }
}

impl State {
    /// Moves bytes from the backlog to the FIFO. Returns the level of the interrupt line if it changed.
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
