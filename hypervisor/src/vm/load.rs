//! Loads from a VM's RAM on behalf of its guest.

use core::sync::atomic::{AtomicU64, Ordering};

use super::Vm;
use crate::arch::Arch;
use crate::arch::contract::Host;

impl Vm {
    /// Loads eight aligned bytes of RAM, as a little-endian value. `None` if the address is unaligned, or not in RAM that is
    /// filled and mapped.
    #[allow(dead_code, reason = "not every architecture has devices that load from RAM")]
    pub fn load(&self, gpa: u64) -> Option<u64> {
        const SIZE: u64 = size_of::<AtomicU64>() as u64;
        // With the balloon locked, no block loses its memory during the load.
        let _balloon = (!self.ram.given.is_empty()).then(|| self.ram.balloon.lock());
        if !gpa.is_multiple_of(SIZE) || !self.is_mapped(gpa) {
            return None;
        }
        let part = self.ram.parts(gpa, gpa.checked_add(SIZE)?).next().filter(|part| part.size == SIZE)?;
        // SAFETY: the bytes are aligned, in this VM's RAM, which the direct map has as long as the VM exists. Their block is mapped, and
        // keeps its memory while the balloon is locked. The guest may write them at the same time: the access is atomic.
        Some(unsafe { AtomicU64::from_ptr(Arch::physical(part.pa).cast()) }.load(Ordering::Relaxed))
    }
}
