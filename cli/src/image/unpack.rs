//! Unpacking of compressed kernels.

use std::borrow::Cow;
use std::io::Read;

use stile_guest_image::Unpacking;

use super::{Compression, KernelError, pc};

/// Unpacks each kind of compressed kernel. More than 1 GiB is a decompression bomb.
pub const UNPACKING: Unpacking = Unpacking { function: unpack_to, most: 1 << 30, most_merged: 1 << 30 };

/// Unpacks a file that is compressed as a whole. Returns it with its compression; a file that is not compressed, as it is.
///
/// # Errors
/// The file is corrupt, too large, or compressed in an unknown way.
pub fn unpack(file: &[u8]) -> Result<(Cow<'_, [u8]>, Option<Compression>), KernelError> {
    pc::unpack(file, &UNPACKING)
}

/// Decompresses `bytes`, to at most `limit` bytes; bytes after the compressed stream are ignored.
fn unpack_to(compression: Compression, bytes: &[u8], limit: u64) -> Result<Vec<u8>, KernelError> {
    let corrupt = |error: String| KernelError::Corrupt { compression, error };
    let read = |reader: &mut dyn Read| {
        let mut unpacked = Vec::new();
        reader.take(limit + 1).read_to_end(&mut unpacked).map_err(|error| corrupt(error.to_string()))?;
        if unpacked.len() as u64 > limit {
            return Err(KernelError::TooLarge { limit });
        }
        Ok(unpacked)
    };
    match compression {
        Compression::Gzip => read(&mut flate2::read::GzDecoder::new(bytes)),
        Compression::Zstd => {
            let decoder = ruzstd::decoding::StreamingDecoder::new(bytes);
            read(&mut decoder.map_err(|error| corrupt(error.to_string()))?)
        }
        Compression::Xz => read(&mut lzma_rust2::XzReader::new(bytes, false)),
        Compression::Lz4 => read(&mut lz4_flex::frame::FrameDecoder::new(bytes)),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn compressed_files_are_unpacked() {
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packed.write_all(&[7; 1000]).unwrap();
        let packed = packed.finish().unwrap();
        assert_eq!(unpack(&packed), Ok((vec![7; 1000].into(), Some(Compression::Gzip))));
        assert_eq!(unpack(b"plain"), Ok((b"plain".as_slice().into(), None)));
        assert!(unpack(&packed[..20]).is_err() && unpack(b"BZh").is_err());
    }
}
