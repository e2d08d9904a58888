//! Interrupts that are posted for a processor by others: the posted-interrupt descriptor ("Posted-Interrupt Descriptor"), which
//! the processor may empty by itself while its guest runs.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::Vectors;

/// A set of vectors that others add to and one takes out of.
#[derive(Debug, Default)]
#[repr(transparent)]
pub(crate) struct Requests([AtomicU64; 4]);

impl Requests {
    pub(crate) fn insert(&self, vector: u8) {
        self.0[usize::from(vector >> 6)].fetch_or(1 << (vector & 63), Ordering::Relaxed);
    }

    /// All of them; none is left.
    pub(crate) fn take(&self) -> Vectors {
        // Most words are empty, and a load is cheaper than an exchange.
        Vectors::from_words(self.0.each_ref().map(|word| match word.load(Ordering::Relaxed) {
            0 => 0,
            _ => word.swap(0, Ordering::Relaxed),
        }))
    }
}

/// The 64 bytes that the processor knows.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct Descriptor {
    requests: Requests,
    /// Bit 0 is the outstanding notification; the rest is for who sends notifications without software, which nobody does here.
    control: AtomicU64,
    reserved: [AtomicU64; 3],
}

/// A notification is outstanding.
const OUTSTANDING: u64 = 1 << 0;

impl Descriptor {
    /// Where requests are posted, before [`notify`](Self::notify).
    pub(crate) fn requests(&self) -> &Requests {
        &self.requests
    }

    /// Marks the notification as outstanding. Returns whether it was not, so that it must be sent.
    pub(crate) fn notify(&self) -> bool {
        // Released to who clears the bit: it finds what was posted before.
        self.control.fetch_or(OUTSTANDING, Ordering::AcqRel) & OUTSTANDING == 0
    }

    /// Whether there may be requests.
    #[inline(always)]
    pub(crate) fn is_outstanding(&self) -> bool {
        self.control.load(Ordering::Relaxed) & OUTSTANDING != 0
    }

    /// The notification has come: what is posted from here on asks for another.
    pub(crate) fn acknowledge(&self) {
        self.control.fetch_and(!OUTSTANDING, Ordering::AcqRel);
    }
}
