//! Writing a snapshot.

use std::io::{self, Write};

use stile_blob::{Package, Vm};
use stile_snapshot::pages::{Entry, PAGE, entries, table_length};
use stile_snapshot::section::{self, Arch, End, Header, Kind, MAGIC, VERSION};

use crate::config;
use crate::guest::Guest;

/// A snapshot that is being written.
#[derive(Debug)]
pub struct Writer<W> {
    to: W,
    position: u32,
    counted: End,
}

impl<W: Write> Writer<W> {
    /// Begins with the description of a VM: itself, and its configuration with all files.
    ///
    /// # Errors
    /// It can't be written.
    pub fn new(to: W, guest: &Guest, vm: &Vm<'_>, package: &[u8], arch: config::Arch) -> io::Result<Self> {
        let mut writer = Self { to, position: 0, counted: End::default() };
        let header = Header {
            magic: MAGIC,
            version: VERSION,
            arch: match arch {
                config::Arch::Aarch64 => Arch::Aarch64,
                config::Arch::X86_64 => Arch::X86_64,
            },
            vcpus: vm.vcpus.into(),
            memory: vm.memory + vm.disk_memory(),
            config: section::package_checksum(package),
        };
        writer.record(Kind::Header, &header)?;
        writer.section(Kind::Guest, &serde_json::to_vec(guest)?)?;
        writer.section(Kind::Package, package)?;
        Ok(writer)
    }

    /// Writes a part of the state.
    ///
    /// # Errors
    /// It can't be written.
    pub fn state(&mut self, part: &[u8]) -> io::Result<()> {
        self.counted.states += 1;
        self.section(Kind::State, part)
    }

    /// Writes a piece of RAM as it is in the window.
    ///
    /// # Errors
    /// It can't be written.
    pub fn piece(&mut self, piece: &[u8]) -> io::Result<()> {
        let pages = entries(piece, piece.len()).filter(|entry| matches!(entry, Entry::Page(..))).count();
        let contents = piece.get(PAGE..PAGE * (1 + pages)).ok_or(io::ErrorKind::InvalidData)?;
        let mut payload = piece[..table_length(piece)].to_vec();
        payload.extend(lz4_flex::block::compress(contents));
        self.counted.pieces += 1;
        self.counted.pages += pages as u64;
        self.section(Kind::Memory, &payload)
    }

    /// Passes on what is buffered. Returns the number of sections so far.
    ///
    /// # Errors
    /// It can't be written.
    pub fn flush(&mut self) -> io::Result<u32> {
        self.to.flush()?;
        Ok(self.position)
    }

    /// Completes the snapshot.
    ///
    /// # Errors
    /// It can't be written.
    pub fn finish(mut self) -> io::Result<W> {
        let counted = self.counted.clone();
        self.record(Kind::End, &counted)?;
        self.to.flush()?;
        Ok(self.to)
    }

    fn record(&mut self, kind: Kind, record: &impl serde::Serialize) -> io::Result<()> {
        let mut buffer = [0; 64];
        let length = stile_snapshot::encode(record, &mut buffer).ok_or(io::ErrorKind::InvalidData)?;
        self.section(kind, &buffer[..length])
    }

    fn section(&mut self, kind: Kind, payload: &[u8]) -> io::Result<()> {
        self.to.write_all(&section::prefix(kind, self.position, payload))?;
        self.to.write_all(payload)?;
        self.position += 1;
        Ok(())
    }
}

/// Encodes a VM's description with all of its files: another machine has none of them.
///
/// # Errors
/// A file is missing, or there are too many.
pub fn whole_package(vm: &Vm<'_>, files: stile_blob::Files<'_>) -> Result<Vec<u8>, stile_blob::PackageError> {
    let file = |load: &stile_blob::Load| {
        let bytes = files.file(load).ok_or(stile_blob::PackageError::Form)?;
        Ok(stile_blob::write::File { vm: 0, bytes, gpa: load.gpa, mem_len: load.mem_len })
    };
    let all = vm.loads.iter().map(file).collect::<Result<Vec<_>, _>>()?;
    let bare = Vm { loads: heapless::Vec::new(), ..vm.clone() };
    let package = stile_blob::write::package(&bare, &all, |_| None)?;
    Package::parse(&package, stile_blob::Files::default()).map(drop)?;
    Ok(package)
}
