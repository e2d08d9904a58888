//! Properties of every line: whole or truncated, valid or hostile.

use crate::*;
use proptest::prelude::*;
use std::vec;
use std::vec::Vec;

/// An owned decoder item.
#[allow(clippy::large_enum_variant, reason = "a test has few")]
#[derive(Clone, Debug, PartialEq, Eq)]
enum Seen {
    Byte(u8, u8),
    Event(Result<Event, FrameError>),
}

fn decode(decoder: &mut Decoder, line: &[u8]) -> Vec<Seen> {
    line.iter()
        .filter_map(|&byte| {
            decoder.push(byte).map(|item| match item {
                Item::Byte(channel, byte) => Seen::Byte(channel.number(), byte),
                frame => Seen::Event(frame.event().expect("not a byte")),
            })
        })
        .collect()
}

/// A write to a line.
#[allow(clippy::large_enum_variant, reason = "a test has few")]
#[derive(Clone, Debug)]
enum Write {
    Bytes(u8, Vec<u8>),
    Event(Event),
    Resync,
}

fn encode(writes: &[Write]) -> Vec<u8> {
    let mut line = Vec::new();
    let mut encoder = Encoder::new();
    for write in writes {
        let mut sink = |byte| line.push(byte);
        match write {
            Write::Bytes(channel, bytes) => encoder.bytes(Channel::new(*channel).expect("in range"), bytes, &mut sink),
            Write::Event(event) => encoder.event(event, &mut sink),
            Write::Resync => encoder.resync(),
        }
    }
    line
}

fn expected(writes: &[Write]) -> Vec<Seen> {
    let mut seen = Vec::new();
    for write in writes {
        match write {
            Write::Bytes(channel, bytes) => seen.extend(bytes.iter().map(|&byte| Seen::Byte(*channel, byte))),
            Write::Event(event) => seen.push(Seen::Event(Ok(*event))),
            Write::Resync => {}
        }
    }
    seen
}

fn crash() -> impl Strategy<Value = Crash> {
    let reason = prop_oneof![
        Just(CrashReason::NoDevice),
        Just(CrashReason::NoSyndrome),
        Just(CrashReason::BadFetch),
        Just(CrashReason::UnknownExit),
        Just(CrashReason::SystemError),
        Just(CrashReason::OutOfMemory),
        Just(CrashReason::EntryFailed),
    ];
    (reason, any::<u8>(), any::<[u64; 3]>()).prop_map(|(reason, vcpu, [pc, syndrome, address])| Crash {
        reason,
        vcpu,
        pc,
        syndrome,
        address,
    })
}

fn event() -> impl Strategy<Value = Event> {
    let state = prop_oneof![
        Just(VmState::Started),
        Just(VmState::PoweredOff),
        Just(VmState::Reset),
        crash().prop_map(VmState::Crashed),
        any::<u32>().prop_map(VmState::Exited),
        any::<u32>().prop_map(VmState::Restarted),
        Just(VmState::Paused),
        Just(VmState::Resumed),
        Just(VmState::Destroyed),
    ];
    let row = prop_oneof![any::<u16>().prop_map(Row::Static), any::<(u16, u32)>().prop_map(|(kind, key)| Row::Dynamic { kind, key }),];
    prop_oneof![
        (any::<[u16; 3]>(), any::<[u8; 2]>(), any::<bool>()).prop_map(|([major, minor, patch], [cpus, vms], vhe)| Event::Hello {
            version: Version { major, minor, patch },
            cpus: cpus.into(),
            level: if vhe { Level::Vhe } else { Level::Nvhe },
            vms,
        }),
        (any::<u8>(), state).prop_map(|(vm, state)| Event::Vm { vm, state }),
        (any::<[u8; 2]>(), row, any::<[u64; 4]>()).prop_map(|([vm, vcpu], row, [count, ticks, min, max])| {
            Event::LedgerRow(LedgerRow { vm, vcpu, row, count, ticks, min, max })
        }),
        (any::<[u8; 2]>(), any::<[u64; 4]>()).prop_map(|([vm, vcpu], [taken, counted, outside_ticks, alive_ticks])| {
            Event::LedgerTotal(LedgerTotal { vm, vcpu, taken, counted, outside_ticks, alive_ticks })
        }),
        (any::<u8>(), any::<[u64; 5]>()).prop_map(|(vm, [hits, misses, evictions, mismatches, dropped])| {
            Event::Decoded(Decoded { vm, hits, misses, evictions, mismatches, dropped })
        }),
        Just(Event::LedgerEnd),
        any::<u64>().prop_map(|hz| Event::CounterFrequency { hz }),
        any::<u16>().prop_map(|cpu| Event::Panic { cpu }),
        any::<u8>().prop_map(|status| Event::End { status }),
        any::<[u64; 2]>().prop_map(|[before, now]| Event::Memory { before, now }),
        (any::<u8>(), any::<Option<([u8; 2], u32)>>())
            .prop_map(|(vm, wait)| Event::Waits { vm, wait: wait.map(|([server, number], device)| Wait { server, number, device }) }),
        (any::<u32>(), any::<bool>()).prop_map(|(tag, done)| Event::Answer { tag, answer: if done { Answer::Done } else { Answer::NoVm } }),
    ]
}

/// Random bytes, often those with a special meaning.
fn bytes(len: usize) -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![
        2 => Just(DLE),
        1 => Just(b'<'),
        1 => Just(b'>'),
        1 => b'A'..=b'a',
        3 => any::<u8>(),
    ];
    prop::collection::vec(byte, 0..len)
}

fn writes() -> impl Strategy<Value = Vec<Write>> {
    let write = prop_oneof![
        4 => (0..MAX_CHANNELS, bytes(24)).prop_map(|(channel, bytes)| Write::Bytes(channel, bytes)),
        4 => event().prop_map(Write::Event),
        1 => Just(Write::Resync),
    ];
    prop::collection::vec(write, 0..12)
}

/// Ends an unfinished sequence, so that the following text is decoded.
const MARK: Event = Event::End { status: 0x10 };

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn what_is_written_is_read(writes in writes()) {
        prop_assert_eq!(decode(&mut Decoder::new(), &encode(&writes)), expected(&writes));
    }

    /// The result does not depend on how the line is split into reads.
    #[test]
    fn any_split_reads_alike(line in bytes(200), at in any::<prop::sample::Index>()) {
        let whole = decode(&mut Decoder::new(), &line);
        let (head, tail) = line.split_at(at.index(line.len() + 1));
        let mut decoder = Decoder::new();
        let mut parts = decode(&mut decoder, head);
        parts.extend(decode(&mut decoder.clone(), tail));
        prop_assert_eq!(whole, parts);
    }

    /// After any garbage the next frame and the text after it are decoded.
    #[test]
    fn garbage_is_survived(garbage in bytes(1200), text in bytes(16)) {
        let mut decoder = Decoder::new();
        decode(&mut decoder, &garbage);
        // A lone DLE at the garbage's end consumes the selection's DLE: the selection is lost, but not
        // the frame's start.
        let line = encode(&[Write::Event(MARK), Write::Bytes(3, text.clone())]);
        let seen = decode(&mut decoder, &line);
        let mark = seen.iter().position(|seen| *seen == Seen::Event(Ok(MARK)));
        prop_assert!(mark.is_some(), "{seen:?}");
        let after = &seen[mark.unwrap_or(0) + 1..];
        prop_assert_eq!(after, &expected(&[Write::Bytes(3, text)])[..]);
    }

    /// Bytes of a channel never become a frame or another channel's: a guest cannot impersonate Stile.
    #[test]
    fn text_stays_in_its_channel(text in bytes(200), channel in 0..MAX_CHANNELS) {
        let seen = decode(&mut Decoder::new(), &encode(&[Write::Bytes(channel, text.clone())]));
        prop_assert_eq!(seen.len(), text.len());
        prop_assert!(seen.iter().all(|seen| matches!(seen, Seen::Byte(on, _) if *on == channel)));
    }

    /// One changed byte never turns a message into another message.
    #[test]
    fn changes_are_noticed(event in event(), at in any::<prop::sample::Index>(), change in 1u8..) {
        let mut line = encode(&[Write::Event(event)]);
        let at = at.index(line.len());
        line[at] ^= change;
        for seen in decode(&mut Decoder::new(), &line) {
            if let Seen::Event(Ok(other)) = seen {
                prop_assert_eq!(other, event);
            }
        }
    }

    /// A frame of random content with a valid checksum is a message or an error.
    #[test]
    fn right_checksum_wrong_content(content in prop::collection::vec(any::<u8>(), 0..64)) {
        let _ = frame::unpack::<Event>(&content);
        let _ = frame::unpack::<Command>(&content);
    }
}

#[test]
fn text_before_any_selection_is_the_log() {
    let seen = decode(&mut Decoder::new(), b"hi");
    assert_eq!(seen, [Seen::Byte(0, b'h'), Seen::Byte(0, b'i')]);
}

#[test]
fn commands_round_trip() {
    for command in [Command::Stop { vm: 0x10 }, Command::Ledger, Command::Shutdown, Command::Panic] {
        let mut line = Vec::new();
        Encoder::new().command(&command, &mut |byte| line.push(byte));
        let mut decoder = Decoder::new();
        let (last, rest) = line.split_last().expect("not empty");
        assert!(rest.iter().all(|&byte| decoder.push(byte).is_none()));
        assert_eq!(decoder.push(*last).and_then(|item| item.command()), Some(Ok(command)));
    }
}

#[test]
fn a_long_frame_is_dropped_up_to_its_end() {
    let mut line = Vec::from([DLE, b'<']);
    line.extend([b'x'; MAX_FRAME + 1]);
    line.extend([DLE, b'>', b'y']);
    let seen = decode(&mut Decoder::new(), &line);
    assert_eq!(seen, [Seen::Event(Err(FrameError::TooLong)), Seen::Byte(0, b'y')]);
}

#[test]
fn a_frame_of_another_version_says_so() {
    let mut buffer = [0; MAX_FRAME];
    let frame = frame::pack(&MARK, &mut buffer).expect("fits");
    let mut content = Vec::from(&frame[..frame.len() - 2]);
    content[0] = PROTOCOL_VERSION + 1;
    let crc = crc::Crc::<u16>::new(&crc::CRC_16_IBM_SDLC).checksum(&content);
    content.extend(crc.to_le_bytes());
    assert_eq!(frame::check(&content), Err(FrameError::Version(PROTOCOL_VERSION + 1)));
}

#[test]
fn a_selection_breaks_off_a_frame() {
    let seen = decode(&mut Decoder::new(), &[DLE, b'<', 1, 2, DLE, b'C', b'x']);
    assert_eq!(seen, [Seen::Event(Err(FrameError::Broken)), Seen::Byte(2, b'x')]);
}

/// Messages keep their encoding: moving a variant would break an operator's older command.
#[test]
fn encodings_are_fixed() {
    let bytes = |event: &Event| postcard::to_slice(event, &mut [0; MAX_FRAME]).expect("fits").to_vec();
    assert_eq!(bytes(&Event::LedgerEnd), [4]);
    assert_eq!(bytes(&Event::CounterFrequency { hz: 200 }), [5, 200, 1]);
    assert_eq!(bytes(&Event::Panic { cpu: 3 }), [6, 3]);
    assert_eq!(bytes(&Event::End { status: 100 }), [7, 100]);
    assert_eq!(bytes(&Event::Memory { before: 3, now: 2 }), [8, 3, 2]);
    assert_eq!(bytes(&Event::Vm { vm: 1, state: VmState::Reset }), [1, 1, 2]);
    assert_eq!(bytes(&Event::Vm { vm: 1, state: VmState::Restarted(3) }), [1, 1, 5, 3]);
    let hello = Event::Hello { version: Version { major: 0, minor: 1, patch: 0 }, cpus: 2, level: Level::Nvhe, vms: 3 };
    assert_eq!(bytes(&hello), [0, 0, 1, 0, 2, 1, 3]);
}

#[test]
fn channels() {
    assert_eq!(Channel::console(0).number(), 1);
    assert_eq!(Channel::console(7).vm(), Some(7));
    assert_eq!([14, 15, 127, 255].map(|vm| Channel::console(vm).number()), [15, 17, 129, 129]);
    assert!((0..128).all(|vm| Channel::console(vm).vm() == Some(vm)));
    assert_eq!(Channel::LOG.vm(), None);
    assert_eq!(Channel::OPERATOR.vm(), None);
    assert_eq!(Channel::new(MAX_CHANNELS), None);
    for number in 0..MAX_CHANNELS {
        let channel = Channel::new(number).expect("in range");
        assert_eq!(Channel::of_select_byte(channel.select_byte()), Some(channel));
    }
    for byte in [DLE, b'<', b'>', 0, 0xff] {
        assert_eq!(Channel::of_select_byte(byte), None);
    }
}
