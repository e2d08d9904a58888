//! The flash with the variables of a VM's firmware. It lasts as long as the VM, over resets, too.
//!
//! While it has no command under way, the guest has it mapped for reading: firmware reads it with instructions that have no valid syndrome, and
//! more often than it writes. Otherwise nothing is mapped there, and every access exits.

use core::ops::Range;
use core::sync::atomic::{AtomicU32, Ordering};

use stile_board::map;
use stile_device::flash::Flash as Model;
use stile_paging::frames::Piece;
use stile_sched::lock::TicketLock;

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
    /// An erased one.
    ///
    /// # Errors
    /// There is no memory.
    pub fn new(arena: &'static Arena) -> Result<Flash, &'static str> {
        let flash = Flash { memory: arena.allocate_pages(map::FLASH_SIZE)?, model: TicketLock::new(Model::new()) };
        flash.words().iter().for_each(|word| word.store(u32::MAX, Ordering::Relaxed));
        flash.clean(0..map::FLASH_SIZE);
        Ok(flash)
    }

    /// Where it is, and where the guest finds it.
    pub fn piece(&self) -> Piece {
        Piece { gpa: map::FLASH_BASE, pa: self.memory, size: map::FLASH_SIZE }
    }

    /// The guest loads `bytes` bytes at `offset`. `show` maps it, or unmaps it.
    pub fn read(&self, offset: u64, bytes: u64, show: impl FnOnce(bool)) -> u64 {
        let (value, changed) = self.with(show, |model, words| model.read(words, offset, bytes));
        self.clean(changed);
        value
    }

    /// The guest stores a word at `offset`. `show` as for [`Flash::read`].
    pub fn write(&self, offset: u64, value: u32, show: impl FnOnce(bool)) {
        let changed = self.with(show, |model, words| model.write(words, offset, value));
        self.clean(changed);
    }

    /// The machine is reset: a command that was under way is cut short. `show` as for [`Flash::read`].
    pub fn reset(&self, show: impl FnOnce(bool)) {
        self.with(show, |model, _| *model = Model::new());
    }

    fn with<T>(&self, show: impl FnOnce(bool), access: impl FnOnce(&mut Model, &[AtomicU32]) -> T) -> T {
        let mut model = self.model.lock();
        let before = model.is_array();
        let result = access(&mut model, self.words());
        // Under the lock, so that the mapping is as the last access wants it.
        if model.is_array() != before {
            show(!before);
        }
        result
    }

    fn words(&self) -> &[AtomicU32; WORDS] {
        // SAFETY: the pages are this flash's alone, for as long as the VM, in the direct map. Guests can at most read them.
        unsafe { &*address_space::physical(self.memory).cast() }
    }

    /// A guest may read it past the caches.
    fn clean(&self, changed: Range<u64>) {
        if !changed.is_empty() {
            bulk::clean(address_space::physical(self.memory + changed.start) as u64, (changed.end - changed.start) as usize);
        }
    }
}
