//! The serial line, in both directions.

use stile::config::Arch;
use stile::session::Exits;
use stile_wire::{
    Action, Channel, Command, CpuTime, Crash, CrashReason, Decoded, Decoder, Encoder, Event, Item, LedgerRow, LedgerTotal, Level,
    MAX_CHANNELS, MAX_FRAME, Piece, Row, Version, VmState,
};

use crate::marks::reach;
use crate::target::Target;

/// Input of `stile`: a guest, or a damaged line, may send anything.
pub const FROM_STILE: Target = Target {
    name: "line-from-stile",
    run: from_stile,
    seeds: events,
    mutations: 4000,
    marks: &["text", "frame", "event", "lost frame", "ledger row", "report"],
};

/// Input of Stile from the operator's side of the line.
pub const TO_STILE: Target = Target {
    name: "line-to-stile",
    run: to_stile,
    seeds: commands,
    mutations: 8000,
    marks: &["text", "command", "no command", "lost frame"],
};

/// A line with messages of each kind, and text of several channels.
fn events() -> Vec<Vec<u8>> {
    let crash = Crash { reason: CrashReason::NoDevice, vcpu: 1, pc: 16, syndrome: u64::MAX, address: 0x1010 };
    let row = LedgerRow { vm: 0, vcpu: 0, row: Row::Static(3), count: 7, ticks: 1 << 40, min: 1, max: 300 };
    let events = [
        Event::Hello { version: Version { major: 0, minor: 1, patch: 0 }, cpus: 2, level: Level::Vhe, vms: 1 },
        Event::CounterFrequency { hz: 62_500_000 },
        Event::Vm { vm: 0, state: VmState::Crashed(crash) },
        Event::LedgerRow(row),
        Event::LedgerRow(LedgerRow { row: Row::Dynamic { kind: 1, key: 0x1010 }, ..row }),
        Event::LedgerTotal(LedgerTotal { vm: 0, vcpu: 0, taken: 14, counted: 14, outside_ticks: 1 << 41, alive_ticks: 1 << 50 }),
        Event::Decoded(Decoded { vm: 0, hits: 5, misses: 1, ..Decoded::default() }),
        Event::CpuTime(CpuTime { vm: 0, ran: 1 << 40, waited: 16 }),
        Event::Memory { before: 1 << 20, now: 1 << 19 },
        Event::LedgerEnd,
        Event::End { status: 0 },
    ];
    let mut all = Vec::new();
    let mut encoder = Encoder::new();
    for (vm, event) in (0..).zip(&events) {
        encoder.bytes(Channel::console(vm), b"a\x10b\n", &mut |byte| all.push(byte));
        encoder.event(event, &mut |byte| all.push(byte));
    }
    let mut lines = vec![all];
    lines.extend(events.iter().map(|event| {
        let mut line = Vec::new();
        Encoder::new().event(event, &mut |byte| line.push(byte));
        line
    }));
    lines
}

/// A line with each command, and what is typed on two consoles.
fn commands() -> Vec<Vec<u8>> {
    let mut line = Vec::new();
    let mut encoder = Encoder::new();
    let mut sink = |byte| line.push(byte);
    let piece = Piece::new(b"a piece of a package");
    let commands = [
        Command::Ledger,
        Command::Stop { vm: 16 },
        Command::Shutdown,
        Command::Panic,
        Command::Control { tag: 1, vm: 0, action: Action::Destroy },
        Command::State { vm: 255 },
        Command::Sample { tag: 1, vm: 0, vcpu: 255 },
        Command::SampleRows { tag: 1, from: u16::MAX },
        Command::Upload { tag: 2, vm: 200, size: u32::MAX, memory: u64::MAX },
        Command::UploadData { tag: 2, offset: u32::MAX, piece },
        Command::Create { tag: 2, crc: 0 },
        Command::Abandon { tag: 3, upload: 2 },
    ];
    for command in commands {
        encoder.bytes(Channel::console(1), b"ls\r", &mut sink);
        encoder.command(&command, &mut sink);
    }
    let events = events().remove(0);
    vec![line, events]
}

fn from_stile(bytes: &[u8]) {
    let mut decoder = Decoder::new();
    for arch in [Arch::Aarch64, Arch::X86_64] {
        let mut exits = Exits::new(arch);
        for &byte in bytes {
            let Some(item) = decoder.push(byte) else { continue };
            check(&item);
            match item.event() {
                Some(Ok(event)) => {
                    reach("event");
                    exits.take(&event);
                    exits.named(&event).expect("an event is JSON");
                    let mut again = Vec::new();
                    Encoder::new().event(&event, &mut |byte| again.push(byte));
                    let mut decoder = Decoder::new();
                    let read = again.iter().find_map(|&byte| decoder.push(byte)?.event());
                    assert_eq!(read, Some(Ok(event)), "an event survives the line");
                    if let Event::LedgerRow(_) = event {
                        reach("ledger row");
                    }
                }
                Some(Err(_)) => reach("lost frame"),
                None => reach("text"),
            }
        }
        if exits.text(&[], stile::session::Shown::default()).is_some() {
            reach("report");
        }
    }
}

fn to_stile(bytes: &[u8]) {
    let mut decoder = Decoder::new();
    for &byte in bytes {
        let Some(item) = decoder.push(byte) else { continue };
        check(&item);
        match (item.command(), &item) {
            (Some(Ok(command)), _) => {
                reach("command");
                let mut again = Vec::new();
                Encoder::new().command(&command, &mut |byte| again.push(byte));
                let mut decoder = Decoder::new();
                let read = again.iter().find_map(|&byte| decoder.push(byte)?.command());
                assert_eq!(read, Some(Ok(command)), "a command survives the line");
            }
            (Some(Err(_)), Item::Frame(_)) => reach("no command"),
            (Some(Err(_)), _) => reach("lost frame"),
            (None, _) => reach("text"),
        }
    }
}

fn check(item: &Item<'_>) {
    match item {
        Item::Byte(channel, _) => assert!(channel.number() < MAX_CHANNELS),
        Item::Frame(message) => {
            reach("frame");
            assert!(message.len() < MAX_FRAME);
        }
        Item::Bad(_) => {}
    }
}
