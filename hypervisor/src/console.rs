//! The machine's one serial line: Stile's log, the guests' consoles and the operator's messages share it (crate `stile-wire`).
//!
//! Nobody waits for the line with the console locked. What guests write waits in a ring of its own for each VM, and a full ring shows the guest a
//! busy UART. Lines of the log that find no room are dropped and counted. Messages to the operator are not lost: their sender tries again, and lets
//! go of the lock in between.

use core::fmt::{self, Write};

use stile_board::MAX_VMS;
use stile_sched::lock::TicketLock;
use stile_wire::{Channel, Command, Decoder, Encoder, Event, Item, RateLimit, Text, Transmitter};

use crate::arch::Arch;
use crate::arch::contract::{Counter, SerialLine};

/// Bytes of a guest that may wait for the line.
const RING: usize = 2048;
/// Bytes of Stile's own that may.
const OWN: usize = 4096;
/// The most bytes given to the line at once: bounds the time for which the console is locked. More than any UART's FIFO holds, so that the line is
/// full or the UART's interrupt is on its way when there is more.
const BATCH: usize = 256;

struct Console {
    transmitter: Transmitter<MAX_VMS, RING, OWN>,
    decoder: Decoder,
    /// Limits the lines that each VM's guest causes.
    limits: [RateLimit; MAX_VMS],
    /// Bytes wait for the line, which interrupts when it has room.
    blocked: bool,
    /// The UART's interrupts come.
    listening: bool,
}

static CONSOLE: TicketLock<Console> = TicketLock::new(Console {
    transmitter: Transmitter::new(),
    decoder: Decoder::new(),
    limits: [const { RateLimit::new() }; MAX_VMS],
    blocked: false,
    listening: false,
});

/// Input from the line.
#[allow(clippy::large_enum_variant, reason = "as in crate `wire`")]
pub enum Input {
    /// A byte for a VM's console.
    Guest(usize, u8),
    /// The operator wants something.
    Command(Command),
}

impl Console {
    /// Sends as much as the line takes, and asks for its interrupt if something has to wait. Returns whether it has.
    fn drain(&mut self) -> bool {
        let waits = self.transmitter.drain(BATCH, Arch::try_send);
        if self.listening && waits != self.blocked {
            self.blocked = waits;
            Arch::set_interrupts(true, waits);
        }
        waits
    }
}

fn send_now(byte: u8) {
    while !Arch::try_send(byte) {
        core::hint::spin_loop();
    }
}

/// A VM's guest wrote a byte. Returns whether there is room for another.
pub fn send(vm: usize, byte: u8) -> bool {
    let mut console = CONSOLE.lock();
    console.transmitter.guest(vm, byte);
    console.drain();
    console.transmitter.has_room(vm)
}

/// The UART's interrupt came. `input` is called for all that arrived, after the console's lock was let go.
pub fn interrupt(mut input: impl FnMut(Input)) {
    loop {
        let mut console = CONSOLE.lock();
        let Some(byte) = Arch::try_receive() else {
            console.blocked = console.transmitter.drain(BATCH, Arch::try_send);
            Arch::set_interrupts(true, console.blocked);
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

/// Starts to take input, and to send by interrupts.
pub fn listen() {
    flush();
    let mut console = CONSOLE.lock();
    console.listening = true;
    Arch::set_interrupts(true, false);
}

/// Whether a VM's ring has room.
pub fn has_room(vm: usize) -> bool {
    CONSOLE.lock().transmitter.has_room(vm)
}

/// Waits until everything is on the line.
pub fn flush() {
    while CONSOLE.lock().drain() {
        core::hint::spin_loop();
    }
}

/// Tells the operator. Waits until there is room, if need be, but keeps nobody else from the console.
pub fn event(event: &Event) {
    let listening = loop {
        let mut console = CONSOLE.lock();
        let taken = console.transmitter.event(event);
        console.drain();
        if taken.is_ok() {
            break console.listening;
        }
        drop(console);
        core::hint::spin_loop();
    };
    if !listening {
        flush();
    }
}

/// A sentence for the operator.
struct Sentence(heapless::Vec<u8, { Text::MOST }>);

impl Write for Sentence {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.extend(text.bytes().take(Text::MOST - self.0.len()));
        Ok(())
    }
}

/// Tells the operator why a command is not carried out.
pub fn refuse(tag: u32, why: fmt::Arguments<'_>) {
    let mut sentence = Sentence(heapless::Vec::new());
    let _ = sentence.write_fmt(why);
    event(&Event::Refused { tag, why: Text::new(&sentence.0) });
}

/// Writes to Stile's log. The line is dropped, and counted, if there is no room.
pub fn write_log(arguments: fmt::Arguments<'_>) {
    write_log_if(|_| true, arguments);
}

/// Writes to Stile's log what a VM's guest caused: a few lines at once, and then one a second.
pub fn write_log_of(vm: usize, arguments: fmt::Arguments<'_>) {
    let take = |limit: &mut RateLimit| limit.take(Arch::now(), Arch::frequency());
    write_log_if(|console| console.limits.get_mut(vm).is_none_or(take), arguments);
}

fn write_log_if(wanted: impl FnOnce(&mut Console) -> bool, arguments: fmt::Arguments<'_>) {
    let mut console = CONSOLE.lock();
    if !wanted(&mut console) {
        return;
    }
    console.transmitter.log(arguments);
    console.drain();
    let listening = console.listening;
    drop(console);
    if !listening {
        // While Stile starts, nothing else sends what waits.
        flush();
    }
}

/// The log and the operator's channel for a panic, whoever holds the lock: all other CPUs have stopped, or will.
pub struct Emergency(Encoder);

impl Emergency {
    /// Sends Stile's records that wait, unless this or another CPU has the console locked. Begins with a channel selection, since nobody knows
    /// which one is selected.
    pub fn new() -> Emergency {
        if let Some(mut console) = CONSOLE.try_lock() {
            while console.transmitter.owes_records() {
                console.transmitter.drain(1, Arch::try_send);
            }
        }
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

/// Writes a line that a VM's guest caused to Stile's log.
macro_rules! log_of {
    ($vm:expr, $($argument:tt)*) => { $crate::console::write_log_of($vm.number, format_args!("{}\n", format_args!($($argument)*))) };
}
pub(crate) use log_of;
