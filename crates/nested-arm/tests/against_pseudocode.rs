//! `AT` of both stages against the Arm ARM's pseudocode. Tables lie in a few pages and mostly lead to each other, so
//! that random walks reach every level and every fault.

mod pseudocode;

use proptest::prelude::*;
use pseudocode::{Memory, PA_BITS, PAGES, S2, pseudocode};
use stile_nested_arm::at::{At, Regime, Stage1, translate};
use stile_nested_arm::forward::Level;
use stile_nested_arm::shadow::Stage2;

/// Mostly valid, mostly permissive, and mostly leading to another of the pages.
fn descriptor() -> impl Strategy<Value = u64> {
    let page =
        prop_oneof![12 => 0..PAGES, 1 => any::<u64>().prop_map(|n| n >> 28 & 0xf_ffff_ffff), 1 => (28..36u32).prop_map(|bit| 1 << bit)];
    let kind = prop_oneof![10 => Just(0b11u64), 2 => Just(0b01), 1 => 0..4u64];
    let low = prop_oneof![6 => Just(0x7c0u64 | 0b1111 << 2), 4 => (0..0x400u64).prop_map(|low| low << 2)];
    let high = prop_oneof![6 => Just(0u64), 1 => Just(1 << 51), 1 => (0..4u64).prop_map(|table| table << 61), 1 => Just(1 << 54)];
    (page, kind, low, high).prop_map(|(page, kind, low, high)| page << 12 | kind | low & 0xffc | high)
}

/// Each page has entries at the same few indices, which addresses use.
fn memory() -> impl Strategy<Value = Memory> {
    prop::collection::vec(descriptor(), (PAGES * 4) as usize).prop_map(|entries| {
        let words = (0..).zip(entries).map(|(n, entry)| ((n / 4) << 12 | (n % 4) << 3, entry));
        Memory(words.collect())
    })
}

fn address() -> impl Strategy<Value = u64> {
    let index = || 0..4u64;
    let near = (index(), index(), index(), index(), 0..0x1000u64).prop_map(|(a, b, c, d, low)| a << 39 | b << 30 | c << 21 | d << 12 | low);
    let wide = (index(), index(), index(), 0..0x1_0000u64).prop_map(|(a, b, c, low)| a << 42 | b << 29 | c << 16 | low);
    let middle =
        (index(), index(), index(), index(), 0..0x4000u64).prop_map(|(a, b, c, d, low)| a << 47 | b << 36 | c << 25 | d << 14 | low);
    let any = prop_oneof![6 => near, 1 => wide, 1 => middle, 1 => any::<u64>()];
    (any, prop_oneof![6 => Just(0u64), 2 => Just(0xffff << 48), 1 => Just(0xab << 56)]).prop_map(|(address, high)| address ^ high)
}

fn tcr() -> impl Strategy<Value = u64> {
    let size = || prop_oneof![4 => Just(16u64), 4 => Just(25), 2 => 0..64u64];
    let granule = || prop_oneof![6 => Just(None), 1 => (0..4u64).prop_map(Some)];
    let flags = prop_oneof![6 => Just(0u64), 1 => any::<u64>().prop_map(|bits| bits & (1 << 7 | 1 << 23 | 0x3f << 37 | 3 << 55))];
    (size(), size(), granule(), granule(), 0..8u64, flags).prop_map(|(t0sz, t1sz, tg0, tg1, ips, flags)| {
        t0sz | t1sz << 16 | tg0.unwrap_or(0) << 14 | tg1.unwrap_or(2) << 30 | ips << 32 | flags
    })
}

fn vtcr() -> impl Strategy<Value = u64> {
    let usual = prop_oneof![Just(25u64 | 1 << 6), Just(24 | 1 << 6), Just(34), Just(30 | 1 << 6 | 2 << 14), Just(28 | 1 << 6 | 1 << 14)];
    (prop_oneof![6 => usual, 1 => 0..0x1_0000u64], 0..8u64).prop_map(|(low, ps)| low | ps << 16)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn at_gives_what_the_manual_says(
        memory in memory(), tcr in tcr(), vtcr in vtcr(), va in address(), mair: u64,
        (ttbr0, ttbr1, vttbr) in (0..PAGES, 0..PAGES, 0..PAGES),
        (both, el0, write, pan) in any::<(bool, bool, bool, bool)>(),
    ) {
        const M: u64 = 1;
        const VM: u64 = 1;
        let stage1 = Stage1 { tcr, ttbr: [ttbr0 << 12, ttbr1 << 12], sctlr: M, mair, hcr: VM };
        let s2 = S2 { vtcr, vttbr: vttbr << 12 };
        let stage2 = Stage2::decode(vtcr, s2.vttbr, VM, 0, PA_BITS as u8);
        let at = At {
            regime: if both { Regime::Stages12 } else { Regime::Stage1 },
            level: if el0 { Level::El0 } else { Level::El1 },
            write,
            pan,
        };
        let (found, expected) = (translate(at, &stage1, &stage2, &memory, va, true), pseudocode(at, &stage1, &s2, &memory, va));
        prop_assert_eq!(found, expected, "{:#x} for {:#x}", found, expected);
    }
}
