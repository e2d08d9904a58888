//! The Arm ARM's pseudocode for `AT` of both stages, transcribed plainly: `AArch64.S1Walk`, `AArch64.S2Walk` and what
//! they call, for 48 bits and without the extensions that L1 does not have.

use std::collections::BTreeMap;

use stile_nested_arm::at::{At, Regime, Stage1};
use stile_nested_arm::forward::Level;
use stile_nested_arm::shadow::GuestMemory;

/// Pages of tables and of data, from address 0 of L1's memory on.
pub const PAGES: u64 = 64;
/// Width of physical addresses reported to L1.
pub const PA_BITS: u32 = 40;

#[derive(Clone, Debug)]
pub struct Memory(pub BTreeMap<u64, u64>);

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

pub struct S2 {
    pub vtcr: u64,
    pub vttbr: u64,
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
pub fn pseudocode(at: At, s1: &Stage1, s2: &S2, memory: &Memory, va: u64) -> u64 {
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
