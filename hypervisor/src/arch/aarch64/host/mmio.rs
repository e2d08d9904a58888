//! Access to memory-mapped device registers. The methods are safe as far as each [`Mmio`] is within a device's registers
//! ([`Mmio::new`]): an access can then have no effect on memory that Rust knows.

/// A window of registers that [`crate::address_space::device`] mapped.
#[derive(Clone, Copy)]
pub struct Mmio {
    base: usize,
}

impl Mmio {
    /// Registers at a virtual address that [`crate::address_space::device`] returned, or within the region that it mapped.
    /// An address outside of it is allowed if only offsets that lead into the region are used.
    pub fn new(base: usize) -> Mmio {
        Mmio { base }
    }

    /// The part of the window that starts `offset` bytes in.
    pub fn at(&self, offset: usize) -> Mmio {
        Mmio { base: self.base + offset }
    }

    /// Virtual address.
    pub fn base(&self) -> usize {
        self.base
    }

    // In assembly: a compiler may choose a load or store with writeback, whose abort has no valid syndrome (Arm ARM, ISS
    // encoding for an exception from a Data Abort, ISV). If Stile itself runs in a VM, its hypervisor could not emulate it.

    /// Reads 32 bits at `offset`, in bytes, a multiple of 4.
    #[inline]
    pub fn read32(&self, offset: usize) -> u32 {
        let value: u32;
        // SAFETY: `new` requires that the address is in a region from `address_space::device`, which maps only devices, so
        // that no Rust object is read.
        unsafe { core::arch::asm!("ldr {:w}, [{}]", out(reg) value, in(reg) self.base + offset, options(nostack, preserves_flags)) };
        value
    }

    /// Writes 32 bits at `offset`, in bytes, a multiple of 4.
    #[inline]
    pub fn write32(&self, offset: usize, value: u32) {
        // SAFETY: `new` requires that the address is in a region that maps only devices, so that no Rust object is written.
        // Memory that a device writes by DMA as a result is accessed as atomics; functions of VMs are confined by the SMMU.
        unsafe { core::arch::asm!("str {:w}, [{}]", in(reg) value, in(reg) self.base + offset, options(nostack, preserves_flags)) };
    }
}

/// Accesses of other sizes.
impl Mmio {
    /// Reads a byte.
    pub fn read8(&self, offset: usize) -> u8 {
        let value: u32;
        // SAFETY: as for `read32`: only devices are mapped there, so that no Rust object is read.
        unsafe { core::arch::asm!("ldrb {:w}, [{}]", out(reg) value, in(reg) self.base + offset, options(nostack, preserves_flags)) };
        value as u8
    }

    /// Reads 64 bits as two words, the lower one first.
    pub fn read64(&self, offset: usize) -> u64 {
        u64::from(self.read32(offset)) | u64::from(self.read32(offset + 4)) << 32
    }

    /// Writes 64 bits as two words, the lower one first.
    pub fn write64(&self, offset: usize, value: u64) {
        self.write32(offset, value as u32);
        self.write32(offset + 4, (value >> 32) as u32);
    }

    /// Writes the lowest `bytes` bytes of a value: 1, 2, 4 or 8; any other number is taken as 4.
    pub fn write(&self, offset: usize, bytes: u64, value: u64) {
        let at = self.base + offset;
        match bytes {
            // SAFETY: as for `write32`: only devices are mapped there, so that no Rust object is written.
            1 => unsafe { core::arch::asm!("strb {:w}, [{}]", in(reg) value, in(reg) at, options(nostack, preserves_flags)) },
            // SAFETY: as for `write32`: only devices are mapped there, so that no Rust object is written.
            2 => unsafe { core::arch::asm!("strh {:w}, [{}]", in(reg) value, in(reg) at, options(nostack, preserves_flags)) },
            8 => self.write64(offset, value),
            _ => self.write32(offset, value as u32),
        }
    }
}

/// Polls a device until `answered` returns true, at most [`PATIENCE`](stile_smmu::PATIENCE) times, which is the limit for
/// the SMMU's and the ITS's queues as well.
///
/// # Errors
/// `silence`, the caller's message: the device does not answer.
pub fn wait(silence: &'static str, mut answered: impl FnMut() -> bool) -> Result<(), &'static str> {
    for _ in 0..stile_smmu::PATIENCE {
        if answered() {
            return Ok(());
        }
        core::hint::spin_loop();
    }
    Err(silence)
}
