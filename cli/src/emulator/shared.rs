//! RAM of an emulated machine that this process accesses, too: snapshots are too large for the serial line.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use rustix::fs::{MemfdFlags, memfd_create};

/// The RAM.
#[derive(Debug)]
pub struct SharedMemory {
    file: File,
    /// Physical address of its first byte.
    base: u64,
    size: u64,
}

impl SharedMemory {
    /// Makes RAM at these physical addresses. `None` if the user's arguments for the emulator describe it.
    ///
    /// # Errors
    /// The file can't be made.
    pub fn new(ram: &Range<u64>, arguments: &[String]) -> io::Result<Option<Self>> {
        if arguments.iter().any(|argument| argument == "-m" || argument.contains("mem")) {
            return Ok(None);
        }
        let file = File::from(memfd_create("stile", MemfdFlags::CLOEXEC)?);
        let size = (ram.end - ram.start).next_multiple_of(1 << 20);
        file.set_len(size)?;
        Ok(Some(Self { file, base: ram.start, size }))
    }

    /// The emulator's arguments for it.
    pub fn arguments(&self) -> [String; 4] {
        let path = format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd());
        let object = format!("memory-backend-file,id=ram,mem-path={path},share=on,size={}M", self.size >> 20);
        ["-machine".into(), "memory-backend=ram".into(), "-object".into(), object]
    }

    /// Reads physical memory.
    ///
    /// # Errors
    /// The address is not in RAM.
    pub fn read(&self, address: u64, to: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(to, self.offset(address, to.len())?)
    }

    /// Writes physical memory.
    ///
    /// # Errors
    /// As [`SharedMemory::read`].
    pub fn write(&self, address: u64, from: &[u8]) -> io::Result<()> {
        self.file.write_all_at(from, self.offset(address, from.len())?)
    }

    fn offset(&self, address: u64, length: usize) -> io::Result<u64> {
        let offset = address.checked_sub(self.base).filter(|offset| offset.checked_add(length as u64).is_some_and(|end| end <= self.size));
        offset.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, format!("{address:#x} is not in the machine's RAM")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: u64 = 0x4000_0000;
    const RAM: Range<u64> = BASE..BASE + (2 << 20) - 1;

    #[test]
    fn only_ram_is_accessed() {
        let memory = SharedMemory::new(&RAM, &[]).unwrap().unwrap();
        assert!(memory.arguments()[3].ends_with(",share=on,size=2M"));
        memory.write(BASE + 0x1000, b"window").unwrap();
        let mut bytes = [0; 6];
        memory.read(BASE + 0x1000, &mut bytes).unwrap();
        assert_eq!(&bytes, b"window");
        for address in [0, BASE - 1, BASE + (2 << 20) - 5, u64::MAX] {
            assert!(memory.read(address, &mut bytes).is_err() && memory.write(address, &bytes).is_err(), "{address:#x}");
        }
    }

    #[test]
    fn the_users_own_memory_is_left_alone() {
        for arguments in [vec!["-m".into(), "4G".into()], vec!["-object".into(), "memory-backend-ram,id=x".into()]] {
            assert!(SharedMemory::new(&RAM, &arguments).unwrap().is_none());
        }
    }
}
