//! The names of the hypervisor's functions, for backtraces.

use crate::Error;

/// A sorted table of function names, searched in place.
///
/// | bytes | what |
/// | --- | --- |
/// | 0..4 | *n*, the number of entries |
/// | 4..4+8*n* | the entries: offset of the function from the image's start, and offset of the end of its name; each a `u32` |
/// | the rest | the names in UTF-8, one after the other |
///
/// Offsets increase strictly. An entry without a name ends the previous function: no known function begins
/// there. An empty table has no bytes.
///
/// The table is neither summed nor validated when Stile boots, which would take more instructions than the rest of its start: a
/// lookup in a damaged one finds a wrong name or none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Symbols<'a> {
    /// A whole number of entries.
    entries: &'a [u8],
    names: &'a [u8],
}

/// Bytes of an entry.
const ENTRY: usize = 8;

/// Decodes entry `index`: offset, and end of the name.
fn entry(entries: &[u8], index: usize) -> Option<(u32, usize)> {
    let entry = entries.get(index.checked_mul(ENTRY)?..)?.first_chunk::<ENTRY>()?;
    let [a, b, c, d, e, f, g, h] = *entry;
    Some((u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]) as usize))
}

impl<'a> Symbols<'a> {
    /// The table that occupies all of `bytes`.
    ///
    /// # Errors
    /// [`Error::Symbols`] if `bytes` are too few for its entries.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Error> {
        if bytes.is_empty() {
            return Ok(Self::default());
        }
        let (count, rest) = bytes.split_first_chunk::<4>().ok_or(Error::Symbols)?;
        let len = (u32::from_le_bytes(*count) as usize).checked_mul(ENTRY).ok_or(Error::Symbols)?;
        let (entries, names) = rest.split_at_checked(len).ok_or(Error::Symbols)?;
        Ok(Self { entries, names })
    }

    /// The function that contains `offset` (in bytes from the image's start), and the distance from its
    /// start.
    ///
    /// A return address points to the instruction after the call, which lies beyond the function if the call
    /// doesn't return: look up the address minus 4.
    pub fn lookup(&self, offset: u32) -> Option<(&'a str, u32)> {
        // Invariant: the first entry that starts above `offset` is in `low..=high`.
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

    /// Whether the table is empty.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// All entries in order: offset and name.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &'a str)> + '_ {
        (0..self.len()).filter_map(|index| self.get(index))
    }

    fn get(&self, index: usize) -> Option<(u32, &'a str)> {
        let (start, end) = entry(self.entries, index)?;
        let from = match index.checked_sub(1) {
            Some(before) => entry(self.entries, before)?.1,
            None => 0,
        };
        Some((start, core::str::from_utf8(self.names.get(from..end)?).ok()?))
    }
}
