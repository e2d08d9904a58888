//! The lock-free fast path of frequent interrupts: list-register updates by the CPU on which a vCPU is
//! loaded, and the requests that other CPUs post for them.

use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use crate::kick::Bits;
use crate::lr::{ListRegister, MAX_LIST_REGISTERS};
use crate::{BLOCK, SGIS};

/// The list registers of SGIs and PPIs that only have to become pending to be delivered.
///
/// Accompanies a [`Redistributor`](crate::Redistributor), which keeps it up to date through
/// [`ListRegisters::shortcuts`], but is not under its lock: only the CPU that has the vCPU loaded accesses
/// it. Another CPU that changes such an interrupt (its enable, its priority) does so in the redistributor,
/// and posts a request. Until that is taken, the interrupt is delivered as if it had preceded the change.
#[derive(Debug)]
pub struct Shortcuts {
    pub(crate) ready: AtomicU32,
    /// The number of the list register.
    slot: [AtomicU8; BLOCK],
    /// The list register's value when the interrupt is pending only.
    pub(crate) pending: [AtomicU64; BLOCK],
}

impl Shortcuts {
    /// No shortcuts.
    pub const fn new() -> Self {
        Self { ready: AtomicU32::new(0), slot: [const { AtomicU8::new(0) }; BLOCK], pending: [const { AtomicU64::new(0) }; BLOCK] }
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
}

impl Default for Shortcuts {
    fn default() -> Self {
        Self::new()
    }
}

/// Pending requests to a vCPU: SGIs, and requests to sync with its redistributor or with the distributor. Any
/// CPU posts requests, and then kicks or wakes the vCPU; the CPU that has it loaded, or is about to load it,
/// takes all of them.
#[derive(Debug, Default)]
pub struct PendingRequests(AtomicU32);

/// The requests taken from a [`PendingRequests`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "an SGI may be in it"]
pub struct Requests(pub(crate) u32);

impl PendingRequests {
    pub(crate) const SGIS: u32 = (1 << SGIS) - 1;
    const PRIVATE: u32 = 1 << 16;
    const SPIS: u32 = 1 << 17;

    /// No pending request.
    pub const fn new() -> Self {
        Self(AtomicU32::new(0))
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
        self.0.fetch_or(Self::SPIS, Ordering::Release);
    }

    /// Posts again those of `requests` that are not SGIs in `sent`. Returns whether there are any.
    pub fn put_back(&self, requests: Requests, sent: u32) -> bool {
        let rest = requests.0 & !(sent & Self::SGIS);
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

    /// Whether a sync with the distributor is requested.
    pub const fn spis(self) -> bool {
        self.0 & PendingRequests::SPIS != 0
    }

    /// The SGIs, in ascending order.
    pub fn sgis(self) -> impl Iterator<Item = u32> {
        Bits(self.sgi_mask()).map(|i| i as u32)
    }

    /// The SGIs: bit n is SGI n.
    pub(crate) const fn sgi_mask(self) -> u32 {
        self.0 & PendingRequests::SGIS
    }
}

const _: () =
    assert!(MAX_LIST_REGISTERS <= u8::MAX as usize && PendingRequests::SGIS & (PendingRequests::PRIVATE | PendingRequests::SPIS) == 0);
