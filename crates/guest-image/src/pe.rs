//! The PE header of Linux kernels with an EFI stub ("Microsoft PE and COFF Specification"), which gives the
//! file's length.

use super::bytes::word;

/// Offset of the field that holds the PE header's offset ("MS-DOS Stub").
const HEADER_AT: usize = 0x3c;
/// "COFF File Header", from the signature: number of sections, size of the optional header, and the end.
const SECTIONS: usize = 6;
const OPTIONAL_LEN: usize = 20;
const HEADER_LEN: usize = 24;
/// "Section Table": the length of an entry, and in it the size and the place of the section's bytes in the file.
const SECTION_LEN: usize = 40;
const RAW_LEN: usize = 16;
const RAW_AT: usize = 20;

/// End of the last section in the file; `None` if there is no PE header, or the section table is truncated.
pub fn end(file: &[u8]) -> Option<u64> {
    let header = word(file, HEADER_AT)? as usize;
    let at = |offset: usize| header.checked_add(offset);
    if file.get(header..at(4)?)? != b"PE\0\0" {
        return None;
    }
    let half = |offset| word(file, at(offset)?).map(|word| word as usize & 0xffff);
    let table = at(HEADER_LEN + half(OPTIONAL_LEN)?)?;
    let mut end = 0;
    for section in 0..half(SECTIONS)? {
        let entry = table.checked_add(section * SECTION_LEN)?;
        let field = |offset| word(file, entry.checked_add(offset)?).map(u64::from);
        end = end.max(field(RAW_AT)? + field(RAW_LEN)?);
    }
    Some(end)
}
