//! The machine's one serial line: Stile's log, the guests' consoles and the operator's messages share it (crate `stile-wire`).
//!
//! No CPU waits for the line while it holds the console's lock. Each VM's output is queued in a ring of its own, and
//! a full ring shows the guest a busy UART. Log lines that do not fit are dropped and counted. Operator messages are
//! never dropped: the sender retries, and releases the lock in between. No guest makes a CPU do that: the only
//! messages that guests cause are changes of their VM's state, for which there is always room.

use core::fmt::{self, Write};

use stile_board::MAX_VMS;
use stile_lock::TicketLock;
use stile_wire::{Channel, Command, Decoder, Encoder, Event, Item, RateLimit, Text, Transmitter};

use crate::arch::Arch;
use crate::arch::contract::{Counter, SerialLine};
use crate::{figures, screen};

/// Capacity of a VM's output ring, in bytes.
const RING: usize = 2048;
/// Capacity of Stile's own output ring, in bytes.
const OWN: usize = 4096;
/// Number of bytes that a driver writes once its UART is ready, without another look: a 16550's FIFO, half of a PL011's.
const BURST: usize = 16;
/// Maximum number of bytes sent at once: bounds the time for which the console is locked. More than any UART's FIFO
/// holds, so that output that remains implies a full FIFO or a pending transmit interrupt.
const BATCH: usize = 256;

/// Maximum number of bytes received, and one of commands executed, for an interrupt: a UART with more to receive
/// interrupts again.
const RECEIVED_AT_ONCE: usize = 32;
/// Free part of Stile's output ring, in bytes, without which nothing is received: room for the answer to a command.
const ANSWER: usize = 1024;

struct Console {
    transmitter: Transmitter<MAX_VMS, RING, OWN>,
    decoder: Decoder,
    /// Rate limit of the log lines that each VM's guest causes.
    limits: [RateLimit; MAX_VMS],
    /// VMs whose UARTs wait for room, a bit each: an interrupt visits no others.
    waiting: VmBits,
    /// Output is queued, or a VM waits for room; the transmit interrupt is enabled.
    blocked: bool,
    /// There is no room for an answer; the receive interrupt is disabled.
    deaf: bool,
    /// UART interrupts are enabled.
    listening: bool,
}

/// A bit for each VM.
type VmBits = [u64; MAX_VMS.div_ceil(64)];

static CONSOLE: TicketLock<Console> = TicketLock::new(Console {
    transmitter: Transmitter::new(),
    decoder: Decoder::new(),
    limits: [const { RateLimit::new() }; MAX_VMS],
    waiting: [0; MAX_VMS.div_ceil(64)],
    blocked: false,
    deaf: false,
    listening: false,
});

/// Input from the line.
#[allow(clippy::large_enum_variant, reason = "as in crate `wire`")]
pub enum Input {
    /// A byte for a VM's console.
    Guest(usize, u8),
    /// A request of the operator.
    Command(Command),
}

impl Console {
    /// Sends as much as the UART accepts, and enables its transmit interrupt if output remains. Returns whether
    /// output remains.
    fn drain(&mut self) -> bool {
        let before = (self.blocked, self.deaf);
        let waits = self.transmitter.drain(BATCH, Arch::try_send);
        if self.listening {
            // Also for VMs alone: another CPU may have sent all that they wait for.
            (self.blocked, self.deaf) = (waits || self.waiting != VmBits::default(), !self.has_room_for_answer());
            if (self.blocked, self.deaf) != before {
                self.select_interrupts();
            }
        }
        waits
    }

    /// Whether a VM's ring has room for a burst. If not, the VM waits: an interrupt follows when there is.
    fn has_room(&mut self, vm: usize) -> bool {
        let room = self.transmitter.has_room(vm, BURST);
        if !room {
            self.wait(vm);
        }
        room
    }

    fn wait(&mut self, vm: usize) {
        if let Some(word) = self.waiting.get_mut(vm / 64) {
            *word |= 1 << (vm % 64);
        }
    }

    fn has_room_for_answer(&self) -> bool {
        self.transmitter.has_room_for_messages(ANSWER)
    }

    fn select_interrupts(&self) {
        Arch::set_interrupts(!self.deaf, self.blocked);
    }
}

fn send_now(byte: u8) {
    while !Arch::try_send(byte) {
        core::hint::spin_loop();
    }
}

/// Queues a byte that a VM's guest wrote. Returns as [`has_room`].
pub fn send(vm: usize, byte: u8) -> bool {
    screen::guest(byte);
    let mut console = CONSOLE.lock();
    console.transmitter.guest(vm, byte);
    console.drain();
    console.has_room(vm)
}

/// Handles a UART interrupt. Calls `input` for a bounded part of what arrived, and `drained` for each VM that waited for
/// room, after the console's lock was released.
pub fn interrupt(mut input: impl FnMut(Input), mut drained: impl FnMut(usize)) {
    for _ in 0..RECEIVED_AT_ONCE {
        let item = {
            let mut console = CONSOLE.lock();
            let Some(byte) = console.has_room_for_answer().then(Arch::try_receive).flatten() else { break };
            match console.decoder.push(byte) {
                Some(Item::Byte(channel, byte)) => channel.vm().map(|vm| Input::Guest(usize::from(vm), byte)),
                Some(item) => item.command().and_then(Result::ok).map(Input::Command),
                None => None,
            }
        };
        let Some(item) = item else { continue };
        let is_command = matches!(item, Input::Command(_));
        input(item);
        if is_command {
            break;
        }
    }
    let mut waiting = {
        let mut console = CONSOLE.lock();
        // `drained` checks each VM's ring; a VM whose ring has no room yet waits again.
        let waiting = core::mem::take(&mut console.waiting);
        console.drain();
        // Clears the interrupt, and requests the next one if bytes are left.
        console.select_interrupts();
        waiting
    };
    for (index, word) in waiting.iter_mut().enumerate() {
        while *word != 0 {
            drained(index * 64 + word.trailing_zeros() as usize);
            *word &= *word - 1;
        }
    }
}

/// Whether there is room for the answer to a command. If not, a UART interrupt follows when there is.
pub fn has_room_for_answer() -> bool {
    CONSOLE.lock().has_room_for_answer()
}

/// Enables reception, and transmission by interrupts.
pub fn listen() {
    flush();
    let mut console = CONSOLE.lock();
    console.listening = true;
    Arch::set_interrupts(true, false);
}

/// Whether a VM's ring has room for all that its driver writes once the UART is ready. If not, an interrupt follows when
/// it has.
pub fn has_room(vm: usize) -> bool {
    CONSOLE.lock().has_room(vm)
}

/// Requests an interrupt for a VM whose UART may wait for room, after a change of its state other than by the guest's writes.
pub fn expect_room(vm: usize) {
    let mut console = CONSOLE.lock();
    console.wait(vm);
    console.drain();
}

/// Waits until all output is sent.
pub fn flush() {
    while CONSOLE.lock().drain() {
        core::hint::spin_loop();
    }
}

/// Sends the operator a message. Waits for room if necessary, with the console unlocked; never to send
/// [`Event::Vm`].
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

/// Sends the operator a message if the line has room, without waiting. Returns whether it was sent. Not for [`Event::Vm`].
#[allow(dead_code, reason = "not every architecture has served devices")]
pub fn try_event(event: &Event) -> bool {
    let mut console = CONSOLE.lock();
    let taken = console.transmitter.event(event);
    console.drain();
    taken.is_ok()
}

/// Sends the last [`Event::Vm`] of a VM again.
pub fn repeat_state(vm: usize) {
    let mut console = CONSOLE.lock();
    console.transmitter.repeat_state(vm);
    console.drain();
}

/// Sends the operator a line of text.
struct Sentence(heapless::Vec<u8, { Text::MOST }>);

impl Write for Sentence {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.extend(text.bytes().take(Text::MOST - self.0.len()));
        Ok(())
    }
}

/// Reports to the operator why a command failed.
pub fn refuse(tag: u32, why: fmt::Arguments<'_>) {
    let mut sentence = Sentence(heapless::Vec::new());
    let _ = sentence.write_fmt(why);
    event(&Event::Refused { tag, why: Text::new(&sentence.0) });
}

/// Writes a line to Stile's log; drops and counts it if it does not fit.
pub fn write_log(arguments: fmt::Arguments<'_>) {
    write_log_if(|_| true, arguments);
}

/// Writes a line that a VM's guest caused to Stile's log: rate-limited to one a second after a short burst.
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
        figures::describe(arguments);
        // The screen first, as a serial line may be stuck.
        screen::write(arguments);
        // During boot there is no transmit interrupt that would send queued output.
        flush();
    }
}

/// Log and operator channel during a panic, whichever CPU holds the lock: all other CPUs are stopped, or will be.
pub struct Emergency(Encoder);

impl Emergency {
    /// Sends Stile's queued records, unless this or another CPU has the console locked. Starts with a channel
    /// selection, because the selected channel is unknown.
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

    /// Sends a message as [`event`] does, without the lock.
    pub fn event(&mut self, event: &Event) {
        self.0.event(event, &mut send_now);
    }
}

impl Write for Emergency {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        screen::write_now(text);
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
