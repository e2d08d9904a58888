//! The tables of the gate view under a model of the processor's walks: in each paging mode, from each kind of CR3.

use std::collections::{BTreeSet, HashMap};

use stile_gate::APIC_LINEAR;
use stile_gate::tables::{ADDRESS_BITS, Frame, GATE, LARGE, TABLES, entry};

const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
const APIC: u64 = GATE + (APIC_LINEAR & 0x3fff_f000);

/// Physical addresses of the frames: any distinct ones.
fn physical(frame: Frame) -> u64 {
    match frame {
        Frame::Apic => 0xfee0_0000,
        Frame::Code => 0x7000,
        table => 0x10_0000 + 0x1000 * TABLES.iter().position(|&of| of == table).unwrap() as u64,
    }
}

fn frame(physical_address: u64) -> Frame {
    let all = TABLES.into_iter().chain([Frame::Code, Frame::Apic]);
    all.into_iter().find(|&frame| physical(frame) == physical_address).expect("an entry leads elsewhere")
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Access {
    read: bool,
    write: bool,
    execute: bool,
}

/// The frame at a guest-physical address, and how it may be accessed: a walk of the EPT's four levels.
fn ept(gpa: u64) -> (Frame, Access) {
    let mut table = Frame::Root;
    let mut value = 0;
    for level in (1..=4).rev() {
        value = entry(table, (gpa >> (12 + 9 * (level - 1))) as usize & 511, physical);
        assert!(level == 1 || value & 7 == 7 && value & 1 << 7 == 0, "a table");
        table = frame(value & ADDRESS);
    }
    (table, Access { read: value & 1 != 0, write: value & 2 != 0, execute: value & 4 != 0 })
}

const READ: Access = Access { read: true, write: false, execute: false };
const EXECUTE: Access = Access { read: false, write: false, execute: true };
const READ_WRITE: Access = Access { read: true, write: true, execute: false };

#[test]
fn every_guest_physical_address_leads_to_a_frame_of_the_view() {
    assert_eq!(ept(APIC), (Frame::Apic, READ_WRITE));
    assert_eq!(ept(LARGE), (Frame::Large, READ));
    for gpa in [GATE, GATE + (1 << 30) - 4096, APIC - 4096, APIC + 4096] {
        assert_eq!(ept(gpa), (Frame::Code, EXECUTE));
    }
    for gpa in [0, GATE - 4096, GATE + (1 << 30), LARGE - 4096, LARGE + 4096, (1 << 39) + GATE, (1 << 48) - 4096] {
        assert_eq!(ept(gpa), (Frame::Top, READ));
    }
    // There are no more exceptions than these.
    assert_eq!(leaves(Frame::Root, 4, Frame::Apic), 1);
    assert_eq!(leaves(Frame::Root, 4, Frame::Large), 1);
    assert_eq!(leaves(Frame::Root, 4, Frame::Code), (1 << 18) - 1);
    assert_eq!(leaves(Frame::Root, 4, Frame::Top), (1 << 36) - (1 << 18) - 1);
    // Execute-only and read-only do not depend on where: the entries of a frame are all alike.
    let mut rights = HashMap::new();
    for table in [Frame::Top1, Frame::Gate1, Frame::Apic1, Frame::Large1] {
        for at in 0..512 {
            let value = entry(table, at, physical);
            let first = *rights.entry(value & ADDRESS).or_insert(value);
            assert_eq!(value, first);
        }
    }
    const { assert!(APIC >> ADDRESS_BITS == 0 && LARGE >> ADDRESS_BITS == 0) };
}

/// Number of pages below a table that are the given frame.
fn leaves(table: Frame, level: u32, of: Frame) -> u64 {
    let mut counts: HashMap<Frame2, u64> = HashMap::new();
    (0..512)
        .map(|at| {
            let next = frame(entry(table, at, physical) & ADDRESS);
            if level == 1 {
                u64::from(next == of)
            } else {
                *counts.entry(Frame2(next as usize)).or_insert_with(|| leaves(next, level - 1, of))
            }
        })
        .sum()
}

#[derive(PartialEq, Eq, Hash)]
struct Frame2(usize);

/// Offset of the APIC's version register, whose P is set, and whose A is not.
const VERSION: usize = 0x30;

/// Values of an APIC's register, as Stile and its guests leave it (the manual, "Local APIC Register Address Map"):
/// vectors are F0H and above, the timer's count and divisor are 0, and no local vector that firmware uses is odd.
fn register(offset: usize) -> Vec<u32> {
    match offset {
        // The APIC ID.
        0x20 => vec![0, 0x0100_0000, 0xfe00_0000],
        // Versions of Bochs, and of processors.
        VERSION => vec![0x0005_0014, 0x0006_0015, 0x0106_0015],
        // Priorities, with an interrupt in service.
        0xa0 => vec![0, 0xf0],
        0xe0 => vec![0xffff_ffff],
        // The spurious-interrupt vector.
        0xf0 => vec![0x1ff],
        // The highest words of ISR, TMR and IRR.
        0x170 | 0x1f0 | 0x270 => vec![0, 0x0001_0000, 0x003f_0000, 0x803f_0000],
        // Errors: illegal vectors and registers.
        0x280 => vec![0, 0x20, 0x40, 0x80, 0xe0],
        // The gate's, read back as written and with reserved bits clear, and Stile's.
        0x300 => vec![0xccf3_40f0, 0x0000_40f0, 0x0000_00f0, 0x0000_00f1, 0x0000_00f2, 0x0000_00f3, 0x0000_10f3, 0x0000_4608],
        0x310 => vec![0, 0x0100_0000, 0x07cc_cccc],
        0x320 => vec![0x0004_00f6, 0x0004_10f6],
        // The logical ID, as after a reset and as firmware sets it.
        0xd0 => vec![0, 0x0100_0000, 0xff00_0000],
        // Masked, or firmware's SMI.
        0x2f0 | 0x330 | 0x340 | 0x350 | 0x360 | 0x370 => vec![0x0001_0000, 0x200],
        _ => vec![0],
    }
}

/// A guest's possible entries. The bytes between an APIC's registers are undefined by the manual: here they are zero
/// (docs/x86-gate.md, "Limits").
fn entries(table: Frame, at: usize, access: Access) -> Vec<u64> {
    match table {
        // A walk reads: the code page is execute-only.
        _ if !access.read => vec![],
        Frame::Apic if at.is_multiple_of(2) => register(8 * at).into_iter().map(u64::from).collect(),
        Frame::Apic => vec![0],
        Frame::Top | Frame::Large => vec![entry(table, at, physical)],
        other => panic!("{other:?} is no table of the guest's"),
    }
}

/// Places of a guest's table: one of each kind of guest-physical address.
const PLACES: [u64; 6] = [0, 0xfee0_0000, GATE, APIC, LARGE, 1 << 40];

/// All pages that a walk from a table at `level` can reach, with the linear address below the level's bits.
fn reach(level: u32, table: u64, linear: u64, found: &mut BTreeSet<(u64, u64)>) {
    let (frame, access) = ept(table);
    for at in 0..512 {
        let linear = linear | (at as u64) << (12 + 9 * (level - 1));
        for value in entries(frame, at, access) {
            if value & 1 == 0 {
                continue;
            }
            // The processor writes nothing: accessed is set. The exception is a register that is read-only.
            let ignored = frame == Frame::Apic && 8 * at == VERSION;
            assert!(value & 0x20 != 0 || ignored, "{frame:?} {at}: {value:#x}");
            let large = value & 1 << 7 != 0;
            let size = 1u64 << (12 + 9 * (level - 1));
            match level {
                1 => _ = found.insert((linear, value & ADDRESS)),
                // Reserved.
                4.. if large => {}
                // A large page: all of its pages of the first 4 MiB, and the one that matters.
                2 | 3 if large => {
                    let pages = (0..size.min(4 << 20)).step_by(4096).chain([APIC & (size - 1)]);
                    found.extend(pages.map(|into| (linear | into, value & ADDRESS & !(size - 1) | into)));
                }
                _ => reach(level - 1, value & ADDRESS, linear, found),
            }
        }
    }
}

fn check(found: &BTreeSet<(u64, u64)>, with_apic: bool) -> bool {
    let mut has_code = false;
    for &(linear, gpa) in found {
        let (frame, access) = ept(gpa);
        match frame {
            Frame::Code => has_code = true,
            Frame::Apic => assert!(with_apic && linear == APIC_LINEAR & ((1 << 48) - 1), "{linear:#x} leads to the APIC"),
            // Constants, which may be read.
            _ => assert_eq!(access, READ),
        }
    }
    has_code
}

#[test]
fn with_four_levels_one_page_is_the_apic_and_all_others_are_code() {
    for place in PLACES {
        let mut found = BTreeSet::new();
        reach(4, place, 0, &mut found);
        let usual = ept(place).0 == Frame::Top;
        let has_code = check(&found, usual);
        assert!(has_code || !usual);
        assert_eq!(found.iter().any(|&(_, gpa)| gpa == APIC), usual, "{place:#x}");
        // 32-bit code has addresses below 4 GiB: nothing is there.
        assert!(!usual || found.iter().all(|&(linear, _)| linear >> 39 == 511));
    }
}

/// Whether a walk of four levels from a table ends in a page fault for some linear address.
fn faults(level: u32, table: u64) -> bool {
    let (frame, access) = ept(table);
    access.read
        && (0..512).any(|at| {
            entries(frame, at, access).into_iter().any(|value| {
                let large = value & 1 << 7 != 0;
                let reserved = level == 4 && large;
                value & 1 == 0 || reserved || level > 1 && !large && faults(level - 1, value & ADDRESS)
            })
        })
}

#[test]
fn with_four_levels_no_walk_faults_and_the_apic_alone_can_be_read() {
    // An interrupt whose delivery ends in a page fault, a double fault and a triple fault is lost: this is an exit by an EPT
    // violation, whatever linear addresses the IDT, the GDT, the TSS and the stack have.
    for place in PLACES.into_iter().filter(|&place| ept(place).0 == Frame::Top) {
        assert!(!faults(4, place), "{place:#x}");
        let mut found = BTreeSet::new();
        reach(4, place, 0, &mut found);
        for (linear, gpa) in found {
            assert!(!ept(gpa).1.read || linear == APIC_LINEAR & ((1 << 48) - 1), "{linear:#x} can be read");
        }
    }
}

#[test]
fn with_five_levels_nothing_is_there() {
    // If the registers of the APIC were a first table, they might lead to it. Stile's guests have no such mode.
    for place in PLACES.into_iter().filter(|&place| place != APIC) {
        let mut found = BTreeSet::new();
        reach(5, place, 0, &mut found);
        check(&found, false);
    }
}

#[test]
fn with_pae_the_registers_of_the_apic_are_out_of_reach() {
    // The four entries of the first level are in registers, which may lead anywhere.
    for place in PLACES {
        let mut found = BTreeSet::new();
        reach(2, place, 0, &mut found);
        check(&found, false);
    }
}

#[test]
fn with_32_bit_entries_nothing_can_be_executed_or_written() {
    for (place, extensions) in PLACES.into_iter().flat_map(|place| [(place, false), (place, true)]) {
        // CR3 has 32 bits.
        let Ok(place) = u32::try_from(place) else { continue };
        for (_, value) in words(place.into()) {
            if value & 1 << 7 != 0 && extensions {
                // A page of 4 MiB, with bits 39:32 of its address in bits 20:13.
                let page = u64::from(value & 0xffc0_0000) | u64::from(value >> 13 & 0xff) << 32;
                assert_eq!(ept(page), (Frame::Top, READ));
                continue;
            }
            for (_, value) in words((value & 0xffff_f000).into()) {
                let (frame, access) = ept((value & 0xffff_f000).into());
                assert_eq!(access, READ, "{frame:?}");
            }
        }
    }
}

/// The present entries of 32 bits in a table.
fn words(table: u64) -> Vec<(usize, u32)> {
    let (frame, access) = ept(table);
    let both = |value: u64| [value as u32, (value >> 32) as u32];
    let words = (0..512).flat_map(|at| entries(frame, at, access).into_iter().flat_map(both).map(move |value| (at, value)));
    words.filter(|(_, value)| value & 1 != 0).collect()
}

#[test]
fn without_paging_nothing_can_be_executed_or_written() {
    let kinds = (0..4u64 << 30).step_by(1 << 21).chain([APIC, LARGE].map(|gpa| gpa & 0xffff_ffff));
    kinds.for_each(|gpa| assert_eq!(ept(gpa), (Frame::Top, READ)));
}
