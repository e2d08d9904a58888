//! A model of translation that follows the manual's tables: one row per level of each paging mode, with explicit reserved bits.

use stile_x86_walk::model::Memory;
use stile_x86_walk::{Access, Features, GuestMemory, Kind, Registers};

struct Level {
    shift: u32,
    index_bits: u32,
    bytes: u64,
    /// Whether an entry with bit 7 set maps a page.
    large: bool,
    /// Whether bit 7 is reserved.
    large_reserved: bool,
}

const fn wide(shift: u32, large: bool, large_reserved: bool) -> Level {
    Level { shift, index_bits: 9, bytes: 8, large, large_reserved }
}

fn bits(high: u32, low: u32) -> u64 {
    (low..=high).fold(0, |all, bit| all | 1 << bit)
}

fn levels(r: &Registers, features: Features) -> Vec<Level> {
    let pae = r.cr4 & 1 << 5 != 0;
    let long = r.efer & 1 << 10 != 0;
    if !pae {
        let pse = r.cr4 & 1 << 4 != 0;
        return vec![
            Level { shift: 22, index_bits: 10, bytes: 4, large: pse, large_reserved: false },
            Level { shift: 12, index_bits: 10, bytes: 4, large: false, large_reserved: false },
        ];
    }
    let mut levels = vec![wide(21, true, false), wide(12, false, false)];
    if long {
        levels.insert(0, wide(30, features.page_1g, !features.page_1g));
        levels.insert(0, wide(39, false, true));
        if r.cr4 & 1 << 12 != 0 {
            levels.insert(0, wide(48, false, true));
        }
    }
    levels
}

fn reserved(r: &Registers, features: Features, level: &Level, entry: u64) -> u64 {
    let m = u32::from(features.physical_bits);
    let large = level.large && entry & 1 << 7 != 0;
    if level.bytes == 4 {
        return match large {
            true if features.pse36 => bits(21, m.min(40) - 19),
            true => bits(21, 13),
            false => 0,
        };
    }
    let mut mask = if r.efer & 1 << 10 != 0 { if m < 52 { bits(51, m) } else { 0 } } else { bits(62, m) };
    if r.efer & 1 << 11 == 0 {
        mask |= 1 << 63;
    }
    if level.large_reserved {
        mask |= 1 << 7;
    }
    if large {
        mask |= bits(level.shift - 1, 13);
    }
    mask
}

/// Returns the address and the bytes to the page's end, or the error code.
pub fn translate(memory: &Memory, r: &Registers, features: Features, linear: u64, access: Access) -> Result<(u64, u64), u32> {
    if r.cr0 & 1 << 31 == 0 {
        return Ok((linear & 0xffff_ffff, 4096 - linear % 4096));
    }
    let (pae, long) = (r.cr4 & 1 << 5 != 0, r.efer & 1 << 10 != 0);
    let nxe = pae && r.efer & 1 << 11 != 0;
    let smep = r.cr4 & 1 << 20 != 0;
    let smap = r.cr4 & 1 << 21 != 0;
    let mut code = 0;
    if access.kind == Kind::Write {
        code |= 2;
    }
    if access.user {
        code |= 4;
    }
    if access.kind == Kind::Fetch && (smep || nxe) {
        code |= 16;
    }
    let m = u32::from(features.physical_bits);
    let mut table = if !pae {
        r.cr3 & bits(31, 12)
    } else if long {
        r.cr3 & bits(m - 1, 12)
    } else {
        let pointer = r.pdpte[(linear >> 30 & 3) as usize];
        if pointer & 1 == 0 {
            return Err(code);
        }
        pointer & bits(m - 1, 12)
    };
    let (mut user, mut writable, mut executable) = (true, true, true);
    let mut used = Vec::new();
    for level in levels(r, features) {
        let index = linear >> level.shift & ((1 << level.index_bits) - 1);
        let address = table + index * level.bytes;
        let entry = if level.bytes == 4 { memory.read_u32(address).map(u64::from) } else { memory.read_u64(address) };
        let entry = entry.unwrap_or(0);
        if entry & 1 == 0 {
            return Err(code);
        }
        if entry & reserved(r, features, &level, entry) != 0 {
            return Err(code | 1 | 8);
        }
        writable &= entry & 2 != 0;
        user &= entry & 4 != 0;
        executable &= !(nxe && entry >> 63 != 0);
        used.push((address, level.bytes));
        let large = level.large && entry & 1 << 7 != 0;
        if !large && level.shift != 12 {
            table = entry & if level.bytes == 4 { bits(31, 12) } else { bits(51, 12) };
            continue;
        }
        let forbidden = match (access.kind, access.user) {
            (Kind::Fetch, true) => !user || !executable,
            (Kind::Fetch, false) => !executable || smep && user,
            (Kind::Read, true) => !user,
            (Kind::Read, false) => smap && user && !access.smap_override,
            (Kind::Write, true) => !user || !writable,
            (Kind::Write, false) => smap && user && !access.smap_override || r.cr0 & 1 << 16 != 0 && !writable,
        };
        if forbidden {
            return Err(code | 1);
        }
        let size = 1_u64 << level.shift;
        let frame = if level.bytes == 4 {
            let high = if large { entry >> 13 & 0xff } else { 0 };
            entry & bits(31, level.shift) | high << 32
        } else {
            entry & bits(51, level.shift)
        };
        for (i, &(address, bytes)) in used.iter().enumerate() {
            let dirty = access.kind == Kind::Write && i + 1 == used.len();
            let flags = 1 << 5 | if dirty { 1 << 6 } else { 0 };
            if bytes == 4 {
                memory.put(address, &(memory.read_u32(address).unwrap() | flags).to_le_bytes());
            } else {
                memory.put(address, &(memory.read_u64(address).unwrap() | u64::from(flags)).to_le_bytes());
            }
        }
        return Ok((frame | linear & (size - 1), size - (linear & (size - 1))));
    }
    unreachable!("the last level maps a page")
}

/// Returns the addresses of the entries used by a walk that reaches a page.
pub fn entries(memory: &Memory, r: &Registers, features: Features, linear: u64) -> Vec<u64> {
    let long = r.efer & 1 << 10 != 0;
    let mut table = match r.cr4 & 1 << 5 != 0 {
        true if !long => r.pdpte[(linear >> 30 & 3) as usize] & bits(u32::from(features.physical_bits) - 1, 12),
        _ => r.cr3,
    };
    let mut found = Vec::new();
    for level in levels(r, features) {
        let index = linear >> level.shift & ((1 << level.index_bits) - 1);
        let address = (table & bits(51, 12)) + index * level.bytes;
        found.push(address);
        table = if level.bytes == 4 { memory.read_u32(address).map(u64::from) } else { memory.read_u64(address) }.unwrap_or(0);
        if level.large && table & 1 << 7 != 0 {
            break;
        }
    }
    found
}
