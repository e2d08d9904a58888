//! The lock-free fast path of frequent interrupts: list-register updates by the CPU on which a vCPU is
//! loaded, and the requests that other CPUs post for them.

use core::ops::Range;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use crate::kick::Bits;
use crate::lr::{ListRegister, MAX_LIST_REGISTERS};
use crate::{BLOCK, SGIS};

/// Number of SPIs that have a shortcut at a time, by the INTID's remainder.
const SPI_SHORTCUTS: usize = 16;

/// The list registers of SGIs, PPIs and [posted SPIs](PendingRequests::POSTED) that only have to become pending to be
/// delivered.
///
/// Accompanies a [`Redistributor`](crate::Redistributor), which keeps it up to date through
/// [`ListRegisters::shortcuts`], but is not under its lock: only the CPU that has the vCPU loaded accesses
/// it. Another CPU that changes such an interrupt (its enable, its priority) does so in the redistributor,
/// and posts a request. Until that is taken, the interrupt is delivered as if it had preceded the change.
#[derive(Debug)]
pub struct Shortcuts {
    /// Bit n is SGI or PPI n; those from [`BLOCK`] on are the SPIs' shortcuts.
    pub(crate) ready: AtomicU64,
    /// The number of the list register.
    slot: [AtomicU8; BLOCK + SPI_SHORTCUTS],
    /// The list register's value when the interrupt is pending only.
    pub(crate) pending: [AtomicU64; BLOCK],
    /// INTIDs of the SPIs.
    spi: [AtomicU32; SPI_SHORTCUTS],
}

impl Shortcuts {
    /// No shortcuts.
    pub const fn new() -> Self {
        Self {
            ready: AtomicU64::new(0),
            slot: [const { AtomicU8::new(0) }; BLOCK + SPI_SHORTCUTS],
            pending: [const { AtomicU64::new(0) }; BLOCK],
            spi: [const { AtomicU32::new(0) }; SPI_SHORTCUTS],
        }
    }

    #[inline(always)]
    pub(crate) fn slot(&self, i: usize) -> usize {
        usize::from(self.slot[i].load(Ordering::Relaxed)) % MAX_LIST_REGISTERS
    }

    pub(crate) fn reset(&self) {
        self.ready.store(0, Ordering::Relaxed);
    }

    /// Records that interrupt `i` is in list register `n`, which holds `lr`.
    pub(crate) fn set(&self, i: usize, n: usize, lr: ListRegister) {
        let pending = ListRegister(lr.0 & !ListRegister::ACTIVE).with(ListRegister::PENDING);
        self.slot[i].store(n as u8, Ordering::Relaxed);
        self.pending[i].store(pending.0, Ordering::Relaxed);
        self.ready.store(self.ready.load(Ordering::Relaxed) | 1 << i, Ordering::Relaxed);
    }

    /// Removes the shortcut of interrupt `i`.
    pub(crate) fn forget(&self, i: usize) {
        self.ready.store(self.ready.load(Ordering::Relaxed) & !(1 << i), Ordering::Relaxed);
    }

    /// The list register of an SPI that has a shortcut.
    #[inline(always)]
    pub(crate) fn slot_of_spi(&self, intid: u32) -> Option<usize> {
        let n = intid as usize % SPI_SHORTCUTS;
        let is_ready = self.ready.load(Ordering::Relaxed) >> (BLOCK + n) & 1 != 0;
        (is_ready && self.spi[n].load(Ordering::Relaxed) == intid).then(|| self.slot(BLOCK + n))
    }

    /// Records that an SPI is in list register `n`. Replaces the shortcut of another one.
    pub(crate) fn set_spi(&self, intid: u32, n: usize) {
        let place = intid as usize % SPI_SHORTCUTS;
        self.slot[BLOCK + place].store(n as u8, Ordering::Relaxed);
        self.spi[place].store(intid, Ordering::Relaxed);
        self.ready.store(self.ready.load(Ordering::Relaxed) | 1 << (BLOCK + place), Ordering::Relaxed);
    }

    /// Removes the shortcut of an SPI, if it has one.
    pub(crate) fn forget_spi(&self, intid: u32) {
        let place = intid as usize % SPI_SHORTCUTS;
        if self.spi[place].load(Ordering::Relaxed) == intid {
            self.forget(BLOCK + place);
        }
    }
}

impl Default for Shortcuts {
    fn default() -> Self {
        Self::new()
    }
}

/// Pending requests to a vCPU: SGIs, SPIs, and requests to sync with its redistributor or with the distributor. Any
/// CPU posts requests, and then kicks or wakes the vCPU; the CPU that has it loaded, or is about to load it,
/// takes all of them.
#[derive(Debug, Default)]
pub struct PendingRequests(AtomicU64);

/// The requests taken from a [`PendingRequests`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "an SGI may be in it"]
pub struct Requests(pub(crate) u64);

impl PendingRequests {
    /// The SPIs that can be posted to a vCPU, which must be edge-triggered. All others take
    /// [`Distributor::pulse`](crate::Distributor::pulse).
    pub const POSTED: Range<u32> = 48..48 + u64::BITS - Self::FIRST_POSTED;

    pub(crate) const SGIS: u64 = (1 << SGIS) - 1;
    const PRIVATE: u64 = 1 << 16;
    /// SPIs were posted, or the distributor has changed.
    const SPIS: u64 = 1 << 17;
    /// The distributor has changed.
    const CHANGES: u64 = 1 << 18;
    const FIRST_POSTED: u32 = 19;

    /// No pending request.
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// The bit of an SPI; 0 if it can't be posted.
    #[inline(always)]
    pub(crate) const fn spi(intid: u32) -> u64 {
        match intid.checked_sub(Self::POSTED.start) {
            Some(n) if n < Self::POSTED.end - Self::POSTED.start => 1 << (Self::FIRST_POSTED + n),
            _ => 0,
        }
    }

    /// Posts an edge of an SPI, which the vCPU need not be the target of. Returns false, without effect, if it is not in
    /// [`POSTED`](Self::POSTED).
    #[inline(always)]
    pub fn post_spi(&self, intid: u32) -> bool {
        let bit = Self::spi(intid);
        if bit != 0 {
            self.0.fetch_or(bit | Self::SPIS, Ordering::Release);
        }
        bit != 0
    }

    /// Withdraws the edge of an SPI that was posted to a vCPU that turned out not to run. Returns whether it was still
    /// there; if not, the vCPU has taken it.
    pub fn withdraw_spi(&self, intid: u32) -> bool {
        self.remove_posted(Self::spi(intid)) != 0
    }

    /// Removes posted SPIs by their bits, and the request to sync with the distributor if nothing is left to sync with.
    /// Returns those that were there.
    fn remove_posted(&self, bits: u64) -> u64 {
        let mut before = self.0.load(Ordering::Relaxed);
        while before & bits != 0 {
            let rest = Requests(before & !bits).settled().0;
            match self.0.compare_exchange_weak(before, rest, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => before = now,
            }
        }
        before & bits
    }

    /// Posts SGI `intid` (0 to 15), of group 1.
    #[inline(always)]
    pub fn post_sgi(&self, intid: u32) {
        self.0.fetch_or(1 << (intid as usize % SGIS), Ordering::Release);
    }

    /// Requests a sync with the redistributor.
    pub fn announce_private(&self) {
        self.0.fetch_or(Self::PRIVATE, Ordering::Release);
    }

    /// Requests a sync with the distributor.
    pub fn announce_spis(&self) {
        self.0.fetch_or(Self::SPIS | Self::CHANGES, Ordering::Release);
    }

    /// Takes the posted SPIs alone.
    pub fn take_posted(&self) -> Requests {
        Requests(self.remove_posted(u64::MAX << Self::FIRST_POSTED))
    }

    /// Takes the SGIs and the request to sync with the redistributor. What needs the distributor is left.
    pub fn take_private(&self) -> Requests {
        let private = Self::SGIS | Self::PRIVATE;
        Requests(self.0.fetch_and(!private, Ordering::AcqRel) & private)
    }

    /// Posts again those of `requests` that need the distributor.
    pub fn put_back_spis(&self, requests: Requests) {
        if requests.spis() {
            self.0.fetch_or(requests.0 & !(Self::SGIS | Self::PRIVATE), Ordering::Release);
        }
    }

    /// Posts again those of `requests` that are not SGIs in `sent`. Returns whether there are any.
    pub fn put_back(&self, requests: Requests, sent: u32) -> bool {
        let rest = requests.0 & !(u64::from(sent) & Self::SGIS);
        if rest != 0 {
            self.0.fetch_or(rest, Ordering::Release);
        }
        rest != 0
    }

    /// Takes all requests.
    #[inline(always)]
    pub fn take(&self) -> Requests {
        // The common case of no request avoids an exclusive access.
        if self.0.load(Ordering::Relaxed) == 0 {
            return Requests(0);
        }
        Requests(self.0.swap(0, Ordering::Acquire))
    }

    /// Whether no request is pending.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.0.load(Ordering::Acquire) == 0
    }
}

impl Requests {
    /// Whether no request is pending.
    #[inline(always)]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether a sync with the distributor is needed, after [`posted`](Self::posted) SPIs were pulsed there.
    pub const fn spis(self) -> bool {
        self.0 & PendingRequests::SPIS != 0
    }

    /// Whether a sync with changes is requested. It must precede the delivery of posted SPIs: the changes may be older.
    #[inline(always)]
    pub(crate) const fn is_behind_changes(self) -> bool {
        self.0 & (PendingRequests::PRIVATE | PendingRequests::CHANGES) != 0
    }

    /// The posted SPIs, in ascending order.
    pub fn posted(self) -> impl Iterator<Item = u32> {
        let mut rest = self.0 >> PendingRequests::FIRST_POSTED;
        core::iter::from_fn(move || {
            let n = (rest != 0).then(|| rest.trailing_zeros())?;
            rest &= rest - 1;
            Some(PendingRequests::POSTED.start + n)
        })
    }

    /// The posted SPI, if it is all that is requested.
    #[inline(always)]
    pub(crate) const fn only_posted(self) -> Option<u32> {
        let posted = self.0 >> PendingRequests::FIRST_POSTED;
        let is_alone = self.0 & ((1 << PendingRequests::FIRST_POSTED) - 1) == PendingRequests::SPIS;
        if is_alone && posted & posted.wrapping_sub(1) == 0 && posted != 0 {
            Some(PendingRequests::POSTED.start + posted.trailing_zeros())
        } else {
            None
        }
    }

    /// The requests without posted SPIs, by their bits.
    #[inline(always)]
    pub(crate) const fn without(self, posted: u64) -> Self {
        Self(self.0 & !posted).settled()
    }

    /// The requests without that to sync with the distributor, if it has not changed and no posted SPI is left.
    #[inline(always)]
    const fn settled(self) -> Self {
        let needs_sync = self.0 >> PendingRequests::FIRST_POSTED != 0 || self.0 & PendingRequests::CHANGES != 0;
        Self(if needs_sync { self.0 } else { self.0 & !PendingRequests::SPIS })
    }

    /// The SGIs, in ascending order.
    pub fn sgis(self) -> impl Iterator<Item = u32> {
        Bits(self.sgi_mask()).map(|i| i as u32)
    }

    /// The SGIs: bit n is SGI n.
    pub(crate) const fn sgi_mask(self) -> u32 {
        (self.0 & PendingRequests::SGIS) as u32
    }
}

const _: () =
    assert!(MAX_LIST_REGISTERS <= u8::MAX as usize && PendingRequests::SGIS & (PendingRequests::PRIVATE | PendingRequests::SPIS) == 0);
const _: () = assert!(BLOCK + SPI_SHORTCUTS <= u64::BITS as usize);
