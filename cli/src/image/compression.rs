//! Compressed kernels.

use std::fmt;

/// A way in which a kernel's file is compressed.
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

/// What compressed files begin with; and the one that is not supported, to be named when it is met.
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
    /// How `bytes` are compressed, if they are.
    ///
    /// # Errors
    /// The name of a way that is not supported.
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
