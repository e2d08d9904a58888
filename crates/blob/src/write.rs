//! Writes blobs: the allocating half of this crate, for the command that makes images.

pub use crate::package::write as package;
use crate::{Blob, Error, FILE_ALIGN, HEADER_LEN, Header, Load, Settings, Symbols, Vm};
use alloc::{string::String, vec::Vec};

/// A function of the hypervisor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// Offset from the image's start, in bytes.
    pub start: u32,
    /// Length in bytes; 0 if unknown: it then extends to the next function.
    pub len: u32,
    /// Its name, demangled.
    pub name: String,
}

/// Stile's configuration at boot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine<'a> {
    /// The settings of the whole machine.
    pub settings: Settings,
    /// The virtual machines: 1 to [`stile_board::MAX_VMS`].
    pub vms: Vec<Vm<'a>>,
    /// [`Blob::text`].
    pub text: &'a str,
}

impl Machine<'_> {
    /// The configuration's encoding.
    fn encode(&self) -> Result<Vec<u8>, Error> {
        let count = postcard::to_allocvec(&self.vms.len());
        let with_vms = self.vms.iter().try_fold(count.map_err(|_| Error::Encoding)?, |bytes, vm| postcard::to_extend(vm, bytes));
        let with_settings = with_vms.and_then(|bytes| postcard::to_extend(&self.settings, bytes));
        with_settings.and_then(|bytes| postcard::to_extend(self.text, bytes)).map_err(|_| Error::Encoding)
    }
}

/// A file that is loaded into a virtual machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct File<'a> {
    /// The virtual machine's index.
    pub vm: usize,
    /// The bytes.
    pub bytes: &'a [u8],
    /// Guest-physical address of the first byte.
    pub gpa: u64,
    /// Size in RAM, at least the file's length.
    pub mem_len: u64,
}

/// Encodes a symbol table ([`Symbols`]). Of functions at the same offset the last one takes precedence.
/// Functions without a name are omitted.
pub fn symbols(functions: &[Function]) -> Vec<u8> {
    let mut sorted: Vec<&Function> = functions.iter().filter(|f| !f.name.is_empty()).collect();
    sorted.sort_by_key(|function| function.start);

    let mut entries: Vec<(u32, &str)> = Vec::new();
    let mut known_until = None;
    for function in sorted {
        // The gap before the next function has no name.
        if let Some(end) = known_until.filter(|&end| end < function.start) {
            entries.push((end, ""));
        }
        if entries.last().is_some_and(|last| last.0 == function.start) {
            entries.pop();
        }
        entries.push((function.start, &function.name));
        known_until = (function.len != 0).then(|| function.start.saturating_add(function.len));
    }
    if let (Some(end), Some(last)) = (known_until, entries.last())
        && end > last.0
    {
        entries.push((end, ""));
    }

    let mut bytes = Vec::new();
    bytes.extend_from_slice(&(entries.len() as u32).to_le_bytes());
    let mut name_end = 0u32;
    for (start, name) in &entries {
        name_end += name.len() as u32;
        bytes.extend_from_slice(&start.to_le_bytes());
        bytes.extend_from_slice(&name_end.to_le_bytes());
    }
    for (_, name) in &entries {
        bytes.extend_from_slice(name.as_bytes());
    }
    bytes
}

/// Encodes `machine` with `files` appended in order to its virtual machines' loads. Files with equal contents
/// are stored once.
///
/// `symbols` is an encoded symbol table, or empty.
///
/// # Errors
/// Any error of [`crate::Blob::parse`] for the blob; and [`Error::Length`] if a virtual machine has more than
/// [`crate::MAX_LOADS`] files, or a file's virtual machine doesn't exist.
pub fn blob(machine: &Machine<'_>, symbols: &[u8], files: &[File<'_>]) -> Result<Vec<u8>, Error> {
    Symbols::parse(symbols)?;
    // The configuration holds the files' offsets, which depend on its length, which depends on them
    // (varints). Offsets only grow with the length, so the iteration converges.
    let mut assumed = 0;
    let (config, places, total) = loop {
        let (places, total) = place(assumed + symbols.len() as u64 + HEADER_LEN as u64, files);
        let mut placed = machine.clone();
        for (file, &offset) in files.iter().zip(&places) {
            let vm = placed.vms.get_mut(file.vm).ok_or(Error::Length)?;
            let len = file.bytes.len() as u64;
            let load = Load { offset, len, gpa: file.gpa, mem_len: file.mem_len };
            vm.loads.push(load).map_err(|_| Error::Length)?;
        }
        let config = placed.encode()?;
        if config.len() as u64 <= assumed {
            break (config, places, total);
        }
        assumed = config.len() as u64;
    };

    let mut header = Header {
        config_len: u32::try_from(config.len()).map_err(|_| Error::Length)?,
        symbols_len: u32::try_from(symbols.len()).map_err(|_| Error::Length)?,
        total_len: total,
        crc: 0,
    };
    header.crc = header.checksum(&config);

    let mut bytes = Vec::with_capacity(usize::try_from(total).map_err(|_| Error::Length)?);
    bytes.extend_from_slice(&header.to_bytes());
    bytes.extend_from_slice(&config);
    bytes.extend_from_slice(symbols);
    for (file, &offset) in files.iter().zip(&places) {
        if !file.bytes.is_empty() && offset >= bytes.len() as u64 {
            bytes.resize(offset as usize, 0);
            bytes.extend_from_slice(file.bytes);
        }
    }
    bytes.resize(total as usize, 0);
    Blob::parse(&bytes)?;
    Ok(bytes)
}

/// The offset of each file, after `from` bytes, and the total length: a multiple of [`FILE_ALIGN`].
fn place(from: u64, files: &[File<'_>]) -> (Vec<u64>, u64) {
    let mut places: Vec<u64> = Vec::with_capacity(files.len());
    let mut end = from.next_multiple_of(FILE_ALIGN);
    for (index, file) in files.iter().enumerate() {
        let same = files[..index].iter().position(|earlier| earlier.bytes == file.bytes);
        if let Some(same) = same {
            places.push(places[same]);
            continue;
        }
        places.push(end);
        end = (end + file.bytes.len() as u64).next_multiple_of(FILE_ALIGN);
    }
    (places, end)
}
