//! Stolen time of a VM's vCPUs in guest memory (Arm DEN 0057A, "Stolen time"): a page that the guest can only read.

use core::sync::atomic::{AtomicU64, Ordering};

use stile_board::{MAX_VCPUS, map};
use stile_paging::PAGE_SIZE;
use stile_paging::frames::Piece;

use crate::address_space;
use crate::arena::Arena;

/// Size of a vCPU's structure: revision and attributes, 32 bits each and 0, the stolen time in nanoseconds, 64 bits,
/// and padding.
const STRUCTURE: usize = 64;
/// Words of a structure, and the index of the stolen time.
const WORDS: usize = STRUCTURE / 8;
const NANOSECONDS: usize = 1;

const _: () = assert!(MAX_VCPUS * STRUCTURE <= PAGE_SIZE as usize && PAGE_SIZE == map::STOLEN_TIME_SIZE);

/// The structures of a VM's vCPUs.
pub struct StolenTime {
    /// Physical address of the page.
    memory: u64,
}

impl StolenTime {
    /// Creates the structures with no stolen time.
    ///
    /// # Errors
    /// No memory is left.
    pub fn new(arena: &'static Arena) -> Result<StolenTime, &'static str> {
        Ok(StolenTime { memory: arena.allocate_pages(PAGE_SIZE)? })
    }

    /// Physical and guest-physical extent.
    pub fn piece(&self) -> Piece {
        Piece { gpa: map::STOLEN_TIME_BASE, pa: self.memory, size: PAGE_SIZE }
    }

    /// Guest-physical address of a vCPU's structure.
    pub const fn address(vcpu: usize) -> u64 {
        map::STOLEN_TIME_BASE + (vcpu % MAX_VCPUS * STRUCTURE) as u64
    }

    /// Sets a vCPU's stolen time.
    pub fn set(&self, vcpu: usize, nanoseconds: u64) {
        // SAFETY: the page is in the direct map and belongs to this VM for its lifetime; guests can only read it.
        let words: &[AtomicU64; MAX_VCPUS * WORDS] = unsafe { &*address_space::physical(self.memory).cast() };
        words[vcpu % MAX_VCPUS * WORDS + NANOSECONDS].store(nanoseconds, Ordering::Relaxed);
    }
}
