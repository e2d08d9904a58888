//! The header that makes an arm64 Image or a Multiboot program an EFI program ("PE Format", Microsoft; UEFI Specification, 2.1.1 UEFI Images).

use object::LittleEndian as Le;
use object::pe::{
    IMAGE_DIRECTORY_ENTRY_BASERELOC, IMAGE_DLLCHARACTERISTICS_NX_COMPAT, IMAGE_FILE_EXECUTABLE_IMAGE, IMAGE_FILE_LARGE_ADDRESS_AWARE,
    IMAGE_FILE_LINE_NUMS_STRIPPED, IMAGE_FILE_MACHINE_AMD64, IMAGE_FILE_MACHINE_ARM64, IMAGE_NT_OPTIONAL_HDR64_MAGIC, IMAGE_NT_SIGNATURE,
    IMAGE_SCN_CNT_CODE, IMAGE_SCN_MEM_EXECUTE, IMAGE_SCN_MEM_READ, IMAGE_SUBSYSTEM_EFI_APPLICATION, ImageDataDirectory, ImageFileHeader,
    ImageOptionalHeader64, ImageSectionHeader,
};
use object::pod::bytes_of;
use object::{U16, U32, U64};

use crate::config::Arch;
use stile_guest_image::bytes::word;

/// Offset of the field with the PE header's offset.
const HEADER_AT: usize = 0x3c;
/// Bytes that boot.S reserves for the PE header.
const ROOM: usize = 256;
/// Bytes of a page: sections begin at one, in the file as in memory.
pub const PAGE: usize = 4096;
/// Number of data directories up to that of relocations, which is empty.
const DIRECTORIES: usize = IMAGE_DIRECTORY_ENTRY_BASERELOC + 1;

/// Writes the PE header of an image whose UEFI entry point is at offset `entry`: the first page holds the headers, one section the rest.
/// The image is padded to whole pages. Returns `None` if the image has no space for the header; for Arm, also if the first page has other
/// content, since some loaders (U-Boot's) load only the headers of it.
pub fn write_header(arch: Arch, image: &mut Vec<u8>, entry: u32) -> Option<()> {
    image.resize(image.len().next_multiple_of(PAGE), 0);
    let size = u32::try_from(image.len()).ok()?;
    let section_size = size.checked_sub(PAGE as u32)?;
    let file = ImageFileHeader {
        machine: U16::new(
            Le,
            match arch {
                Arch::Aarch64 => IMAGE_FILE_MACHINE_ARM64,
                Arch::X86_64 => IMAGE_FILE_MACHINE_AMD64,
            },
        ),
        number_of_sections: U16::new(Le, 1),
        time_date_stamp: U32::new(Le, 0),
        pointer_to_symbol_table: U32::new(Le, 0),
        number_of_symbols: U32::new(Le, 0),
        size_of_optional_header: U16::new(Le, (size_of::<ImageOptionalHeader64>() + DIRECTORIES * size_of::<ImageDataDirectory>()) as u16),
        characteristics: U16::new(Le, IMAGE_FILE_EXECUTABLE_IMAGE | IMAGE_FILE_LINE_NUMS_STRIPPED | IMAGE_FILE_LARGE_ADDRESS_AWARE),
    };
    let zero = U16::new(Le, 0);
    let optional = ImageOptionalHeader64 {
        magic: U16::new(Le, IMAGE_NT_OPTIONAL_HDR64_MAGIC),
        major_linker_version: 0,
        minor_linker_version: 0,
        size_of_code: U32::new(Le, section_size),
        size_of_initialized_data: U32::new(Le, 0),
        size_of_uninitialized_data: U32::new(Le, 0),
        address_of_entry_point: U32::new(Le, entry),
        base_of_code: U32::new(Le, PAGE as u32),
        image_base: U64::new(Le, 0),
        section_alignment: U32::new(Le, PAGE as u32),
        file_alignment: U32::new(Le, PAGE as u32),
        major_operating_system_version: zero,
        minor_operating_system_version: zero,
        major_image_version: zero,
        minor_image_version: zero,
        major_subsystem_version: zero,
        minor_subsystem_version: zero,
        win32_version_value: U32::new(Le, 0),
        size_of_image: U32::new(Le, size),
        size_of_headers: U32::new(Le, PAGE as u32),
        check_sum: U32::new(Le, 0),
        subsystem: U16::new(Le, IMAGE_SUBSYSTEM_EFI_APPLICATION),
        dll_characteristics: U16::new(Le, IMAGE_DLLCHARACTERISTICS_NX_COMPAT),
        size_of_stack_reserve: U64::new(Le, 0),
        size_of_stack_commit: U64::new(Le, 0),
        size_of_heap_reserve: U64::new(Le, 0),
        size_of_heap_commit: U64::new(Le, 0),
        loader_flags: U32::new(Le, 0),
        number_of_rva_and_sizes: U32::new(Le, DIRECTORIES as u32),
    };
    let section = ImageSectionHeader {
        name: *b".text\0\0\0",
        virtual_size: U32::new(Le, section_size),
        virtual_address: U32::new(Le, PAGE as u32),
        size_of_raw_data: U32::new(Le, section_size),
        pointer_to_raw_data: U32::new(Le, PAGE as u32),
        pointer_to_relocations: U32::new(Le, 0),
        pointer_to_linenumbers: U32::new(Le, 0),
        number_of_relocations: zero,
        number_of_linenumbers: zero,
        characteristics: U32::new(Le, IMAGE_SCN_CNT_CODE | IMAGE_SCN_MEM_EXECUTE | IMAGE_SCN_MEM_READ),
    };
    let signature = IMAGE_NT_SIGNATURE.to_le_bytes();
    let directories = [0; DIRECTORIES * size_of::<ImageDataDirectory>()];
    let header = [&signature[..], bytes_of(&file), bytes_of(&optional), &directories, bytes_of(&section)].concat();
    let at = word(image, HEADER_AT)? as usize;
    if arch == Arch::Aarch64 && image.get(at.checked_add(ROOM)?..PAGE)?.iter().any(|byte| *byte != 0) {
        return None;
    }
    let room = image.get_mut(at..)?.get_mut(..ROOM)?;
    room.get_mut(..header.len())?.copy_from_slice(&header);
    Some(())
}

#[cfg(test)]
mod tests {
    use object::read::pe::PeFile64;
    use object::{Object, ObjectSection};

    use super::*;

    #[test]
    fn an_image_is_an_efi_program() {
        is_an_efi_program(Arch::Aarch64, object::Architecture::Aarch64);
        is_an_efi_program(Arch::X86_64, object::Architecture::X86_64);
    }

    fn is_an_efi_program(arch: Arch, architecture: object::Architecture) {
        let mut image = vec![0x55; 3 * PAGE + 5];
        image[HEADER_AT + 4..PAGE].fill(0);
        image[..2].copy_from_slice(b"MZ");
        image[HEADER_AT..HEADER_AT + 4].copy_from_slice(&64_u32.to_le_bytes());
        write_header(arch, &mut image, 0x1040).unwrap();
        assert_eq!(image.len(), 4 * PAGE);
        let program = PeFile64::parse(&image[..]).unwrap();
        assert_eq!((program.entry(), program.architecture()), (0x1040, architecture));
        let sections: Vec<_> = program.sections().map(|section| (section.address(), section.size(), section.file_range())).collect();
        assert_eq!(sections, [(0x1000, 3 * PAGE as u64, Some((0x1000, 3 * PAGE as u64)))]);
        assert_eq!(stile_guest_image::pe::end(&image), Some(4 * PAGE as u64));
        assert_eq!(write_header(arch, &mut Vec::new(), 0), None);
    }

    #[test]
    fn nothing_is_between_headers_and_section() {
        let mut image = vec![0; 2 * PAGE];
        image[HEADER_AT] = 64;
        assert_eq!(write_header(Arch::Aarch64, &mut image.clone(), 0x1000), Some(()));
        for at in [64 + ROOM, PAGE - 1] {
            image[at] = 1;
            assert_eq!(write_header(Arch::Aarch64, &mut image.clone(), 0x1000), None, "{at:#x}");
            image[at] = 0;
        }
    }
}
