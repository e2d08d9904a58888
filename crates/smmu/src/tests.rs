//! Examples, field by field as the specification numbers their bits.

use stile_pci::Access;

use crate::*;

/// Bits `high` to `low` of an entry, numbered through all of it.
fn bits(words: &[u64; 4], high: u32, low: u32) -> u64 {
    assert_eq!(high / 64, low / 64);
    words[(low / 64) as usize] << (63 - high % 64) >> (63 - high % 64 + low % 64)
}

#[test]
fn an_entry_describes_a_second_stage() {
    let stage = SecondStage { vmid: 3, root: 0x4_8765_4000, input_bits: 39, start_level: 1, output_size: 4 };
    let StreamEntry(words) = StreamEntry::second_stage(stage);
    assert_eq!(bits(&words, 0, 0), 1, "V");
    assert_eq!(bits(&words, 3, 1), 0b110, "Config");
    assert_eq!(bits(&words, 109, 108), 1, "SHCFG");
    assert_eq!(bits(&words, 143, 128), 3, "S2VMID");
    assert_eq!(bits(&words, 165, 160), 25, "S2T0SZ");
    assert_eq!(bits(&words, 167, 166), 1, "S2SL0");
    assert_eq!(bits(&words, 173, 168), 0b11_01_01, "S2SH0, S2OR0, S2IR0");
    assert_eq!(bits(&words, 175, 174), 0, "S2TG: 4 KiB");
    assert_eq!(bits(&words, 178, 176), 4, "S2PS");
    assert_eq!(bits(&words, 179, 179), 1, "S2AA64");
    assert_eq!(bits(&words, 186, 185), 0b10, "S2R, S2S");
    assert_eq!(bits(&words, 247, 196) << 4, 0x4_8765_4000, "S2TTB");
    assert_eq!(StreamEntry::ABORT.0, [1, 0, 0, 0]);
}

#[test]
fn commands_have_their_operands() {
    assert_eq!(command::invalidate_stream(0x10), [0x10_0000_0003, 1]);
    assert_eq!(command::invalidate_vmid(7), [0x7_0000_0028, 0]);
    assert_eq!(
        (command::sync(), command::invalidate_all_streams(), command::invalidate_all_translations()),
        ([0x46, 0], [4, 31], [0x30, 0])
    );
}

#[test]
fn queues_wrap() {
    let queue = Queue { log2: 2 };
    let mut index = 0;
    for _ in 0..4 {
        index = queue.next(index);
    }
    assert_eq!((index, queue.slot(index)), (4, 0));
    assert!(!queue.is_empty(index, 0), "it is full");
    for _ in 0..4 {
        index = queue.next(index);
    }
    assert_eq!(index, 0);
    assert!(queue.is_empty(8, 0));
}

#[test]
fn events_say_who_and_where() {
    let write = Event::decode([0x10_0000_0010, 1 << 39, 0xdead_b000, 0]);
    assert_eq!(write, Event { kind: Kind::Unmapped, stream: 0x10, access: Access::Write, address: 0xdead_b000 });
    let read = Event::decode([0x8_0000_0013, 1 << 35, 0x4000, 0]);
    assert_eq!(read, Event { kind: Kind::Permission, stream: 8, access: Access::Read, address: 0x4000 });
    assert_eq!(Event::decode([2, 0, 0, 0]).kind, Kind::Stream);
    assert_eq!(Event::decode([0x0b, 0, 0, 0]).kind, Kind::Other(0x0b));
}
