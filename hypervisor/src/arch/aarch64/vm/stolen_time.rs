//! Stolen time of a VM's vCPUs in guest memory (Arm DEN 0057A, "Stolen time"): pages that the guest can only read.

use core::sync::atomic::{AtomicU64, Ordering};

use stile_board::{MAX_VCPUS, map};
use stile_paging::frames::Piece;

use crate::address_space;
use crate::arch::aarch64::host::bulk;
use crate::arena::Arena;

/// Size of a vCPU's structure: revision and attributes, 32 bits each and 0, the stolen time in nanoseconds, 64 bits,
/// and padding.
const STRUCTURE: usize = map::STOLEN_TIME_EACH as usize;
/// Words of a structure, and the index of the stolen time.
const WORDS: usize = STRUCTURE / 8;
const NANOSECONDS: usize = 1;

/// The structures of a VM's vCPUs.
pub struct StolenTime {
    /// Physical address of the pages.
    memory: u64,
    /// Their size in bytes.
    size: u64,
}

impl StolenTime {
    /// Creates the structures of `vcpus` vCPUs, at most [`MAX_VCPUS`], with no stolen time.
    ///
    /// # Errors
    /// No memory is left.
    pub fn new(vcpus: usize, arena: &'static Arena) -> Result<StolenTime, &'static str> {
        let size = map::stolen_time_size(vcpus);
        let memory = arena.allocate_pages(size)?;
        // A guest with caches off must not read what memory held before the zeros, which may be another VM's.
        bulk::flush(address_space::physical(memory) as u64, size as usize);
        Ok(StolenTime { memory, size })
    }

    /// Physical and guest-physical extent.
    pub fn piece(&self) -> Piece {
        Piece { gpa: map::STOLEN_TIME_BASE, pa: self.memory, size: self.size }
    }

    /// Guest-physical address of a vCPU's structure.
    pub const fn address(vcpu: usize) -> u64 {
        map::STOLEN_TIME_BASE + (vcpu % MAX_VCPUS * STRUCTURE) as u64
    }

    /// Sets a vCPU's stolen time.
    pub fn set(&self, vcpu: usize, nanoseconds: u64) {
        let start = address_space::physical(self.memory).cast::<AtomicU64>();
        // SAFETY: the pages are in the direct map and belong to this VM for its lifetime; guests can only read them.
        let words = unsafe { core::slice::from_raw_parts(start, self.size as usize / 8) };
        if let Some(word) = words.get(vcpu * WORDS + NANOSECONDS) {
            word.store(nanoseconds, Ordering::Relaxed);
        }
    }
}
