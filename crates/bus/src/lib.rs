//! Address decoding of a guest's buses: finds the device that answers an access.
//!
//! A [`Bus`] is one address space (memory, or x86 I/O ports). It is built once, when the VM is
//! created, from a list of [`Region`]s, and never changes: lookups take no lock and read two cache
//! lines or so. A region names its device by a value of the caller's own type `D`, usually an
//! `enum` with a variant for each device, so that the caller dispatches statically.
//!
//! # Rules
//! An access has an address and a width in bytes. These rules hold for every device on every bus;
//! models need not repeat them:
//!
//! 1. Regions do not overlap, are not empty and do not wrap: [`Bus::new`] refuses others.
//! 2. The region that contains the first byte answers. All bytes of the access must lie in it.
//! 3. A region accepts the [`Widths`] that it names, and no others.
//! 4. Alignment is not checked. The device gets the offset of the first byte from the region's
//!    base, and defines what an unaligned access means.
//! 5. If no region answers, the architecture decides: a PC reads all ones and ignores writes; on
//!    Arm the guest takes an external abort.
//!
//! Bits of a loaded value beyond the width are ignored by the caller; a stored value is
//! zero-extended.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

#[cfg(test)]
mod tests;

use core::num::NonZeroU8;
use core::ops::Range;

/// A set of access widths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Widths(u16);

impl Widths {
    /// One byte.
    pub const BYTE: Widths = Widths(1 << 1);
    /// Two bytes.
    pub const HALF: Widths = Widths(1 << 2);
    /// Four bytes.
    pub const WORD: Widths = Widths(1 << 4);
    /// Eight bytes.
    pub const DOUBLE: Widths = Widths(1 << 8);
    /// One, two, four and eight bytes.
    pub const ALL: Widths = Widths::BYTE.or(Widths::HALF).or(Widths::WORD).or(Widths::DOUBLE);

    /// The union of two sets.
    #[must_use]
    pub const fn or(self, other: Widths) -> Widths {
        Widths(self.0 | other.0)
    }

    /// Whether the set contains a width of `bytes` bytes, which may have any value.
    #[inline]
    pub const fn contains(self, bytes: u64) -> bool {
        bytes <= 8 && self.0 >> bytes & 1 != 0
    }
}

/// Addresses that belong to one device. A device may have several regions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region<D> {
    /// The addresses.
    pub addresses: Range<u64>,
    /// The address from which the device counts offsets: at most the first one.
    pub base: u64,
    /// The accesses that the device answers.
    pub widths: Widths,
    /// The device.
    pub device: D,
}

impl<D> Region<D> {
    /// A region with its base at the first address.
    pub const fn new(addresses: Range<u64>, widths: Widths, device: D) -> Region<D> {
        Region { base: addresses.start, addresses, widths, device }
    }

    /// Replaces the base, so that a device with several regions tells them apart by the offset.
    #[must_use]
    pub fn with_base(self, base: u64) -> Region<D> {
        Region { base, ..self }
    }
}

/// Reason for which a bus can't be built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error<D> {
    /// A region without addresses, or with its base behind the first one.
    Empty(D),
    /// Two regions share an address.
    Overlap(D, D),
    /// The bus has no space for more regions.
    Full,
}

/// A region of a [`Bus`], by its place there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot(NonZeroU8);

impl Slot {
    fn index(self) -> usize {
        self.0.get().into()
    }
}

/// A device that answers an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hit<D> {
    /// The device.
    pub device: D,
    /// The address of the first byte, from the region's base.
    pub offset: u64,
}

/// An address space with less than `N` regions; `N` is a power of two, and at most 256.
#[derive(Clone, Debug)]
pub struct Bus<D, const N: usize> {
    /// First addresses, ascending. The first one is 0 and stands for what is before all regions.
    /// Those behind the last region are [`u64::MAX`], where no region starts: it would be empty.
    starts: [u64; N],
    /// The region at the same index of `starts`; [`Entry::VACANT`] if none.
    entries: [Entry<D>; N],
}

#[derive(Clone, Copy, Debug)]
struct Entry<D> {
    /// Zero if vacant, so that no address is below it.
    end: u64,
    base: u64,
    widths: Widths,
    device: Option<D>,
}

impl<D> Entry<D> {
    const VACANT: Self = Entry { end: 0, base: 0, widths: Widths(0), device: None };
}

impl<D: Copy, const N: usize> Bus<D, N> {
    /// Builds a bus of these regions, in any order.
    ///
    /// # Errors
    /// [`Error`]: the bus can't be decoded, or is too large.
    pub fn new(regions: impl IntoIterator<Item = Region<D>>) -> Result<Self, Error<D>> {
        const { assert!(N.is_power_of_two() && N <= 256) };
        let mut bus = Bus { starts: [u64::MAX; N], entries: [Entry::VACANT; N] };
        bus.starts[0] = 0;
        for (before, region) in regions.into_iter().enumerate() {
            bus.insert(before + 1, region)?;
        }
        Ok(bus)
    }

    /// Inserts a region into a bus of which `used` entries are in use.
    fn insert(&mut self, used: usize, region: Region<D>) -> Result<(), Error<D>> {
        let Region { addresses: Range { start, end }, base, widths, device } = region;
        if start >= end || base > start {
            return Err(Error::Empty(device));
        }
        if used >= N {
            return Err(Error::Full);
        }
        let at = 1 + self.starts[1..used].partition_point(|&other| other < start);
        let before = &self.entries[at - 1];
        if let Some(other) = before.device
            && before.end > start
        {
            return Err(Error::Overlap(other, device));
        }
        if let Some(other) = self.entries[at].device
            && self.starts[at] < end
        {
            return Err(Error::Overlap(other, device));
        }
        self.starts[at..=used].rotate_right(1);
        self.entries[at..=used].rotate_right(1);
        self.starts[at] = start;
        self.entries[at] = Entry { end, base, widths, device: Some(device) };
        Ok(())
    }

    /// Finds the last region that does not start after an address, by a binary search without
    /// branches that depend on the address.
    #[inline]
    fn search(&self, address: u64) -> usize {
        let mut index = 0;
        let mut step = N / 2;
        while step > 0 {
            if self.starts[(index + step) % N] <= address {
                index += step;
            }
            step /= 2;
        }
        index % N
    }

    /// Finds the region that contains an address, for [`Bus::access`].
    #[inline]
    pub fn at(&self, address: u64) -> Option<Slot> {
        let index = self.search(address);
        if address >= self.entries[index].end {
            return None;
        }
        // Entry 0 is vacant.
        NonZeroU8::new(index as u8).map(Slot)
    }

    /// The device of a region.
    ///
    /// # Errors
    /// `None` if the slot is not one of this bus.
    #[inline]
    pub fn device(&self, slot: Slot) -> Option<D> {
        self.entries[slot.index() % N].device
    }

    /// Whether a region contains an address. The slot may also be one of another bus.
    #[inline]
    pub fn contains(&self, slot: Slot, address: u64) -> bool {
        let index = slot.index() % N;
        (self.starts[index]..self.entries[index].end).contains(&address)
    }

    /// Returns the device that answers an access of `bytes` bytes, if its address is in this region.
    #[inline]
    pub fn access(&self, slot: Slot, address: u64, bytes: u64) -> Option<Hit<D>> {
        if self.contains(slot, address) { self.access_at(slot.index(), address, bytes) } else { None }
    }

    #[inline]
    fn access_at(&self, index: usize, address: u64, bytes: u64) -> Option<Hit<D>> {
        let entry = &self.entries[index % N];
        let left = entry.end.checked_sub(address)?;
        if left < bytes || !entry.widths.contains(bytes) {
            return None;
        }
        Some(Hit { device: entry.device?, offset: address.wrapping_sub(entry.base) })
    }

    /// Finds the device that answers an access of `bytes` bytes at an address.
    #[inline]
    pub fn find(&self, address: u64, bytes: u64) -> Option<Hit<D>> {
        self.access_at(self.search(address), address, bytes)
    }
}
