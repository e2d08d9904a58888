//! The names of the hypervisor's functions, for backtraces.

use crate::Error;

/// A sorted table of function names that is searched where it lies.
///
/// | bytes | what |
/// | --- | --- |
/// | 0..4 | *n*, the number of entries |
/// | 4..4+8*n* | the entries: where the function starts, in bytes from the image's start, and where its name ends in the names; each a `u32` |
/// | the rest | the names in UTF-8, one after the other |
///
/// Starts rise strictly. An entry without a name ends the function before it: nothing that is
/// known begins there. A table of no bytes is an empty one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Symbols<'a> {
    /// A whole number of entries.
    entries: &'a [u8],
    names: &'a str,
}

/// Bytes of an entry.
const ENTRY: usize = 8;

/// Entry `index` as it is in the table: start, and end of the name.
fn entry(entries: &[u8], index: usize) -> Option<(u32, usize)> {
    let entry = entries.get(index.checked_mul(ENTRY)?..)?.first_chunk::<ENTRY>()?;
    let [a, b, c, d, e, f, g, h] = *entry;
    Some((u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]) as usize))
}

impl<'a> Symbols<'a> {
    /// Reads a table that takes up all of `bytes`.
    ///
    /// # Errors
    /// [`Error::Symbols`] if it is not one: every later look-up may trust it.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Error> {
        if bytes.is_empty() {
            return Ok(Self::default());
        }
        let (count, rest) = bytes.split_first_chunk::<4>().ok_or(Error::Symbols)?;
        let count = u32::from_le_bytes(*count) as usize;
        let len = count.checked_mul(ENTRY).ok_or(Error::Symbols)?;
        let (entries, names) = rest.split_at_checked(len).ok_or(Error::Symbols)?;
        let names = core::str::from_utf8(names).map_err(|_| Error::Symbols)?;

        let mut last_start = None;
        let mut last_end = 0;
        for index in 0..count {
            let (start, end) = entry(entries, index).ok_or(Error::Symbols)?;
            if last_start.is_some_and(|last| start <= last) {
                return Err(Error::Symbols);
            }
            // Also checks that the name begins and ends between characters.
            names.get(last_end..end).ok_or(Error::Symbols)?;
            (last_start, last_end) = (Some(start), end);
        }
        if last_end != names.len() {
            return Err(Error::Symbols);
        }
        Ok(Self { entries, names })
    }

    /// The function at `offset` (in bytes from the image's start), and how far into it that is.
    ///
    /// A return address is that of the instruction after the call, which can be past the function's
    /// end when the call doesn't return: look up the address less 4.
    pub fn lookup(&self, offset: u32) -> Option<(&'a str, u32)> {
        // The first entry that starts behind `offset` is in `low..=high`.
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low + (high - low) / 2;
            if entry(self.entries, middle)?.0 <= offset {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        let (start, name) = self.get(low.checked_sub(1)?)?;
        (!name.is_empty()).then_some((name, offset.checked_sub(start)?))
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.entries.len() / ENTRY
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Every entry in order: start and name.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &'a str)> + '_ {
        (0..self.len()).filter_map(|index| self.get(index))
    }

    fn get(&self, index: usize) -> Option<(u32, &'a str)> {
        let (start, end) = entry(self.entries, index)?;
        let from = match index.checked_sub(1) {
            Some(before) => entry(self.entries, before)?.1,
            None => 0,
        };
        Some((start, self.names.get(from..end)?))
    }
}
