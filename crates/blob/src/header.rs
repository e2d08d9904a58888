//! The blob's header.

use crate::Error;
use crate::format::{HEADER_LEN, MAGIC, VERSION};
use crc::{CRC_32_ISO_HDLC, Crc};

/// Offset of the checksum: the header's last four bytes. It covers the header before it.
const CRC_AT: usize = HEADER_LEN - 4;

const CRC: Crc<u32> = Crc::<u32>::new(&CRC_32_ISO_HDLC);

/// The lengths of the blob's parts.
///
/// | bytes | field |
/// | --- | --- |
/// | 0..8 | [`MAGIC`] |
/// | 8..12 | [`VERSION`] |
/// | 12..16 | `config_len` |
/// | 16..24 | `total_len` |
/// | 24..28 | `symbols_len` |
/// | 28..32 | `crc` |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Length of the configuration in bytes.
    pub config_len: u32,
    /// Length of the symbols in bytes.
    pub symbols_len: u32,
    /// Length of the whole blob in bytes, this header included.
    pub total_len: u64,
    /// CRC-32 (ISO-HDLC) of the header before this field, and the configuration.
    ///
    /// Detects images damaged in transfer. Symbols and files are not covered: they would take long to sum, and a
    /// damaged file affects only its own guest.
    pub crc: u32,
}

impl Header {
    /// Reads a header from the first [`HEADER_LEN`] bytes of `bytes`, so that the hypervisor learns the
    /// blob's length before it maps all of it.
    ///
    /// # Errors
    /// [`Error::Truncated`], [`Error::Magic`], [`Error::Version`], and [`Error::Length`] if the parts are
    /// longer than the whole.
    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        let bytes = bytes.first_chunk::<HEADER_LEN>().ok_or(Error::Truncated)?;
        if bytes[..8] != MAGIC {
            return Err(Error::Magic);
        }
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        if word(8) != VERSION {
            return Err(Error::Version(word(8)));
        }
        let header = Self {
            config_len: word(12),
            symbols_len: word(24),
            total_len: u64::from(word(16)) | u64::from(word(20)) << 32,
            crc: word(CRC_AT),
        };
        let parts = HEADER_LEN as u64 + u64::from(header.config_len) + u64::from(header.symbols_len);
        if parts > header.total_len {
            return Err(Error::Length);
        }
        Ok(header)
    }

    /// The header's bytes.
    pub fn to_bytes(&self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.config_len.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.total_len.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.symbols_len.to_le_bytes());
        bytes[CRC_AT..].copy_from_slice(&self.crc.to_le_bytes());
        bytes
    }

    /// The correct [`Header::crc`] for these parts.
    pub fn checksum(&self, config: &[u8]) -> u32 {
        let mut digest = CRC.digest();
        digest.update(&self.to_bytes()[..CRC_AT]);
        digest.update(config);
        digest.finalize()
    }
}
