//! Types of files that are not kernels, recognized by content.

/// Number of bytes at the start of a file that are examined to recognize text.
const TEXT_SAMPLE: usize = 4096;

/// Name of 64-bit Arm, as [`linux_arch`] returns it.
pub const AARCH64: &str = "AArch64";
/// Name of x86, 32-bit or 64-bit, whose images have the same header.
pub const X86: &str = "x86";

/// The architecture of a Linux image, if `bytes` is one.
pub fn linux_arch(bytes: &[u8]) -> Option<&'static str> {
    let at = |offset: usize, magic: &[u8]| has(bytes, offset, magic);
    match () {
        () if at(56, b"ARM\x64") => Some(AARCH64),
        () if at(56, b"RSC\x05") => Some("RISC-V"),
        () if at(0x202, b"HdrS") => Some(X86),
        () if at(0x24, &[0x18, 0x28, 0x6f, 0x01]) => Some("32-bit Arm"),
        () if at(0, b"MZ") && at(56, &[0xcd, 0x23, 0x82, 0x81]) => Some("LoongArch"),
        () => None,
    }
}

/// A recognized type of file that is not a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileType {
    /// Its name, with an article.
    pub name: &'static str,
    /// Option that gives such a file to an Arm VM as a disk.
    pub advice: Option<&'static str>,
}

/// Advice for a qcow2 image.
const QCOW2: Option<&str> = Some("use --disk FILE");
/// Advice for an image of a disk or a file system. Any file could be one, so `--disk` does not detect the format.
const RAW: Option<&str> = Some("use --disk FILE,format=raw");
/// Advice for images that `--disk` does not read.
const CONVERT: Option<&str> = Some("convert it to qcow2 and use --disk");

/// Types by signature at an offset, more specific ones first. A signature that could occur in code has at
/// least four bytes.
const SIGNATURES: [(usize, &[u8], &str, Option<&str>); 31] = [
    (40, b"_FVH", "UEFI firmware", None),
    (0, b"MZ", "an EFI or Windows program", None),
    (0, &[0x27, 0x05, 0x19, 0x56], "a U-Boot image", None),
    (0, &[0xd0, 0x0d, 0xfe, 0xed], "a device tree or a U-Boot FIT image", None),
    (0, b"ANDROID!", "an Android boot image", None),
    (0, b"070701", "an initial RAM file system, for --initrd", None),
    (0, b"070702", "an initial RAM file system, for --initrd", None),
    (0, b"QFI\xfb", "a qcow2 disk image", QCOW2),
    (0, b"KDMV", "a VMDK disk image", CONVERT),
    (0, b"vhdxfile", "a VHDX disk image", CONVERT),
    (0, b"conectix", "a VHD disk image", CONVERT),
    (64, &[0x7f, 0x10, 0xda, 0xbe], "a VDI disk image", CONVERT),
    (512, b"EFI PART", "a disk image", RAW),
    (0x8001, b"CD001", "a CD image", RAW),
    (0, b"hsqs", "a file system (squashfs)", RAW),
    (0, b"XFSB", "a file system (XFS)", RAW),
    (0x1_0040, b"_BHRfS_M", "a file system (btrfs)", RAW),
    (0, b"LUKS\xba\xbe", "an encrypted disk (LUKS)", RAW),
    (0, b"!<arch>\n", "a package or a library", None),
    (0, &[0xed, 0xab, 0xee, 0xdb], "a package (RPM)", None),
    (257, b"ustar", "an archive (tar)", None),
    (0, b"PK\x03\x04", "an archive (ZIP)", None),
    (0, b"7z\xbc\xaf\x27\x1c", "an archive (7z)", None),
    (0, b"Rar!", "an archive (RAR)", None),
    (0, b"\x89PNG", "a picture", None),
    (0, b"GIF8", "a picture", None),
    (0, b"\xff\xd8\xff", "a picture", None),
    (0, b"%PDF", "a PDF document", None),
    (0, b"\0asm", "a WebAssembly program", None),
    (0, &[0xcf, 0xfa, 0xed, 0xfe], "a program for macOS", None),
    (0, b"#!", "a script", None),
];

impl FileType {
    /// The type of a file that is certainly not a kernel.
    pub fn of(bytes: &[u8]) -> Option<Self> {
        if let Some(&(_, _, name, advice)) = SIGNATURES.iter().find(|(offset, magic, ..)| has(bytes, *offset, magic)) {
            return Some(Self { name, advice });
        }
        match () {
            () if is_ext(bytes) => Some(Self { name: "a file system (ext2 to ext4)", advice: RAW }),
            () if is_mbr(bytes) => Some(Self { name: "a disk image or a boot sector", advice: RAW }),
            () if is_text(bytes) => Some(Self { name: "a text file", advice: None }),
            () => None,
        }
    }
}

fn has(bytes: &[u8], offset: usize, magic: &[u8]) -> bool {
    bytes.get(offset..).is_some_and(|rest| rest.starts_with(magic))
}

/// Whether there is a superblock of ext2 to ext4 (Linux, "ext4 Data Structures and Algorithms", "Super
/// Block"): the magic has only two bytes, so block size and state must be valid, too.
fn is_ext(bytes: &[u8]) -> bool {
    const SUPERBLOCK: usize = 1024;
    let half = |at: usize| bytes.get(SUPERBLOCK + at..).and_then(|rest| rest.first_chunk()).map(|half| u16::from_le_bytes(*half));
    half(0x38) == Some(0xef53)
        && half(0x18).is_some_and(|log| log <= 6)
        && half(0x1a) == Some(0)
        && half(0x3a).is_some_and(|state| state < 8)
}

/// A master boot record (UEFI Specification, "Legacy Master Boot Record"): a table of four partitions, at least one of them in use.
fn is_mbr(bytes: &[u8]) -> bool {
    let Some(table) = bytes.get(446..512).filter(|table| table.ends_with(&[0x55, 0xaa])) else { return false };
    let (partitions, _) = table.as_chunks::<16>();
    let plausible =
        |partition: &[u8; 16]| matches!(partition[0], 0 | 0x80) && (partition[4] != 0 || partition.iter().all(|&byte| byte == 0));
    partitions.iter().all(plausible) && partitions.iter().any(|partition| partition[4] != 0)
}

/// UTF-8 without control characters but those of texts and terminals.
fn is_text(bytes: &[u8]) -> bool {
    let sample = &bytes[..bytes.len().min(TEXT_SAMPLE)];
    let text = match core::str::from_utf8(sample) {
        Ok(text) => text,
        // A character may be cut at the sample's end.
        Err(error) if error.error_len().is_none() && sample.len() < bytes.len() => {
            core::str::from_utf8(&sample[..error.valid_up_to()]).unwrap_or_default()
        }
        Err(_) => return false,
    };
    !text.is_empty() && text.chars().all(|c| !c.is_control() || matches!(c, '\t' | '\n' | '\r' | '\x0c' | '\x1b'))
}

#[cfg(test)]
mod tests {
    use std::vec;

    use super::*;

    fn name(bytes: &[u8]) -> Option<&'static str> {
        FileType::of(bytes).map(|kind| kind.name)
    }

    #[test]
    fn texts_are_distinguished_from_code() {
        assert_eq!(name("# Stile\n\tgrüße\r\n".as_bytes()), Some("a text file"));
        let long = "ü".repeat(TEXT_SAMPLE);
        assert_eq!(name(&[b"x", long.as_bytes()].concat()), Some("a text file"), "a truncated character at the end");
        // `nop`, `b .` of AArch64; `cli`, `hlt` of x86.
        assert_eq!(name(&[0x1f, 0x20, 0x03, 0xd5, 0x00, 0x00, 0x00, 0x14]), None);
        assert_eq!(name(&[0xfa, 0xf4]), None);
        assert_eq!(name(&[]), None);
    }

    #[test]
    fn short_signatures_need_more() {
        let with = |edits: &[(usize, &[u8])]| {
            let mut file = vec![0; 4096];
            for (at, bytes) in edits {
                file[*at..*at + bytes.len()].copy_from_slice(bytes);
            }
            file
        };
        assert_eq!(name(&with(&[(510, &[0x55, 0xaa])])), None);
        assert!(name(&with(&[(510, &[0x55, 0xaa]), (446, &[0x80, 0, 1, 0, 0x83, 0, 0, 0])])).is_some_and(|name| name.contains("disk")));
        assert_eq!(name(&with(&[(1024 + 0x38, &[0x53, 0xef]), (1024 + 0x18, &[9])])), None);
        assert!(name(&with(&[(1024 + 0x38, &[0x53, 0xef]), (1024 + 0x18, &[2])])).is_some_and(|name| name.contains("ext")));
    }

    #[test]
    fn linux_images_have_an_architecture() {
        let mut image = vec![0; 64];
        assert_eq!(linux_arch(&image), None);
        image[56..60].copy_from_slice(b"RSC\x05");
        assert_eq!(linux_arch(&image), Some("RISC-V"));
    }
}
