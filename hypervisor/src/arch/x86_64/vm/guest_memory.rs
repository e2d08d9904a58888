//! Guest RAM, as accessed by table walks and the instruction decoder.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use stile_x86_walk::GuestMemory;

use super::shared;
use crate::address_space;
use crate::arch::x86_64::host::guest_word::GuestWord;
use crate::vm::Vm;

/// The RAM of a VM.
#[derive(Clone, Copy)]
pub struct Ram(pub &'static Vm);

impl Ram {
    /// Location of an address in RAM. Accesses there must stay within its 4 KiB page.
    #[inline]
    pub fn pointer<T>(self, address: u64) -> Option<*mut T> {
        self.0.fill_page(address);
        self.0.arch.physical(address).map(|address| address_space::physical(address).cast())
    }

    /// Location of an address that is about to be written: drops the decoded instructions of its page.
    pub fn pointer_to_write<T>(self, address: u64) -> Option<*mut T> {
        let pointer = self.pointer(address)?;
        if let Some(protected) = &self.0.arch.protected {
            protected.written(address);
        }
        Some(pointer)
    }

    fn replace<A>(self, address: u64, exchange: impl FnOnce(&A) -> bool) -> bool {
        // SAFETY: guest RAM, aligned as the caller guarantees; atomics need no other alignment here.
        self.pointer_to_write::<A>(address).is_some_and(|pointer| exchange(unsafe { &*pointer }))
    }
}

impl GuestMemory for Ram {
    type Place = GuestWord;

    const ZEROS: GuestWord = GuestWord::ZEROS;

    fn place(&self, address: u64) -> Option<GuestWord> {
        self.pointer::<u64>(address).map(|pointer| GuestWord::new(pointer))
    }

    #[inline(always)]
    fn look(&self, word: GuestWord) -> u64 {
        // SAFETY: guest RAM, to which no reference exists, or `ZEROS`.
        unsafe { shared::load(word.pointer()) }
    }

    fn read_u64(&self, address: u64) -> Option<u64> {
        // SAFETY: guest RAM, to which no reference exists.
        self.pointer::<u64>(address).map(|pointer| unsafe { shared::load(pointer) })
    }

    fn read_u32(&self, address: u64) -> Option<u32> {
        // SAFETY: guest RAM, to which no reference exists.
        self.pointer::<u32>(address).map(|pointer| unsafe { shared::load(pointer) })
    }

    fn replace_u64(&self, address: u64, old: u64, new: u64) -> bool {
        self.replace::<AtomicU64>(address, |word| word.compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed).is_ok())
    }

    fn replace_u32(&self, address: u64, old: u32, new: u32) -> bool {
        self.replace::<AtomicU32>(address, |word| word.compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed).is_ok())
    }
}
