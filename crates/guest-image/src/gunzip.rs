//! Unpacks kernels at boot, gzip's format only ("GZIP file format specification", RFC 1952): its trailer gives the size in advance.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::ToString;
use alloc::vec::Vec;

use crc::{CRC_32_ISO_HDLC, Crc};
use miniz_oxide::inflate::TINFLStatus;
use miniz_oxide::inflate::core::inflate_flags::TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF;
use miniz_oxide::inflate::core::{DecompressorOxide, decompress};
use stile_config::units;

use super::bytes::word;
use super::kernel::zboot_payload;
use super::{Compression, KernelError};

/// Maximum size of an unpacked kernel in bytes: many times that of a distribution's kernel.
pub const MOST: u64 = 256 << 20;

const CRC: Crc<u32> = Crc::<u32>::new(&CRC_32_ISO_HDLC);

/// Length of the header without its optional fields.
const HEADER: usize = 10;
/// Length of the checksum and the size after the data.
const TRAILER: usize = 8;

// Bits of the header's flags.
const FHCRC: u8 = 1 << 1;
const FEXTRA: u8 = 1 << 2;
const FNAME: u8 = 1 << 3;
const FCOMMENT: u8 = 1 << 4;
/// Flags that RFC 1952 reserves.
const UNKNOWN: u8 = 0xe0;

/// Bytes to which [`unpack`] unpacks a kernel's file, at most; 0 for a file that it does not unpack. EFI zboot wrappers are unpacked for Arm
/// only: to a PC, they are no kernel.
#[must_use]
pub fn unpacked_size(file: &[u8], is_pc: bool) -> u64 {
    let payload = if is_pc { file } else { zboot_payload(file).ok().flatten().unwrap_or(file) };
    match Compression::of(payload) {
        Ok(Some(Compression::Gzip)) => size(payload).filter(|&size| size <= MOST && is_possible(size, payload)).unwrap_or(0),
        _ => 0,
    }
}

/// Whether bytes can unpack to `size`. A block's shortest codes, one bit each for a length of 258 bytes and for its distance, are its
/// longest output: 1032 bytes of a byte ("DEFLATE Compressed Data Format Specification", RFC 1951, 3.2.5).
const fn is_possible(size: u64, bytes: &[u8]) -> bool {
    size <= 1032 * bytes.len() as u64
}

/// Returns the unpacked size that the trailer gives (ISIZE), in bytes.
fn size(bytes: &[u8]) -> Option<u64> {
    word(bytes, bytes.len().checked_sub(4)?).map(u64::from)
}

/// Unpacks `bytes` to at most `limit` bytes. Allocates the size that the trailer gives, and never more.
///
/// # Errors
/// The bytes are corrupt, give a larger size, or are not compressed by gzip.
pub fn unpack(compression: Compression, bytes: &[u8], limit: u64) -> Result<Vec<u8>, KernelError> {
    if compression != Compression::Gzip {
        return Err(KernelError::Packed(compression));
    }
    let corrupt = |error: &str| KernelError::Corrupt { compression, error: error.to_string() };
    let truncated = || corrupt("they are truncated");
    let size = size(bytes).ok_or_else(truncated)?;
    if size > limit {
        return Err(corrupt(&format!("they are truncated, or unpack to more than {}", units::size(limit))));
    }
    let data = data(bytes).ok_or_else(|| corrupt("their header is broken"))?;
    if !is_possible(size, bytes) {
        return Err(corrupt(&format!("they are too few to unpack to the {} at their end", units::size(size))));
    }
    let mut unpacked = Vec::new();
    unpacked.try_reserve_exact(size as usize).map_err(|_| corrupt(&format!("there is no memory for {}", units::size(size))))?;
    unpacked.resize(size as usize, 0);
    let mut state = Box::<DecompressorOxide>::default();
    let (status, read, written) = decompress(&mut state, data, &mut unpacked, 0, TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF);
    match status {
        TINFLStatus::Done => {}
        TINFLStatus::FailedCannotMakeProgress => return Err(truncated()),
        TINFLStatus::HasMoreOutput => {
            return Err(corrupt(&format!("they unpack to more than their trailer's {}, or other bytes follow them", units::size(size))));
        }
        _ => return Err(corrupt("their blocks are broken")),
    }
    if written as u64 != size || data.len() - read != TRAILER {
        return Err(corrupt("other bytes follow them"));
    }
    if word(data, read) != Some(CRC.checksum(&unpacked)) {
        return Err(corrupt("their checksum is wrong"));
    }
    Ok(unpacked)
}

/// Returns the bytes after the header (RFC 1952, 2.3 Member format).
fn data(bytes: &[u8]) -> Option<&[u8]> {
    let [0x1f, 0x8b, 8, flags, ..] = *bytes else { return None };
    let mut rest = bytes.get(HEADER..).filter(|_| flags & UNKNOWN == 0)?;
    if flags & FEXTRA != 0 {
        let length = u16::from_le_bytes(*rest.first_chunk()?);
        rest = rest.get(2 + usize::from(length)..)?;
    }
    for _ in 0..(flags & (FNAME | FCOMMENT)).count_ones() {
        rest = rest.get(rest.iter().position(|&byte| byte == 0)? + 1..)?;
    }
    if flags & FHCRC != 0 {
        rest = rest.get(2..)?;
    }
    (rest.len() >= TRAILER).then_some(rest)
}

#[cfg(test)]
/// Compresses bytes, with optional fields of the header.
pub fn gzip(bytes: &[u8], flags: u8, fields: &[u8]) -> Vec<u8> {
    let packed = miniz_oxide::deflate::compress_to_vec(bytes, 6);
    let trailer = [CRC.checksum(bytes).to_le_bytes(), (bytes.len() as u32).to_le_bytes()].concat();
    [&[0x1f, 0x8b, 8, flags, 0, 0, 0, 0, 0, 3], fields, &packed, &trailer].concat()
}

#[cfg(test)]
mod tests {
    use std::vec;

    use proptest::prelude::*;

    use super::*;

    fn error(bytes: &[u8]) -> alloc::string::String {
        unpack(Compression::Gzip, bytes, MOST).expect_err("broken").to_string()
    }

    #[test]
    fn bytes_are_unpacked() {
        let bytes: Vec<u8> = (0..300_000_u32).map(|at| (at / 7) as u8).collect();
        let plain = gzip(&bytes, 0, &[]);
        let named = gzip(&bytes, FHCRC | FEXTRA | FNAME | FCOMMENT, b"\x03\0abcvmlinux\0by hand\0\x12\x34");
        for packed in [&plain, &named] {
            assert!(unpack(Compression::Gzip, packed, MOST).as_ref() == Ok(&bytes));
            assert_eq!(unpacked_size(packed, false), bytes.len() as u64);
        }
        assert_eq!(unpack(Compression::Gzip, &gzip(&[], 0, &[]), MOST), Ok(Vec::new()));
        assert_eq!(unpacked_size(&bytes, false), 0);
        let header = [b"MZ\0\0zimg".as_slice(), &64_u32.to_le_bytes(), &(plain.len() as u32).to_le_bytes()].concat();
        let zboot = [header, vec![0; 48], plain.clone()].concat();
        assert_eq!(unpacked_size(&zboot, false), bytes.len() as u64);
        assert_eq!(unpacked_size(&zboot, true), 0, "no kernel of a PC");
        assert_eq!(unpacked_size(&zboot[..zboot.len() - 1], false), 0, "a truncated payload");
    }

    #[test]
    fn a_size_that_no_bytes_unpack_to_is_refused() {
        let mut lie = gzip(&[], 0, &[]);
        let at = lie.len() - 4;
        lie[at..].copy_from_slice(&(256_u32 << 20).to_le_bytes());
        assert_eq!(unpacked_size(&lie, false), 0);
        assert!(error(&lie).ends_with("they are too few to unpack to the 256M at their end"));
        // The best that there is.
        let zeros = gzip(&vec![0; 16 << 20], 0, &[]);
        assert!(zeros.len() < (16 << 20) / 900);
        assert_eq!(unpacked_size(&zeros, true), 16 << 20);
        assert!(unpack(Compression::Gzip, &zeros, MOST).is_ok());
    }

    #[test]
    fn broken_bytes_are_refused() {
        let bytes = vec![7; 100_000];
        let packed = gzip(&bytes, 0, &[]);
        let at_end = |at: usize, value: u8| {
            let mut packed = packed.clone();
            let at = packed.len() - at;
            packed[at] ^= value;
            packed
        };
        assert!(error(&packed[..packed.len() - 20]).contains("unpack"));
        assert!(error(&at_end(8, 1)).ends_with("their checksum is wrong"));
        assert!(error(&at_end(4, 1)).contains("other bytes follow them"), "a size that is too small or too large");
        assert!(error(&at_end(1, 0x80)).contains("more than 256M"));
        let followed = [&packed[..], &[0; 8], &110_000_u32.to_le_bytes()].concat();
        assert!(error(&followed).ends_with("other bytes follow them"));
        assert!(error(&gzip(&bytes, 0x80, &[])).ends_with("their header is broken"));
        assert!(error(&gzip(&bytes, FNAME, &[1; 10])[..20]).ends_with("their header is broken"));
        let zstd = unpack(Compression::Zstd, &packed, MOST).expect_err("zstd").to_string();
        assert!(zstd.contains("zstd"), "{zstd}");
        for length in 0..packed.len() {
            assert!(unpack(Compression::Gzip, &packed[..length], MOST).is_err(), "{length}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_take_no_more_than_their_size(mut bytes: Vec<u8>, size in 0..5000_u32) {
            bytes.splice(0..0, [0x1f, 0x8b, 8, 0]);
            bytes.extend(size.to_le_bytes());
            prop_assert_eq!(unpacked_size(&bytes, false), size.into());
            if let Ok(unpacked) = unpack(Compression::Gzip, &bytes, MOST) {
                prop_assert_eq!(unpacked.len(), size as usize);
            }
        }
    }
}
