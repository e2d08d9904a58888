//! The machine's one serial line: Stile's log, the guests' consoles and the operator's messages share it (crate `stile-wire`).
//!
//! What guests write waits in a ring of its own for each VM, and a full ring shows the guest a busy UART: no guest makes Stile wait
//! for the line, and none can take another's place on it.

use core::fmt::{self, Write};

use heapless::Deque;
use stile_board::MAX_VMS;
use stile_sched::lock::TicketLock;
use stile_wire::{Channel, Command, Decoder, Encoder, Event, Item};

use crate::arch::uart;

/// Bytes of a guest that may wait for the line.
const RING: usize = 2048;
/// The most bytes that the encoder makes of one.
const EXPANSION: usize = 4;

struct Console {
    encoder: Encoder,
    decoder: Decoder,
    /// What is encoded, but not yet on the line.
    encoded: Deque<u8, 64>,
    rings: [Deque<u8, RING>; MAX_VMS],
    /// The VM whose bytes are being sent.
    turn: usize,
    /// Bytes wait for the line, which interrupts when it has room.
    blocked: bool,
}

static CONSOLE: TicketLock<Console> = TicketLock::new(Console {
    encoder: Encoder::new(),
    decoder: Decoder::new(),
    encoded: Deque::new(),
    rings: [const { Deque::new() }; MAX_VMS],
    turn: 0,
    blocked: false,
});

/// What came in over the line.
pub enum Input {
    /// A byte for a VM's console.
    Guest(usize, u8),
    /// The operator wants something.
    Command(Command),
}

impl Console {
    /// Sends as much as the line takes. Returns whether something has to wait.
    fn drain(&mut self) -> bool {
        loop {
            while let Some(&byte) = self.encoded.front() {
                if !uart::try_send(byte) {
                    return true;
                }
                self.encoded.pop_front();
            }
            // One VM's bytes go on until there are none: each change of the channel costs bytes on the line.
            let Some(vm) = (0..MAX_VMS).map(|n| (self.turn + n) % MAX_VMS).find(|&vm| !self.rings[vm].is_empty()) else {
                return false;
            };
            if vm != self.turn {
                self.turn = vm;
            }
            while self.encoded.capacity() - self.encoded.len() >= EXPANSION {
                let Some(byte) = self.rings[vm].pop_front() else { break };
                let encoded = &mut self.encoded;
                self.encoder.byte(Channel::console(vm as u8), byte, &mut |byte| {
                    let _ = encoded.push_back(byte);
                });
            }
            if self.rings[vm].is_empty() {
                self.turn = (vm + 1) % MAX_VMS;
            }
        }
    }

    /// Sends all that was encoded before, so that Stile's own bytes can follow.
    fn flush_encoded(&mut self) {
        while let Some(byte) = self.encoded.pop_front() {
            send_now(byte);
        }
    }
}

fn send_now(byte: u8) {
    while !uart::try_send(byte) {
        core::hint::spin_loop();
    }
}

/// A VM's guest wrote a byte. Returns whether there is room for another.
pub fn send(vm: usize, byte: u8) -> bool {
    let mut console = CONSOLE.lock();
    let _ = console.rings[vm].push_back(byte);
    let waits = console.drain();
    if waits != console.blocked {
        console.blocked = waits;
        uart::set_interrupts(true, waits);
    }
    !console.rings[vm].is_full()
}

/// The UART's interrupt came. `input` is called for all that arrived, after the console's lock was let go.
pub fn interrupt(mut input: impl FnMut(Input)) {
    loop {
        let mut console = CONSOLE.lock();
        let Some(byte) = uart::try_receive() else {
            let waits = console.drain();
            console.blocked = waits;
            uart::set_interrupts(true, waits);
            return;
        };
        let item = match console.decoder.push(byte) {
            Some(Item::Byte(channel, byte)) => channel.vm().map(|vm| Input::Guest(usize::from(vm), byte)),
            Some(item) => item.command().and_then(Result::ok).map(Input::Command),
            None => None,
        };
        drop(console);
        if let Some(item) = item {
            input(item);
        }
    }
}

/// Starts to take input.
pub fn listen() {
    uart::set_interrupts(true, false);
}

/// Whether a VM's ring has room.
pub fn has_room(vm: usize) -> bool {
    !CONSOLE.lock().rings[vm].is_full()
}

/// Waits until everything is on the line.
pub fn flush() {
    while CONSOLE.lock().drain() {
        core::hint::spin_loop();
    }
}

/// Tells the operator.
pub fn event(event: &Event) {
    let mut console = CONSOLE.lock();
    console.flush_encoded();
    console.encoder.event(event, &mut send_now);
}

struct Log<'a>(&'a mut Console);

impl Write for Log<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.encoder.bytes(Channel::LOG, text.as_bytes(), &mut send_now);
        Ok(())
    }
}

/// Writes to Stile's log. Waits for the line: not for the exit path.
pub fn write_log(arguments: fmt::Arguments<'_>) {
    let mut console = CONSOLE.lock();
    console.flush_encoded();
    let _ = Log(&mut console).write_fmt(arguments);
}

/// The log and the operator's channel for a panic, whoever holds the lock: all other CPUs have stopped, or will.
pub struct Emergency(Encoder);

impl Emergency {
    /// Begins with a channel selection, since nobody knows which one is selected.
    pub fn new() -> Emergency {
        let mut encoder = Encoder::new();
        encoder.resync();
        Emergency(encoder)
    }

    /// As [`event`].
    pub fn event(&mut self, event: &Event) {
        self.0.event(event, &mut send_now);
    }
}

impl Write for Emergency {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.bytes(Channel::LOG, text.as_bytes(), &mut send_now);
        Ok(())
    }
}

/// Writes a line to Stile's log.
macro_rules! log {
    ($($argument:tt)*) => { $crate::console::write_log(format_args!("{}\n", format_args!($($argument)*))) };
}
pub(crate) use log;
