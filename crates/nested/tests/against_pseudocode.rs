//! `AT` of both stages against the Arm ARM's pseudocode, transcribed plainly: `AArch64.S1Walk`, `AArch64.S2Walk` and what they call, for
//! 48 bits and without the extensions that L1 does not have. Tables lie in a few pages and mostly lead to each other, so that random walks
//! reach every level and every fault.

use std::collections::BTreeMap;

use proptest::prelude::*;
use stile_nested::at::{At, Regime, Stage1, translate};
use stile_nested::forward::Level;
use stile_nested::shadow::{GuestMemory, Stage2};

/// Pages of tables and of data, from address 0 of L1's memory on.
const PAGES: u64 = 64;
/// What L1 says of its physical addresses.
const PA_BITS: u32 = 40;

#[derive(Clone, Debug)]
struct Memory(BTreeMap<u64, u64>);

impl GuestMemory for Memory {
    fn read(&self, address: u64) -> Option<u64> {
        (address < PAGES << 12).then(|| self.0.get(&address).copied().unwrap_or(0))
    }
}

/// `Bits(x, high, low)` is the manual's `x<high:low>`.
fn bits(x: u64, high: u32, low: u32) -> u64 {
    x >> low & (u64::MAX >> (63 - (high - low)))
}

fn bit(x: u64, n: u32) -> bool {
    bits(x, n, n) != 0
}

/// A fault: its status code, level included, and whether it is of the second stage, and on a walk of the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Fault {
    status: u64,
    second: bool,
    walk: bool,
}

const ADDRESS_SIZE: u64 = 0b00_0000;
const TRANSLATION: u64 = 0b00_0100;
const ACCESS_FLAG: u64 = 0b00_1000;
const PERMISSION: u64 = 0b00_1100;
const EXTERNAL: u64 = 0b01_0100;

fn fault<T>(kind: u64, level: u32) -> Result<T, Fault> {
    Err(Fault { status: kind | u64::from(level), second: false, walk: false })
}

/// `DecodeDescriptorType`.
#[derive(PartialEq)]
enum Descriptor {
    Invalid,
    Table,
    Block,
    Page,
}

fn decode_descriptor_type(descriptor: u64, granule_bits: u32, level: u32) -> Descriptor {
    match (bits(descriptor, 1, 0), level, granule_bits) {
        (0b00 | 0b10, ..) => Descriptor::Invalid,
        (0b11, 3, _) => Descriptor::Page,
        (0b11, ..) => Descriptor::Table,
        (_, 1 | 2, 12) | (_, 2, 14 | 16) => Descriptor::Block,
        _ => Descriptor::Invalid,
    }
}

/// `TTEntryAddress`, `S1TTWalk` and `S2TTWalk` have this in common. Calls `leaf` with the descriptor, its level and the output address.
#[allow(clippy::too_many_arguments, reason = "a walk's state")]
fn walk<T>(
    ia: u64,
    ia_bits: u32,
    granule_bits: u32,
    start: u32,
    base: u64,
    oa_bits: u32,
    mut fetch: impl FnMut(u64, u32) -> Result<u64, Fault>,
    mut table: impl FnMut(u64),
    leaf: impl FnOnce(u64, u32, u64) -> Result<T, Fault>,
) -> Result<T, Fault> {
    let stride = granule_bits - 3;
    let lsb = |level: u32| granule_bits + (3 - level) * stride;
    // `S1TTBaseAddress`: aligned to the size of the first table, and to 64 bytes at least.
    let size = (ia_bits - lsb(start) + 3).max(6);
    let mut base = base >> size << size;
    if base >> oa_bits != 0 {
        return fault(ADDRESS_SIZE, 0);
    }
    let mut level = start;
    let mut top = ia_bits - 1;
    loop {
        let descriptor = fetch(base | bits(ia, top, lsb(level)) << 3, level)?;
        let kind = decode_descriptor_type(descriptor, granule_bits, level);
        let address = bits(descriptor, 47, granule_bits) << granule_bits;
        match kind {
            Descriptor::Invalid => return fault(TRANSLATION, level),
            _ if address >> oa_bits != 0 => return fault(ADDRESS_SIZE, level),
            Descriptor::Table => {
                table(descriptor);
                base = address;
                top = lsb(level) - 1;
                level += 1;
            }
            Descriptor::Block | Descriptor::Page => {
                let output = bits(address, 47, lsb(level)) << lsb(level) | bits(ia, lsb(level) - 1, 0);
                return leaf(descriptor, level, output);
            }
        }
    }
}

/// `AArch64.PhysicalAddressSize`.
fn size_of(encoded: u64, limit: u32) -> u32 {
    [32, 36, 40, 42, 44][..].get(encoded as usize).copied().unwrap_or(48).min(limit)
}

struct S2 {
    vtcr: u64,
    vttbr: u64,
}

impl S2 {
    /// `AArch64.S2Translate` of a read or write: L1's address, and MemAttr.
    fn translate(&self, memory: &Memory, ipa: u64, write: bool) -> Result<(u64, u64), Fault> {
        let second = |fault: Fault| Fault { second: true, ..fault };
        let granule_bits = [12, 16, 14, 12][bits(self.vtcr, 15, 14) as usize];
        let ia_bits = 64 - bits(self.vtcr, 5, 0) as u32;
        let sl0 = bits(self.vtcr, 7, 6) as u32;
        // `AArch64.S2InvalidSL`, with `AArch64.PAMax` as L1 has it; then the start level.
        let start = match (granule_bits, sl0) {
            (12, 0 | 1) => 2 - sl0,
            (12, 2) if PA_BITS >= 44 => 0,
            (14 | 16, 0 | 1) => 3 - sl0,
            (14, 2) if PA_BITS >= 42 => 1,
            (16, 2) if PA_BITS >= 44 => 1,
            _ => return fault(TRANSLATION, 0).map_err(second),
        };
        // `AArch64.S2InconsistentSL`, `AArch64.S2TxSZFaults`.
        let stride = granule_bits - 3;
        let least = (3 - start) * stride + granule_bits + 1;
        let is_consistent = (least..=least + stride - 1 + 4).contains(&ia_bits);
        if !is_consistent || !(25..=PA_BITS).contains(&ia_bits) || ia_bits < 48 && ipa >> ia_bits != 0 {
            return fault(TRANSLATION, 0).map_err(second);
        }
        let oa_bits = size_of(bits(self.vtcr, 18, 16), PA_BITS);
        let base = bits(self.vttbr, 47, 1) << 1;
        let fetch = |address, level| memory.read(address).map_or_else(|| fault(EXTERNAL, level), Ok);
        let leaf = |descriptor, level, output| {
            if !bit(descriptor, 10) {
                return fault(ACCESS_FLAG, level);
            }
            let allowed = if write { bit(descriptor, 7) } else { bit(descriptor, 6) };
            if allowed { Ok((output, bits(descriptor, 5, 2))) } else { fault(PERMISSION, level) }
        };
        walk(ipa, ia_bits, granule_bits, start, base, oa_bits, fetch, |_| (), leaf).map_err(second)
    }
}

/// `AArch64.S1Translate` and, for both stages, `AArch64.S2Translate`: PAR_EL1.
fn pseudocode(at: At, s1: &Stage1, s2: &S2, memory: &Memory, va: u64) -> u64 {
    let upper = bit(va, 55);
    let pick = |low: u32, high: u32| if upper { high } else { low };
    let result = (|| {
        let tcr = s1.tcr;
        let granule_bits = match (upper, bits(tcr, pick(15, 31), pick(14, 30))) {
            (false, 0b01) | (true, 0b11) => 16,
            (false, 0b10) | (true, 0b01) => 14,
            _ => 12,
        };
        let ia_bits = 64 - bits(tcr, pick(5, 21), pick(0, 16)) as u32;
        let tbi = bit(tcr, pick(37, 38));
        // `AArch64.S1TxSZFaults` with FEAT_TTST, and `AArch64.VAIsOutOfRange`.
        let least = if granule_bits == 16 { 17 } else { 16 };
        if !(least..=48).contains(&ia_bits) {
            return fault(TRANSLATION, 0);
        }
        let high = bits(va, if tbi { 55 } else { 63 }, ia_bits);
        let ones = u64::MAX >> (63 - (if tbi { 55 } else { 63 } - ia_bits));
        if high != if upper { ones } else { 0 } {
            return fault(TRANSLATION, 0);
        }
        let (epd, e0pd) = (bit(tcr, pick(7, 23)), bit(tcr, pick(55, 56)));
        if epd || e0pd && at.level == Level::El0 {
            return fault(TRANSLATION, 0);
        }
        let oa_bits = size_of(bits(tcr, 34, 32), 48);
        let stride = granule_bits - 3;
        // `AArch64.S1StartLevel`.
        let start = 3 - (ia_bits - 1 - granule_bits) / stride;
        let base = bits(s1.ttbr[usize::from(upper)], 47, 1) << 1;
        let fetch = |address, level| {
            let (address, _) = s2.translate(memory, address, false).map_err(|fault| Fault { walk: true, ..fault })?;
            memory.read(address).map_or_else(|| fault(EXTERNAL, level), Ok)
        };
        let mut ap_table = 0;
        let table = |descriptor| ap_table |= if bit(tcr, pick(41, 42)) { 0 } else { bits(descriptor, 62, 61) };
        let (descriptor, level, output) =
            walk(bits(va, ia_bits - 1, 0), ia_bits, granule_bits, start, base, oa_bits, fetch, table, |descriptor, level, output| {
                Ok((descriptor, level, output))
            })?;
        let (ha, hd) = (bit(tcr, 39), bit(tcr, 40));
        if !bit(descriptor, 10) && !ha {
            return fault(ACCESS_FLAG, level);
        }
        // `AArch64.S1DirectBasePermissions`: AP[2] and AP[1], and what tables take away.
        let read_only = bit(descriptor, 7) && !(ha && hd && bit(descriptor, 51)) || ap_table & 0b10 != 0;
        let unprivileged = bit(descriptor, 6) && ap_table & 0b01 == 0;
        let denied = if at.level == Level::El0 { !unprivileged } else { at.pan && unprivileged };
        if denied || at.write && read_only {
            return fault(PERMISSION, level);
        }
        let attr = s1.mair >> (8 * bits(descriptor, 4, 2)) & 0xff;
        Ok((output, attr, bits(descriptor, 9, 8)))
    })();
    let result = result.and_then(|(ipa, attr, sh)| match at.regime {
        Regime::Stages12 => s2.translate(memory, ipa, at.write).map(|(pa, mem_attr)| match mem_attr {
            0b0000..=0b0011 => (pa, 0, sh),
            0b1111 => (pa, attr, sh),
            _ if attr & 0xf0 == 0 => (pa, attr, sh),
            _ => (pa, 0x44, sh),
        }),
        _ => Ok((ipa, attr, sh)),
    });
    match result {
        // Device and non-cacheable memory is outer shareable.
        Ok((pa, attr, sh)) => {
            let sh = if attr & 0xf0 == 0 || attr == 0x44 { 0b10 } else { sh };
            attr << 56 | bits(pa, 51, 12) << 12 | 1 << 11 | sh << 7
        }
        Err(Fault { status, second, walk }) => 1 | status << 1 | u64::from(walk) << 8 | u64::from(second) << 9 | 1 << 11,
    }
}

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
