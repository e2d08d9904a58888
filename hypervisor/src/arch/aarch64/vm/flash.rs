//! Flash with the variables of a VM's firmware. Its contents survive resets of the VM.
//!
//! While no command is in progress, the guest has it mapped read-only: firmware reads it with instructions without a
//! valid syndrome, and more often than it writes. Otherwise it is unmapped, and every access exits.

use core::ops::Range;
use core::sync::atomic::{AtomicU32, Ordering};

use stile_board::map;
use stile_device::flash::Flash as Model;
use stile_lock::TicketLock;
use stile_paging::frames::Piece;

use crate::address_space;
use crate::arch::aarch64::host::bulk;
use crate::arena::Arena;

const WORDS: usize = map::FLASH_SIZE as usize / 4;

/// A VM's flash.
pub struct Flash {
    /// Physical address of the contents.
    memory: u64,
    model: TicketLock<Model>,
}

impl Flash {
    /// Creates an erased flash.
    ///
    /// # Errors
    /// No memory is left.
    pub fn new(arena: &'static Arena) -> Result<Flash, &'static str> {
        let flash = Flash { memory: arena.allocate_pages(map::FLASH_SIZE)?, model: TicketLock::new(Model::new()) };
        flash.words().iter().for_each(|word| word.store(u32::MAX, Ordering::Relaxed));
        flash.clean(0..map::FLASH_SIZE);
        Ok(flash)
    }

    /// Physical and guest-physical extent.
    pub fn piece(&self) -> Piece {
        Piece { gpa: map::FLASH_BASE, pa: self.memory, size: map::FLASH_SIZE }
    }

    /// Loads `bytes` bytes at `offset` for the guest. `show` maps or unmaps the flash.
    pub fn read(&self, offset: u64, bytes: u64, show: impl FnOnce(bool)) -> u64 {
        let (value, changed) = self.with(show, |model, words| model.read(words, offset, bytes));
        self.clean(changed);
        value
    }

    /// Stores a word at `offset` for the guest. `show` as for [`Flash::read`].
    pub fn write(&self, offset: u64, value: u32, show: impl FnOnce(bool)) {
        let changed = self.with(show, |model, words| model.write(words, offset, value));
        self.clean(changed);
    }

    /// Resets the flash, which aborts a command in progress. `show` as for [`Flash::read`].
    pub fn reset(&self, show: impl FnOnce(bool)) {
        self.with(show, |model, _| *model = Model::new());
    }

    fn with<T>(&self, show: impl FnOnce(bool), access: impl FnOnce(&mut Model, &[AtomicU32]) -> T) -> T {
        let mut model = self.model.lock();
        let before = model.is_array();
        let result = access(&mut model, self.words());
        // Under the lock, so that the mapping follows the last access.
        if model.is_array() != before {
            show(!before);
        }
        result
    }

    fn words(&self) -> &[AtomicU32; WORDS] {
        // SAFETY: the pages are in the direct map and belong to this flash for the VM's lifetime; guests can at most
        // read them.
        unsafe { &*address_space::physical(self.memory).cast() }
    }

    /// The guest may read it past the caches.
    fn clean(&self, changed: Range<u64>) {
        if !changed.is_empty() {
            bulk::flush(address_space::physical(self.memory + changed.start) as u64, (changed.end - changed.start) as usize);
        }
    }
}
