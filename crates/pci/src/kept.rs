//! BARs that stay where firmware put them.

use core::ops::Range;

use heapless::Vec;

use crate::{Bar, ConfigSpace, PAGE, visit_decoded};

/// Addresses of CPUs that are in use: those of BARs, and of all else.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kept<const MOST: usize>(Vec<Range<u64>, MOST>);

/// The reason why a BAR can't stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Immovable {
    /// Firmware has not given it an address.
    Unassigned,
    /// It is smaller than a page, and does not begin at one.
    InsidePage,
    /// It is not in the bridge's memory.
    Outside,
    /// Something else is there.
    Taken,
    /// There are too many BARs.
    Full,
}

impl Immovable {
    /// The reason as a text.
    pub const fn reason(self) -> &'static str {
        match self {
            Immovable::Unassigned => "firmware has not given its BARs addresses",
            Immovable::InsidePage => "firmware put a BAR of it inside a page, which others may share",
            Immovable::Outside => "firmware put a BAR of it outside of the memory that it reports for the host bridge",
            Immovable::Taken => "firmware put a BAR of it where another device or memory is",
            Immovable::Full => "it has too many BARs",
        }
    }
}

impl<const MOST: usize> Kept<MOST> {
    /// No address is in use.
    pub const fn new() -> Self {
        Kept(Vec::new())
    }

    /// Adds addresses that no BAR may have.
    ///
    /// # Errors
    /// There are too many.
    pub fn reserve(&mut self, span: Range<u64>) -> Result<(), Immovable> {
        if span.is_empty() { Ok(()) } else { self.0.push(span).map_err(|_| Immovable::Full) }
    }

    /// Adds the pages in which a function's BARs begin if it decodes memory: a smaller BAR that is assigned would bring them to the guest.
    /// BARs of a page or more share none. `to_cpu`: as for [`Self::take`]; what CPUs can't access is left out.
    ///
    /// # Errors
    /// There are too many.
    pub fn reserve_decoded(&mut self, space: &impl ConfigSpace, to_cpu: impl Fn(u64, u64) -> Option<u64>) -> Result<(), Immovable> {
        let mut result = Ok(());
        visit_decoded(space, |address| {
            if let Some(address) = to_cpu(address, 1) {
                let page = address / PAGE * PAGE;
                let is_new = !self.0.iter().any(|taken| taken.start <= page && page.saturating_add(PAGE) <= taken.end);
                if is_new {
                    result = result.and_then(|()| self.reserve(page..page.saturating_add(PAGE)));
                }
            }
        });
        result
    }

    /// Takes the pages of a BAR that is at `address` on the bus. `to_cpu`: the address by which CPUs access so many bytes there, if the
    /// bridge has them. Returns that address.
    ///
    /// # Errors
    /// The BAR can't stay there.
    pub fn take(&mut self, address: u64, bar: Bar, to_cpu: impl FnOnce(u64, u64) -> Option<u64>) -> Result<u64, Immovable> {
        if address == 0 {
            return Err(Immovable::Unassigned);
        }
        let start = to_cpu(address, bar.size).ok_or(Immovable::Outside)?;
        if !start.is_multiple_of(PAGE) {
            return Err(Immovable::InsidePage);
        }
        let end = start.checked_add(bar.mapped_size()).ok_or(Immovable::Outside)?;
        if self.0.iter().any(|taken| taken.start < end && start < taken.end) {
            return Err(Immovable::Taken);
        }
        self.reserve(start..end)?;
        Ok(start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn bar(size: u64) -> Bar {
        Bar { size, wide: false, prefetchable: false }
    }

    #[test]
    fn bars_stay_apart() {
        let mut kept = Kept::<4>::new();
        // A device of the board, in the window by mistake.
        kept.reserve(0x9000_0800..0x9000_0900).unwrap();
        kept.reserve(0x5000..0x5000).unwrap();
        let to_cpu = |address: u64, size| (address >= 0x1000_0000 && size <= 0x10_0000).then(|| address + 0x8000_0000);
        let mut take = |address, size| kept.take(address, bar(size), to_cpu);
        assert_eq!(take(0, 0x1000), Err(Immovable::Unassigned));
        assert_eq!(take(0xfff_f000, 0x1000), Err(Immovable::Outside));
        assert_eq!(take(0x1000_0000, 0x20_0000), Err(Immovable::Outside));
        assert_eq!(take(0x1000_0000, 0x1000), Err(Immovable::Taken));
        assert_eq!(take(0x1000_1100, 0x100), Err(Immovable::InsidePage));
        assert_eq!(take(0x1000_1000, 0x100), Ok(0x9000_1000));
        // The rest of its page belongs to it.
        assert_eq!(take(0x1000_1000, 0x100), Err(Immovable::Taken));
        assert_eq!(take(0x1000_2000, 0x4000), Ok(0x9000_2000));
        assert_eq!(take(0x1000_4000, 0x1000), Err(Immovable::Taken));
        assert_eq!(take(0x1000_6000, 0x1000), Ok(0x9000_6000));
        assert_eq!(take(0x1000_7000, 0x1000), Err(Immovable::Full));
    }

    #[test]
    fn addresses_do_not_wrap() {
        assert_eq!(Kept::<4>::new().take(1, bar(16), |_, _| Some(u64::MAX - 0xfff)), Err(Immovable::Outside));
    }
}
