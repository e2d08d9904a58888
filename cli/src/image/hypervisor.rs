//! Converts the hypervisor's linked ELF file to the bytes of an image and a symbol table.

use object::{
    Endianness, SymbolKind,
    elf::{EM_X86_64, FileHeader64, PT_LOAD},
    read::elf::{ElfFile64, FileHeader, ProgramHeader},
    read::{Object, ObjectSymbol},
};
use stile_blob::write::Function;
use thiserror::Error;

use super::pc;

/// Upper limit of the hypervisor's size; a larger file has misplaced segments.
const MAX_LEN: u64 = 256 << 20;

/// Images are padded to whole pages, in bytes.
pub const PAGE: usize = 4096;

/// The hypervisor, without any virtual machines.
#[derive(Clone, Debug)]
pub struct Hypervisor {
    /// Its memory from the boot protocol's header to the end of its zeroed data: whole pages.
    pub image: Vec<u8>,
    /// The offset in it of the code that UEFI firmware starts, if it has any.
    pub efi_entry: Option<u32>,
    /// The offset in it of the words that tell where the other program is, if it has any.
    pub other_program: Option<u32>,
    /// Another program, which may take its place when the image starts: without the zeros at its end.
    pub other: Option<Vec<u8>>,
    /// Its functions. Those of the other program follow at offsets from the end of `image`.
    pub functions: Vec<Function>,
}

/// Reason for which a file is not Stile's hypervisor.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum HypervisorError {
    /// It can't be read as an ELF file.
    #[error("the hypervisor is no ELF file: {0}")]
    Elf(String),
    /// Its layout is unsuitable for an image.
    #[error("the hypervisor can't be made into an image: {0}")]
    Layout(&'static str),
}

impl From<object::Error> for HypervisorError {
    fn from(error: object::Error) -> Self {
        Self::Elf(error.to_string())
    }
}

impl Hypervisor {
    /// Parses the linker's ELF file.
    ///
    /// # Errors
    /// The file is not Stile's hypervisor: see [`HypervisorError`].
    pub fn from_elf(bytes: &[u8]) -> Result<Self, HypervisorError> {
        let header = FileHeader64::<Endianness>::parse(bytes)?;
        let endian = header.endian()?;
        let segments: Vec<_> = header
            .program_headers(endian, bytes)?
            .iter()
            .filter(|segment| segment.p_type(endian) == PT_LOAD && segment.p_memsz(endian) != 0)
            .collect();
        let end_of = |segment: &object::elf::ProgramHeader64<_>| segment.p_vaddr(endian).checked_add(segment.p_memsz(endian));
        let start = segments.iter().map(|segment| segment.p_vaddr(endian)).min();
        let start = start.ok_or(HypervisorError::Layout("it has no segments"))?;
        let mut image = Vec::new();
        for segment in &segments {
            let into = segment.p_vaddr(endian) - start;
            let end = end_of(segment).map(|end| end - start).filter(|&end| end <= MAX_LEN);
            let end = end.ok_or(HypervisorError::Layout("its segments are too far apart"))?;
            let data = segment.data(endian, bytes).map_err(|()| HypervisorError::Layout("a segment is truncated"))?;
            if data.len() as u64 > end - into {
                return Err(HypervisorError::Layout("a segment has more in the file than in memory"));
            }
            image.resize(image.len().max(end as usize), 0);
            image[into as usize..][..data.len()].copy_from_slice(data);
        }
        image.resize(image.len().next_multiple_of(PAGE), 0);
        let header: (std::ops::Range<usize>, &[u8], _) = match header.e_machine(endian) {
            EM_X86_64 => (64..68, &pc::MULTIBOOT_MAGIC, "it has no Multiboot header where one is expected"),
            _ => (56..60, b"ARM\x64", "it does not begin with an arm64 Image header"),
        };
        let (place, magic, missing) = header;
        if image.get(place) != Some(magic) {
            return Err(HypervisorError::Layout(missing));
        }
        let file = ElfFile64::<Endianness>::parse(bytes)?;
        if let Some(end) = file.symbol_by_name("__image_end").map(|symbol| symbol.address())
            && end.wrapping_sub(start) != image.len() as u64
        {
            return Err(HypervisorError::Layout("the symbol __image_end is not at its end"));
        }
        let offset = |name| file.symbol_by_name(name).and_then(|symbol| u32::try_from(symbol.address().wrapping_sub(start)).ok());
        let (efi_entry, other_program) = (offset("efi_entry"), offset("other_program"));
        Ok(Self { functions: functions(&file, start, image.len()), efi_entry, other_program, other: None, image })
    }

    /// Adds another program, as long as this one.
    ///
    /// # Errors
    /// It has another length, or this program does not choose.
    pub fn with_other(mut self, other: Self) -> Result<Self, HypervisorError> {
        if other.image.len() != self.image.len() {
            return Err(HypervisorError::Layout("its two programs differ in their length in memory"));
        }
        if self.other_program.is_none() || self.other_program != other.other_program {
            return Err(HypervisorError::Layout("its two programs do not choose at the same place"));
        }
        let first = self.image.len() as u32;
        self.functions.extend(other.functions.into_iter().map(|function| Function { start: function.start + first, ..function }));
        let len = other.image.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
        let mut bytes = other.image;
        bytes.truncate(len.next_multiple_of(PAGE));
        self.other = Some(bytes);
        Ok(self)
    }
}

/// The functions' names as people write them, without the hash that makes symbols unique.
pub(super) fn functions(file: &ElfFile64<'_, Endianness>, start: u64, len: usize) -> Vec<Function> {
    file.symbols()
        .filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.is_definition())
        .filter_map(|symbol| {
            let into = symbol.address().checked_sub(start).filter(|&into| into < len as u64)?;
            let name = symbol.name().ok()?;
            // The assembler's marks of code and data, and its local labels.
            if name.starts_with('$') || name.starts_with(".L") {
                return None;
            }
            Some(Function {
                start: u32::try_from(into).ok()?,
                len: u32::try_from(symbol.size()).ok()?,
                name: format!("{:#}", rustc_demangle::demangle(name)),
            })
        })
        .collect()
}
