//! Reading an image's contents: QEMU's program says where they are in the file.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result};
use ext4_view::Ext4Read;
use serde::Deserialize;

use super::qemu_img;

/// A run of bytes of the disk.
#[derive(Debug, Clone, Copy, Deserialize)]
struct Extent {
    start: u64,
    length: u64,
    /// Where it is in the file; none for zeroes, and for compressed data.
    offset: Option<u64>,
    zero: bool,
}

/// An image that is read as a disk.
#[derive(Debug)]
pub struct Contents {
    file: File,
    /// In the order of `start`, without gaps.
    extents: Vec<Extent>,
}

impl Contents {
    /// Opens an image in a format.
    ///
    /// # Errors
    /// It can't be read.
    pub fn open(file: &Path, format: &str) -> Result<Self> {
        let map = qemu_img::run(&["map", "--output=json", "-f", format], &[file])?;
        let extents = serde_json::from_slice(&map).context("reading the output of qemu-img")?;
        Ok(Self { file: File::open(file)?, extents })
    }
}

impl Ext4Read for Contents {
    fn read(&mut self, mut start: u64, mut to: &mut [u8]) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        while !to.is_empty() {
            let index = self.extents.partition_point(|extent| extent.start + extent.length <= start);
            let extent = self.extents.get(index).filter(|extent| extent.start <= start).ok_or("the disk ends early")?;
            let skipped = start - extent.start;
            let length = usize::try_from(extent.length - skipped).map_or(to.len(), |length| length.min(to.len()));
            let (now, later) = to.split_at_mut(length);
            match extent.offset {
                _ if extent.zero => now.fill(0),
                Some(offset) => self.file.read_exact_at(now, offset + skipped)?,
                None => return Err("the image is compressed".into()),
            }
            start += length as u64;
            to = later;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn contents_are_collected_from_extents() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"..cdab").unwrap();
        let extents = r#"[{"start":0,"length":2,"offset":4,"zero":false},{"start":2,"length":3,"zero":true},
            {"start":5,"length":2,"offset":2,"zero":false},{"start":7,"length":1,"zero":false}]"#;
        let mut contents = Contents { file, extents: serde_json::from_str(extents).unwrap() };
        let mut read = |start, length| {
            let mut bytes = vec![b'x'; length];
            contents.read(start, &mut bytes).map(|()| bytes).map_err(|error| error.to_string())
        };
        assert_eq!(read(0, 7).unwrap(), b"ab\0\0\0cd");
        assert_eq!(read(1, 2).unwrap(), b"b\0");
        assert_eq!(read(6, 2).unwrap_err(), "the image is compressed");
        assert_eq!(read(8, 1).unwrap_err(), "the disk ends early");
    }
}
