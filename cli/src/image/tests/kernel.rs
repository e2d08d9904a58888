//! Recognized kernels, and refused files.

use std::io::Write as _;

use proptest::prelude::*;
use stile_board::map::{FIRMWARE_BASE, FIRMWARE_MAX, FLAT_OFFSET, RAM_BASE};

use super::{ElfSegment, RAM, elf, image};
use crate::image::{Compression, Format, Kernel, KernelError, UNPACKING};

fn recognise(file: &[u8]) -> Kernel<'static> {
    let kernel = Kernel::recognise(file, RAM, &UNPACKING).expect("a kernel");
    assert_sound(&kernel, RAM);
    kernel.into_owned()
}

fn refusal(file: &[u8]) -> String {
    Kernel::recognise(file, RAM, &UNPACKING).expect_err("not a kernel").to_string()
}

/// The invariants that later steps rely on.
fn assert_sound(kernel: &Kernel<'_>, ram: u64) {
    let is_firmware = kernel.format == Format::Firmware;
    let mut end = if is_firmware { FIRMWARE_BASE } else { RAM_BASE };
    assert!(!kernel.segments.is_empty() && kernel.segments.len() <= stile_blob::MAX_LOADS - 2);
    for segment in &kernel.segments {
        assert!(segment.gpa >= end, "in order, in RAM and apart");
        end = segment.gpa.checked_add(segment.mem_len).expect("no overflow");
        assert_eq!(kernel.bytes(segment).len(), segment.file.len());
        assert!(segment.file.len() as u64 <= segment.mem_len);
    }
    assert!(end <= if is_firmware { FIRMWARE_MAX } else { RAM_BASE + ram });
    assert!(kernel.segments.iter().any(|segment| segment.memory().contains(&kernel.entry)));
    assert_eq!(kernel.entry % 4, 0);
}

/// Firmware of this size whose first volume begins at `start` and is as long as the rest.
fn firmware(start: usize, size: usize) -> Vec<u8> {
    let mut file = vec![0xff; size];
    // B to the second page.
    file[..4].copy_from_slice(&0x1400_0400_u32.to_le_bytes());
    file[start + 32..start + 40].copy_from_slice(&((size - start) as u64).to_le_bytes());
    file[start + 40..start + 44].copy_from_slice(b"_FVH");
    file
}

#[test]
fn firmware_executes_in_place() {
    const MIB: usize = 1 << 20;
    for start in [0, 4096] {
        let kernel = recognise(&firmware(start, 3 * MIB));
        assert_eq!((kernel.format, kernel.entry, kernel.firmware_size()), (Format::Firmware, 0, 4 << 20));
        assert_eq!((kernel.segments.len(), kernel.len()), (1, 3 * MIB));
    }
    // Padded to the flash of QEMU's board.
    let mut padded = firmware(4096, 2 * MIB);
    padded.resize(64 * MIB, 0);
    assert_eq!(recognise(&padded).firmware_size(), 2 << 20);
    let mut too_large = padded.clone();
    too_large.resize(65 * MIB, 1);
    assert!(matches!(Kernel::recognise(&too_large, RAM, &UNPACKING), Err(KernelError::Malformed(_))));
    // A volume that claims to be longer than its file.
    padded[4096 + 32..4096 + 40].copy_from_slice(&u64::MAX.to_le_bytes());
    assert_eq!(recognise(&padded).firmware_size(), 64 << 20);
    assert_eq!(recognise(&firmware(8192, 2 * MIB)).format, Format::Flat, "nothing says that it is firmware");
}

#[test]
fn firmware_of_pcs_is_refused() {
    // The zero vector is no branch.
    let mut file = firmware(0, 2 << 20);
    file[..4].fill(0);
    let error = Kernel::recognise(&file, RAM, &UNPACKING).expect_err("it is for PCs").to_string();
    assert_eq!(error, "it is UEFI firmware for another architecture; expected one for AArch64");
}

#[test]
fn images() {
    let kernel = recognise(&image(0, 0x20_0000, 5000));
    assert_eq!((kernel.format, kernel.compression, kernel.zboot), (Format::Image, None, false));
    assert_eq!((kernel.entry, kernel.size_known), (RAM_BASE, true));
    assert_eq!((kernel.segments[0].mem_len, kernel.bytes(&kernel.segments[0]).len()), (0x20_0000, 5000));
    assert_eq!(kernel.about(), "arm64 Image");

    let kernel = recognise(&image(0x8_0000, 0x1000, 5000));
    assert_eq!((kernel.entry, kernel.segments[0].mem_len), (RAM_BASE + 0x8_0000, 5000));

    let old = recognise(&image(0x1000, 0, 5000));
    assert_eq!((old.entry, old.size_known), (RAM_BASE + 0x8_0000, false));
}

/// An `Image` with a PE header of one section, whose bytes end where the file does.
fn image_with_pe(len: usize) -> Vec<u8> {
    let mut bytes = image(0, 0x20_0000, len);
    bytes[0x3c..0x40].copy_from_slice(&0x40u32.to_le_bytes());
    bytes[0x40..0x44].copy_from_slice(b"PE\0\0");
    bytes[0x46..0x48].copy_from_slice(&1u16.to_le_bytes());
    bytes[0x54..0x56].copy_from_slice(&16u16.to_le_bytes());
    let section = 0x40 + 24 + 16;
    bytes[section + 16..section + 20].copy_from_slice(&(len as u32 - 1024).to_le_bytes());
    bytes[section + 20..section + 24].copy_from_slice(&1024u32.to_le_bytes());
    bytes
}

#[test]
fn truncated_images() {
    let whole = image_with_pe(5000);
    assert_eq!(recognise(&whole).format, Format::Image);
    assert_eq!(refusal(&whole[..4999]), "it is truncated: it has 4999 of 5000 bytes");
    assert_eq!(refusal(&gzip(&whole[..4096])), "it is truncated: it has 4096 of 5000 bytes");
}

#[test]
fn kernels_of_domains() {
    let whole = image_with_pe(5000);
    let refusal = |file: &[u8]| Kernel::check_domain(file, &UNPACKING).expect_err("not for Xen").to_string();
    assert_eq!(Kernel::check_domain(&whole, &UNPACKING), Ok(()));
    assert_eq!(Kernel::check_domain(&gzip(&whole), &UNPACKING), Ok(()));
    assert_eq!(refusal(&whole[..4999]), "it is truncated: it has 4999 of 5000 bytes");
    assert_eq!(refusal(b""), "the file is empty");
    assert_eq!(refusal(&zstd(&whole)), "it is compressed with zstd; expected an arm64 Image, which may be compressed with gzip");
    let expected = "expected an arm64 Image, which may be compressed with gzip";
    assert_eq!(refusal(&[0; 100]), format!("it is a file without an Image header; {expected}"));
    assert_eq!(refusal(&elf(RAM_BASE, &[])), format!("it is an ELF program; {expected}"));
}

#[test]
fn flat_binaries() {
    let kernel = recognise(&[0xd5, 3, 0x20, 0x1f]);
    assert_eq!((kernel.format, kernel.entry), (Format::Flat, RAM_BASE + FLAT_OFFSET));
    assert!(!kernel.size_known);
    assert_eq!(kernel.len(), 4);
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).expect("to memory");
    encoder.finish().expect("to memory")
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    ruzstd::encoding::compress_to_vec(bytes, ruzstd::encoding::CompressionLevel::Fastest)
}

fn xz(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = lzma_rust2::XzWriter::new(Vec::new(), lzma_rust2::XzOptions::with_preset(1)).expect("good options");
    encoder.write_all(bytes).expect("to memory");
    encoder.finish().expect("to memory")
}

fn lz4(bytes: &[u8], legacy: bool) -> Vec<u8> {
    let info = lz4_flex::frame::FrameInfo::new().legacy_frame(legacy);
    let mut encoder = lz4_flex::frame::FrameEncoder::with_frame_info(info, Vec::new());
    encoder.write_all(bytes).expect("to memory");
    encoder.finish().expect("to memory")
}

/// An EFI zboot wrapper around something.
fn zboot(name: &str, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 512];
    bytes[..2].copy_from_slice(b"MZ");
    bytes[4..8].copy_from_slice(b"zimg");
    bytes[8..12].copy_from_slice(&512u32.to_le_bytes());
    bytes[12..16].copy_from_slice(&(payload.len() as u32).to_le_bytes());
    bytes[24..24 + name.len()].copy_from_slice(name.as_bytes());
    bytes.extend_from_slice(payload);
    bytes.extend_from_slice(b"the rest of the wrapper");
    bytes
}

#[test]
fn compressed_images() {
    let plain = image(0, 0x20_0000, 300_000);
    let packed = [
        (Compression::Gzip, gzip(&plain)),
        (Compression::Zstd, zstd(&plain)),
        (Compression::Xz, xz(&plain)),
        (Compression::Lz4, lz4(&plain, false)),
        (Compression::Lz4, lz4(&plain, true)),
    ];
    for (compression, packed) in packed {
        assert!(packed.len() < plain.len() / 2);
        let kernel = recognise(&packed);
        assert_eq!((kernel.format, kernel.compression), (Format::Image, Some(compression)));
        assert_eq!(kernel.bytes(&kernel.segments[0]), plain, "{compression}");

        let kernel = recognise(&zboot(&compression.to_string(), &packed));
        assert_eq!((kernel.compression, kernel.zboot), (Some(compression), true));
        assert_eq!(kernel.bytes(&kernel.segments[0]), plain, "{compression} in zboot");
        assert_eq!(kernel.about(), format!("arm64 Image, {compression}, EFI zboot"));

        let cut = Kernel::recognise(&packed[..packed.len() / 2], RAM, &UNPACKING);
        assert!(matches!(cut, Err(KernelError::Corrupt { .. })), "{compression}: {cut:?}");
    }
}

#[test]
fn elf_programs() {
    let text = ElfSegment { vaddr: RAM_BASE, paddr: RAM_BASE, data: vec![1; 100], mem_len: 100 };
    let data = ElfSegment { vaddr: RAM_BASE + 0x1000, paddr: RAM_BASE + 0x1000, data: vec![2; 50], mem_len: 8192 };
    let kernel = recognise(&elf(RAM_BASE + 8, &[data.clone(), text.clone()]));
    assert_eq!((kernel.format, kernel.entry), (Format::Elf, RAM_BASE + 8));
    assert_eq!(kernel.bytes(&kernel.segments[0]), [1; 100]);
    assert_eq!((kernel.bytes(&kernel.segments[1]), kernel.segments[1].mem_len), (&[2; 50][..], 8192));

    // Linked to run at a virtual address.
    let high = ElfSegment { vaddr: 0xffff_8000_0000_0000, ..text };
    let kernel = recognise(&elf(0xffff_8000_0000_0010, &[high.clone(), data]));
    assert_eq!(kernel.entry, RAM_BASE + 16);

    // The entry point is translated to a physical address although the program is linked to a virtual one.
    assert_eq!(recognise(&elf(RAM_BASE + 4, &[high])).entry, RAM_BASE + 4);
}

#[test]
fn elf_programs_in_many_parts() {
    let segment = |index: u64| {
        let address = RAM_BASE + index * 0x1000;
        ElfSegment { vaddr: address, paddr: address, data: vec![index as u8; 10], mem_len: 0x800 }
    };
    let segments: Vec<_> = (0..20).map(segment).collect();
    let kernel = recognise(&elf(RAM_BASE, &segments));
    let [only] = &kernel.segments[..] else { panic!("merged") };
    assert_eq!((only.gpa, only.mem_len), (RAM_BASE, 0x1_3800));
    let bytes = kernel.bytes(only);
    assert_eq!((bytes[9], bytes[10], bytes[0x1000], bytes[0x1_3009], bytes.len()), (0, 0, 1, 19, 0x1_300a));
    assert_eq!(recognise(&elf(RAM_BASE, &segments[..6])).segments.len(), 6);
}

/// The messages about files that can't be booted.
#[test]
fn refusals() {
    let ok = ElfSegment { vaddr: RAM_BASE, paddr: RAM_BASE, data: vec![1; 100], mem_len: 100 };
    let elf_with = |at: usize, bytes: &[u8]| {
        let mut elf = elf(RAM_BASE, std::slice::from_ref(&ok));
        elf[at..at + bytes.len()].copy_from_slice(bytes);
        elf
    };
    let with = |at: usize, bytes: &[u8]| {
        let mut file = vec![0; 0x9000];
        file[at..at + bytes.len()].copy_from_slice(bytes);
        file
    };
    let vmlinux = ElfSegment { paddr: 0xffff_8000_8000_0000, ..ok.clone() };
    let mut big_endian = image(0, 4096, 4096);
    big_endian[24] |= 1;
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("empty", vec![]),
        ("empty in gzip", gzip(&[])),
        ("bzip2", b"BZh9".to_vec()),
        ("lzma in zboot", zboot("lzma", &[0x5d, 0, 0])),
        ("nonsense in zboot", zboot("\x1b[31m", b"?")),
        ("zboot truncated", zboot("gzip", &gzip(b"x"))[..500].to_vec()),
        ("zboot header truncated", b"MZ\0\0zimg\0".to_vec()),
        ("big-endian Image", big_endian),
        ("Image larger than RAM", image(0, RAM + 1, 4096)),
        ("Image beyond RAM", image(!0xfff, u64::MAX, 4096)),
        ("Image at no page", image(0x123, 4096, 4096)),
        ("flat binary larger than RAM", vec![0; RAM as usize]),
        ("Image of RISC-V", with(56, b"RSC\x05")),
        ("Image of x86", with(0x202, b"HdrS")),
        ("Image of 32-bit Arm", with(0x24, &[0x18, 0x28, 0x6f, 1])),
        ("EFI program", with(0, b"MZ")),
        ("uImage", with(0, &[0x27, 5, 0x19, 0x56])),
        ("device tree", with(0, &[0xd0, 0x0d, 0xfe, 0xed])),
        ("initial RAM file system", with(0, b"070701")),
        ("package", with(0, b"!<arch>\n")),
        ("CD image", with(0x8001, b"CD001")),
        ("script", with(0, b"#!/bin/sh")),
        ("text", b"# Stile\n\nA stile lets a person cross a fence.\n".to_vec()),
        ("text in gzip", gzip(b"# Stile\n")),
        ("qcow2", with(0, b"QFI\xfb")),
        ("archive", with(257, b"ustar")),
        ("disk", with(512, b"EFI PART")),
        ("VMDK", with(0, b"KDMV")),
        ("ELF of x86-64", elf_with(18, &[62, 0])),
        ("ELF of RISC-V", elf_with(18, &[243, 0])),
        ("ELF of an unknown machine", elf_with(18, &[0xff, 0xfe])),
        ("ELF of 32-bit Arm", elf_with(4, &[1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 40, 0])),
        ("ELF of big-endian AArch64", elf_with(5, &[2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 183])),
        ("ELF header truncated", elf(0, &[])[..30].to_vec()),
        ("ELF magic only", b"\x7fELF".to_vec()),
        ("ELF with nothing to load", elf(0, &[])),
        ("ELF with a truncated segment", elf_with(64 + 32, &[0xff])),
        ("ELF with overlapping segments", elf(RAM_BASE, &[ok.clone(), ok.clone()])),
        ("ELF linked to virtual addresses only", elf(RAM_BASE, &[vmlinux])),
        ("ELF that starts elsewhere", elf(0x1000, std::slice::from_ref(&ok))),
        ("ELF that starts at an odd address", elf(RAM_BASE + 2, &[ok])),
    ];
    let said: Vec<String> = cases.iter().map(|(name, file)| format!("{name}: {}", refusal(file))).collect();
    insta::assert_snapshot!("refused_kernels", said.join("\n"));
}

#[test]
fn decompression_bombs_are_refused() {
    let bomb = gzip(&vec![0; 100_000]);
    assert!(bomb.len() < 500);
    assert_eq!((UNPACKING.function)(Compression::Gzip, &bomb, 99_999), Err(KernelError::TooLarge { limit: 99_999 }));
    assert_eq!((UNPACKING.function)(Compression::Gzip, &bomb, 100_000).map(|bytes| bytes.len()), Ok(100_000));
}

#[test]
fn only_the_first_compressed_stream_is_used() {
    assert_eq!(recognise(&gzip(&[1, 2, 3, 4]).repeat(3)).len(), 4);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// An accepted kernel fits into RAM for any header values.
    #[test]
    fn mutated_kernels(
        kind in 0..3usize,
        edits in prop::collection::vec((any::<prop::sample::Index>(), prop_oneof![Just(0u8), Just(0xff), any::<u8>()]), 0..6),
    ) {
        let segment = |at: u64| ElfSegment { vaddr: 0xffff_8000_0000_0000 + at, paddr: RAM_BASE + at, data: vec![7; 20], mem_len: 0x100 };
        let (mut file, head) = match kind {
            0 => (image(0x8_0000, 0x10_0000, 4096), 64),
            1 => (elf(RAM_BASE, &[segment(0), segment(0x1000)]), 64 + 112),
            _ => (zboot("gzip", &gzip(&image(0, 4096, 200))), 600),
        };
        for (at, byte) in edits {
            let at = at.index(head.min(file.len()));
            file[at] = byte;
        }
        if let Ok(kernel) = Kernel::recognise(&file, RAM, &UNPACKING) {
            assert_sound(&kernel, RAM);
        }
    }

    #[test]
    fn any_bytes(file in prop::collection::vec(any::<u8>(), 0..300), magic in 0..6usize) {
        let magics: [&[u8]; 6] = [b"", b"\x7fELF\x02\x01", &[0x1f, 0x8b, 8], &[0x28, 0xb5, 0x2f, 0xfd], b"\xfd7zXZ\0", &[4, 0x22, 0x4d, 0x18]];
        let file = [magics[magic], &file[..]].concat();
        if let Ok(kernel) = Kernel::recognise(&file, RAM, &UNPACKING) {
            assert_sound(&kernel, RAM);
        }
    }
}
