//! Every short byte string on the line, and every single damage of every message: bits flipped, bytes lost, doubled or cut off.

use stile_wire::{
    Channel, Command, CpuTime, Crash, CrashReason, DLE, Decoded, Decoder, Encoder, Event, FrameError, Item, LedgerRow, LedgerTotal, Level,
    Row, Version, VmState,
};

/// One example of each message, with values that need escapes and long encodings.
fn events() -> Vec<Event> {
    let crash = |reason| Crash { reason, vcpu: DLE, pc: u64::MAX, syndrome: 0x1010_1010, address: 0 };
    let reasons = [
        CrashReason::NoDevice,
        CrashReason::NoSyndrome,
        CrashReason::BadFetch,
        CrashReason::UnknownExit,
        CrashReason::SystemError,
        CrashReason::OutOfMemory,
        CrashReason::TripleFault,
        CrashReason::EntryFailed,
        CrashReason::VmxAbort,
    ];
    let states = [VmState::Started, VmState::PoweredOff, VmState::Reset, VmState::Exited(16), VmState::Restarted(u32::MAX)];
    let states = states.into_iter().chain(reasons.map(|reason| VmState::Crashed(crash(reason))));
    let rows = [Row::Static(1023), Row::Dynamic { kind: 3, key: 0x1010_1010 }];
    let mut events: Vec<_> = states.map(|state| Event::Vm { vm: DLE, state }).collect();
    events.extend(rows.map(|row| Event::LedgerRow(LedgerRow { vm: 1, vcpu: 7, row, count: DLE.into(), ticks: u64::MAX, min: 0, max: 1 })));
    events.extend([Level::Vhe, Level::Nvhe, Level::Vmx, Level::Svm].map(|level| Event::Hello {
        version: Version { major: 0, minor: 16, patch: 0x1010 },
        cpus: 8,
        level,
        vms: 4,
    }));
    events.extend([
        Event::LedgerTotal(LedgerTotal { vm: 0, vcpu: 0, taken: 16, counted: u64::MAX, outside_ticks: 1 << 32, alive_ticks: 0 }),
        Event::LedgerEnd,
        Event::CounterFrequency { hz: 0x10_1010 },
        Event::Panic { cpu: DLE.into() },
        Event::End { status: Event::PANICKED },
        Event::Memory { before: u64::MAX, now: 0 },
        Event::Decoded(Decoded { vm: 3, hits: 16, misses: 2048, evictions: 1, mismatches: u64::MAX, dropped: 0 }),
        Event::CpuTime(CpuTime { vm: DLE, ran: u64::MAX, waited: 16 }),
    ]);
    events
}

const COMMANDS: [Command; 5] = [Command::Stop { vm: DLE }, Command::Stop { vm: 255 }, Command::Ledger, Command::Shutdown, Command::Panic];

/// A message as sent, and as received.
trait Message: Copy + PartialEq + std::fmt::Debug {
    fn encode(self) -> Vec<u8>;
    fn of(item: &Item<'_>) -> Option<Result<Self, FrameError>>;
}

impl Message for Event {
    fn encode(self) -> Vec<u8> {
        let mut line = Vec::new();
        Encoder::new().event(&self, &mut |byte| line.push(byte));
        line
    }

    fn of(item: &Item<'_>) -> Option<Result<Self, FrameError>> {
        item.event()
    }
}

impl Message for Command {
    fn encode(self) -> Vec<u8> {
        let mut line = Vec::new();
        Encoder::new().command(&self, &mut |byte| line.push(byte));
        line
    }

    fn of(item: &Item<'_>) -> Option<Result<Self, FrameError>> {
        item.command()
    }
}

/// The messages on a line.
fn read<M: Message>(line: &[u8]) -> Vec<M> {
    let mut decoder = Decoder::new();
    line.iter().filter_map(|&byte| M::of(&decoder.push(byte)?)?.ok()).collect()
}

/// A damaged message is lost, or arrives unchanged; and the next one arrives.
fn check<M: Message>(message: M, mark: M, damaged: &[u8]) {
    let seen = read::<M>(&[damaged, &mark.encode()].concat());
    let (lost, arrived) = ([mark], [message, mark]);
    // A lost end swallows the frame's selection, never the next frame.
    assert!(seen == lost || seen == arrived, "{message:?} as {damaged:x?} is read as {seen:?}");
}

fn check_all<M: Message>(messages: &[M], mark: M) {
    for &message in messages {
        let line = message.encode();
        assert_eq!(read::<M>(&line), [message]);
        for at in 0..line.len() {
            for bit in 0..8 {
                let mut damaged = line.clone();
                damaged[at] ^= 1 << bit;
                check(message, mark, &damaged);
            }
            check(message, mark, &line[..at]);
            check(message, mark, &line[at..]);
            check(message, mark, &[&line[..at], &line[at + 1..]].concat());
            check(message, mark, &[&line[..=at], &line[at..]].concat());
            check(message, mark, &[&line[..at], &[DLE], &line[at..]].concat());
        }
    }
}

#[test]
fn every_damage_of_an_event() {
    check_all(&events(), Event::End { status: 3 });
}

#[test]
fn every_damage_of_a_command() {
    check_all(&COMMANDS, Command::Stop { vm: 1 });
}

/// Two flipped bits anywhere in a command never make another command: an operator who asks for the ledger does not stop a VM.
#[test]
fn every_two_bits_of_a_command() {
    for command in COMMANDS {
        let line = command.encode();
        for (first, second) in (0..line.len() * 8).flat_map(|first| (0..first).map(move |second| (first, second))) {
            let mut damaged = line.clone();
            damaged[first / 8] ^= 1 << (first % 8);
            damaged[second / 8] ^= 1 << (second % 8);
            let seen = read::<Command>(&damaged);
            assert!(seen.is_empty() || seen == [command], "{command:?} as {damaged:x?} is read as {seen:?}");
        }
    }
}

/// Feeds every string of up to `length` of these bytes to a decoder.
fn strings(decoder: &Decoder, alphabet: &[u8], length: usize, items: &mut usize) {
    for &byte in alphabet {
        let mut decoder = decoder.clone();
        if let Some(item) = decoder.push(byte) {
            *items += 1;
            if let Item::Byte(channel, _) = item {
                assert!(channel == Channel::LOG || channel.number() < stile_wire::MAX_CHANNELS);
            }
            // A checksum of two bytes is right by accident at times; what it covers is a message or an error then.
            let _ = (item.event(), item.command());
        }
        if length > 1 {
            strings(&decoder, alphabet, length - 1, items);
        }
    }
}

#[test]
fn every_string_of_two_bytes() {
    let mut items = 0;
    strings(&Decoder::new(), &(0..=u8::MAX).collect::<Vec<_>>(), 2, &mut items);
    assert!(items > 60_000, "{items}");
}

/// One byte of each kind that the decoder distinguishes.
#[test]
fn every_string_of_eight_kinds_of_bytes() {
    let mut items = 0;
    strings(&Decoder::new(), &[DLE, b'<', b'>', b'B', 0xff], 8, &mut items);
    assert!(items > 100_000);
}
