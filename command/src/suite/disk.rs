//! A disk of the emulated machine: a file with known contents, or with a script for UEFI's shell.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::{fs, io};

use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256};

use super::ext4;
use super::kexec::Kexec;

/// The contents of the disk.
#[derive(Debug, Clone, Copy)]
pub enum Contents {
    /// A disk whose first half the guest copies to the second.
    Halves(Disk),
    /// An ext4 file system with a file `hello`.
    Ext4,
    /// A FAT file system with this `startup.nsh`, which UEFI's shell executes.
    Script(&'static str),
    /// Not a disk, but the VM's initial RAM file system.
    Kexec(Kexec),
}

impl Contents {
    /// Writes the file.
    ///
    /// # Errors
    /// The file can't be written.
    pub fn write(self, path: &Path) -> io::Result<()> {
        match self {
            Contents::Halves(disk) => disk.write(path),
            Contents::Ext4 => ext4::write(path),
            Contents::Script(text) => write_script(path, text),
            Contents::Kexec(kexec) => kexec.write(path).map_err(|error| io::Error::other(format!("{error:#}"))),
        }
    }

    /// Returns what is wrong with the file after the run.
    pub fn problem(self, path: &Path) -> Option<String> {
        match self {
            Contents::Halves(disk) => disk.problem(path),
            Contents::Ext4 | Contents::Script(_) | Contents::Kexec(_) => None,
        }
    }
}

fn write_script(path: &Path, text: &str) -> io::Result<()> {
    let mut file = File::options().read(true).write(true).create(true).truncate(true).open(path)?;
    file.set_len(8 << 20)?;
    fatfs::format_volume(&mut file, fatfs::FormatVolumeOptions::new())?;
    let volume = fatfs::FileSystem::new(&mut file, fatfs::FsOptions::new())?;
    // The shell expects lines to end as DOS's do.
    volume.root_dir().create_file("startup.nsh")?.write_all(text.replace('\n', "\r\n").as_bytes())?;
    volume.unmount()
}

/// A disk whose first half has random contents, which the scenario's guest copies to the second half.
#[derive(Debug, Clone, Copy)]
pub struct Disk {
    /// Bytes of a half.
    pub half: usize,
}

impl Disk {
    /// The first half's bytes: no two blocks are alike.
    fn contents(self) -> Vec<u8> {
        // Steps of a linear congruential generator (Knuth's MMIX).
        let step = |state: &u64| Some(state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407));
        let mut bytes = Vec::with_capacity(self.half + 8);
        for word in std::iter::successors(Some(1), step).take(self.half.div_ceil(8)) {
            bytes.extend_from_slice(&u64::to_le_bytes(word));
        }
        bytes.truncate(self.half);
        bytes
    }

    /// The SHA-256 of the first half, as `sha256sum` prints it.
    pub fn sum(self) -> String {
        HEXLOWER.encode(&Sha256::digest(self.contents()))
    }

    /// Writes the file.
    ///
    /// # Errors
    /// The file can't be written.
    pub fn write(self, path: &Path) -> io::Result<()> {
        let mut bytes = self.contents();
        bytes.resize(2 * self.half, 0);
        fs::write(path, bytes)
    }

    /// Returns what is wrong with the file after the run.
    pub fn problem(self, path: &Path) -> Option<String> {
        let contents = self.contents();
        match fs::read(path) {
            Ok(bytes) if bytes == [&contents[..], &contents[..]].concat() => None,
            Ok(_) => Some("the halves of the disk are not both what the first one was".to_owned()),
            Err(error) => Some(format!("{}: {error}", path.display())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_right_when_its_halves_are() {
        let (disk, file) = (Disk { half: 4096 }, tempfile::NamedTempFile::new().unwrap());
        disk.write(file.path()).unwrap();
        assert!(disk.problem(file.path()).is_some());
        let mut bytes = [disk.contents(), disk.contents()].concat();
        fs::write(file.path(), &bytes).unwrap();
        assert_eq!(disk.problem(file.path()), None);
        bytes[8191] ^= 1;
        fs::write(file.path(), &bytes).unwrap();
        assert!(disk.problem(file.path()).is_some());
    }
}
