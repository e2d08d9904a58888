//! The VM's RAM.

use crate::error::Error;

/// The largest block that both the host's memory and the second stage can use here.
const BLOCK: usize = 2 << 20;

/// Memory that is never unmapped: the VM's vCPUs use it until the process ends.
pub struct Ram {
    bytes: &'static mut [u8],
}

impl Ram {
    /// Allocates `size` bytes of zeroed memory, in large blocks if the host has them.
    pub fn new(size: usize) -> Result<Self, Error> {
        let room = size.checked_add(BLOCK).ok_or("memory size is too large")?;
        // SAFETY: an anonymous mapping at an address chosen by the kernel overlaps nothing.
        let address = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            libc::mmap(std::ptr::null_mut(), room, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
        };
        if address == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error().into());
        }
        let address = address.cast::<u8>();
        // SAFETY: the mapping is one block larger than `size`, so the next block boundary and `size` bytes
        // after it lie within.
        let address = unsafe { address.add(address.align_offset(BLOCK)) };
        // SAFETY: advice on our own memory; a failure is harmless.
        unsafe { libc::madvise(address.cast(), size, libc::MADV_HUGEPAGE) };
        // SAFETY: only this process uses the mapping until the VM starts; it is zeroed, and never unmapped.
        let bytes = unsafe { std::slice::from_raw_parts_mut(address, size) };
        Ok(Self { bytes })
    }

    /// Copies a file's contents to an offset.
    pub fn load(&mut self, offset: usize, file: &str) -> Result<(), Error> {
        let content = std::fs::read(file).map_err(|error| format!("{file}: {error}"))?;
        let room = offset.checked_add(content.len()).and_then(|end| self.bytes.get_mut(offset..end));
        room.ok_or_else(|| format!("{file} does not fit into RAM"))?.copy_from_slice(&content);
        Ok(())
    }

    /// Its size in bytes.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Its address in this process.
    pub fn address(&self) -> u64 {
        self.bytes.as_ptr() as u64
    }
}
