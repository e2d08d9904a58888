//! Examples, field by field as the manual numbers their bits, and random logs against a list.

use std::boxed::Box;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;
use stile_pci::Access;

use crate::*;

/// Bits `high` to `low` of an entry, numbered through all of it.
fn bits(words: &[u64], high: u32, low: u32) -> u64 {
    assert_eq!(high / 64, low / 64);
    words[(low / 64) as usize] << (63 - high % 64) >> (63 - high % 64 + low % 64)
}

#[test]
fn an_entry_confines_a_function() {
    let tables = DmaTables { domain: 3, root: 0x4_8765_4000 };
    let DeviceEntry(words) = DeviceEntry::translated(tables, RemappingTable { address: 0x5_4321_0000 });
    assert_eq!(bits(&words, 0, 0), 1, "V");
    assert_eq!(bits(&words, 1, 1), 1, "TV");
    assert_eq!(bits(&words, 11, 9), 4, "Mode");
    assert_eq!(bits(&words, 51, 12) << 12, 0x4_8765_4000, "page table root");
    assert_eq!(bits(&words, 60, 52), 0, "PPR, GV and others");
    assert_eq!(bits(&words, 62, 61), 0b11, "IR, IW");
    assert_eq!(bits(&words, 79, 64), 3, "DomainID");
    assert_eq!(bits(&words, 96, 96), 0, "I: no ATS");
    assert_eq!(bits(&words, 98, 97), 0, "SE, SA: faults are logged");
    assert_eq!(bits(&words, 100, 99), 0, "IOCtl: port I/O is aborted");
    assert_eq!(bits(&words, 103, 103), 0, "EX: no exclusion range");
    assert_eq!(bits(&words, 105, 104), 0, "SysMgt: aborted");
    assert_eq!(bits(&words, 128, 128), 1, "IV");
    assert_eq!(bits(&words, 132, 129), 11, "IntTabLen");
    assert_eq!(bits(&words, 133, 133), 1, "IG");
    assert_eq!(bits(&words, 179, 134) << 6, 0x5_4321_0000, "interrupt table root");
    assert_eq!(bits(&words, 187, 184), 0, "INITPass, EIntPass, NMIPass");
    assert_eq!(bits(&words, 189, 188), 0b10, "IntCtl: remapped");
    assert_eq!(bits(&words, 191, 190), 0, "Lint0Pass, Lint1Pass");
    assert_eq!(words[3], 0);
}

#[test]
fn other_devices_reach_nothing() {
    for (DeviceEntry(words), are_interrupts_blocked) in [(DeviceEntry::BLOCKED, 1), (DeviceEntry::INTERRUPTS_ONLY, 0)] {
        // V without TV passes requests; so does mode 0 with permissions.
        assert_eq!(words[0], 0b11, "V, TV, mode 0, no permissions");
        assert_eq!(bits(&words, 98, 98), 1, "SA");
        assert_eq!(bits(&words, 128, 128), are_interrupts_blocked, "IV");
        assert_eq!(bits(&words, 189, 188), 0, "IntCtl: aborted");
        assert_eq!(DeviceEntry(words).domain(), 0);
    }
}

#[test]
fn entries_of_messages() {
    let RemappingEntry(entry) = RemappingEntry::fixed(0x31, 5).unwrap();
    let words = [entry.into()];
    assert_eq!(bits(&words, 0, 0), 1, "RemapEn");
    assert_eq!(bits(&words, 4, 2), 0, "IntType: fixed");
    assert_eq!(bits(&words, 7, 5), 0, "RqEoi, DM, GuestMode");
    assert_eq!(bits(&words, 15, 8), 5, "Destination");
    assert_eq!(bits(&words, 23, 16), 0x31, "Vector");
    assert_eq!(bits(&words, 31, 24), 0);
    assert_eq!(RemappingEntry::fixed(0x31, 255), None, "all CPUs");
    assert_eq!(RemappingEntry::fixed(0x31, 256), None);
    assert_eq!(RemappingEntry::BLOCKED.0, 0b10, "SupIOPF");
    assert_eq!(message(31), (0xfee0_0000, 31));
    const { assert!(MESSAGES > u8::MAX as usize) };
}

#[test]
fn commands_have_their_operands() {
    assert_eq!(command::completion_wait(0x1_2345_6788, 9), [0x1000_0001_2345_6789, 9]);
    assert_eq!(command::invalidate_device(0x10), [0x2000_0000_0000_0010, 0]);
    assert_eq!(command::invalidate_domain(7), [0x3000_0007_0000_0000, 0x7fff_ffff_ffff_f003]);
    assert_eq!(command::invalidate_all(), [8 << 60, 0]);
    assert_eq!(command::invalidate_interrupts(0x10), [0x5000_0000_0000_0010, 0]);
}

#[test]
fn registers_name_memory() {
    assert_eq!(register::device_table(0x4_8760_0000, 512), 0x4_8760_01ff);
    assert_eq!(register::ring(0x4_8765_4000), 0x0800_0004_8765_4000);
}

#[test]
fn events_say_who_and_where() {
    let page = 2 << 60 | 0x18;
    let unmapped = Event::decode([page, 0xdead_b000]);
    assert_eq!(unmapped, Event { kind: Kind::PageFault, device: 0x18, access: None, address: 0xdead_b000 });
    assert_eq!(Event::decode([page | 1 << 52, 0]).access, Some(Access::Read));
    assert_eq!(Event::decode([page | 0b11 << 52, 0]).access, Some(Access::Write));
    assert_eq!(Event::decode([page | 1 << 51, 0xfee0_1000]).kind, Kind::Interrupt);
    // QEMU (10.0) sets the flag of interrupts for page faults, too.
    assert_eq!(Event::decode([page | 1 << 51, 0xdead_b000]).kind, Kind::PageFault);
    assert_eq!(Event::decode([8 << 60, 0]).kind, Kind::Request);
    assert_eq!(Event::decode([5 << 60, 0]).kind, Kind::Failure(5));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(40) })]

    /// The log returns each event once, in order, at any interleaving of the IOMMU's writes with Stile's reads.
    #[test]
    fn a_log_is_a_queue(steps in proptest::collection::vec(proptest::option::of((1u64..16, any::<u64>())), 0..2000), reset_at in 0..4000usize) {
        let entries: Box<[[AtomicU64; 2]; ENTRIES]> = Box::new([const { [const { AtomicU64::new(0) }; 2] }; ENTRIES]);
        let (mut log, mut expected, mut tail) = (EventLog::new(&entries), VecDeque::new(), 0);
        for (number, step) in steps.into_iter().enumerate() {
            if number == reset_at {
                log.reset();
                expected.clear();
                tail = 0;
            }
            match step {
                // The IOMMU leaves an entry free.
                Some((code, address)) if expected.len() < ENTRIES - 1 => {
                    let words = [code << 60 | address & 0xffff, address];
                    entries[tail].iter().zip(words).for_each(|(word, value)| word.store(value, Ordering::Relaxed));
                    tail = (tail + 1) % ENTRIES;
                    expected.push_back(Event::decode(words));
                }
                _ => prop_assert_eq!(log.take(), expected.pop_front()),
            }
            prop_assert_eq!((log.head() / 16 + expected.len() as u64) % ENTRIES as u64, tail as u64);
        }
    }
}
