//! The page-table walk.

use crate::entry::{ACCESSED, ADDRESS, DIRTY, LARGE, NO_EXECUTE, PRESENT, USER, WRITABLE};
use crate::{ErrorCode, GuestMemory, PAGE, PageFault, Paging, Tables};

/// The kind of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A data read.
    Read,
    /// A data write or a read-modify-write.
    Write,
    /// An instruction fetch.
    Fetch,
}

/// An access and its privilege.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    /// Its kind.
    pub kind: Kind,
    /// A user-mode access: CPL is 3, and it is not an implicit supervisor access (of a descriptor table, for example).
    pub user: bool,
    /// RFLAGS.AC permits explicit supervisor accesses to user pages despite CR4.SMAP; false for implicit ones.
    pub smap_override: bool,
}

/// The result of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Translation {
    /// The guest-physical address.
    pub address: u64,
    /// Bytes from there to the end of the page (4 KiB to 1 GiB), for which the translation holds.
    pub left: u64,
}

/// Bound on restarts of a walk whose entries change before their flags are set. A guest that races its own tables for longer gets the
/// translation without the flags.
const RETRIES: usize = 8;

/// Translates an access of one byte at `linear`, and sets the accessed and dirty flags of the entries used.
///
/// A table outside of guest memory reads as not present. `linear` must be canonical ([`Paging::non_canonical`]); outside of long mode
/// its upper half is ignored.
pub fn translate(memory: &impl GuestMemory, paging: &Paging, linear: u64, access: Access) -> Result<Translation, PageFault> {
    let mut attempt = 0;
    loop {
        let Some(path) = walk(memory, paging, linear, access)? else {
            let address = linear & u64::from(u32::MAX);
            return Ok(Translation { address, left: PAGE - address % PAGE });
        };
        if path.mark(memory, access.kind == Kind::Write) || attempt == RETRIES {
            return Ok(Translation { address: path.address(linear), left: path.size - (linear & (path.size - 1)) });
        }
        attempt += 1;
    }
}

/// Walks the tables and checks access rights; None if paging is off.
pub(crate) fn walk(memory: &impl GuestMemory, paging: &Paging, linear: u64, access: Access) -> Result<Option<Path>, PageFault> {
    let path = match paging.tables {
        Tables::Off => return Ok(None),
        Tables::Bits32 { pse } => walk_32(memory, paging, linear, pse),
        Tables::Pae(pointers) => walk_pae(memory, paging, linear, &pointers),
        Tables::Level4 => walk_wide(memory, paging, linear, paging.root, 4),
        Tables::Level5 => walk_wide(memory, paging, linear, paging.root, 5),
    };
    let fault = |bits: u32| PageFault { linear, code: error_code(paging, access, bits) };
    let path = path.map_err(|bits| fault(bits.0))?;
    if allowed(paging, &path, access) { Ok(Some(path)) } else { Err(fault(ErrorCode::PRESENT)) }
}

/// The entries that a walk used.
pub(crate) struct Path {
    /// Address and value of each entry in memory, from the root down.
    pub(crate) entries: [(u64, u64); 5],
    pub(crate) count: usize,
    /// Entries have four bytes.
    pub(crate) narrow: bool,
    /// The AND and the OR of all entries, from which access rights follow.
    all: u64,
    any: u64,
    base: u64,
    size: u64,
}

impl Path {
    const fn new(narrow: bool) -> Self {
        Self { entries: [(0, 0); 5], count: 0, narrow, all: WRITABLE | USER, any: 0, base: 0, size: 0 }
    }

    /// Reads an entry and appends it to the path. Fails with an error code if the entry is not present or has reserved bits set.
    fn step(&mut self, memory: &impl GuestMemory, address: u64, reserved: impl Fn(u64) -> bool) -> Result<u64, Bits> {
        let value = if self.narrow { memory.read_u32(address).map(u64::from) } else { memory.read_u64(address) };
        let value = value.unwrap_or(0);
        if value & PRESENT == 0 {
            return Err(Bits(0));
        }
        if reserved(value) {
            return Err(Bits(ErrorCode::PRESENT | ErrorCode::RESERVED));
        }
        if let Some(slot) = self.entries.get_mut(self.count) {
            *slot = (address, value);
            self.count += 1;
        }
        self.all &= value;
        self.any |= value;
        Ok(value)
    }

    pub(crate) fn address(&self, linear: u64) -> u64 {
        let mask = self.size - 1;
        self.base & !mask | linear & mask
    }

    /// Sets the accessed flags, and for a write the last entry's dirty flag. False if an entry has changed since it was read.
    fn mark(&self, memory: &impl GuestMemory, write: bool) -> bool {
        let used = self.entries.get(..self.count).unwrap_or(&[]);
        used.iter().enumerate().all(|(level, &(address, old))| {
            let last = level + 1 == self.count;
            let new = old | ACCESSED | if last && write { DIRTY } else { 0 };
            old == new
                || if self.narrow { memory.replace_u32(address, old as u32, new as u32) } else { memory.replace_u64(address, old, new) }
        })
    }
}

/// Bits of an error code.
struct Bits(u32);

fn walk_pae(memory: &impl GuestMemory, paging: &Paging, linear: u64, pointers: &[u64; 4]) -> Result<Path, Bits> {
    // The PDPTEs' reserved bits were checked when they were loaded. PDPTEs have neither access rights nor flags.
    let pointer = pointers.get((linear >> 30 & 3) as usize).copied().unwrap_or(0);
    if pointer & PRESENT == 0 {
        return Err(Bits(0));
    }
    walk_wide(memory, paging, linear, pointer & ADDRESS & paging.physical, 2)
}

fn walk_wide(memory: &impl GuestMemory, paging: &Paging, linear: u64, root: u64, levels: u32) -> Result<Path, Bits> {
    let mut path = Path::new(false);
    let mut table = root;
    for level in (1..=levels).rev() {
        let shift = 3 + 9 * level;
        let size = 1_u64 << shift;
        let may_be_large = level == 2 || level == 3 && paging.page_1g;
        let value = path.step(memory, table + (linear >> shift & 0x1ff) * 8, |value| {
            let misplaced = match value & LARGE != 0 && level > 1 {
                true if !may_be_large => LARGE,
                // Bit 12 of a large page is its PAT bit.
                true => (size - 1) & ADDRESS & !PAGE,
                false => 0,
            };
            value & (paging.reserved | misplaced) != 0
        })?;
        if level == 1 || value & LARGE != 0 {
            path.base = value & ADDRESS;
            path.size = size;
            break;
        }
        table = value & ADDRESS;
    }
    Ok(path)
}

fn walk_32(memory: &impl GuestMemory, paging: &Paging, linear: u64, pse: bool) -> Result<Path, Bits> {
    /// Bits of a 4 MiB page's entry that hold address bits 39:32, and their shift ("32-Bit Paging").
    const HIGH: u64 = 0xff << 13;
    const HIGH_SHIFT: u32 = 32 - 13;

    let mut path = Path::new(true);
    let large = |value: u64| pse && value & LARGE != 0;
    let present_high = if paging.pse36 { paging.physical >> HIGH_SHIFT & HIGH } else { 0 };
    let value = path.step(memory, (paging.root & u64::from(u32::MAX)) + (linear >> 22 & 0x3ff) * 4, |value| {
        large(value) && value & ((HIGH | 1 << 21) & !present_high) != 0
    })?;
    if large(value) {
        path.base = value & 0xffc0_0000 | (value & HIGH) << HIGH_SHIFT;
        path.size = 4 << 20;
    } else {
        let value = path.step(memory, (value & 0xffff_f000) + (linear >> 12 & 0x3ff) * 4, |_| false)?;
        path.base = value & 0xffff_f000;
        path.size = PAGE;
    }
    Ok(path)
}

/// Checks access rights ("Determination of Access Rights").
fn allowed(paging: &Paging, path: &Path, access: Access) -> bool {
    let user_page = path.all & USER != 0;
    let writable = path.all & WRITABLE != 0;
    if access.user && !user_page {
        return false;
    }
    match access.kind {
        Kind::Fetch => !(paging.no_execute && path.any & NO_EXECUTE != 0 || !access.user && user_page && paging.smep),
        kind => {
            let kept_out = !access.user && user_page && paging.smap && !access.smap_override;
            let read_only = kind == Kind::Write && !writable && (access.user || paging.write_protect);
            !kept_out && !read_only
        }
    }
}

fn error_code(paging: &Paging, access: Access, bits: u32) -> ErrorCode {
    let mut code = bits;
    if access.kind == Kind::Write {
        code |= ErrorCode::WRITE;
    }
    if access.user {
        code |= ErrorCode::USER;
    }
    // I/D is reported only if NXE or SMEP is enabled ("Page-Fault Exceptions").
    if access.kind == Kind::Fetch && (paging.no_execute || paging.smep) {
        code |= ErrorCode::FETCH;
    }
    ErrorCode(code)
}
