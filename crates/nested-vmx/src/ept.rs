//! L1's extended page tables (SDM, "The Extended Page Table Mechanism (EPT)"): the walk that the processor would do for L2.

/// Memory of L1's. Addresses are L1's guest-physical addresses.
pub trait Memory {
    /// Eight bytes at an aligned address; `None` outside RAM.
    fn read(&self, address: u64) -> Option<u64>;

    /// Compares and exchanges eight bytes at an aligned address. Returns false if the value differs, or the address is not RAM.
    fn replace(&self, address: u64, old: u64, new: u64) -> bool;
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
    /// Translates an L2 address in the page to L1's memory.
    #[inline(always)]
    pub const fn translate(&self, address: u64) -> u64 {
        self.address + (address & ((1 << self.shift) - 1))
    }
}

/// Reason for which a walk ends without a usable page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// An entry is absent or lacks a right: an EPT violation. Holds the accesses that the entries found allow.
    Violation(Rights),
    /// An entry has a reserved combination of bits: an EPT misconfiguration.
    Misconfiguration,
}

const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
const LARGE: u64 = 1 << 7;
/// Flags of entries.
const ACCESSED: u64 = 1 << 8;
const DIRTY: u64 = 1 << 9;
/// In an EPT pointer: accessed and dirty flags are enabled.
pub const ACCESSED_DIRTY: u64 = 1 << 6;
/// Maximum number of walks while other CPUs of L1 change the entries. L1 then gets an EPT violation, as from a stale cached translation.
const ATTEMPTS: usize = 16;

/// Walks from an EPT pointer's root to the page of an L2 address, for an access that needs `needed`. If the pointer
/// enables accessed and dirty flags, sets them ("Accessed and Dirty Flags for EPT"). A page that is not dirty is
/// returned without write permission, so that the next write faults.
///
/// # Errors
/// The exit that L1 gets.
pub fn walk(memory: &impl Memory, pointer: u64, address: u64, needed: Rights, physical_bits: u32) -> Result<Leaf, Fault> {
    let mut found = Rights(0);
    for _ in 0..ATTEMPTS {
        let mut path = Path { entries: [(0, 0); 4], count: 0 };
        let leaf = find(memory, pointer, address, needed, physical_bits, &mut path)?;
        if pointer & ACCESSED_DIRTY == 0 {
            return Ok(leaf);
        }
        match path.mark(memory, needed.contains(Rights::WRITE)) {
            Some(true) => return Ok(leaf),
            Some(false) => return Ok(Leaf { rights: Rights(leaf.rights.0 & !Rights::WRITE.0), ..leaf }),
            None => found = leaf.rights,
        }
    }
    Err(Fault::Violation(found))
}

/// Addresses and values of the entries that a walk uses, from the root down.
struct Path {
    entries: [(u64, u64); 4],
    count: usize,
}

impl Path {
    fn push(&mut self, address: u64, entry: u64) {
        if let Some(slot) = self.entries.get_mut(self.count) {
            *slot = (address, entry);
            self.count += 1;
        }
    }

    /// Sets the accessed flags, and for a write the dirty flag of the last entry. Returns whether that is dirty; `None` if an entry has
    /// changed since it was read.
    fn mark(&self, memory: &impl Memory, write: bool) -> Option<bool> {
        let mut is_dirty = false;
        for (level, &(address, old)) in self.entries.iter().take(self.count).enumerate() {
            let is_last = level + 1 == self.count;
            let new = old | ACCESSED | if is_last && write { DIRTY } else { 0 };
            if old != new && !memory.replace(address, old, new) {
                return None;
            }
            is_dirty = new & DIRTY != 0;
        }
        Some(is_dirty)
    }
}

fn find(memory: &impl Memory, pointer: u64, address: u64, needed: Rights, physical_bits: u32, path: &mut Path) -> Result<Leaf, Fault> {
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
        path.push(table + 8 * index, entry);
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

    /// Memory that is only read.
    struct Constant<F>(F);

    impl<F: Fn(u64) -> Option<u64>> Memory for Constant<F> {
        fn read(&self, address: u64) -> Option<u64> {
            (self.0)(address)
        }

        fn replace(&self, address: u64, _: u64, _: u64) -> bool {
            panic!("a write to {address:#x}")
        }
    }

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
        let memory = Constant(|at: u64| (at < 0x10_0000).then(|| tables.get(&at).copied().unwrap_or(0)));
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
        let memory = Constant(|at: u64| (at == 0x1000).then_some(0x5000_0007));
        assert_eq!(super::walk(&memory, 0x1000, 0, Rights::READ, 40), Err(Fault::Misconfiguration));
        // A table that points to itself ends like any other.
        let memory = Constant(|_| Some(0x1007_u64));
        assert_eq!(super::walk(&memory, 0x1000, 0, Rights::READ, 40).map(|leaf| leaf.shift), Ok(12));
    }
}
