//! The VM's RAM.

use crate::Error;

/// Where RAM begins in the VM.
pub const BASE: u64 = 0x4000_0000;
/// Bytes of RAM.
pub const SIZE: usize = 64 << 20;
/// Where in RAM the probe is: its link address.
pub const PROBE: usize = 0x8_0000;
/// Where in RAM the device tree is.
pub const TREE: usize = 32 << 20;

/// Memory that is never unmapped: the VM's vCPUs use it to the end of the process.
pub struct Ram {
    bytes: &'static mut [u8],
}

impl Ram {
    /// Zeroed memory, all of it there.
    pub fn new() -> Result<Self, Error> {
        // SAFETY: an anonymous mapping at an address of the kernel's choice overlaps nothing.
        let address = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            libc::mmap(std::ptr::null_mut(), SIZE, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
        };
        if address == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error().into());
        }
        // SAFETY: the mapping is ours alone until the VM starts, zeroed, and never unmapped.
        let bytes = unsafe { std::slice::from_raw_parts_mut(address.cast::<u8>(), SIZE) };
        Ok(Self { bytes })
    }

    /// Copies a file's content to an offset.
    pub fn load(&mut self, offset: usize, file: &str) -> Result<(), Error> {
        let content = std::fs::read(file).map_err(|error| format!("{file}: {error}"))?;
        let room = offset.checked_add(content.len()).and_then(|end| self.bytes.get_mut(offset..end));
        room.ok_or_else(|| format!("{file} does not fit into RAM"))?.copy_from_slice(&content);
        Ok(())
    }

    /// Its address in this process.
    pub fn address(&self) -> u64 {
        self.bytes.as_ptr() as u64
    }
}
