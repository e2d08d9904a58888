//! Errors in a blob.

use core::fmt;

use crate::format::VERSION;

/// Reason for which a blob was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// It doesn't begin with [`crate::MAGIC`]: the image was not made by `stile`, or was not loaded
    /// completely.
    Magic,
    /// Unsupported version of the format.
    Version(u32),
    /// Shorter than the header's total length.
    Truncated,
    /// The header's lengths are inconsistent.
    Length,
    /// Wrong checksum of header, configuration and symbols.
    Checksum,
    /// The configuration is not what [`crate::write`] encodes.
    Encoding,
    /// The number of virtual machines is 0.
    NoVms,
    /// The time slice is out of range.
    Slice,
    /// A virtual machine's configuration is invalid: its index, and the violated rule.
    Vm(usize, Rule),
    /// The symbol table is not sorted, or is inconsistent.
    Symbols,
}

/// A rule for a virtual machine's configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// The name is 1 to [`crate::MAX_NAME_LEN`] characters of `[a-z0-9-]`.
    Name,
    /// No earlier virtual machine has the same name.
    UniqueName,
    /// The amount of RAM is supported by the board.
    Memory,
    /// Regions of disks in memory are whole blocks of [`stile_board::memory_disks::REGION_ALIGN`], and with RAM no more than RAM can be.
    Disks,
    /// There are 1 to [`stile_board::MAX_VCPUS`] vCPUs.
    Vcpus,
    /// [`Vm::topology`](crate::Vm::topology) is not of [`Vm::vcpus`](crate::Vm::vcpus) vCPUs.
    Topology,
    /// The weight is 1 to [`crate::Share::MAX_WEIGHT`], and the cap, if any, 1 to [`crate::Share::MAX_CAP`].
    Share,
    /// The entry point lies in RAM and is aligned as the architecture's instructions are.
    Entry,
    /// The boot information lies in RAM, and its address is a multiple of 8.
    Info,
    /// The first vCPU's page tables lie in RAM and are page-aligned.
    Tables,
    /// No PCI function is assigned twice, and at most [`stile_board::MAX_ASSIGNED`] are assigned.
    Functions,
    /// Devices are served by another virtual machine, which has none of its own from others, serves at most
    /// [`stile_board::MAX_SERVED`] and knows how many; neither has an EL2 or firmware; the windows have addresses.
    Served,
    /// The file lies in the blob, after the symbols, aligned to [`crate::FILE_ALIGN`].
    LoadFile,
    /// The load's size in RAM is at least the file's length.
    LoadSize,
    /// The load lies in RAM, in the memory for firmware, or in a disk in memory.
    LoadAddress,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Error::Magic => f.write_str("no blob after the hypervisor in the image"),
            Error::Version(found) => {
                write!(f, "blob has format version {found}, expected {}", VERSION)
            }
            Error::Truncated => f.write_str("blob is truncated"),
            Error::Length => f.write_str("blob's lengths are inconsistent"),
            Error::Checksum => f.write_str("blob's checksum is wrong"),
            Error::Encoding => f.write_str("configuration can't be decoded"),
            Error::NoVms => f.write_str("configuration has no virtual machine"),
            Error::Slice => f.write_str("time slice is out of range"),
            Error::Vm(vm, rule) => write!(f, "VM {vm}: {rule}"),
            Error::Symbols => f.write_str("symbol table is malformed"),
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Rule::Name => "invalid name",
            Rule::UniqueName => "duplicate name",
            Rule::Memory => "amount of RAM is out of range",
            Rule::Disks => "size of disks in memory is out of range",
            Rule::Vcpus => "number of vCPUs is out of range",
            Rule::Topology => "sockets, cores and threads are not as many as the vCPUs",
            Rule::Share => "weight or cap is out of range",
            Rule::Entry => "entry point is not in RAM, or misaligned",
            Rule::Info => "boot information is not in RAM, or misaligned",
            Rule::Tables => "page tables are not in RAM, or misaligned",
            Rule::Functions => "PCI function is assigned twice, or too many are",
            Rule::Served => "a device can't be served as configured",
            Rule::LoadFile => "file is not in the blob, or misaligned",
            Rule::LoadSize => "file is larger than its size in RAM",
            Rule::LoadAddress => "file does not fit into RAM",
        })
    }
}

impl core::error::Error for Error {}
