//! Compressed kernels.

use core::fmt;

/// A compression format of kernel files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// gzip.
    Gzip,
    /// Zstandard.
    Zstd,
    /// xz.
    Xz,
    /// LZ4, in its frame format or the older one that kernels are built with.
    Lz4,
}

/// Magic numbers of compressed files, including the unsupported format, to be named in the error.
const MAGICS: [(&[u8], Result<Compression, &str>); 7] = [
    (&[0x1f, 0x8b, 8], Ok(Compression::Gzip)),
    (&[0x28, 0xb5, 0x2f, 0xfd], Ok(Compression::Zstd)),
    (&[0xfd, b'7', b'z', b'X', b'Z', 0], Ok(Compression::Xz)),
    (&[0x04, 0x22, 0x4d, 0x18], Ok(Compression::Lz4)),
    (&[0x02, 0x21, 0x4c, 0x18], Ok(Compression::Lz4)),
    (b"BZh", Err("bzip2")),
    (&[0x89, b'L', b'Z', b'O'], Err("lzo")),
];

impl Compression {
    /// The compression format of `bytes`, if they are compressed.
    ///
    /// # Errors
    /// The name of an unsupported format.
    pub fn of(bytes: &[u8]) -> Result<Option<Self>, &'static str> {
        let found = MAGICS.iter().find(|(magic, _)| bytes.starts_with(magic));
        found.map(|(_, compression)| *compression).transpose()
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Compression::Gzip => "gzip",
            Compression::Zstd => "zstd",
            Compression::Xz => "xz",
            Compression::Lz4 => "lz4",
        })
    }
}
