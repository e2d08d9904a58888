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
    /// Marks `count` bytes as sent.
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

/// Messages and text that a reader of the line sees.
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

fn numbered(n: u8) -> Event {
    Event::Uploaded { tag: n.into(), next: u32::from_le_bytes([crate::DLE; 4]) }
}

fn restarted(vm: usize, resets: u32) -> Event {
    Event::Vm { vm: vm as u8, state: VmState::Restarted(resets) }
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
    assert!(!transmitter.has_room(0, 1) && transmitter.has_room(1, 1));
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

/// A driver that fills a FIFO of 16 bytes when it is ready loses none of them.
#[test]
fn room_is_for_as_many_bytes_as_asked_for() {
    let mut transmitter = Transmitter::<1, 64, 1600>::new();
    for n in 0..64 {
        assert_eq!((transmitter.has_room(0, 1), transmitter.has_room(0, 16)), (true, n <= 48), "{n}");
        transmitter.guest(0, b'x');
    }
    assert!(!transmitter.has_room(0, 1) && !transmitter.has_room(1, 1));
}

/// A VM's end does not overtake the last line of its console, nor wait for what it writes after that.
#[test]
fn the_state_of_a_vm_comes_after_its_bytes() {
    let mut transmitter = Small::new();
    let mut line = Vec::new();
    b"before".iter().for_each(|byte| transmitter.guest(1, *byte));
    assert_eq!(transmitter.event(&Event::Vm { vm: 1, state: VmState::PoweredOff }), Ok(()));
    let mut later = b"after, for ever".iter().cycle();
    for _ in 0..200 {
        if transmitter.has_room(1, 1) {
            later.next().into_iter().for_each(|byte| transmitter.guest(1, *byte));
        }
        transmitter.drain(1, |byte| {
            line.push(byte);
            true
        });
    }
    let mut decoder = Decoder::new();
    let seen_before = |line: &[u8], decoder: &mut Decoder| -> Vec<u8> {
        let items = line.iter().map_while(|byte| match decoder.push(*byte) {
            Some(Item::Byte(_, byte)) => Some(Some(byte)),
            Some(_) => None,
            None => Some(None),
        });
        items.flatten().collect()
    };
    let seen = seen_before(&line, &mut decoder);
    assert!(seen.starts_with(b"before"), "{:?}", String::from_utf8_lossy(&seen));
    assert!(seen.len() < line.len() / 2, "the state waited for all that the VM wrote later");
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

/// A VM that writes without end does not silence another one.
#[test]
fn a_vm_that_never_stops_leaves_others_their_turns() {
    let mut transmitter = Transmitter::<3, 2048, 1600>::new();
    let (mut line, mut decoder, mut got) = (0, Decoder::new(), [0; 3]);
    while line < 100_000 {
        for vm in [0, 2] {
            while transmitter.has_room(vm, 1) {
                transmitter.guest(vm, b'x');
            }
        }
        transmitter.drain(100, |byte| {
            line += 1;
            if let Some(Item::Byte(channel, _)) = decoder.push(byte) {
                got[usize::from(channel.vm().expect("a VM's"))] += 1;
            }
            true
        });
    }
    assert!(got[0] > 49_000 && got[2] > 49_000, "{got:?}");
}

/// Eight guests that print and reset as often as they may, at 115,200 baud. No CPU waits to report a reset, all numbers of resets are
/// recent, and the operator gets an answer.
#[test]
fn guests_that_print_and_reset_keep_no_cpu_waiting() {
    const LINE_PER_RESET: usize = 115;
    let mut transmitter = Transmitter::<64, 2048, 4096>::new();
    let (mut decoder, mut seen, mut answers) = (Decoder::new(), [0; 8], 0);
    for n in 1..=2000 {
        for vm in 0..8 {
            while transmitter.has_room(vm, 1) {
                transmitter.guest(vm, b'x');
            }
            assert_eq!(transmitter.event(&restarted(vm, n)), Ok(()), "a CPU waits for the line after {n} resets");
        }
        if n % 10 == 0 {
            assert_eq!(transmitter.event(&numbered(0)), Ok(()), "an answer waits for guests");
        }
        transmitter.drain(LINE_PER_RESET, |byte| {
            match decoder.push(byte).and_then(|item| item.event()) {
                Some(Ok(Event::Vm { vm, state: VmState::Restarted(resets) })) => {
                    let last = core::mem::replace(&mut seen[usize::from(vm)], resets);
                    assert!(resets > last);
                }
                Some(Ok(event)) => {
                    assert_eq!(event, numbered(0));
                    answers += 1;
                }
                Some(Err(error)) => panic!("{error}"),
                None => {}
            }
            true
        });
    }
    // A number of resets follows at most 2048 bytes of its VM: eight turns of each.
    let recent = (8 * 2048 + 4096) / LINE_PER_RESET as u32;
    assert!(seen.iter().all(|&resets| resets > 2000 - recent), "{seen:?}");
    assert!(answers >= 199, "{answers}");
}

/// States of a VM arrive in order. Only a number of resets is replaced by the next one, and the last of many.
#[test]
fn the_last_state_of_a_vm_arrives() {
    let mut transmitter = Small::new();
    let mut line = Vec::new();
    transmitter.guest(0, b'x');
    let states = [VmState::Restarted(1), VmState::Restarted(2), VmState::Paused, VmState::Resumed, VmState::Restarted(3)];
    for state in states.into_iter().chain([VmState::Restarted(4), VmState::Exited(5), VmState::PoweredOff]) {
        assert_eq!(transmitter.event(&Event::Vm { vm: 0, state }), Ok(()));
    }
    transmitter.drain(usize::MAX, |byte| {
        line.push(byte);
        true
    });
    let arrived = [VmState::Restarted(2), VmState::Paused, VmState::Resumed, VmState::PoweredOff];
    assert_eq!(read(&line).events, arrived.map(|state| Event::Vm { vm: 0, state }));
}

/// A state that was lost is sent again: after the VM's bytes, and once if it is still to be sent.
#[test]
fn a_state_is_sent_again_on_request() {
    let mut transmitter = Small::new();
    let sent = |transmitter: &mut Small| {
        let mut line = Vec::new();
        transmitter.drain(usize::MAX, |byte| {
            line.push(byte);
            true
        });
        read(&line).events
    };
    transmitter.repeat_state(0);
    transmitter.repeat_state(usize::MAX);
    assert_eq!(sent(&mut transmitter), [], "it has no state yet");
    let event = |state| Event::Vm { vm: 0, state };
    for state in [VmState::Paused, VmState::Resumed] {
        assert_eq!(transmitter.event(&event(state)), Ok(()));
    }
    transmitter.repeat_state(0);
    transmitter.repeat_state(1);
    assert_eq!(sent(&mut transmitter), [event(VmState::Paused), event(VmState::Resumed)]);
    (0..2).for_each(|_| transmitter.repeat_state(0));
    assert_eq!(sent(&mut transmitter), [event(VmState::Resumed)]);
}

#[test]
fn a_turn_ends_with_a_line() {
    let mut transmitter = Transmitter::<2, 2048, 1600>::new();
    for vm in [0, 1] {
        (0..2000).for_each(|n| transmitter.guest(vm, if n % 80 == 79 { b'\n' } else { b'x' }));
    }
    let (mut decoder, mut last) = (Decoder::new(), (Channel::console(0), b'\n'));
    transmitter.drain(usize::MAX, |byte| {
        if let Some(Item::Byte(channel, byte)) = decoder.push(byte) {
            assert!(channel == last.0 || last.1 == b'\n', "a line is divided");
            last = (channel, byte);
        }
        true
    });
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

    /// With any output of others, at any speed of the line: while a VM has bytes to send, each other one sends a turn at most before it.
    #[test]
    fn each_has_its_share(
        steps in prop::collection::vec((0..5usize, 0..600usize, prop::bool::weighted(0.1), 1..300usize, any::<bool>()), 1..200),
        ends in any::<[bool; 4]>(),
    ) {
        let mut transmitter = Transmitter::<4, 512, 1600>::new();
        let mut decoder = Decoder::new();
        // Bytes that each VM has written, and that arrived; those of others since a VM's last one, or since it has bytes to send.
        let (mut written, mut arrived, mut since) = ([0; 4], [0; 4], [[0; 4]; 4]);
        for (vm, count, all, taken, resets) in steps {
            let writers = if all { 0..4 } else { vm.min(3)..vm.min(3) + 1 };
            for vm in writers {
                for n in 0..count {
                    if transmitter.has_room(vm, 1) {
                        if written[vm] == arrived[vm] {
                            since[vm] = [0; 4];
                        }
                        transmitter.guest(vm, if ends[vm] && n % 7 == 0 { b'\n' } else { b'x' });
                        written[vm] += 1;
                    }
                }
                if resets {
                    prop_assert_eq!(transmitter.event(&restarted(vm, 1)), Ok(()));
                }
            }
            let mut result = Ok(());
            transmitter.drain(taken, |byte| {
                if let Some(Item::Byte(channel, _)) = decoder.push(byte) {
                    let vm = usize::from(channel.vm().expect("a VM's"));
                    arrived[vm] += 1;
                    since[vm] = [0; 4];
                    for other in (0..4).filter(|&other| written[other] != arrived[other]) {
                        since[other][vm] += 1;
                        // Allows for bytes encoded before the other VM had any.
                        if since[other][vm] > usize::from(TURN) + 64 {
                            result = Err(TestCaseError::fail(format!("{other} waits for {vm}")));
                        }
                    }
                }
                true
            });
            result?;
        }
    }

    /// Accepted bytes arrive once and in order, for any input and any speed of the line.
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
                    if transmitter.has_room(vm, 1) {
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
        // Lines are complete and in order; the line that follows a gap states the number of missing ones.
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
