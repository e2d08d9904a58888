//! Unpacking of compressed kernels.

use std::io::Read;

use super::{Compression, KernelError};

impl Compression {
    /// Decompresses `bytes`, to at most `limit` bytes; bytes after the compressed stream are ignored.
    pub(super) fn unpack(self, bytes: &[u8], limit: u64) -> Result<Vec<u8>, KernelError> {
        let corrupt = |error: String| KernelError::Corrupt { compression: self, error };
        let read = |reader: &mut dyn Read| {
            let mut unpacked = Vec::new();
            reader.take(limit + 1).read_to_end(&mut unpacked).map_err(|error| corrupt(error.to_string()))?;
            if unpacked.len() as u64 > limit {
                return Err(KernelError::TooLarge { limit });
            }
            Ok(unpacked)
        };
        match self {
            Compression::Gzip => read(&mut flate2::read::GzDecoder::new(bytes)),
            Compression::Zstd => {
                let decoder = ruzstd::decoding::StreamingDecoder::new(bytes);
                read(&mut decoder.map_err(|error| corrupt(error.to_string()))?)
            }
            Compression::Xz => read(&mut lzma_rust2::XzReader::new(bytes, false)),
            Compression::Lz4 => read(&mut lz4_flex::frame::FrameDecoder::new(bytes)),
        }
    }
}
