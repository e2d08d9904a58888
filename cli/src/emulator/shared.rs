//! RAM of an emulated machine that this process accesses, too: snapshots are too large for the serial line.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use rustix::fs::{MemfdFlags, memfd_create};

use super::qemu::Board;

/// Physical address of the first byte of RAM on QEMU's `virt`.
const BASE: u64 = 0x4000_0000;

/// The RAM.
#[derive(Debug)]
pub struct SharedMemory {
    file: File,
    size: u64,
}

impl SharedMemory {
    /// Makes the RAM of a board. `None` for a board whose RAM is divided among nodes, or described by the user's arguments for the
    /// emulator.
    ///
    /// # Errors
    /// The file can't be made.
    pub fn new(board: &Board, arguments: &[String]) -> io::Result<Option<Self>> {
        if !board.nodes.is_empty() || arguments.iter().any(|argument| argument == "-m" || argument.contains("mem")) {
            return Ok(None);
        }
        let file = File::from(memfd_create("stile", MemfdFlags::CLOEXEC)?);
        let size = board.memory.next_multiple_of(1 << 20);
        file.set_len(size)?;
        Ok(Some(Self { file, size }))
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
        let offset = address.checked_sub(BASE).filter(|offset| offset.checked_add(length as u64).is_some_and(|end| end <= self.size));
        offset.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, format!("{address:#x} is not in the machine's RAM")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn board() -> Board {
        Board {
            cpu: "max".into(),
            cpus: 1,
            nodes: Vec::new(),
            memory: (2 << 20) - 1,
            machine: Vec::new(),
            icount: false,
            smmu: false,
            firmware: None,
            extra: Vec::new(),
        }
    }

    #[test]
    fn only_ram_is_accessed() {
        let memory = SharedMemory::new(&board(), &[]).unwrap().unwrap();
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
            assert!(SharedMemory::new(&board(), &arguments).unwrap().is_none());
        }
        assert!(SharedMemory::new(&Board { nodes: std::iter::once(0..1).collect(), ..board() }, &[]).unwrap().is_none());
        let disk = Board { extra: vec!["-drive".into(), "file=/mem/a.qcow2".into()], ..board() };
        assert!(SharedMemory::new(&disk, &[]).unwrap().is_some(), "a disk's path is no memory");
    }
}
