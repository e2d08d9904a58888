//! The sending side of the line: bounded rings for Stile's records and for each VM's bytes. Nothing in here waits for the line.

use core::fmt::{self, Write};

use heapless::{Deque, Vec};

use crate::{Channel, Encoder, Event, MAX_FRAME, VmState, frame};

/// The most bytes that the encoder makes of one step: a channel's selection, or a frame's end and the escaped byte before it.
const STEP: usize = 4;

/// Bytes of a VM's console after which its turn on the line ends, while another VM waits: at the next end of a line after `LINES_TURN`, and
/// at the latest after `TURN`.
const LINES_TURN: u16 = 192;
const TURN: u16 = 256;

/// Changes of a VM's state that are kept until they are sent; the last one of more replaces the one before.
const CHANGES: usize = 4;

/// The longest line of the log; the rest of a longer one is cut off.
pub const MAX_LINE: usize = 256;

/// A record does not fit: try again when the line has taken some bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// Queues for a line that carries Stile's records and the consoles of `VMS` virtual machines.
///
/// Stile's records have priority. They share `OWN` bytes, half of which the log leaves to messages. Each VM has `RING` bytes. VMs with
/// bytes to send take turns of a bounded number of bytes, so that none silences another by sending without end.
///
/// The state of a VM follows what the VM wrote before, and is sent in the VM's turn. Guests change it as often as they like, so it takes no
/// room among the records: the VM's number of resets, if not sent yet, is replaced.
#[derive(Debug)]
pub struct Transmitter<const VMS: usize, const RING: usize, const OWN: usize> {
    encoder: Encoder,
    /// Encoded, but not yet on the line.
    encoded: Deque<u8, 64>,
    /// Records: a [`Head`] each, and the number of bytes that it states.
    own: Deque<u8, OWN>,
    /// The record being encoded: its head, with the bytes that are left. None if these are 0.
    record: Head,
    /// Whether its encoding has begun.
    begun: bool,
    rings: [Deque<u8, RING>; VMS],
    /// Each VM's changes of state, oldest first.
    changes: [Deque<Change, CHANGES>; VMS],
    /// The last of them of each VM, also once it is sent; empty before the first.
    last: [Vec<VmState, 1>; VMS],
    /// VMs with bytes or changes of state to send: bit n is VM n.
    waiting: u128,
    /// Bytes that each VM has written, and those of them that were encoded. They wrap.
    written: [u32; VMS],
    encoded_of: [u32; VMS],
    /// The VM whose bytes are being sent, and the number that it has sent in its turn.
    turn: usize,
    sent: u16,
    /// Lines of the log that found no room, since the last one that did.
    dropped: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Log,
    Frame,
}

/// Header of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Head {
    kind: Kind,
    length: u16,
}

impl Head {
    /// No record.
    const NONE: Self = Self { kind: Kind::Log, length: 0 };
    /// Bytes that it takes.
    const SIZE: usize = 3;

    fn bytes(self) -> [u8; Self::SIZE] {
        let [l0, l1] = self.length.to_le_bytes();
        [u8::from(self.kind == Kind::Frame), l0, l1]
    }

    fn from_bytes([kind, l0, l1]: [u8; Self::SIZE]) -> Self {
        let kind = if kind == 0 { Kind::Log } else { Kind::Frame };
        Self { kind, length: u16::from_le_bytes([l0, l1]) }
    }
}

/// A change of a VM's state that is not sent yet.
#[derive(Clone, Copy, Debug)]
struct Change {
    state: VmState,
    /// It follows the VM's byte with this number.
    after: u32,
}

impl<const VMS: usize, const RING: usize, const OWN: usize> Transmitter<VMS, RING, OWN> {
    /// Room that the log, to which guests add lines, leaves to messages.
    const RESERVE: usize = OWN / 2;

    /// With nothing to send. All of it is zero: a static takes no room in an image.
    pub const fn new() -> Self {
        const { assert!(OWN >= 2 * (MAX_FRAME + MAX_LINE) && VMS <= u128::BITS as usize) };
        Self {
            encoder: Encoder::new(),
            encoded: Deque::new(),
            own: Deque::new(),
            record: Head::NONE,
            begun: false,
            rings: [const { Deque::new() }; VMS],
            changes: [const { Deque::new() }; VMS],
            last: [const { Vec::new() }; VMS],
            waiting: 0,
            written: [0; VMS],
            encoded_of: [0; VMS],
            turn: 0,
            sent: 0,
            dropped: 0,
        }
    }

    /// Appends a message to the operator. There is always room for a change of a VM's state.
    ///
    /// # Errors
    /// [`Full`]: nothing was appended.
    pub fn event(&mut self, event: &Event) -> Result<(), Full> {
        if let Event::Vm { vm, state } = *event
            && usize::from(vm) < VMS
        {
            self.change(usize::from(vm), state);
            self.last[usize::from(vm)] = core::iter::once(state).collect();
            return Ok(());
        }
        self.message(event)
    }

    /// Sends the last change of a VM's state again, unless it is still to be sent.
    pub fn repeat_state(&mut self, vm: usize) {
        if let Some(&state) = self.last.get(vm).and_then(|last| last.first())
            && self.changes[vm].is_empty()
        {
            self.change(vm, state);
        }
    }

    fn message(&mut self, event: &Event) -> Result<(), Full> {
        let mut buffer = [0; MAX_FRAME];
        let Some(bytes) = frame::pack(event, &mut buffer) else {
            debug_assert!(false, "a message does not fit into a frame");
            return Ok(());
        };
        self.push(Kind::Frame, bytes, 0)
    }

    /// Notes the state of a VM, to be sent after what it has written.
    fn change(&mut self, vm: usize, state: VmState) {
        let change = Change { state, after: self.written[vm] };
        let changes = &mut self.changes[vm];
        let is_full = changes.is_full();
        match changes.back_mut() {
            // It keeps its place: a guest that writes and resets all the time would postpone it forever.
            Some(last) if matches!((last.state, state), (VmState::Restarted(_), VmState::Restarted(_))) => last.state = state,
            Some(last) if is_full => *last = change,
            _ => {
                let _ = changes.push_back(change);
            }
        }
        self.waiting |= 1 << vm;
    }

    /// Appends a line to the log, or counts it as dropped if space is insufficient.
    pub fn log(&mut self, arguments: fmt::Arguments<'_>) {
        if self.dropped != 0 {
            let mut note = Line::default();
            let _ = writeln!(note, "({} lines dropped)", self.dropped);
            if self.push(Kind::Log, &note.0, Self::RESERVE).is_err() {
                self.dropped = self.dropped.saturating_add(1);
                return;
            }
            self.dropped = 0;
        }
        let mut line = Line::default();
        if line.write_fmt(arguments).is_err() {
            line.0.pop();
            let _ = line.0.push(b'\n');
        }
        if self.push(Kind::Log, &line.0, Self::RESERVE).is_err() {
            self.dropped = 1;
        }
    }

    /// Appends a record if `reserve` bytes are left after it.
    fn push(&mut self, kind: Kind, bytes: &[u8], reserve: usize) -> Result<(), Full> {
        if bytes.is_empty() {
            return Ok(());
        }
        let free = self.own.capacity() - self.own.len();
        if free < Head::SIZE + bytes.len() + reserve {
            return Err(Full);
        }
        let head = Head { kind, length: bytes.len() as u16 };
        for byte in head.bytes().iter().chain(bytes) {
            // There is room.
            let _ = self.own.push_back(*byte);
        }
        Ok(())
    }

    /// Appends a byte of a VM's console, which is lost without [room](Self::has_room).
    pub fn guest(&mut self, vm: usize, byte: u8) {
        if let (Some(ring), Some(written)) = (self.rings.get_mut(vm), self.written.get_mut(vm))
            && ring.push_back(byte).is_ok()
        {
            *written = written.wrapping_add(1);
            self.waiting |= 1 << vm;
        }
    }

    /// Whether `bytes` bytes of messages have room.
    pub fn has_room_for_messages(&self, bytes: usize) -> bool {
        self.own.capacity() - self.own.len() >= bytes
    }

    /// Whether there is space for `bytes` further bytes of a VM's console.
    pub fn has_room(&self, vm: usize, bytes: usize) -> bool {
        self.rings.get(vm).is_some_and(|ring| ring.capacity() - ring.len() >= bytes)
    }

    /// Gives up to `most` bytes to the line until `try_send` refuses one. Returns whether something is left.
    pub fn drain(&mut self, most: usize, mut try_send: impl FnMut(u8) -> bool) -> bool {
        let mut sent = 0;
        loop {
            while let Some(&byte) = self.encoded.front() {
                if sent == most || !try_send(byte) {
                    return true;
                }
                sent += 1;
                self.encoded.pop_front();
            }
            self.encode();
            if self.encoded.is_empty() {
                return false;
            }
        }
    }

    /// Whether any of Stile's own records is not on the line yet.
    pub fn owes_records(&self) -> bool {
        !self.own.is_empty() || self.record.length != 0 || !self.encoded.is_empty()
    }

    /// Encodes the next output, as far as it fits.
    fn encode(&mut self) {
        if self.encode_records() {
            return;
        }
        // Send some bytes of one VM before the next: each change of the channel costs bytes on the line.
        let Some(vm) = self.next_waiting() else { return };
        if self.turn != vm {
            (self.turn, self.sent) = (vm, 0);
        }
        let mut over = match self.pop_change(vm) {
            // There is room: all records are encoded.
            Some(state) => {
                let before = self.own.len();
                let _ = self.message(&Event::Vm { vm: vm as u8, state });
                self.sent += (self.own.len() - before) as u16;
                self.encode_records();
                self.sent >= TURN
            }
            None => self.encode_bytes(vm),
        };
        if self.rings[vm].is_empty() && self.changes[vm].is_empty() {
            self.waiting &= !(1 << vm);
            over = true;
        }
        if over {
            (self.turn, self.sent) = ((vm + 1) % VMS, 0);
        }
    }

    /// Takes a VM's next change of state, if the bytes before it are encoded.
    fn pop_change(&mut self, vm: usize) -> Option<VmState> {
        let is_due = self.changes[vm].front().is_some_and(|change| change.after == self.encoded_of[vm]);
        is_due.then(|| self.changes[vm].pop_front().map(|change| change.state)).flatten()
    }

    /// Encodes bytes of a VM up to its next change of state, as far as they fit. Returns whether its turn is over.
    fn encode_bytes(&mut self, vm: usize) -> bool {
        let next = self.changes[vm].front().map(|change| change.after);
        while self.encoded.capacity() - self.encoded.len() >= STEP && next != Some(self.encoded_of[vm]) {
            let Some(byte) = self.rings[vm].pop_front() else { break };
            self.encoded_of[vm] = self.encoded_of[vm].wrapping_add(1);
            let encoded = &mut self.encoded;
            self.encoder.byte(Channel::console(vm as u8), byte, &mut |byte| {
                let _ = encoded.push_back(byte);
            });
            self.sent += 1;
            if self.sent >= TURN || self.sent >= LINES_TURN && byte == b'\n' {
                return true;
            }
        }
        false
    }

    /// The first VM with something to send from [`turn`](Self::turn) on.
    fn next_waiting(&self) -> Option<usize> {
        let from_turn = self.waiting & u128::MAX << self.turn;
        let next = if from_turn != 0 { from_turn } else { self.waiting };
        (next != 0).then_some(next.trailing_zeros() as usize)
    }

    /// Takes the next record's head.
    fn pop_head(&mut self) -> Option<Head> {
        let mut bytes = [0; Head::SIZE];
        for byte in &mut bytes {
            *byte = self.own.pop_front()?;
        }
        Some(Head::from_bytes(bytes))
    }

    /// Encodes Stile's records, as far as they fit. Returns whether any of them was encoded.
    fn encode_records(&mut self) -> bool {
        let mut any = false;
        while self.encoded.capacity() - self.encoded.len() >= 2 * STEP {
            if self.record.length == 0 {
                let Some(head) = self.pop_head() else { return any };
                (self.record, self.begun) = (head, false);
            }
            let (head, begun) = (self.record, self.begun);
            any = true;
            let encoded = &mut self.encoded;
            let mut sink = |byte| {
                let _ = encoded.push_back(byte);
            };
            let Head { kind, length: left } = head;
            if !begun && kind == Kind::Frame {
                self.encoder.begin_frame(&mut sink);
            }
            match (kind, self.own.pop_front()) {
                (Kind::Log, Some(byte)) => self.encoder.byte(Channel::LOG, byte, &mut sink),
                (Kind::Frame, Some(byte)) => self.encoder.frame_byte(byte, &mut sink),
                (_, None) => {}
            }
            (self.record.length, self.begun) = (left - 1, true);
            if left == 1 && kind == Kind::Frame {
                self.encoder.end_frame(&mut sink);
            }
        }
        any
    }
}

impl<const VMS: usize, const RING: usize, const OWN: usize> Default for Transmitter<VMS, RING, OWN> {
    fn default() -> Self {
        Self::new()
    }
}

/// A line of the log; what does not fit is an error.
#[derive(Default)]
struct Line(heapless::Vec<u8, MAX_LINE>);

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            self.0.push(byte).map_err(|_| fmt::Error)?;
        }
        Ok(())
    }
}

/// Limits the lines that a guest can cause: a burst, and then one for each interval.
#[derive(Clone, Copy, Debug, Default)]
pub struct RateLimit {
    /// Lines used of the burst.
    used: u8,
    /// Time at which the last of these was given back.
    since: u64,
}

impl RateLimit {
    /// Burst size in lines.
    pub const BURST: u8 = 8;

    /// Nothing used.
    pub const fn new() -> Self {
        Self { used: 0, since: 0 }
    }

    /// Takes a token for a line at `now`; one token is added every `interval`. Returns false without a token.
    pub fn take(&mut self, now: u64, interval: u64) -> bool {
        let passed = now.saturating_sub(self.since) / interval.max(1);
        if passed >= u64::from(self.used) {
            (self.used, self.since) = (0, now);
        } else {
            self.used -= passed as u8;
            self.since += passed * interval.max(1);
        }
        let taken = self.used < Self::BURST;
        self.used += u8::from(taken);
        taken
    }
}

#[cfg(test)]
mod tests;
