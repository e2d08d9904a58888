//! Posted interrupts: the posted-interrupt descriptor ("Posted-Interrupt Descriptor"), which the processor
//! may process while its guest runs.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::Vectors;

/// A set of vectors with many producers and one consumer.
#[derive(Debug, Default)]
#[repr(transparent)]
pub(crate) struct Requests([AtomicU64; 4]);

impl Requests {
    pub(crate) fn insert(&self, vector: u8) {
        self.0[usize::from(vector >> 6)].fetch_or(1 << (vector & 63), Ordering::Relaxed);
    }

    pub(crate) fn remove(&self, vector: u8) {
        self.0[usize::from(vector >> 6)].fetch_and(!(1 << (vector & 63)), Ordering::Relaxed);
    }

    pub(crate) fn contains(&self, vector: u8) -> bool {
        self.0[usize::from(vector >> 6)].load(Ordering::Relaxed) >> (vector & 63) & 1 != 0
    }

    /// Takes the vector of a set that has only one. `None`, without effect, for another set.
    #[inline(always)]
    fn take_only(&self) -> Option<u8> {
        let mut only = None;
        for (word, first) in self.0.iter().zip([0, 64, 128, 192]) {
            match word.load(Ordering::Relaxed) {
                0 => {}
                bits if only.is_none() && bits.is_power_of_two() => only = Some((word, first, bits)),
                _ => return None,
            }
        }
        let (word, first, bit) = only?;
        word.fetch_and(!bit, Ordering::Relaxed);
        Some(first + bit.trailing_zeros() as u8)
    }

    /// Takes all vectors.
    pub(crate) fn take(&self) -> Vectors {
        // Most words are empty, and a load is cheaper than an exchange.
        Vectors::from_words(self.0.each_ref().map(|word| match word.load(Ordering::Relaxed) {
            0 => 0,
            _ => word.swap(0, Ordering::Relaxed),
        }))
    }
}

/// The 64-byte hardware format.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct Descriptor {
    requests: Requests,
    /// Bit 0 is ON, the outstanding notification, which the processor clears. Bit 2 is [`KEPT`], which it leaves alone
    /// ("Format of Posted-Interrupt Descriptor": bits for software). NV (23:16) and NDST (63:32), the notification's
    /// vector and destination, are for senders that read them: guests that share the descriptor. They are never read
    /// here.
    control: AtomicU64,
    reserved: [AtomicU64; 3],
}

/// A notification is outstanding.
const OUTSTANDING: u64 = 1 << 0;
/// There are requests outside the descriptor, which posted-interrupt processing does not take.
const KEPT: u64 = 1 << 2;

impl Descriptor {
    /// The request bits: set before [`notify`](Self::notify).
    pub(crate) fn requests(&self) -> &Requests {
        &self.requests
    }

    /// Sets ON. Returns whether it was clear, so that a notification must be sent.
    pub(crate) fn notify(&self) -> bool {
        // Release: the consumer that clears the bit observes the earlier posts.
        self.control.fetch_or(OUTSTANDING, Ordering::AcqRel) & OUTSTANDING == 0
    }

    /// Marks requests that are kept outside the descriptor, and sets ON. Notifications of the processor do not clear the
    /// mark, whatever happens to ON.
    pub(crate) fn notify_kept(&self) {
        self.control.fetch_or(OUTSTANDING | KEPT, Ordering::AcqRel);
    }

    /// Sets NV and NDST. Returns whether a notification is outstanding, or a level-triggered interrupt kept, which may
    /// have gone where the fields said before: a sender that sets ON from now on reads the new values.
    pub(crate) fn redirect(&self, vector: u8, destination: u32) -> bool {
        // No loop that waits for an exchange to succeed: a hostile sender could make it fail for ever.
        let fields = u64::from(vector) << 16 | u64::from(destination) << 32;
        let outstanding = self.control.swap(fields, Ordering::SeqCst) & (OUTSTANDING | KEPT);
        if outstanding != 0 {
            self.control.fetch_or(outstanding, Ordering::AcqRel);
        }
        outstanding != 0
    }

    /// Whether there may be requests, in the descriptor (ON is set) or kept outside.
    #[inline(always)]
    pub(crate) fn is_outstanding(&self) -> bool {
        self.control.load(Ordering::Relaxed) & (OUTSTANDING | KEPT) != 0
    }

    /// Takes the only request and clears ON, if no request is kept outside. `None`, with all requests outstanding, if there are none or more.
    #[inline(always)]
    pub(crate) fn take_only(&self) -> Option<u8> {
        if self.control.load(Ordering::Relaxed) & (OUTSTANDING | KEPT) != OUTSTANDING {
            return None;
        }
        // ON is cleared before the requests are read: a later post sets it, with a new notification, and earlier ones are found.
        self.control.fetch_and(!OUTSTANDING, Ordering::AcqRel);
        let only = self.requests.take_only();
        if only.is_none() {
            self.control.fetch_or(OUTSTANDING, Ordering::AcqRel);
        }
        only
    }

    /// Clears ON and the mark of requests outside: later posts set them again, with a new notification.
    pub(crate) fn acknowledge(&self) {
        self.control.fetch_and(!(OUTSTANDING | KEPT), Ordering::AcqRel);
    }
}
