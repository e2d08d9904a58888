//! Device registers.

/// A window of registers that [`crate::address_space::device`] mapped.
#[derive(Clone, Copy)]
pub struct Mmio {
    base: usize,
}

impl Mmio {
    /// Registers at a virtual address.
    pub fn new(base: usize) -> Mmio {
        Mmio { base }
    }

    /// Part of the window.
    pub fn at(&self, offset: usize) -> Mmio {
        Mmio { base: self.base + offset }
    }

    /// Virtual address.
    pub fn base(&self) -> usize {
        self.base
    }

    // In assembly: a load or store with writeback, which a compiler may choose, provides no syndrome to a hypervisor
    // under this one (Arm ARM, ISS encoding for an exception from a Data Abort, ISV).

    /// Reads 32 bits.
    #[inline]
    pub fn read32(&self, offset: usize) -> u32 {
        let value: u32;
        // SAFETY: `base` comes from `address_space::device`, which maps only devices, and offsets are those of the
        // device's registers.
        unsafe { core::arch::asm!("ldr {:w}, [{}]", out(reg) value, in(reg) self.base + offset, options(nostack, preserves_flags)) };
        value
    }

    /// Writes 32 bits.
    #[inline]
    pub fn write32(&self, offset: usize, value: u32) {
        // SAFETY: only devices are mapped at `base`. Memory that they write by DMA is accessed as atomics; functions
        // of VMs are confined by the SMMU.
        unsafe { core::arch::asm!("str {:w}, [{}]", in(reg) value, in(reg) self.base + offset, options(nostack, preserves_flags)) };
    }
}

/// Accesses of other sizes.
impl Mmio {
    /// Reads a byte.
    pub fn read8(&self, offset: usize) -> u8 {
        let value: u32;
        // SAFETY: `base` maps only devices, so that no Rust object is read.
        unsafe { core::arch::asm!("ldrb {:w}, [{}]", out(reg) value, in(reg) self.base + offset, options(nostack, preserves_flags)) };
        value as u8
    }

    /// Reads 64 bits, as two halves.
    pub fn read64(&self, offset: usize) -> u64 {
        u64::from(self.read32(offset)) | u64::from(self.read32(offset + 4)) << 32
    }

    /// Writes 64 bits, as two halves.
    pub fn write64(&self, offset: usize, value: u64) {
        self.write32(offset, value as u32);
        self.write32(offset + 4, (value >> 32) as u32);
    }

    /// Writes 1, 2, 4 or 8 bytes.
    pub fn write(&self, offset: usize, bytes: u64, value: u64) {
        let at = self.base + offset;
        match bytes {
            // SAFETY: `base` maps only devices, so that no Rust object is written.
            1 => unsafe { core::arch::asm!("strb {:w}, [{}]", in(reg) value, in(reg) at, options(nostack, preserves_flags)) },
            // SAFETY: `base` maps only devices, so that no Rust object is written.
            2 => unsafe { core::arch::asm!("strh {:w}, [{}]", in(reg) value, in(reg) at, options(nostack, preserves_flags)) },
            8 => self.write64(offset, value),
            _ => self.write32(offset, value as u32),
        }
    }
}

/// Polls a device until it has `answered`, as often as the SMMU's and the ITS's queues.
///
/// # Errors
/// `silence`: it does not answer.
pub fn wait(silence: &'static str, mut answered: impl FnMut() -> bool) -> Result<(), &'static str> {
    for _ in 0..stile_smmu::PATIENCE {
        if answered() {
            return Ok(());
        }
        core::hint::spin_loop();
    }
    Err(silence)
}
