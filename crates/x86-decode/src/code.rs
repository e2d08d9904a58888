//! Locating and fetching instructions.

use crate::lower::{Intercepted, MAX_LENGTH, Undecoded, decode, intercepted};
use crate::{CodeSize, Decoded, Fault};
use stile_x86_walk::{GuestMemory, PAGE, PageFault, Paging, Trail, trail};

/// The reason why an instruction could not be fetched or decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Raise this exception in the guest.
    Fault(Fault),
    /// The instruction is not emulated.
    Unsupported,
    /// The instruction accesses no memory, so it is not the one that exited: code or mapping has changed since.
    Changed,
    /// This guest-physical address of the code is not RAM.
    NoMemory(u64),
}

impl From<PageFault> for Refusal {
    fn from(fault: PageFault) -> Self {
        Self::Fault(fault.into())
    }
}

/// The processor state that determines the meaning of a linear address as code.
#[derive(Clone, Copy, Debug)]
pub struct Context {
    paging: Paging,
    user: bool,
    size: CodeSize,
    /// Equal keys mean equal contexts, except for the PDPTEs of PAE paging.
    pub(crate) key: u64,
}

impl Context {
    /// Returns the context of a processor with this translation and code size; `user`: CPL is 3.
    pub const fn new(paging: Paging, user: bool, size: CodeSize) -> Self {
        // Bits 11:8 of the mode are zero.
        let key = paging.mode() | (user as u64) << 8 | (size as u64) << 9;
        Self { paging, user, size, key }
    }

    /// The translation.
    #[inline]
    pub const fn paging(&self) -> &Paging {
        &self.paging
    }

    /// Whether CPL is 3.
    #[inline]
    pub const fn user(&self) -> bool {
        self.user
    }

    /// The code size.
    #[inline]
    pub const fn size(&self) -> CodeSize {
        self.size
    }
}

/// The location of an instruction.
#[derive(Clone, Copy)]
pub struct Code<'a, M> {
    /// The guest's memory.
    pub memory: &'a M,
    /// The processor state in which it executes.
    pub context: &'a Context,
    /// The linear address of the instruction: CS base plus RIP.
    pub linear: u64,
}

/// The bytes of an instruction. Bytes that follow it may be among them, because memory is read in words.
#[derive(Clone, Copy)]
pub(crate) struct Fetched {
    pub bytes: [u8; 16],
    pub count: usize,
}

impl Fetched {
    /// Returns the first `length` bytes as two little-endian words, padded with zeros.
    pub(crate) fn words(&self, length: u8) -> [u64; 2] {
        let unused = 128 - 8 * u32::from(length.clamp(1, 16));
        let bytes = u128::from_le_bytes(self.bytes) << unused >> unused;
        [bytes as u64, (bytes >> 64) as u64]
    }
}

impl<M: GuestMemory> Code<'_, M> {
    /// Translates the address of the first byte.
    pub(crate) fn trail(&self) -> Result<Trail, Refusal> {
        Ok(trail(self.memory, self.context.paging(), self.linear, self.context.user)?)
    }

    /// Fetches and decodes without a cache.
    #[cold]
    pub fn decode(&self) -> Result<Decoded, Refusal> {
        self.decode_at(self.trail()?.address()).map(|(decoded, _)| decoded)
    }

    /// Fetches from a known guest-physical `address` and decodes. Accesses the following page only if the instruction continues there.
    pub(crate) fn decode_at(&self, address: u64) -> Result<(Decoded, Fetched), Refusal> {
        let mut fetched = Fetched { bytes: [0; 16], count: 0 };
        self.fetch(&mut fetched, address, MAX_LENGTH)?;
        match self.decode_fetched(&fetched) {
            Err(Undecoded::Truncated) => {}
            other => return other.map(|decoded| (decoded, fetched)).map_err(refusal),
        }
        let next = self.next_page(fetched.count)?;
        self.fetch(&mut fetched, next, MAX_LENGTH)?;
        self.decode_fetched(&fetched).map(|decoded| (decoded, fetched)).map_err(refusal)
    }

    /// Fetches and decodes an instruction that exited by an intercept. Accesses the following page only if the instruction
    /// continues there.
    ///
    /// # Errors
    /// The instruction can't be fetched, or is of no such kind.
    #[cold]
    pub fn intercepted(&self) -> Result<Intercepted, Refusal> {
        let mut fetched = Fetched { bytes: [0; 16], count: 0 };
        self.fetch(&mut fetched, self.trail()?.address(), MAX_LENGTH)?;
        let decoded = |fetched: &Fetched| intercepted(fetched.bytes.get(..fetched.count).unwrap_or(&[]), self.context.size);
        match decoded(&fetched) {
            Err(Undecoded::Truncated) => {}
            other => return other.map_err(refusal),
        }
        let next = self.next_page(fetched.count)?;
        self.fetch(&mut fetched, next, MAX_LENGTH)?;
        decoded(&fetched).map_err(refusal)
    }

    /// Translates the address after the `done` bytes that end the first page.
    pub(crate) fn next_page(&self, done: usize) -> Result<u64, Refusal> {
        let mut linear = self.linear.wrapping_add(done as u64);
        if self.context.size != CodeSize::Bits64 {
            linear &= u64::from(u32::MAX);
        } else if self.context.paging.non_canonical(linear) {
            return Err(Refusal::Fault(Fault::Protection));
        }
        Ok(trail(self.memory, self.context.paging(), linear, self.context.user)?.address())
    }

    /// Fetches the `length` bytes of an instruction.
    pub(crate) fn fetch_exactly(&self, length: u8) -> Result<Fetched, Refusal> {
        let mut fetched = Fetched { bytes: [0; 16], count: 0 };
        self.fetch(&mut fetched, self.trail()?.address(), length.into())?;
        if fetched.count < length.into() {
            let next = self.next_page(fetched.count)?;
            self.fetch(&mut fetched, next, length.into())?;
        }
        Ok(fetched)
    }

    fn decode_fetched(&self, fetched: &Fetched) -> Result<Decoded, Undecoded> {
        decode(fetched.bytes.get(..fetched.count).unwrap_or(&[]), self.context.size)
    }

    /// Appends bytes from `address` to the end of its page, up to `most` bytes in total.
    pub(crate) fn fetch(&self, fetched: &mut Fetched, address: u64, most: usize) -> Result<(), Refusal> {
        let mut address = address;
        let end = address | (PAGE - 1);
        while fetched.count < most && address <= end {
            // Eight aligned bytes never cross a page.
            let aligned = address & !7;
            let Some(word) = self.memory.read_u64(aligned) else {
                return Err(Refusal::NoMemory(address));
            };
            let skipped = (address - aligned) as usize;
            for &byte in word.to_le_bytes().iter().skip(skipped).take(most - fetched.count) {
                if let Some(slot) = fetched.bytes.get_mut(fetched.count) {
                    *slot = byte;
                }
                fetched.count += 1;
            }
            address = aligned + 8;
        }
        Ok(())
    }
}

pub(crate) fn refusal(undecoded: Undecoded) -> Refusal {
    match undecoded {
        Undecoded::TooLong => Refusal::Fault(Fault::Protection),
        Undecoded::Invalid => Refusal::Fault(Fault::InvalidOpcode),
        Undecoded::NoAccess => Refusal::Changed,
        // Still truncated with 15 bytes: the decoder does not know the encoding.
        Undecoded::Truncated | Undecoded::Unsupported => Refusal::Unsupported,
    }
}
