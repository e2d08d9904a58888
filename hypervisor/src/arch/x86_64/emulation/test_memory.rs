//! Memory at a place of its own that test programs find, as QEMU's device for tests has it: it is no RAM, each access exits.

use stile_board::pc::TEST_MEMORY;
use stile_decode::Width;

use super::shared;
use crate::{address_space, memory};

const SIZE: u64 = TEST_MEMORY.end - TEST_MEMORY.start;

/// The memory of one VM.
pub struct TestMemory {
    /// Its physical address.
    at: u64,
}

impl TestMemory {
    /// For a new VM.
    pub fn new() -> TestMemory {
        TestMemory { at: memory::allocate_pages(SIZE) }
    }

    /// The place of an access at an offset, if it ends in the memory.
    fn place(&self, offset: u64, width: Width) -> Option<*mut u8> {
        (offset.checked_add(width.bytes())? <= SIZE).then(|| address_space::physical(self.at + offset))
    }

    /// Reads at an offset.
    pub fn read(&self, offset: u64, width: Width) -> u64 {
        let Some(from) = self.place(offset, width) else { return u64::MAX };
        // SAFETY: the place is in the memory, of which nobody has a reference.
        unsafe { shared::read(from, width) }
    }

    /// Writes at an offset.
    pub fn write(&self, offset: u64, width: Width, value: u64) {
        let Some(to) = self.place(offset, width) else { return };
        // SAFETY: as above.
        unsafe { shared::write(to, width, value) };
    }
}
