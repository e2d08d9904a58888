//! Reasons for which a file can't be booted.

use alloc::format;
use alloc::string::String;
use core::ops::Range;

use stile_board::map;
use stile_config::units;
use thiserror::Error;

use super::Compression;

/// Reason for which a file can't be booted.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum KernelError {
    /// The file is empty.
    #[error("the file is empty")]
    Empty,
    /// A kernel for another architecture.
    #[error("it is {kind} for {arch}; expected one for AArch64")]
    Architecture {
        /// Its type, with its article.
        kind: &'static str,
        /// Its architecture.
        arch: String,
    },
    /// It can't be started on a PC.
    #[error("it is {0}; expected a bzImage, or a program with a Multiboot header or an entry point for PVH")]
    NotForPc(String),
    /// It starts no domains, or not so many.
    #[error("it starts no {}; expected one domain of Xen, which is a Multiboot program", units::plural(*.0, "domain"))]
    Domains(usize),
    /// Not a domain's kernel for Xen.
    #[error("it is {0}; expected an arm64 Image, which may be compressed with gzip")]
    NotForXen(String),
    /// Not a kernel.
    #[error("it is {0}; expected an arm64 Image, an ELF program or a flat binary")]
    NoKernel(&'static str),
    /// Not a kernel, but a disk's contents.
    #[error("it is {name}, not a kernel: {advice}")]
    Disk {
        /// Its type, with an article.
        name: &'static str,
        /// Option that gives it to a VM as a disk.
        advice: &'static str,
    },
    /// Unsupported compression.
    #[error("it is compressed with {0}; expected gzip, zstd, xz, lz4 or none")]
    UnknownCompression(String),
    /// Compressed, where nothing unpacks it.
    #[error("it is compressed with {0}; expected gzip or none on the boot medium, or a new image by `stile image`, which unpacks it")]
    Packed(Compression),
    /// Corrupt compressed data.
    #[error("its {compression} data can't be unpacked: {error}")]
    Corrupt {
        /// The compression.
        compression: Compression,
        /// The unpacker's error.
        error: String,
    },
    /// It unpacks to more than any kernel has.
    #[error("it unpacks to more than {}", units::size(*limit))]
    TooLarge {
        /// The most, in bytes.
        limit: u64,
    },
    /// It is truncated or inconsistent.
    #[error("{0}")]
    Malformed(String),
    /// Firmware can't have this.
    #[error("it is UEFI firmware, which {0}")]
    Firmware(&'static str),
    /// An `Image` for big-endian CPUs.
    #[error("it is a big-endian kernel; expected a little-endian one")]
    BigEndian,
    /// A segment lies outside RAM.
    #[error("{}", outside_ram(needs, *ram))]
    OutsideRam {
        /// The addresses that it needs.
        needs: Range<u64>,
        /// The RAM there is, in bytes.
        ram: u64,
    },
    /// The entry point lies outside the loaded segments.
    #[error("its entry point {0:#x} is outside its loaded segments")]
    Entry(u64),
}

fn outside_ram(needs: &Range<u64>, ram: u64) -> String {
    let ram_range = map::RAM_BASE..map::RAM_BASE + ram;
    let what =
        format!("it needs memory at {:#x}..{:#x}, but RAM is at {:#x}..{:#x}", needs.start, needs.end, ram_range.start, ram_range.end);
    // Suggest more RAM only if that would help.
    if map::ram_contains(map::RAM_MAX, needs.start, needs.end - needs.start) {
        let enough = (needs.end - map::RAM_BASE).next_multiple_of(map::RAM_GRANULE) + map::RAM_GRANULE;
        return format!("{what}; expected at least {} of it", units::size(enough));
    }
    format!("{what}; expected a kernel that is linked to run there")
}
