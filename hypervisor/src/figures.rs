//! The figures of a machine that measures, as a document: the log of the machine's description, and what guests' consoles print. Other
//! machines have none.

use core::fmt;

use stile_firmware::figures::Document;
use stile_lock::TicketLock;

static DOCUMENT: TicketLock<Option<&'static mut Document>> = TicketLock::new(None);

fn with(work: impl FnOnce(&mut Document)) {
    if let Some(document) = DOCUMENT.lock().as_deref_mut() {
        work(document);
    }
}

/// Begins the document.
pub fn begin(document: &'static mut Document) {
    *DOCUMENT.lock() = Some(document);
}

/// Adds a line of the boot's log.
pub fn describe(line: fmt::Arguments<'_>) {
    with(|document| document.describe(line));
}

/// Ends the description; what guests print follows.
pub fn measure() {
    with(Document::measure);
}

/// Adds a byte of a guest's console.
pub fn byte(byte: u8) {
    with(|document| document.byte(byte));
}

/// Takes the document.
pub fn take() -> Option<&'static mut Document> {
    DOCUMENT.lock().take()
}
