//! Constants of the format.

/// The first eight bytes of a blob.
pub const MAGIC: [u8; 8] = *b"STILEBLB";

/// The version of the format that this crate reads and writes.
///
/// Any change to the configuration's types is a new version. No other version is read: the hypervisor and the
/// command that makes images are built from one repository.
pub const VERSION: u32 = 17;

/// The length of the header in bytes.
pub const HEADER_LEN: usize = 32;

/// Alignment, in bytes from the blob's start, of every file in it.
pub const FILE_ALIGN: u64 = 4096;

/// The least [`crate::Load::offset`] of a file of the boot medium: they follow that of its first byte.
pub(crate) const MEDIUM: u64 = 1 << 62;

/// [`crate::Package::OWN`].
pub(crate) const OWN: u64 = 1 << 63;
