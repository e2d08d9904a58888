//! The stolen time of a VM's vCPUs where their guest reads it (Arm DEN 0057A, "Stolen time"): a page that it can only read.

use core::sync::atomic::{AtomicU64, Ordering};

use stile_board::{MAX_VCPUS, map};
use stile_paging::PAGE_SIZE;
use stile_paging::frames::Piece;

use crate::address_space;
use crate::arena::Arena;

/// Bytes of a vCPU's structure: revision and attributes, 32 bits each and both 0, the stolen time in nanoseconds, 64 bits, and padding.
const STRUCTURE: usize = 64;
/// Words of a structure, and the place of the stolen time among them.
const WORDS: usize = STRUCTURE / 8;
const NANOSECONDS: usize = 1;

const _: () = assert!(MAX_VCPUS * STRUCTURE <= PAGE_SIZE as usize && PAGE_SIZE == map::STOLEN_TIME_SIZE);

/// The structures of a VM's vCPUs.
pub struct StolenTime {
    /// Physical address of the page.
    memory: u64,
}

impl StolenTime {
    /// Nothing is stolen yet.
    ///
    /// # Errors
    /// There is no memory.
    pub fn new(arena: &'static Arena) -> Result<StolenTime, &'static str> {
        Ok(StolenTime { memory: arena.allocate_pages(PAGE_SIZE)? })
    }

    /// Where it is, and where the guest finds it.
    pub fn piece(&self) -> Piece {
        Piece { gpa: map::STOLEN_TIME_BASE, pa: self.memory, size: PAGE_SIZE }
    }

    /// The guest-physical address of a vCPU's structure.
    pub const fn address(vcpu: usize) -> u64 {
        map::STOLEN_TIME_BASE + (vcpu % MAX_VCPUS * STRUCTURE) as u64
    }

    /// Sets a vCPU's stolen time.
    pub fn set(&self, vcpu: usize, nanoseconds: u64) {
        // SAFETY: the page is this VM's alone, for as long as it, in the direct map. Guests can only read it.
        let words: &[AtomicU64; MAX_VCPUS * WORDS] = unsafe { &*address_space::physical(self.memory).cast() };
        words[vcpu % MAX_VCPUS * WORDS + NANOSECONDS].store(nanoseconds, Ordering::Relaxed);
    }
}
