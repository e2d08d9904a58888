//! Why a file can't be booted.

use std::ops::Range;

use stile_board::map;
use thiserror::Error;

use super::Compression;
use crate::config::units;

/// Why a file can't be booted.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum KernelError {
    /// There is nothing in it.
    #[error("the file is empty")]
    Empty,
    /// It is for another machine.
    #[error("it is {kind} for {arch}; expected one for AArch64")]
    Architecture {
        /// What it is, with its article.
        kind: &'static str,
        /// The architecture that it is for.
        arch: String,
    },
    /// It can't be started on a PC.
    #[error("it is {0}; expected a bzImage, or a program with a Multiboot header or an entry point for PVH")]
    NotForPc(String),
    /// It is nothing that Xen starts as a domain.
    #[error("it is {0}; expected an arm64 Image, which may be compressed with gzip")]
    NotForXen(String),
    /// It is no kernel at all.
    #[error("it is {0}; expected an arm64 Image, an ELF program or a flat binary")]
    NoKernel(&'static str),
    /// Its compression is not supported.
    #[error("it is compressed with {0}; expected gzip, zstd, xz, lz4 or none")]
    UnknownCompression(String),
    /// What is compressed is damaged.
    #[error("its {compression} data can't be unpacked: {error}")]
    Corrupt {
        /// How it is compressed.
        compression: Compression,
        /// What the unpacker says.
        error: String,
    },
    /// It unpacks to more than any kernel has.
    #[error("it unpacks to more than {}", units::size(*limit))]
    TooLarge {
        /// The most, in bytes.
        limit: u64,
    },
    /// It is cut short, or contradicts itself.
    #[error("{0}")]
    Malformed(String),
    /// It is an `Image` for the other byte order.
    #[error("it is a big-endian kernel; expected a little-endian one")]
    BigEndian,
    /// A part of it has to be where there is no RAM.
    #[error("{}", outside_ram(needs, *ram))]
    OutsideRam {
        /// The addresses that it needs.
        needs: Range<u64>,
        /// The RAM there is, in bytes.
        ram: u64,
    },
    /// Its entry point is not in what it loads.
    #[error("its entry point {0:#x} is not in any part of it that is loaded")]
    Entry(u64),
}

fn outside_ram(needs: &Range<u64>, ram: u64) -> String {
    let ram_range = map::RAM_BASE..map::RAM_BASE + ram;
    let what =
        format!("it needs memory at {:#x}..{:#x}, but RAM is at {:#x}..{:#x}", needs.start, needs.end, ram_range.start, ram_range.end);
    // More RAM helps if it is only too short.
    if map::ram_contains(map::RAM_MAX, needs.start, needs.end - needs.start) {
        let enough = (needs.end - map::RAM_BASE).next_multiple_of(map::RAM_GRANULE) + map::RAM_GRANULE;
        return format!("{what}; expected at least {} of it", units::size(enough));
    }
    format!("{what}; expected a kernel that is linked to run there")
}
