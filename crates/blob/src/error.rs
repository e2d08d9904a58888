//! What can be wrong with a blob.

use core::fmt;

/// Why a blob was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// It doesn't begin with [`crate::MAGIC`]: the image was not made by `stile`, or was not loaded
    /// whole.
    Magic,
    /// It is of another version of the format, this one.
    Version(u32),
    /// There are fewer bytes than the header says.
    Truncated,
    /// The header's lengths contradict each other.
    Length,
    /// The checksum of header, configuration and symbols is another.
    Checksum,
    /// The configuration is not a postcard encoding of [`crate::Machine`].
    Encoding,
    /// There are no virtual machines.
    NoVms,
    /// The time slice is out of range.
    Slice,
    /// A virtual machine breaks a rule: its index, and the rule.
    Vm(usize, Rule),
    /// The symbol table is not sorted, or its parts don't fit together.
    Symbols,
}

/// A rule that a virtual machine's configuration must keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// The name is of 1 to [`crate::MAX_NAME_LEN`] of `[a-z0-9-]`.
    Name,
    /// No earlier virtual machine has the same name.
    UniqueName,
    /// The amount of RAM is one that the board can have.
    Memory,
    /// There are 1 to [`stile_board::MAX_VCPUS`] vCPUs.
    Vcpus,
    /// The weight is 1 to [`crate::Share::MAX_WEIGHT`], and the cap, if any, 1 to [`crate::Share::MAX_CAP`].
    Share,
    /// The entry point lies in RAM and is aligned as the architecture's instructions are.
    Entry,
    /// What the guest is told lies in RAM and its address is a multiple of 8.
    Info,
    /// The first vCPU's page tables lie in RAM, at a page.
    Tables,
    /// The file lies in the blob, behind the symbols, aligned to [`crate::FILE_ALIGN`].
    LoadFile,
    /// The load takes no less RAM than the file is long.
    LoadSize,
    /// The load lies in RAM.
    LoadAddress,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Error::Magic => f.write_str("no blob behind the hypervisor"),
            Error::Version(found) => {
                write!(f, "blob of format {found}, expected {}", crate::VERSION)
            }
            Error::Truncated => f.write_str("blob is cut short"),
            Error::Length => f.write_str("blob's lengths contradict each other"),
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
            Rule::Name => "bad name",
            Rule::UniqueName => "name of another VM",
            Rule::Memory => "impossible amount of RAM",
            Rule::Vcpus => "impossible number of vCPUs",
            Rule::Share => "impossible weight or cap",
            Rule::Entry => "entry point is not in RAM, or not aligned",
            Rule::Info => "boot information is not in RAM, or not aligned",
            Rule::Tables => "page tables are not in RAM, or not aligned",
            Rule::LoadFile => "file is not in the blob, or not aligned",
            Rule::LoadSize => "file is larger than its place in RAM",
            Rule::LoadAddress => "file does not fit into RAM",
        })
    }
}

impl core::error::Error for Error {}
