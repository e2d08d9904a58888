//! Disks in memory: raw images of which virtual machines have copies in their memory.

use std::fs;
use std::path::PathBuf;

use anyhow::Result;

use crate::exit;

/// A disk in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryDisk {
    /// Its image: a file that was there when the configuration was read.
    pub file: PathBuf,
    /// The image's size in bytes: a multiple of 512, not 0.
    pub size: u64,
}

impl MemoryDisk {
    /// Reads the image.
    ///
    /// # Errors
    /// It can't be read, or has another size than before.
    pub fn read(&self) -> Result<Vec<u8>> {
        let refuse = |what: String| exit::usage(format!("disk: {} {what}", self.file.display()));
        let bytes = fs::read(&self.file).map_err(|error| refuse(format!("can't be read: {error}")))?;
        match bytes.len() as u64 == self.size {
            true => Ok(bytes),
            false => Err(refuse("changes while it is read: end the program that writes it".into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_changes_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("d");
        fs::write(&file, [7; 512]).unwrap();
        assert_eq!(MemoryDisk { file: file.clone(), size: 512 }.read().unwrap(), [7; 512]);
        let said = MemoryDisk { file, size: 1024 }.read().unwrap_err().to_string();
        assert!(said.contains("changes while it is read"), "{said}");
    }
}
