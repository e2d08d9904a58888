//! Reads an image's contents, by the map of QEMU's `qemu-img`.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Deserialize;

use super::qemu_img;

/// The most bytes that are read of one disk, and the most reads: file systems whose structures form a circle end in an error.
const MOST_BYTES: u64 = 4 << 30;
const MOST_READS: u64 = 4 << 20;

/// Bytes of compressed data that are unpacked at a time.
const CHUNK: u64 = 2 << 20;
/// The most chunks that are kept.
const MOST_CHUNKS: usize = 128;

/// A run of bytes of the disk.
#[derive(Debug, Clone, Copy, Deserialize)]
struct Extent {
    start: u64,
    length: u64,
    /// Its offset in the file; `None` for zeroes and compressed data.
    offset: Option<u64>,
    zero: bool,
}

/// An image that is read as a disk.
#[derive(Debug)]
pub struct Contents {
    file: File,
    /// The file's name and format, for compressed data.
    image: (PathBuf, String),
    /// In the order of `start`, without gaps.
    extents: Vec<Extent>,
    /// Compressed data that were unpacked: their place on the disk.
    chunks: Vec<(u64, Vec<u8>)>,
    bytes: u64,
    reads: u64,
}

impl Contents {
    /// Opens an image in a format. Its lock is not respected: [`super::drive::Drive::check`] is, before a machine starts, and `stile check`
    /// explains machines that run.
    ///
    /// # Errors
    /// It can't be read.
    pub fn open(file: &Path, format: &str) -> Result<Self> {
        let map = qemu_img::run(&["map", "-U", "--output=json", "-f", format], &[file])?;
        let extents = serde_json::from_slice(&map).context("reading the output of qemu-img")?;
        Ok(Self::new(File::open(file)?, (file.to_owned(), format.to_owned()), extents))
    }

    /// The contents of a raw image.
    ///
    /// # Errors
    /// Its length can't be read.
    pub fn raw(file: File) -> io::Result<Self> {
        let extents = vec![Extent { start: 0, length: file.metadata()?.len(), offset: Some(0), zero: false }];
        Ok(Self::new(file, (PathBuf::new(), "raw".into()), extents))
    }

    fn new(file: File, image: (PathBuf, String), extents: Vec<Extent>) -> Self {
        Self { file, image, extents, chunks: Vec::new(), bytes: 0, reads: 0 }
    }

    /// The disk's bytes.
    pub fn length(&self) -> u64 {
        self.extents.last().map_or(0, |last| last.start.saturating_add(last.length))
    }

    /// Reads bytes of the disk.
    ///
    /// # Errors
    /// They are not on the disk, the file can't be read, or too much was read already.
    pub fn read(&mut self, mut start: u64, mut to: &mut [u8]) -> io::Result<()> {
        self.bytes += to.len() as u64;
        self.reads += 1;
        if self.bytes > MOST_BYTES || self.reads > MOST_READS {
            return Err(io::Error::other("its file system refers to itself without end"));
        }
        while !to.is_empty() {
            let ends_early = || io::Error::new(io::ErrorKind::UnexpectedEof, "the disk ends early");
            let index = self.extents.partition_point(|extent| extent.start.saturating_add(extent.length) <= start);
            let extent = *self.extents.get(index).filter(|extent| extent.start <= start).ok_or_else(ends_early)?;
            let skipped = start - extent.start;
            let mut length = usize::try_from(extent.length - skipped).map_or(to.len(), |length| length.min(to.len()));
            match extent.offset {
                _ if extent.zero => to[..length].fill(0),
                Some(offset) => self.file.read_exact_at(&mut to[..length], offset.checked_add(skipped).ok_or_else(ends_early)?)?,
                None => length = self.unpack(start, &mut to[..length])?,
            }
            start += length as u64;
            to = &mut to[length..];
        }
        Ok(())
    }

    /// Reads from the chunk at `start`, and returns how many bytes.
    fn unpack(&mut self, start: u64, to: &mut [u8]) -> io::Result<usize> {
        let number = start / CHUNK;
        if !self.chunks.iter().any(|(chunk, _)| *chunk == number) {
            let (at, length) = (number * CHUNK, CHUNK.min(self.length() - number * CHUNK));
            let bytes = qemu_img::part(&self.image.0, &self.image.1, at, length).map_err(io::Error::other)?;
            if self.chunks.len() == MOST_CHUNKS {
                self.chunks.remove(0);
            }
            self.chunks.push((number, bytes));
        }
        let skipped = usize::try_from(start % CHUNK).unwrap_or(usize::MAX);
        let chunk = self.chunks.iter().find(|(chunk, _)| *chunk == number);
        let bytes = chunk.and_then(|(_, bytes)| bytes.get(skipped..)).filter(|bytes| !bytes.is_empty());
        let bytes = bytes.ok_or_else(|| io::Error::new(io::ErrorKind::UnexpectedEof, "the disk ends early"))?;
        let length = bytes.len().min(to.len());
        to[..length].copy_from_slice(&bytes[..length]);
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn contents_are_collected_from_extents() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"..cdab").unwrap();
        let extents = r#"[{"start":0,"length":2,"offset":4,"zero":false},{"start":2,"length":3,"zero":true},
            {"start":5,"length":2,"offset":2,"zero":false}]"#;
        let mut contents = Contents::new(file, (PathBuf::new(), "raw".into()), serde_json::from_str(extents).unwrap());
        let mut read = |start, length| {
            let mut bytes = vec![b'x'; length];
            contents.read(start, &mut bytes).map(|()| bytes).map_err(|error| error.to_string())
        };
        assert_eq!(read(0, 7).unwrap(), b"ab\0\0\0cd");
        assert_eq!(read(1, 2).unwrap(), b"b\0");
        assert_eq!(read(7, 1).unwrap_err(), "the disk ends early");
        assert_eq!(contents.length(), 7);
    }

    #[test]
    fn compressed_images_are_unpacked() {
        let dir = tempfile::tempdir().unwrap();
        let (raw, image) = (dir.path().join("raw"), dir.path().join("compressed"));
        let bytes: Vec<u8> = (0..3 << 20).map(|at: u32| (at >> 12) as u8).collect();
        std::fs::write(&raw, &bytes).unwrap();
        qemu_img::run(&["convert", "-c", "-f", "raw", "-O", "qcow2"], &[&raw, &image]).unwrap();
        let mut contents = Contents::open(&image, "qcow2").unwrap();
        assert!(contents.extents.iter().any(|extent| extent.offset.is_none() && !extent.zero));
        let mut read = vec![0; 3 << 20];
        contents.read(0, &mut read).unwrap();
        assert!(read == bytes);
        contents.read((2 << 20) - 5000, &mut read[..10_000]).unwrap();
        assert!(read[..10_000] == bytes[(2 << 20) - 5000..][..10_000]);
    }

    #[test]
    fn images_in_use_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let (raw, image) = (dir.path().join("raw"), dir.path().join("compressed"));
        std::fs::write(&raw, [7; 1 << 20]).unwrap();
        qemu_img::run(&["convert", "-c", "-f", "raw", "-O", "qcow2"], &[&raw, &image]).unwrap();
        // Another program of QEMU's has it open until its standard input ends, and says so by its prompt.
        let mut other =
            Command::new("qemu-io").args(["-f", "qcow2"]).arg(&image).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        other.stdout.as_mut().unwrap().read_exact(&mut [0; 8]).unwrap();
        assert!(qemu_img::check(&image).unwrap_err().to_string().contains("lock"));
        let mut read = [0; 100];
        Contents::open(&image, "qcow2").unwrap().read(0, &mut read).unwrap();
        assert_eq!(read, [7; 100]);
        drop(other.stdin.take());
        other.wait().unwrap();
    }

    #[test]
    fn reading_ends() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096).unwrap();
        let mut contents = Contents::raw(file).unwrap();
        contents.reads = MOST_READS - 1;
        contents.read(0, &mut [0]).unwrap();
        assert!(contents.read(0, &mut [0]).is_err());
    }
}
