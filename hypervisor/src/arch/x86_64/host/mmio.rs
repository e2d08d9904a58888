//! Access to memory-mapped device registers. The methods are safe as far as each [`Mmio`] is within a device's registers
//! ([`Mmio::new`]): an access can then have no effect on memory that Rust knows.

use stile_amd_iommu::PATIENCE;

/// A window of registers that [`crate::address_space::device`] mapped.
#[derive(Clone, Copy)]
pub struct Mmio {
    base: usize,
}

impl Mmio {
    /// Registers at a virtual address that [`crate::address_space::device`] returned, or within the region that it mapped.
    pub fn new(base: usize) -> Mmio {
        Mmio { base }
    }

    /// The part of the window that starts `offset` bytes in.
    pub fn at(&self, offset: usize) -> Mmio {
        Mmio { base: self.base + offset }
    }

    /// Reads 32 bits at `offset`, in bytes, a multiple of 4.
    pub fn read32(&self, offset: usize) -> u32 {
        // SAFETY: `new` requires that the address is in a region from `address_space::device`, which maps only devices, so
        // that no Rust object is read.
        unsafe { ((self.base + offset) as *const u32).read_volatile() }
    }

    /// Writes 32 bits at `offset`, in bytes, a multiple of 4.
    pub fn write32(&self, offset: usize, value: u32) {
        // SAFETY: `new` requires that the address is in a region that maps only devices, so that no Rust object is written.
        // Memory that a device writes by DMA as a result is accessed as atomics; functions of VMs are confined by the IOMMU.
        unsafe { ((self.base + offset) as *mut u32).write_volatile(value) };
    }

    /// Reads 64 bits at once, at a multiple of 8.
    pub fn read64(&self, offset: usize) -> u64 {
        // SAFETY: as for `read32`: only devices are mapped there, so that no Rust object is read.
        unsafe { ((self.base + offset) as *const u64).read_volatile() }
    }

    /// Writes 64 bits at once, at a multiple of 8.
    pub fn write64(&self, offset: usize, value: u64) {
        // SAFETY: as for `write32`: only devices are mapped there, so that no Rust object is written.
        unsafe { ((self.base + offset) as *mut u64).write_volatile(value) };
    }

    /// Writes the lowest `bytes` bytes of a value: 1, 2, 4 or 8; any other number is taken as 4.
    pub fn write(&self, offset: usize, bytes: u64, value: u64) {
        let at = self.base + offset;
        match bytes {
            // SAFETY: as for `write32`: only devices are mapped there, so that no Rust object is written.
            1 => unsafe { (at as *mut u8).write_volatile(value as u8) },
            // SAFETY: as for `write32`: only devices are mapped there, so that no Rust object is written.
            2 => unsafe { (at as *mut u16).write_volatile(value as u16) },
            8 => self.write64(offset, value),
            _ => self.write32(offset, value as u32),
        }
    }
}

/// Maximum number of polls of a register, each of which takes about a microsecond: the time of [`PATIENCE`] polls of memory.
const POLLS: u32 = PATIENCE / 10;

/// Polls a device until `answered` returns true, at most [`POLLS`] times.
///
/// # Errors
/// `silence`, the caller's message: the device does not answer.
pub fn wait(silence: &'static str, mut answered: impl FnMut() -> bool) -> Result<(), &'static str> {
    for _ in 0..POLLS {
        if answered() {
            return Ok(());
        }
        core::hint::spin_loop();
    }
    Err(silence)
}
