//! L1: its memory, and tables of every shape that the architecture allows.

use crate::host::{MEMORY, RAM};
use proptest::prelude::*;
use std::collections::BTreeMap;
use stile_nested_arm::shadow::{GuestMemory, Need, Stage2, WalkFaultKind};

/// A valid configuration of a second stage.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// log2 of the granule.
    pub page: u32,
    pub start: u8,
    pub input_bits: u32,
    pub output_bits: u32,
    pub root: u64,
    pub vmid: u16,
    pub big_endian: bool,
}

impl Shape {
    pub fn plain() -> Self {
        Self { page: 12, start: 1, input_bits: 39, output_bits: 44, root: RAM, vmid: 3, big_endian: false }
    }

    /// log2 of the range of an entry of `level`.
    fn below(&self, level: u8) -> u32 {
        self.page + (3 - u32::from(level)) * (self.page - 3)
    }

    pub fn stage2(&self) -> Stage2 {
        let (tg0, first) = match self.page {
            12 => (0b00, 2),
            14 => (0b10, 3),
            _ => (0b01, 3),
        };
        let sl0 = u64::from(first - self.start);
        let ps = [32, 36, 40, 42, 44, 48].iter().position(|&bits| bits == self.output_bits).unwrap() as u64;
        let vtcr = u64::from(64 - self.input_bits) | sl0 << 6 | tg0 << 14 | ps << 16 | 1 << 31;
        let sctlr = u64::from(self.big_endian) << 25;
        Stage2::decode(vtcr, u64::from(self.vmid) << 48 | self.root, 1, sctlr, crate::PA_BITS)
    }

    /// A copy with its own root and VMID.
    pub fn at(mut self, guest: &mut Guest, vmid: u16) -> Self {
        self.root = guest.take(8 << (self.input_bits - self.below(self.start)));
        self.vmid = vmid;
        self
    }
}

/// Any valid shape.
pub fn shape() -> impl Strategy<Value = Shape> {
    let page = prop_oneof![Just(12u32), Just(14), Just(16)];
    (page, 0u8..4, any::<u8>(), prop_oneof![Just(32u32), Just(40), Just(44)], any::<bool>())
        .prop_map(|(page, start, bits, output_bits, big_endian)| {
            let range = match page {
                12 => 0..=2,
                14 => 1..=3,
                _ => 1..=3u8,
            };
            let mut shape = Shape { page, output_bits, big_endian, ..Shape::plain() };
            shape.start = start.clamp(*range.start(), *range.end());
            let least = (shape.below(shape.start) + 1).max(25);
            let most = (shape.below(shape.start) + (page - 3) + 4).min(u32::from(crate::PA_BITS));
            (shape, least, most, bits)
        })
        .prop_filter("no such size", |(_, least, most, _)| least <= most)
        .prop_map(|(mut shape, least, most, bits)| {
            shape.input_bits = least + u32::from(bits) % (most - least + 1);
            shape
        })
}

#[derive(Clone, Copy, Debug)]
pub struct Flags {
    pub read: bool,
    pub write: bool,
    pub execute: bool,
    pub accessed: bool,
}

impl Flags {
    pub const ALL: Self = Self { read: true, write: true, execute: true, accessed: true };

    pub fn allows(self, need: Need) -> bool {
        match need {
            Need::Read => self.read,
            Need::Write => self.write,
            Need::Execute => self.read && self.execute,
        }
    }
}

/// L1 adds or removes an entry.
#[derive(Clone, Copy, Debug)]
pub struct Change {
    pub ipa: u64,
    pub level: u8,
    pub output: u64,
    pub flags: Flags,
    pub map: bool,
    /// The maintenance instruction that L1 uses.
    pub hint: u8,
    /// The offset of the address in the changed entry that it uses.
    pub inside: u64,
}

pub fn change() -> impl Strategy<Value = Change> {
    let flags = (any::<[bool; 3]>(), prop::bool::weighted(0.9)).prop_map(|([read, write, execute], accessed)| Flags {
        read: read || write,
        write,
        execute,
        accessed,
    });
    // Mostly an address in L1's memory, sometimes any.
    let output = prop_oneof![8 => (0..MEMORY).prop_map(|within| RAM + within), 1 => any::<u64>()];
    (any::<u64>(), 1u8..4, output, flags, prop::bool::weighted(0.8), any::<u8>(), any::<u64>())
        .prop_map(|(ipa, level, output, flags, map, hint, inside)| Change { ipa, level, output, flags, map, hint, inside })
}

/// Stale TLB entries, which L1 must invalidate.
pub struct Gone {
    pub start: u64,
    pub bytes: u64,
    /// Whether a table was removed: TLBs may hold any of its entries, and one address is insufficient.
    pub was_table: bool,
}

/// L1's memory. A root is at its start, all other tables are beyond the memory of L1's VMs.
pub struct Guest {
    words: BTreeMap<u64, u64>,
    next: u64,
    noise: Option<u64>,
    /// Addresses that have been mapped.
    known: Vec<u64>,
}

const END: u64 = RAM + (1 << 32);

impl GuestMemory for Guest {
    fn read(&self, address: u64) -> Option<u64> {
        assert_eq!(address % 8, 0);
        if let Some(seed) = self.noise {
            if !(RAM..RAM + MEMORY).contains(&address) {
                return None;
            }
            // Some entries look like tables and blocks within the memory, others are random.
            let bits = (address ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            return Some(match bits >> 61 {
                0 => bits,
                1..=5 => RAM | bits & 0x1ff_fffc | 3,
                _ => RAM | bits & 0x1ff_fffc | 1 << 10 | 1,
            });
        }
        (RAM..END).contains(&address).then(|| self.words.get(&address).copied().unwrap_or(0))
    }
}

impl Guest {
    pub fn new() -> Self {
        Self { words: BTreeMap::new(), next: RAM + MEMORY, noise: None, known: Vec::new() }
    }

    pub fn noise(seed: u64) -> Self {
        Self { noise: Some(seed), ..Self::new() }
    }

    /// Allocates memory for a table.
    pub fn take(&mut self, size: u64) -> u64 {
        let size = size.max(64).next_power_of_two();
        let at = self.next.next_multiple_of(size);
        self.next = at + size;
        at
    }

    fn word(&self, shape: &Shape, address: u64) -> u64 {
        let word = self.words.get(&address).copied().unwrap_or(0);
        if shape.big_endian { word.swap_bytes() } else { word }
    }

    fn set(&mut self, shape: &Shape, address: u64, word: u64) {
        self.words.insert(address, if shape.big_endian { word.swap_bytes() } else { word });
    }

    /// Makes three levels of tables in which all entries of a table are equal: each address of the range maps to the same page.
    pub fn mirror(&mut self, shape: &Shape) {
        let (middle, last) = (self.take(4096), self.take(4096));
        for n in 0..512 {
            self.set(shape, shape.root + 8 * n, middle | 3);
            self.set(shape, middle + 8 * n, last | 3);
            self.set(shape, last + 8 * n, (RAM + 0x1000) | 0x7ff);
        }
    }

    /// An address that is, or may be, mapped.
    pub fn interesting(&self, shape: &Shape, bits: u64) -> u64 {
        let limit = (1u64 << shape.input_bits) - 1;
        match self.known.len() {
            0 => bits & limit,
            _ if bits.is_multiple_of(16) => bits & limit << (bits >> 60 & 1),
            n => (self.known[(bits >> 32) as usize % n] ^ (bits & 0xff_ffff) >> (bits >> 24 & 0x1f)) & limit,
        }
    }

    /// Applies a change to the table. Returns the stale TLB contents, if any.
    pub fn apply(&mut self, shape: &Shape, change: &Change) -> Option<Gone> {
        // Addresses are close to each other, so that changes interact.
        let ipa = change.ipa & 0x7ff_f000 | (change.ipa >> 63) << (shape.input_bits - 1);
        let ipa = ipa & ((1 << shape.input_bits) - 1);
        let has_blocks = |level| level == 2 || level == 1 && shape.page == 12;
        let level = if change.level < 3 && has_blocks(change.level) { change.level.max(shape.start) } else { 3 };
        let output_mask = ((1u64 << shape.output_bits) - 1) & !((1 << shape.below(level)) - 1);
        let (mut table, mut at) = (shape.root, shape.start);
        loop {
            let below = shape.below(at);
            let index = if at == shape.start { ipa >> below } else { ipa >> below & ((1 << (shape.page - 3)) - 1) };
            let place = table + 8 * index;
            let old = self.word(shape, place);
            if at == level || old & 3 == 1 {
                let size = 1 << below;
                // A table below is removed whole, with its contents.
                let flags = change.flags;
                let new = if !change.map {
                    0
                } else {
                    let mask = output_mask & !(size - 1);
                    change.output & mask
                        | if at == 3 { 3 } else { 1 }
                        | u64::from(flags.read) << 6
                        | u64::from(flags.write) << 7
                        | u64::from(flags.accessed) << 10
                        | u64::from(!flags.execute) << 54
                        | 0b1111 << 2
                };
                self.set(shape, place, new);
                self.known.push(ipa);
                let was_table = at < 3 && old & 3 == 3;
                return (old != new && old & 1 != 0).then_some(Gone { start: ipa & !(size - 1), bytes: size, was_table });
            }
            if old & 1 == 0 {
                if !change.map {
                    return None;
                }
                let new = self.take(1 << shape.page);
                if new >> shape.output_bits != 0 {
                    return None;
                }
                self.set(shape, place, new | 3);
                table = new;
            } else {
                table = old & 0xffff_ffff_f000;
            }
            at += 1;
        }
    }

    /// The model: address, permissions and level; or the fault.
    pub fn translate(&self, shape: &Shape, ipa: u64) -> Result<(u64, Flags, u8), (WalkFaultKind, u8)> {
        if ipa >= 1 << shape.input_bits {
            return Err((WalkFaultKind::Translation, 0));
        }
        self.step(shape, shape.root, shape.start, ipa)
    }

    fn step(&self, shape: &Shape, table: u64, level: u8, ipa: u64) -> Result<(u64, Flags, u8), (WalkFaultKind, u8)> {
        let size = 1u64 << shape.below(level);
        let entry = self.word(shape, table + ipa / size * 8);
        let is_leaf = match entry & 3 {
            3 => level == 3,
            1 if level == 2 || level == 1 && shape.page == 12 => true,
            _ => return Err((WalkFaultKind::Translation, level)),
        };
        if !is_leaf {
            return self.step(shape, entry & 0xffff_ffff_f000, level + 1, ipa % size);
        }
        let flags =
            Flags { read: entry >> 6 & 1 == 1, write: entry >> 7 & 1 == 1, execute: entry >> 54 & 1 == 0, accessed: entry >> 10 & 1 == 1 };
        if !flags.accessed {
            return Err((WalkFaultKind::AccessFlag, level));
        }
        Ok(((entry & 0xffff_ffff_f000) / size * size + ipa % size, flags, level))
    }
}
