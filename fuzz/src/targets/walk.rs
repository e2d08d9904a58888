//! Walks of guests' page tables.

// Shared with the tests of crates `x86-walk` and `nested-arm`.
#[path = "../../../crates/x86-walk/tests/model/mod.rs"]
#[allow(dead_code, reason = "the tests use all of it")]
mod model;
#[path = "../../../crates/nested-arm/tests/pseudocode/mod.rs"]
mod pseudocode;

use std::collections::BTreeMap;

use pseudocode::{PA_BITS, PAGES, S2, pseudocode};
use stile_nested_arm::at::{self, At, Regime, Stage1};
use stile_nested_arm::forward::Level;
use stile_nested_arm::shadow::Stage2;
use stile_x86_walk::model::Memory;
use stile_x86_walk::{Access, Features, Kind, Paging, Registers, Trail, trail, translate};

use crate::input::Input;
use crate::marks::reach;
use crate::target::{Target, none};

/// x86 guests' tables against a model of the manual, accessed and dirty flags included.
pub const X86_64: Target = Target {
    name: "walk-x86_64",
    run: x86_64,
    seeds: none,
    mutations: 4000,
    marks: &["32 bits", "PAE", "4 levels", "5 levels", "large", "reached", "fault"],
};

/// Both stages of a guest hypervisor's guest, as `AT` walks them, against the manual's pseudocode.
pub const AARCH64: Target = Target {
    name: "walk-aarch64",
    run: aarch64,
    seeds: none,
    mutations: 6000,
    marks: &["reached", "first stage", "second stage", "second stage of a walk"],
};

const TABLES: u64 = 8;
/// Slots of each page that are filled, and that addresses use.
const SLOTS: u64 = 4;

fn x86_64(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let bits = input.half();
    let bit = |n: u32| u64::from(bits >> n & 1);
    let pae = bit(0);
    let registers = Registers {
        cr0: (1 - bit(1) * bit(2)) << 31 | bit(3) << 16,
        cr3: 0x18 + 4096 * input.below(TABLES as usize) as u64,
        cr4: bit(4) << 4 | pae << 5 | bit(5) << 12 | bit(6) << 20 | bit(7) << 21,
        efer: (pae * bit(8)) << 10 | bit(9) << 11,
        pdpte: [(); 4].map(|()| (1 + 4096 * input.below(TABLES as usize) as u64) | (input.value() * bit(10))),
    };
    let features = Features { physical_bits: input.pick(&[36, 39, 46, 52]), page_1g: bit(11) != 0, pse36: bit(12) != 0 };
    let kind = input.pick(&[Kind::Read, Kind::Write, Kind::Fetch]);
    let access = Access { kind, user: bit(13) != 0, smap_override: bit(14) != 0 };
    let [low, a, b] = [input.half(), input.byte().into(), input.byte().into()].map(u64::from);
    let index = |value: u64, n: u32| value >> (2 * n) & 3;
    let linear = match registers.efer >> 10 & 1 {
        0 if pae == 0 => index(a, 0) << 22 | index(a, 1) << 12 | low & 0xfff,
        0 => index(a, 0) << 30 | index(a, 1) << 21 | index(a, 2) << 12 | low & 0xfff,
        _ => index(b, 0) << 48 | index(a, 3) << 39 | index(a, 2) << 30 | index(a, 1) << 21 | index(a, 0) << 12 | low & 0xfff,
    };
    let [ours, theirs] = [(); 2].map(|()| Memory::new((TABLES * 4096) as usize));
    let size = if pae == 0 { 4 } else { 8 };
    for page in 0..TABLES {
        for slot in 0..SLOTS {
            // Bits 0 to 7 as they are; the page, and seldom the rest.
            let (low, page_of, more) = (input.byte(), input.byte(), input.byte());
            let entry =
                u64::from(low) | u64::from(page_of) << 12 | if more > 200 { input.value() << 13 } else { u64::from(more & 1) << 63 };
            let entry = if low & 0x80 != 0 { entry & !0x1ff000 } else { entry };
            for memory in [&ours, &theirs] {
                memory.put(page * 4096 + slot * size, &entry.to_le_bytes()[..size as usize]);
            }
        }
    }
    let paging = Paging::new(&registers, features);
    if registers.cr0 >> 31 != 0 {
        reach(match (pae, registers.efer >> 10 & 1, bit(5)) {
            (0, ..) => "32 bits",
            (_, 0, _) => "PAE",
            (.., 0) => "4 levels",
            _ => "5 levels",
        });
    }
    let found = translate(&ours, &paging, linear, access);
    let expected = model::translate(&theirs, &registers, features, linear, access);
    match (&found, &expected) {
        (Ok(found), Ok(expected)) => {
            reach(if found.left > 4096 { "large" } else { "reached" });
            assert_eq!((found.address, found.left), *expected, "{linear:#x}");
        }
        (Err(found), Err(expected)) => {
            reach("fault");
            assert_eq!((found.linear, found.code.0), (linear, *expected), "{linear:#x}");
        }
        _ => panic!("{found:?} for {linear:#x}, not {expected:x?}"),
    }
    assert_eq!(ours, theirs, "accessed and dirty flags");
    let fetched = trail(&ours, &paging, linear, access.user).map(|trail: Trail| trail.address());
    let fetch = Access { kind: Kind::Fetch, user: access.user, smap_override: false };
    assert_eq!(fetched, translate(&ours, &paging, linear, fetch).map(|found| found.address), "a trail of {linear:#x}");
}

fn aarch64(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let flags = input.byte();
    let bit = |n: u32| flags >> n & 1 != 0;
    let at = At {
        regime: if bit(0) { Regime::Stages12 } else { Regime::Stage1 },
        level: if bit(1) { Level::El0 } else { Level::El1 },
        write: bit(2),
        pan: bit(3),
    };
    // Usual values of the sizes, or any.
    let tcr = if bit(4) {
        input.double()
    } else {
        input.pick(&[16, 25]) | input.pick(&[16, 25]) << 16 | 2 << 30 | u64::from(input.byte() & 7) << 32
    };
    let granules = [25 | 1 << 6, 24 | 1 << 6, 34, 30 | 1 << 6 | 2 << 14, 28 | 1 << 6 | 1 << 14];
    let vtcr = if bit(5) { input.word().into() } else { input.pick(&granules) | u64::from(input.byte() & 7) << 16 };
    let page = |input: &mut Input<'_>| input.below(PAGES as usize) as u64;
    let (ttbr, vttbr) = ([page(&mut input) << 12, page(&mut input) << 12], page(&mut input) << 12);
    let mair = input.double();
    let va = if bit(6) {
        input.double()
    } else {
        let (indices, low, upper) = (u64::from(input.byte()), u64::from(input.half() & 0xfff), input.byte());
        let near = (indices & 3) << 12 | (indices >> 2 & 3) << 21 | (indices >> 4 & 3) << 30 | (indices >> 6 & 3) << 39 | low;
        if upper & 1 != 0 { near | 0xffff << 48 } else { near }
    };
    let mut words = BTreeMap::new();
    for number in 0.. {
        if input.is_empty() {
            break;
        }
        let (low, target, high) = (input.half(), input.byte(), input.byte());
        // A table or page, unless the bits that the next line flips change that.
        let descriptor = 0x7ff ^ u64::from(low & 0xfff) | (u64::from(target) % PAGES) << 12 | u64::from(low >> 12) << 51;
        let descriptor = if high > 200 { descriptor ^ input.value() } else { descriptor };
        words.insert(((number / SLOTS) % PAGES) << 12 | (number % SLOTS) << 3, descriptor);
    }
    let memory = pseudocode::Memory(words);
    let stage1 = Stage1 { tcr, ttbr, sctlr: 1, mair, hcr: 1 };
    let stage2 = Stage2::decode(vtcr, vttbr, 1, 0, PA_BITS as u8);
    let found = at::translate(at, &stage1, &stage2, &memory, va, true);
    assert_eq!(found, pseudocode(at, &stage1, &S2 { vtcr, vttbr }, &memory, va), "PAR_EL1 for {va:#x}");
    reach(match (found & 1, found >> 8 & 3) {
        (0, _) => "reached",
        (_, 0 | 1) => "first stage",
        (_, 2) => "second stage",
        _ => "second stage of a walk",
    });
}
