//! Places of BARs in a guest's address space.

/// The address space that a guest accesses BARs by.
pub trait Space {
    /// Reason for which a BAR can't be mapped.
    type Error;

    /// Maps a BAR at an address where no other one is.
    ///
    /// # Errors
    /// Nothing is mapped then.
    fn map(&mut self, bar: usize, address: u64) -> Result<(), Self::Error>;

    /// Unmaps a BAR, which is mapped at this address.
    fn unmap(&mut self, bar: usize, address: u64);
}

/// Place of a BAR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Size in bytes, not 0.
    pub size: u64,
    /// Address that the guest has chosen, if the BAR is decoded there. The BAR ends below 2^64.
    pub wanted: Option<u64>,
    /// Address at which it is mapped.
    pub mapped: Option<u64>,
}

impl Place {
    fn covers(&self, address: u64, size: u64) -> bool {
        self.mapped.is_some_and(|start| start < address + size && address < start + self.size)
    }
}

/// Reason why a BAR is not mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmapped<E> {
    /// Another BAR is mapped there.
    Covered,
    /// The space can't map it.
    Refused(E),
}

/// Maps BARs where the guest wants them: first unmaps all that have moved, then maps those that nothing covers, in their order. Calls
/// `fails` with the number of each other one, its address and the reason: it is tried again at the next call.
pub fn place<S: Space>(bars: &mut [Place], space: &mut S, mut fails: impl FnMut(usize, u64, Unmapped<S::Error>)) {
    for (number, bar) in bars.iter_mut().enumerate().filter(|(_, bar)| bar.mapped != bar.wanted) {
        if let Some(address) = bar.mapped.take() {
            space.unmap(number, address);
        }
    }
    for number in 0..bars.len() {
        let Place { size, wanted: Some(address), mapped: None } = bars[number] else { continue };
        if bars.iter().any(|other| other.covers(address, size)) {
            fails(number, address, Unmapped::Covered);
            continue;
        }
        match space.map(number, address) {
            Ok(()) => bars[number].mapped = Some(address),
            Err(error) => fails(number, address, Unmapped::Refused(error)),
        }
    }
}
