//! The page through which a server learns of events without an exit. Stile and the server share it.

use core::sync::atomic::{AtomicU32, Ordering, fence};

/// An event for a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A queue was kicked.
    Kick,
    /// [`STATE`](crate::server::STATE) has changed: DRIVER_OK was set, or the client was reset, turned off or on again.
    State,
}

/// Start of the page. Events are numbered; Stile writes the numbers, and the server that of the last event that it has seen. While
/// that is not the last one, no further event interrupts the server.
///
/// Each side only loads what the other one stores, once for each decision: neither can hold up the other, and a server that
/// stores anything else than promised loses its own interrupts, or gets more.
#[repr(C)]
#[derive(Debug)]
pub struct EventPage {
    /// Number of the last event; by Stile.
    last: AtomicU32,
    /// Number of the last event that was a change of STATE; by Stile.
    state: AtomicU32,
    /// The other side's words are in another cache line, of up to 128 bytes.
    reserved: [u32; 30],
    /// Number of the last event that the server has seen; by the server.
    seen: AtomicU32,
}

impl EventPage {
    /// Before the first event.
    pub const fn new() -> Self {
        Self { last: AtomicU32::new(0), state: AtomicU32::new(0), reserved: [0; 30], seen: AtomicU32::new(0) }
    }

    /// Publishes event `number` for Stile, one call at a time. Returns the number of the last event that the server says it has seen:
    /// any value.
    #[inline]
    pub(crate) fn publish(&self, number: u32, event: Event) -> u32 {
        if event == Event::State {
            self.state.store(number, Ordering::Release);
        }
        self.last.store(number, Ordering::Release);
        // Pairs with the fence of `acknowledge`: this side loads the server's store, or the server loads this one.
        fence(Ordering::SeqCst);
        self.seen.load(Ordering::Relaxed)
    }

    /// Returns the number of the last event that the server says it has seen: any value.
    pub(crate) fn seen(&self) -> u32 {
        self.seen.load(Ordering::Relaxed)
    }

    /// Returns the number of the last change of STATE, for the server: if it is another one than before, the server loads STATE.
    pub fn state(&self) -> u32 {
        self.state.load(Ordering::Acquire)
    }

    /// Acknowledges all events, for the server: the next one interrupts it. Returns the number of the last event. If it is another one
    /// than that of the last call, the server looks at [`state`](Self::state) and at its queues once more before it waits for an
    /// interrupt, and finds what was there before the acknowledged events.
    pub fn acknowledge(&self) -> u32 {
        loop {
            let last = self.last.load(Ordering::Acquire);
            self.seen.store(last, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            // An event whose publisher did not find the store above has another number.
            if self.last.load(Ordering::Relaxed) == last {
                return last;
            }
        }
    }
}

impl Default for EventPage {
    fn default() -> Self {
        Self::new()
    }
}

const _: () = assert!(core::mem::offset_of!(EventPage, state) == 4 && core::mem::offset_of!(EventPage, seen) == 0x80);
