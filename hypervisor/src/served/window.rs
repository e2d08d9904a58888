//! Windows: clients' RAM in a server's second stage.
//!
//! A block of a window is mapped at the server's first touch, once the client's block is filled. It stays mapped until
//! the client's block is drained, which is when files are loaded again. A server that does not acknowledge a reset loses its
//! access ([`Window::close`]) until it does.

use heapless::Vec;
use stile_blob::Slot;
use stile_board::MAX_SERVED;
use stile_lock::TicketLock;
use stile_paging::frames::Piece;

use super::link::{self, Link};
use crate::arch::contract::ServedPart;
use crate::vm::{Vm, get};

/// A server's window on a client's RAM.
pub struct Window {
    /// The client's number.
    pub client: usize,
    /// Server-physical address.
    start: u64,
    size: u64,
    /// Client-physical address of the first byte.
    base: u64,
    /// Held while a block is mapped or unmapped: a block that is being drained must not be mapped after it is unmapped.
    access: TicketLock<Access>,
}

/// A server's access to a window. The locks of the links' transports may be taken with it locked.
struct Access {
    /// The window is being closed, or is closed: no block is mapped any more.
    is_closed: bool,
    /// Size of the window's first part that has been unmapped since the start of closing, in bytes.
    unmapped: u64,
}

/// Bytes of a window that are unmapped at once.
const PART: u64 = 128 << 20;

/// Creates the windows of a server with these slots. `reserve` reserves tables for a part of a window, for clients that
/// were created before their server; [`Window::reserve`] does for others.
///
/// # Errors
/// Those of `reserve`.
pub fn create(
    slots: &[Slot],
    mut reserve: impl FnMut(&Piece) -> Result<(), &'static str>,
) -> Result<Vec<Window, MAX_SERVED>, &'static str> {
    let mut windows = Vec::<Window, MAX_SERVED>::new();
    for slot in slots {
        let client = usize::from(slot.client);
        if windows.iter().any(|window| window.client == client) {
            continue;
        }
        let window = Window {
            client,
            start: slot.window,
            size: slot.size,
            base: slot.base,
            access: TicketLock::new(Access { is_closed: false, unmapped: 0 }),
        };
        if let Some(client) = get(client) {
            client.ram_parts(slot.base, slot.base + slot.size).try_for_each(|part| reserve(&window.place(&part)))?;
        }
        windows.push(window).map_err(|_| "too many served devices")?;
    }
    Ok(windows)
}

impl Window {
    /// Client-physical address of a server-physical one in the window.
    pub fn client_address(&self, ipa: u64) -> Option<u64> {
        ipa.checked_sub(self.start).filter(|&into| into < self.size).map(|into| self.base + into)
    }

    /// Place in the window of a part of the client's RAM.
    fn place(&self, part: &Piece) -> Piece {
        Piece { gpa: part.gpa - self.base + self.start, ..*part }
    }

    /// Reserves tables of the server for a client that is being created, with this RAM.
    ///
    /// # Errors
    /// No memory is left, or the CPUs' second stage is too small.
    pub fn reserve(&self, server: &Vm, pieces: &[Piece]) -> Result<(), &'static str> {
        pieces.iter().try_for_each(|part| server.arch.reserve_window(&self.place(part)))
    }

    /// Handles the server's access to an address of the client's that is not mapped: does a bounded part of filling and
    /// mapping its block. Returns false if it is not in RAM, or the VM with the client's number has no device of the server's; otherwise the guest retries the access.
    pub fn touch(&self, server: &Vm, gpa: u64) -> bool {
        let is_clients = || link::of_server(server.number).is_some_and(|slots| slots.iter().any(|link| link.client == self.client));
        let Some(client) = get(self.client).filter(|client| is_clients() && client.touch(gpa)) else { return false };
        let access = self.access.lock();
        if access.is_closed {
            return false;
        }
        client.filled_parts(gpa).for_each(|part| server.arch.map_window(&self.place(&part)));
        true
    }

    /// Whether the window is being closed, or is closed.
    pub fn is_closed(&self) -> bool {
        self.access.lock().is_closed
    }

    /// Unmaps a part of the client's RAM, whose block is claimed, from the server's second stage.
    pub fn unmap(&self, server: &Vm, gpa: u64, size: u64) {
        let _access = self.access.lock();
        server.arch.unmap_window(gpa - self.base + self.start, size);
    }

    /// Closes a bounded part of the window, where the server's accesses are refused then. `links` are all of its devices for
    /// the client, which are cut off with the last part. Returns whether that was the last part; false without effect if all resets were
    /// acknowledged meanwhile.
    pub fn close(&self, server: &Vm, links: impl Iterator<Item = &'static Link> + Clone) -> bool {
        let mut access = self.access.lock();
        if links.clone().all(|link| link.transport.lock().is_quiet()) {
            return false;
        }
        if !access.is_closed {
            *access = Access { is_closed: true, unmapped: 0 };
        }
        if access.unmapped != self.size {
            let size = PART.min(self.size - access.unmapped);
            server.arch.unmap_window(self.start + access.unmapped, size);
            access.unmapped += size;
            if access.unmapped != self.size {
                return false;
            }
            server.arch.invalidate_windows();
        }
        if !server.arch.are_windows_invalidated() {
            return false;
        }
        links.for_each(|link| link.transport.lock().cut_off());
        true
    }

    /// Opens the window if it is closed, and none of the `links`, all of the server's devices for the client, has a reset to be
    /// acknowledged. Returns whether it was opened.
    pub fn open(&self, links: impl Iterator<Item = &'static Link> + Clone) -> bool {
        let mut access = self.access.lock();
        if !access.is_closed || links.clone().any(|link| link.transport.lock().is_resetting()) {
            return false;
        }
        access.is_closed = false;
        links.for_each(|link| link.transport.lock().reconnect());
        true
    }
}
