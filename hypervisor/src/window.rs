//! A window of memory that the operator accesses, too, where the machine is an emulated one: snapshots are too large for
//! the serial line. It belongs to Stile between a command that refers to it and the answer, and to the operator
//! otherwise.

use core::ops::Range;

use stile_lock::TicketLock;
use stile_paging::PAGE_SIZE;
use stile_snapshot::pages::WINDOW;
use stile_wire::Event;

use crate::arch::Arch;
use crate::arch::contract::{Counter, Host};
use crate::nodes::Near;
use crate::{console, memory};

const _: () = assert!((WINDOW as u64).is_multiple_of(PAGE_SIZE));

/// Its physical addresses, while it is open.
static OPEN: TicketLock<Option<Range<u64>>> = TicketLock::new(None);

/// Opens the window if it is closed, marks its pages ([`stile_wire::Command::OpenWindow`]), and reports its address.
pub fn open(tag: u32, mark: u64) {
    let pages = {
        let mut open = OPEN.lock();
        if open.is_none() {
            *open = memory::take(WINDOW as u64, &Near::new());
        }
        open.clone()
    };
    with(|bytes| {
        for (page, index) in bytes.chunks_mut(PAGE_SIZE as usize).zip(0..) {
            if let Some(place) = page.first_chunk_mut() {
                *place = mark.wrapping_add(index).to_le_bytes();
            }
        }
    });
    match pages {
        Some(pages) => console::event(&Event::Window { tag, address: pages.start, size: WINDOW as u32, counter_hz: Arch::frequency() }),
        None => {
            console::refuse(tag, format_args!("no memory for a window of {} KiB: {} KiB are free", WINDOW >> 10, memory::available() >> 10))
        }
    }
}

/// Closes the window. It had guests' memory in it, and is cleared.
pub fn close() {
    with(|bytes| bytes.fill(0));
    if let Some(pages) = OPEN.lock().take() {
        memory::free(pages);
    }
}

/// Calls `act` with the window's bytes, if it is open.
pub fn with<T>(act: impl FnOnce(&mut [u8]) -> T) -> Option<T> {
    let open = OPEN.lock();
    let pages = open.as_ref()?;
    // SAFETY: the pages are in the direct map and are the window's until it is closed, which takes the lock. The operator does not access
    // them before the answer to its command.
    let bytes = unsafe { core::slice::from_raw_parts_mut(Arch::physical(pages.start), WINDOW) };
    Some(act(bytes))
}
