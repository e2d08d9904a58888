//! L1's extended page tables (SDM, "The Extended Page Table Mechanism (EPT)"): the walk that the processor would do for L2.

/// Reads memory of L1's. Addresses are L1's guest-physical addresses.
pub trait Memory {
    /// Eight bytes at an aligned address; `None` outside RAM.
    fn read(&self, address: u64) -> Option<u64>;
}

impl<F: Fn(u64) -> Option<u64>> Memory for F {
    fn read(&self, address: u64) -> Option<u64> {
        self(address)
    }
}

/// Accesses that a translation allows or an access needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rights(pub u8);

impl Rights {
    /// Data reads.
    pub const READ: Self = Self(1);
    /// Data writes.
    pub const WRITE: Self = Self(2);
    /// Instruction fetches.
    pub const EXECUTE: Self = Self(4);
    /// All of them.
    pub const ALL: Self = Self(7);

    /// Whether all of `other` are among these.
    #[inline]
    pub const fn contains(self, other: Self) -> bool {
        other.0 & !self.0 == 0
    }
}

/// A page of L1's that an L2 address leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Leaf {
    /// The page's start in L1's memory.
    pub address: u64,
    /// log2 of its size.
    pub shift: u32,
    /// Accesses that all levels allow.
    pub rights: Rights,
}

impl Leaf {
    /// Where an L2 address in the page is in L1's memory.
    #[inline(always)]
    pub const fn translate(&self, address: u64) -> u64 {
        self.address + (address & ((1 << self.shift) - 1))
    }
}

/// Why a walk ends without a usable page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// An entry is absent or lacks a right: an EPT violation. What the entries that were found allow.
    Violation(Rights),
    /// An entry has a reserved combination of bits: an EPT misconfiguration.
    Misconfiguration,
}

const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
const LARGE: u64 = 1 << 7;

/// Walks from an EPT pointer's root to the page of an L2 address, for an access that needs `needed`.
///
/// # Errors
/// The exit that L1 gets.
pub fn walk(memory: &impl Memory, pointer: u64, address: u64, needed: Rights, physical_bits: u32) -> Result<Leaf, Fault> {
    let beyond = ADDRESS & !((1 << physical_bits) - 1);
    let mut table = pointer & ADDRESS;
    let mut rights = Rights::ALL;
    let mut shift = 39;
    if address >> 48 != 0 {
        return Err(Fault::Violation(Rights(0)));
    }
    loop {
        let index = address >> shift & 0x1ff;
        // L1's table is outside its RAM, where reads return ones: a misconfiguration.
        let entry = memory.read(table + 8 * index).ok_or(Fault::Misconfiguration)?;
        let here = Rights(entry as u8 & 7);
        rights = Rights(rights.0 & here.0);
        if here == Rights(0) {
            return Err(Fault::Violation(Rights(0)));
        }
        let is_leaf = shift == 12 || entry & LARGE != 0;
        // "EPT Misconfigurations": write without read; execute-only, which is not offered; reserved bits.
        let reserved = match (shift, is_leaf) {
            (39, _) => 0xf8,
            (_, false) => 0x78,
            (12, _) => 0,
            (shift, true) => ((1 << shift) - 1) & ADDRESS,
        };
        if !here.contains(Rights::READ) || entry & (reserved | beyond) != 0 {
            return Err(Fault::Misconfiguration);
        }
        if is_leaf {
            if !matches!(entry >> 3 & 7, 0 | 1 | 4 | 5 | 6) {
                return Err(Fault::Misconfiguration);
            }
            if !rights.contains(needed) {
                return Err(Fault::Violation(rights));
            }
            return Ok(Leaf { address: entry & ADDRESS & !((1 << shift) - 1), shift, rights });
        }
        table = entry & ADDRESS;
        shift -= 9;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    const PAGE: u64 = 0x30;

    fn tables() -> HashMap<u64, u64> {
        // 0x1000: root; 0x2000, 0x3000, 0x4000: the levels below.
        HashMap::from([
            (0x1000, 0x2007),
            (0x2000, 0x3007),
            (0x2008, 0x4000_0000 | 0x87 | PAGE),
            (0x3000, 0x4007),
            (0x3008, 0x60_0000 | 0x83 | PAGE),
            (0x4008, 0x9000 | 1 | PAGE),
            (0x4010, 0x9000 | 2 | PAGE),
            (0x4018, 0x9000 | 1 | 2 << 3),
            (0x4020, 1 << 45 | 1 | PAGE),
        ])
    }

    fn walk(address: u64, needed: Rights) -> Result<Leaf, Fault> {
        let tables = tables();
        let memory = |at: u64| (at < 0x10_0000).then(|| tables.get(&at).copied().unwrap_or(0));
        super::walk(&memory, 0x1000 | 0x1e, address, needed, 40)
    }

    #[test]
    fn pages() {
        assert_eq!(walk(0x1234, Rights::READ), Ok(Leaf { address: 0x9000, shift: 12, rights: Rights(1) }));
        assert_eq!(walk(0x21_2345, Rights::WRITE), Ok(Leaf { address: 0x60_0000, shift: 21, rights: Rights(3) }));
        assert_eq!(walk(0x4567_89ab, Rights::EXECUTE).map(|leaf| leaf.translate(0x4567_89ab)), Ok(0x4567_89ab));
        assert_eq!(walk(0x4567_89ab, Rights::EXECUTE), Ok(Leaf { address: 0x4000_0000, shift: 30, rights: Rights::ALL }));
    }

    #[test]
    fn faults() {
        assert_eq!(walk(0x1234, Rights::WRITE), Err(Fault::Violation(Rights(1))));
        assert_eq!(walk(0, Rights::READ), Err(Fault::Violation(Rights(0))));
        assert_eq!(walk(1 << 39, Rights::READ), Err(Fault::Violation(Rights(0))));
        assert_eq!(walk(1 << 50, Rights::READ), Err(Fault::Violation(Rights(0))));
        for misconfigured in [0x2000, 0x3000, 0x4000] {
            assert_eq!(walk(misconfigured, Rights::READ), Err(Fault::Misconfiguration), "{misconfigured:#x}");
        }
    }

    #[test]
    fn a_table_outside_ram() {
        let memory = |at: u64| (at == 0x1000).then_some(0x5000_0007);
        assert_eq!(super::walk(&memory, 0x1000, 0, Rights::READ, 40), Err(Fault::Misconfiguration));
        // A table that points to itself ends like any other.
        let memory = |_| Some(0x1007_u64);
        assert_eq!(super::walk(&memory, 0x1000, 0, Rights::READ, 40).map(|leaf| leaf.shift), Ok(12));
    }
}
