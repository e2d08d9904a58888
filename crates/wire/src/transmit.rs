//! The sending side of the line: bounded rings for Stile's records and for each VM's bytes. Nothing in here waits for the line.

use core::fmt::{self, Write};

use heapless::Deque;

use crate::{Channel, Encoder, Event, MAX_FRAME, frame};

/// The most bytes that the encoder makes of one step: a channel's selection, or a frame's end and the escaped byte before it.
const STEP: usize = 4;

/// The longest line of the log; the rest of a longer one is cut off.
pub const MAX_LINE: usize = 256;

/// A record does not fit: try again when the line has taken some bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// What waits for a line that carries Stile's records and the consoles of `VMS` virtual machines.
///
/// Stile's records go first. They share `OWN` bytes, of which the log leaves a part to messages; each VM has `RING` bytes of its own.
#[derive(Debug)]
pub struct Transmitter<const VMS: usize, const RING: usize, const OWN: usize> {
    encoder: Encoder,
    /// Encoded, but not yet on the line.
    encoded: Deque<u8, 64>,
    /// Records: kind, length (two bytes, little-endian), and as many bytes.
    own: Deque<u8, OWN>,
    /// The record being encoded, and its bytes that are left.
    record: Option<(Kind, u16)>,
    rings: [Deque<u8, RING>; VMS],
    /// The VM whose bytes are being sent.
    turn: usize,
    /// Lines of the log that found no room, since the last one that did.
    dropped: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Log,
    Frame,
}

impl<const VMS: usize, const RING: usize, const OWN: usize> Transmitter<VMS, RING, OWN> {
    /// Bytes that a record's kind and length take.
    const HEAD: usize = 3;
    /// Room that the log leaves to messages.
    const RESERVE: usize = MAX_FRAME + Self::HEAD;

    /// With nothing to send.
    pub const fn new() -> Self {
        const { assert!(OWN >= 2 * (MAX_FRAME + MAX_LINE)) };
        Self {
            encoder: Encoder::new(),
            encoded: Deque::new(),
            own: Deque::new(),
            record: None,
            rings: [const { Deque::new() }; VMS],
            turn: 0,
            dropped: 0,
        }
    }

    /// Appends a message to the operator.
    ///
    /// # Errors
    /// [`Full`]: nothing was appended.
    pub fn event(&mut self, event: &Event) -> Result<(), Full> {
        let mut buffer = [0; MAX_FRAME];
        let Some(bytes) = frame::pack(event, &mut buffer) else {
            debug_assert!(false, "a message does not fit into a frame");
            return Ok(());
        };
        self.push(Kind::Frame, bytes, 0)
    }

    /// Appends a line to the log, or counts it as dropped if there is no room.
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
        if free < Self::HEAD + bytes.len() + reserve {
            return Err(Full);
        }
        let length = (bytes.len() as u16).to_le_bytes();
        for byte in [u8::from(kind == Kind::Frame), length[0], length[1]].iter().chain(bytes) {
            // There is room.
            let _ = self.own.push_back(*byte);
        }
        Ok(())
    }

    /// Appends a byte of a VM's console. It is lost if there is no [room](Self::has_room).
    pub fn guest(&mut self, vm: usize, byte: u8) {
        if let Some(ring) = self.rings.get_mut(vm) {
            let _ = ring.push_back(byte);
        }
    }

    /// Whether there is room for another byte of a VM's console.
    pub fn has_room(&self, vm: usize) -> bool {
        self.rings.get(vm).is_some_and(|ring| !ring.is_full())
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
        !self.own.is_empty() || self.record.is_some() || !self.encoded.is_empty()
    }

    /// Encodes what comes next, as far as there is room.
    fn encode(&mut self) {
        if self.encode_records() {
            return;
        }
        // One VM's bytes go on until there are none: each change of the channel costs bytes on the line.
        let Some(vm) = (0..VMS).map(|n| (self.turn + n) % VMS).find(|&vm| !self.rings[vm].is_empty()) else { return };
        self.turn = vm;
        while self.encoded.capacity() - self.encoded.len() >= STEP {
            let Some(byte) = self.rings[vm].pop_front() else { break };
            let encoded = &mut self.encoded;
            self.encoder.byte(Channel::console(vm as u8), byte, &mut |byte| {
                let _ = encoded.push_back(byte);
            });
        }
        if self.rings[vm].is_empty() {
            self.turn = (vm + 1) % VMS;
        }
    }

    /// Encodes Stile's records. Returns whether there was one.
    fn encode_records(&mut self) -> bool {
        let mut any = false;
        while self.encoded.capacity() - self.encoded.len() >= 2 * STEP {
            let encoded = &mut self.encoded;
            let mut sink = |byte| {
                let _ = encoded.push_back(byte);
            };
            let (kind, left) = match self.record {
                Some(record) => record,
                None => {
                    let (Some(kind), Some(low), Some(high)) = (self.own.pop_front(), self.own.pop_front(), self.own.pop_front()) else {
                        return any;
                    };
                    let kind = if kind == 0 { Kind::Log } else { Kind::Frame };
                    if kind == Kind::Frame {
                        self.encoder.begin_frame(&mut sink);
                    }
                    (kind, u16::from_le_bytes([low, high]))
                }
            };
            any = true;
            match (kind, self.own.pop_front()) {
                (Kind::Log, Some(byte)) => self.encoder.byte(Channel::LOG, byte, &mut sink),
                (Kind::Frame, Some(byte)) => self.encoder.frame_byte(byte, &mut sink),
                (_, None) => {}
            }
            self.record = (left > 1).then(|| (kind, left - 1));
            if self.record.is_none() && kind == Kind::Frame {
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
    /// When the last of these was given back.
    since: u64,
}

impl RateLimit {
    /// Lines at once.
    pub const BURST: u8 = 8;

    /// Nothing used.
    pub const fn new() -> Self {
        Self { used: 0, since: 0 }
    }

    /// Takes a line of the limit at `now`; every `interval` gives one back. False if there is none.
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
mod tests {
    use std::collections::VecDeque;
    use std::format;
    use std::string::String;
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;
    use crate::{Decoder, Item, VmState};

    type Small = Transmitter<2, 16, 1600>;

    #[derive(Clone, Debug)]
    enum Op {
        Event(u8),
        Log(usize),
        Guest(usize, u8),
        /// The line takes so many bytes.
        Line(usize),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            3 => any::<u8>().prop_map(Op::Event),
            3 => (0..300usize).prop_map(Op::Log),
            6 => (0..2usize, prop_oneof![Just(crate::DLE), any::<u8>()]).prop_map(|(vm, byte)| Op::Guest(vm, byte)),
            2 => (0..200usize).prop_map(Op::Line),
        ]
    }

    /// What a reader of the line sees.
    #[derive(Default, Debug, PartialEq)]
    struct Seen {
        events: Vec<Event>,
        log: String,
        guests: [Vec<u8>; 2],
    }

    fn read(line: &[u8]) -> Seen {
        let mut decoder = Decoder::new();
        let mut seen = Seen::default();
        for byte in line {
            match decoder.push(*byte) {
                Some(Item::Byte(channel, byte)) => match channel.vm() {
                    Some(vm) => seen.guests[usize::from(vm)].push(byte),
                    None => seen.log.push(char::from(byte)),
                },
                Some(item) => seen.events.push(item.event().expect("an event").expect("a whole frame")),
                None => {}
            }
        }
        seen
    }

    fn numbered(vm: u8) -> Event {
        Event::Vm { vm, state: VmState::Exited(u32::from_le_bytes([crate::DLE; 4])) }
    }

    #[test]
    fn a_line_that_takes_nothing_keeps_nobody_waiting() {
        let mut transmitter = Small::new();
        for n in 0..10_000 {
            transmitter.log(format_args!("line {n}\n"));
            transmitter.guest(0, b'x');
            assert!(transmitter.drain(usize::MAX, |_| false));
        }
        // The log has left room for a message.
        assert_eq!(transmitter.event(&numbered(1)), Ok(()));
        while transmitter.event(&numbered(1)).is_ok() {}
        assert!(!transmitter.has_room(0) && transmitter.has_room(1));
        let mut line = Vec::new();
        assert!(!transmitter.drain(usize::MAX, |byte| {
            line.push(byte);
            true
        }));
        transmitter.log(format_args!("after\n"));
        transmitter.drain(usize::MAX, |byte| {
            line.push(byte);
            true
        });
        let seen = read(&line);
        assert!(seen.log.starts_with("line 0\nline 1\n"), "{}", seen.log);
        assert!(seen.log.ends_with(" lines dropped)\nafter\n"), "{}", seen.log);
        assert!(!seen.events.is_empty() && !transmitter.owes_records());
    }

    #[test]
    fn a_long_line_is_cut_off() {
        let mut transmitter = Small::new();
        transmitter.log(format_args!("{}\n", "x".repeat(1000)));
        let mut line = Vec::new();
        transmitter.drain(usize::MAX, |byte| {
            line.push(byte);
            true
        });
        assert_eq!(read(&line).log, format!("{}\n", "x".repeat(MAX_LINE - 1)));
    }

    #[test]
    fn a_flood_is_limited() {
        let mut limit = RateLimit::new();
        let taken = (0..1000).filter(|now| limit.take(*now, 100)).count();
        assert_eq!(taken, usize::from(RateLimit::BURST) + 9);
        assert!(limit.take(5000, 100));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        /// Whatever is sent, and however slow the line is: what was accepted arrives, once and in order.
        #[test]
        fn like_queues(ops in prop::collection::vec(op(), 0..200)) {
            let mut transmitter = Small::new();
            let (mut line, mut model) = (Vec::new(), Seen::default());
            let mut logged = VecDeque::new();
            for op in ops {
                match op {
                    Op::Event(vm) => {
                        if transmitter.event(&numbered(vm)).is_ok() {
                            model.events.push(numbered(vm));
                        }
                    }
                    Op::Log(length) => {
                        transmitter.log(format_args!("{}\n", "y".repeat(length)));
                        logged.push_back(length.min(MAX_LINE - 1));
                    }
                    Op::Guest(vm, byte) => {
                        if transmitter.has_room(vm) {
                            model.guests[vm].push(byte);
                        }
                        transmitter.guest(vm, byte);
                    }
                    Op::Line(bytes) => {
                        let before = line.len();
                        transmitter.drain(bytes, |byte| { line.push(byte); true });
                        prop_assert!(line.len() - before <= bytes);
                    }
                }
            }
            transmitter.drain(usize::MAX, |byte| { line.push(byte); true });
            let seen = read(&line);
            prop_assert_eq!(&seen.events, &model.events);
            prop_assert_eq!(&seen.guests, &model.guests);
            // Lines come whole and in order; some may be missing, as the line that follows says.
            for text in seen.log.lines() {
                if text.ends_with(" lines dropped)") {
                    let dropped: usize = text[1..].split(' ').next().and_then(|n| n.parse().ok()).expect("a number");
                    logged.drain(..dropped);
                } else {
                    prop_assert_eq!(logged.pop_front(), Some(text.len()));
                }
            }
        }
    }
}
