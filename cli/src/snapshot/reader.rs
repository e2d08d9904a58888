//! Reading a snapshot, which is untrusted input.

use std::io::{self, Read};

use stile_blob::{Files, IpiAccess, Package};
use stile_snapshot::pages::{Entry, PAGE, WINDOW, entries, table_length};
use stile_snapshot::section::{self, Arch, Checker, Header, Kind, PREFIX};
use thiserror::Error as ThisError;

use super::whole_package;
use crate::config;
use crate::guest::Guest;

/// Number of sections of the description.
const DESCRIPTION: u32 = 3;

/// Reason for which a file is not accepted.
#[derive(Debug, ThisError)]
pub enum Error {
    /// It can't be read.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// It is no snapshot.
    #[error("{0}")]
    Form(#[from] section::Error),
    /// Its configuration is not accepted.
    #[error("{0}")]
    Package(#[from] stile_blob::PackageError),
    /// Parts contradict each other.
    #[error("{0}")]
    Contradiction(&'static str),
}

/// A section after the description.
#[derive(Debug, PartialEq, Eq)]
pub enum Section {
    /// A part of the state.
    State(Vec<u8>),
    /// A piece of RAM, as it is in the window.
    Piece(Vec<u8>),
}

/// A snapshot that is being read.
#[derive(Debug)]
pub struct Reader<R> {
    from: R,
    checker: Checker,
    header: Header,
    /// The VM.
    pub guest: Guest,
    /// Its configuration and files.
    pub package: Vec<u8>,
    states: u32,
    position: u32,
}

/// Description of a snapshot.
#[derive(Debug, PartialEq, Eq)]
pub struct Summary {
    /// The VM.
    pub guest: Guest,
    /// Its architecture.
    pub arch: config::Arch,
    /// Its RAM and disks in memory, in bytes.
    pub memory: u64,
    /// Bytes that a machine takes to restore it: the package, and a window for each piece of its memory.
    pub size: u64,
}

impl<R: Read> Reader<R> {
    /// Reads the description.
    ///
    /// # Errors
    /// It is no snapshot, or of a VM that can't be restored.
    pub fn new(mut from: R) -> Result<Self, Error> {
        let mut checker = Checker::new();
        let (_, header) = read_section(&mut from, &mut checker)?;
        let header = section::decode_header(&header)?;
        let (_, guest) = read_section(&mut from, &mut checker)?;
        let guest: Guest = serde_json::from_slice(&guest).map_err(|_| section::Error::Disorder)?;
        let (_, package) = read_section(&mut from, &mut checker)?;
        let vm = Package::parse(&package, Files::default())?.vm;
        // A mark is searched for in the VM's output, and may end the command: those of `run` alone are trusted.
        if guest.system.is_some() {
            return Err(Error::Contradiction("it has marks of a system, which snapshots don't have"));
        }
        let memory = vm.memory + vm.disk_memory();
        if vm.name != guest.name || header.vcpus != u32::from(vm.vcpus) || header.memory != memory || !guest.inner.is_empty() {
            return Err(Error::Contradiction("its description and its configuration are of different VMs"));
        }
        Ok(Self { from, checker, header, guest, package, states: 0, position: DESCRIPTION })
    }

    /// Takes a permission from the VM that disturbs others, as anybody may have written the file: `ipi = "direct"`. Returns
    /// whether the VM had it.
    ///
    /// # Errors
    /// The configuration can't be encoded.
    pub fn drop_trust(&mut self) -> Result<bool, Error> {
        let Package { mut vm, files } = Package::parse(&self.package, Files::default())?;
        let had = vm.techniques.ipi != IpiAccess::Trapped;
        if had {
            vm.techniques.ipi = IpiAccess::Trapped;
            self.package = whole_package(&vm, files)?;
        }
        Ok(had)
    }

    /// The VM's architecture.
    pub fn arch(&self) -> config::Arch {
        match self.header.arch {
            Arch::Aarch64 => config::Arch::Aarch64,
            Arch::X86_64 => config::Arch::X86_64,
        }
    }

    /// Bytes of the VM's RAM.
    pub fn memory(&self) -> u64 {
        self.header.memory
    }

    /// Number of sections that were read.
    pub fn position(&self) -> u32 {
        self.position
    }

    /// Reads the next section; `None` after the last.
    ///
    /// # Errors
    /// The file is damaged or truncated.
    pub fn next_section(&mut self) -> Result<Option<Section>, Error> {
        let (kind, payload) = read_section(&mut self.from, &mut self.checker)?;
        self.position += 1;
        match kind {
            Kind::State => {
                self.states += 1;
                Ok(Some(Section::State(payload)))
            }
            Kind::Memory => Ok(Some(Section::Piece(decompress(&payload)?))),
            // The hypervisor checks their number, too.
            Kind::End if self.states <= self.header.vcpus => Err(Error::Contradiction("it has the state of fewer vCPUs than the VM has")),
            Kind::End if self.from.read(&mut [0])? != 0 => Err(section::Error::Disorder.into()),
            Kind::End => Ok(None),
            Kind::Header | Kind::Guest | Kind::Package => Err(section::Error::Disorder.into()),
        }
    }
}

/// Reads a whole snapshot and checks it.
///
/// # Errors
/// It is none, or damaged.
pub fn verify(from: impl Read) -> Result<Summary, Error> {
    let mut reader = Reader::new(from)?;
    let mut pieces = 0;
    while let Some(section) = reader.next_section()? {
        pieces += u32::from(matches!(section, Section::Piece(_)));
    }
    let (arch, size) = (reader.arch(), size(reader.package.len(), pieces));
    Ok(Summary { guest: reader.guest, arch, memory: reader.header.memory, size })
}

/// Bytes of a package and of as many pieces, of a window each.
pub fn size(package: usize, pieces: u32) -> u64 {
    package as u64 + u64::from(pieces) * WINDOW as u64
}

fn read_section(from: &mut impl Read, checker: &mut Checker) -> Result<(Kind, Vec<u8>), Error> {
    let mut prefix = [0; PREFIX];
    read_exact(from, &mut prefix)?;
    let (kind, length) = checker.begin(&prefix)?;
    let mut payload = Vec::new();
    // The length is not allocated before the bytes are there.
    from.take(length.into()).read_to_end(&mut payload)?;
    if payload.len() != length as usize {
        return Err(section::Error::Truncated.into());
    }
    let pages = if kind == Kind::Memory { page_count(&payload) as u64 } else { 0 };
    Ok((checker.end(&prefix, &payload, pages)?, payload))
}

fn read_exact(from: &mut impl Read, to: &mut [u8]) -> Result<(), Error> {
    from.read_exact(to).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => section::Error::Truncated.into(),
        _ => error.into(),
    })
}

fn page_count(payload: &[u8]) -> usize {
    entries(payload, WINDOW).filter(|entry| matches!(entry, Entry::Page(..))).count()
}

/// The piece in the payload of [`Kind::Memory`].
fn decompress(payload: &[u8]) -> Result<Vec<u8>, Error> {
    let damaged = || Error::from(section::Error::Damaged);
    let table = payload.get(..table_length(payload)).filter(|table| table.len() <= PAGE).ok_or_else(damaged)?;
    let mut piece = vec![0; PAGE * (1 + page_count(payload))];
    piece[..table.len()].copy_from_slice(table);
    let length = lz4_flex::block::decompress_into(&payload[table.len()..], &mut piece[PAGE..]).map_err(|_| damaged())?;
    if length == piece.len() - PAGE { Ok(piece) } else { Err(damaged()) }
}

#[cfg(test)]
pub(crate) mod tests {
    use stile_blob::{Interrupts, Mode, OnReset, Share, Techniques, Vm};
    use stile_snapshot::pages::{BLOCK_SIZE, Builder};

    use super::*;
    use crate::budget::Budget;
    use crate::guest::System;
    use crate::snapshot::{Writer, whole_package};

    fn guest(name: &str) -> Guest {
        Guest { name: name.into(), system: None, budget: Budget::default(), inner: Vec::new() }
    }

    fn vm(vcpus: u8) -> Vm<'static> {
        let base = stile_board::map::RAM_BASE;
        Vm {
            name: "web",
            memory: 64 << 20,
            ram_base: base,
            firmware: 0,
            disks: heapless::Vec::new(),
            vcpus: vcpus.into(),
            topology: None,
            class: None,
            cpus: stile_board::CpuSet::EMPTY,
            pinned: false,
            share: Share::default(),
            entry: base,
            info: base,
            mode: Mode::Reset,
            loads: heapless::Vec::new(),
            on_reset: OnReset::Stop,
            techniques: Techniques::default(),
            functions: heapless::Vec::new(),
            served: heapless::Vec::new(),
            serves: 0,
            gic: stile_blob::Gic::default(),
        }
    }

    /// A piece with a block and two pages.
    fn piece() -> Vec<u8> {
        let mut piece = vec![0; WINDOW];
        let mut builder = Builder::new();
        builder.block(&mut piece[..], 20 * BLOCK_SIZE);
        for (n, byte) in (0..2).zip([0x5a, 0xa5]) {
            let offset = builder.page(&mut piece[..], 20 * BLOCK_SIZE + n * 0x3000);
            piece[offset..offset + PAGE].fill(byte);
        }
        let length = builder.finish(&mut piece[..]);
        piece.truncate(length);
        piece
    }

    /// A snapshot with a piece of memory.
    pub(crate) fn snapshot(name: &str, states: usize) -> Vec<u8> {
        snapshot_of(&guest(name), states)
    }

    fn snapshot_of(guest: &Guest, states: usize) -> Vec<u8> {
        let vm = vm(2);
        let package = whole_package(&vm, Files::default()).unwrap();
        let mut writer = Writer::new(Vec::new(), guest, &vm, &package, config::Arch::Aarch64).unwrap();
        (0..states).for_each(|part| writer.state(&[part as u8; 10]).unwrap());
        writer.piece(&piece()).unwrap();
        writer.finish().unwrap()
    }

    #[test]
    fn a_snapshot_is_read_as_it_was_written() {
        let bytes = snapshot("web", 4);
        assert!(bytes.len() < 1024, "compressed: {}", bytes.len());
        let mut reader = Reader::new(&bytes[..]).unwrap();
        let sections: Vec<Section> = std::iter::from_fn(|| reader.next_section().unwrap()).collect();
        let states = (0..4).map(|part| Section::State(vec![part; 10]));
        assert!(sections.into_iter().eq(states.chain([Section::Piece(piece())])));
        let summary = verify(&bytes[..]).unwrap();
        assert_eq!((summary.memory, summary.guest), (64 << 20, guest("web")));
        assert_eq!(summary.size, (reader.package.len() + WINDOW) as u64);
    }

    #[test]
    fn trust_is_dropped() {
        let mut vm = vm(2);
        (vm.techniques.ipi, vm.techniques.interrupts) = (IpiAccess::Direct, Interrupts::Direct);
        let package = whole_package(&vm, Files::default()).unwrap();
        let writer = Writer::new(Vec::new(), &guest("web"), &vm, &package, config::Arch::Aarch64).unwrap();
        let bytes = writer.finish().unwrap();
        let mut reader = Reader::new(&bytes[..]).unwrap();
        assert_eq!(reader.package, package);
        assert!(reader.drop_trust().unwrap());
        let techniques = Package::parse(&reader.package, Files::default()).unwrap().vm.techniques;
        assert_eq!((techniques.ipi, techniques.interrupts), (IpiAccess::Trapped, Interrupts::Direct));
        assert!(!reader.drop_trust().unwrap(), "it has none");
    }

    #[test]
    fn every_truncation_and_flipped_bit_is_an_error() {
        let bytes = snapshot("web", 4);
        for length in 0..bytes.len() {
            assert!(verify(&bytes[..length]).is_err(), "{length} bytes");
        }
        let mut flipped = bytes.clone();
        for bit in 0..8 * bytes.len() {
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(verify(&flipped[..]).is_err(), "bit {bit}");
            flipped[bit / 8] ^= 1 << (bit % 8);
        }
        assert!(verify(&[&bytes[..], b"x"].concat()[..]).is_err());
    }

    #[test]
    fn reasons_are_named() {
        let why = |bytes: &[u8]| verify(bytes).unwrap_err().to_string();
        assert_eq!(why(b"a letter to somebody"), "it is not a snapshot of a VM");
        assert_eq!(why(b""), "it is truncated");
        assert_eq!(why(&snapshot("web", 4)[..300]), "it is truncated");
        assert_eq!(why(&snapshot("db", 4)), "its description and its configuration are of different VMs");
        let marks = serde_json::from_str(r#"{"begin":"","end":"","stop":"","bye":"","ready":""}"#).unwrap();
        let system = System { marks, command: true, size: (0, 0) };
        let marked = snapshot_of(&Guest { system: Some(system), ..guest("web") }, 4);
        assert_eq!(why(&marked), "it has marks of a system, which snapshots don't have");
        assert_eq!(why(&snapshot("web", 2)), "it has the state of fewer vCPUs than the VM has");
    }
}
