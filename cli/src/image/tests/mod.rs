//! Kernels, layouts, device trees and images, made of files that the tests make themselves.

mod assemble;
mod dtb;
mod kernel;
mod layout;
mod tree_source;

/// RAM of the tests' virtual machines.
const RAM: u64 = 64 << 20;

/// An arm64 `Image` of `len` bytes that takes `image_size`.
fn image(text_offset: u64, image_size: u64, len: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..len.max(64)).map(|at| (at / 7) as u8).collect();
    bytes[8..16].copy_from_slice(&text_offset.to_le_bytes());
    bytes[16..24].copy_from_slice(&image_size.to_le_bytes());
    bytes[24..32].copy_from_slice(&0xa_u64.to_le_bytes());
    bytes[56..60].copy_from_slice(b"ARM\x64");
    bytes
}

/// A segment of an ELF file.
#[derive(Clone, Debug)]
struct ElfSegment {
    vaddr: u64,
    paddr: u64,
    data: Vec<u8>,
    mem_len: u64,
}

/// A little-endian AArch64 ELF program.
fn elf(entry: u64, segments: &[ElfSegment]) -> Vec<u8> {
    let mut bytes = vec![0; 64 + 56 * segments.len()];
    bytes[..16].copy_from_slice(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
    bytes[16..18].copy_from_slice(&2u16.to_le_bytes());
    bytes[18..20].copy_from_slice(&183u16.to_le_bytes());
    bytes[20..24].copy_from_slice(&1u32.to_le_bytes());
    bytes[24..32].copy_from_slice(&entry.to_le_bytes());
    bytes[32..40].copy_from_slice(&64u64.to_le_bytes());
    bytes[52..54].copy_from_slice(&64u16.to_le_bytes());
    bytes[54..56].copy_from_slice(&56u16.to_le_bytes());
    bytes[56..58].copy_from_slice(&(segments.len() as u16).to_le_bytes());
    bytes[58..60].copy_from_slice(&64u16.to_le_bytes());
    for (index, segment) in segments.iter().enumerate() {
        let fields = [1 | 7 << 32, bytes.len() as u64, segment.vaddr, segment.paddr, segment.data.len() as u64, segment.mem_len, 4096];
        for (field, value) in fields.into_iter().enumerate() {
            let at = 64 + 56 * index + 8 * field;
            bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        bytes.extend_from_slice(&segment.data);
    }
    bytes
}
