//! The short walk for code.

use crate::entry::{ADDRESS, LARGE, NO_EXECUTE, PRESENT, USER};
use crate::{Access, GuestMemory, Kind, PageFault, Paging, Tables, translate};

/// Where the instruction at `linear` lies in guest-physical memory, or the fault of fetching it.
///
/// Leaves the accessed flags as they are where nothing is unusual: the processor set them itself when it
/// fetched the instruction that is now emulated.
#[inline]
pub fn fetch_address(memory: &impl GuestMemory, paging: &Paging, linear: u64, user: bool) -> Result<u64, PageFault> {
    match paging.tables {
        // Every emulated instruction of a kernel comes here: see `quick` for what it leaves out.
        Tables::Level4 => match quick(memory, paging, linear, user) {
            Some(address) => Ok(address),
            None => general(memory, paging, linear, user),
        },
        _ => general(memory, paging, linear, user),
    }
}

/// Four levels with nothing reserved and nothing forbidden; None if in doubt.
#[inline]
fn quick(memory: &impl GuestMemory, paging: &Paging, linear: u64, user: bool) -> Option<u64> {
    let top = memory.read_u64(paging.root + (linear >> 39 & 0x1ff) * 8)?;
    if top & (PRESENT | LARGE) != PRESENT {
        return None;
    }
    let directories = memory.read_u64((top & ADDRESS) + (linear >> 30 & 0x1ff) * 8)?;
    if directories & (PRESENT | LARGE) != PRESENT {
        return None;
    }
    let (mut all, mut any) = (top & directories, top | directories);
    let directory = memory.read_u64((directories & ADDRESS) + (linear >> 21 & 0x1ff) * 8)?;
    all &= directory;
    any |= directory;
    if directory & PRESENT == 0 {
        return None;
    }
    let address = if directory & LARGE != 0 {
        const SIZE: u64 = 2 << 20;
        if directory & (SIZE - 1) & ADDRESS & !crate::PAGE != 0 {
            return None;
        }
        directory & ADDRESS & !(SIZE - 1) | linear & (SIZE - 1)
    } else {
        let page = memory.read_u64((directory & ADDRESS) + (linear >> 12 & 0x1ff) * 8)?;
        if page & PRESENT == 0 {
            return None;
        }
        all &= page;
        any |= page;
        page & ADDRESS | linear & 0xfff
    };
    let user_page = all & USER != 0;
    let strange = any & (paging.reserved | NO_EXECUTE) != 0 || user_page != user;
    (!strange).then_some(address)
}

#[cold]
fn general(memory: &impl GuestMemory, paging: &Paging, linear: u64, user: bool) -> Result<u64, PageFault> {
    let access = Access { kind: Kind::Fetch, user, smap_override: false };
    translate(memory, paging, linear, access).map(|found| found.address)
}
