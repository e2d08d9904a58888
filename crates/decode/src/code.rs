//! Where an instruction stands, and fetching it.

use crate::lower::{MAX_LENGTH, Undecoded, decode};
use crate::{CodeSize, Decoded, Fault};
use stile_walk::{GuestMemory, PAGE, PageFault, Paging, Trail, trail};

/// Why an instruction was not found or not decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The guest gets this exception.
    Fault(Fault),
    /// It is not one that is emulated.
    Unsupported,
    /// It reaches for no memory: it is not the one that ended in an exit, but what has been written or mapped there since.
    Changed,
    /// It lies where there is no memory: this guest-physical address.
    NoMemory(u64),
}

impl From<PageFault> for Refusal {
    fn from(fault: PageFault) -> Self {
        Self::Fault(fault.into())
    }
}

/// All but memory's contents that decides what a linear address means as code.
#[derive(Clone, Copy, Debug)]
pub struct Context {
    paging: Paging,
    user: bool,
    size: CodeSize,
    /// Equal numbers mean equal contexts, but for the pointers of PAE paging.
    pub(crate) key: u64,
}

impl Context {
    /// Of a processor with this translation and code size; `user`: CPL is 3.
    pub const fn new(paging: Paging, user: bool, size: CodeSize) -> Self {
        // Bits that the mode leaves free.
        let key = paging.mode() | (user as u64) << 8 | (size as u64) << 9;
        Self { paging, user, size, key }
    }

    /// The translation.
    #[inline]
    pub const fn paging(&self) -> &Paging {
        &self.paging
    }

    /// CPL is 3.
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

/// An instruction's place.
#[derive(Clone, Copy)]
pub struct Code<'a, M> {
    /// The guest's memory.
    pub memory: &'a M,
    /// How it is run.
    pub context: &'a Context,
    /// The linear address of the instruction: CS base plus RIP.
    pub linear: u64,
}

/// The bytes of an instruction, and as many that follow as were there for the taking.
#[derive(Clone, Copy)]
pub(crate) struct Fetched {
    pub bytes: [u8; 16],
    pub count: usize,
}

impl Fetched {
    /// The first `length` bytes, in order; zeros follow.
    pub(crate) fn words(&self, length: u8) -> [u64; 2] {
        let unused = 128 - 8 * u32::from(length.clamp(1, 16));
        let bytes = u128::from_le_bytes(self.bytes) << unused >> unused;
        [bytes as u64, (bytes >> 64) as u64]
    }
}

impl<M: GuestMemory> Code<'_, M> {
    /// The way to the first byte.
    pub(crate) fn trail(&self) -> Result<Trail, Refusal> {
        Ok(trail(self.memory, self.context.paging(), self.linear, self.context.user)?)
    }

    /// Fetches and decodes, with nothing remembered.
    #[cold]
    pub fn decode(&self) -> Result<Decoded, Refusal> {
        self.decode_at(self.trail()?.address()).map(|(decoded, _)| decoded)
    }

    /// The same when `address` is known. The following page is looked at only if the instruction goes on there.
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

    /// The guest-physical address of what follows the `done` bytes that end the first page.
    pub(crate) fn next_page(&self, done: usize) -> Result<u64, Refusal> {
        let mut linear = self.linear.wrapping_add(done as u64);
        if self.context.size != CodeSize::Bits64 {
            linear &= u64::from(u32::MAX);
        } else if self.context.paging.non_canonical(linear) {
            return Err(Refusal::Fault(Fault::Protection));
        }
        Ok(trail(self.memory, self.context.paging(), linear, self.context.user)?.address())
    }

    /// The `length` bytes of an instruction.
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

    /// Appends what lies from `address` on to the end of its page, up to `most` bytes in all.
    pub(crate) fn fetch(&self, fetched: &mut Fetched, address: u64, most: usize) -> Result<(), Refusal> {
        let mut address = address;
        let end = address | (PAGE - 1);
        while fetched.count < most && address <= end {
            // Eight aligned bytes never lie in two pages.
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
        // What is still truncated with all bytes there is nothing that this crate knows.
        Undecoded::Truncated | Undecoded::Unsupported => Refusal::Unsupported,
    }
}
