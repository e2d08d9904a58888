//! A disk with a partition, for the tests: a file system that has none around it is copied into it.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};

use super::contents::Contents;
use super::qemu_img;

/// Bytes of a sector.
const SECTOR: u64 = 512;
/// The partition's first sector, as `fdisk` chooses it.
const FIRST: u32 = 2048;
/// The partition's first byte.
pub const START: u64 = FIRST as u64 * SECTOR;

/// Makes a raw image of an MBR with one partition, which has the contents of a qcow2 image.
///
/// # Errors
/// The image can't be read, or the new one can't be written.
pub fn with_system(image: &Path, to: &Path) -> Result<()> {
    let length = Contents::open(image, "qcow2")?.length();
    let sectors = u32::try_from(length.div_ceil(SECTOR)).context("an MBR has no partitions of 2 TiB")?;
    let mut table = [0; SECTOR as usize];
    table[446 + 4] = 0x83;
    table[446 + 8..446 + 12].copy_from_slice(&FIRST.to_le_bytes());
    table[446 + 12..446 + 16].copy_from_slice(&sectors.to_le_bytes());
    table[510..].copy_from_slice(&[0x55, 0xaa]);
    let mut file = File::create_new(to)?;
    file.set_len(START + length)?;
    file.write_all(&table)?;
    drop(file);
    qemu_img::copy_into(image, to, START, length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_are_in_the_partition() {
        let dir = tempfile::tempdir().unwrap();
        let [raw, image, to] = ["raw", "image", "to"].map(|name| dir.path().join(name));
        std::fs::write(&raw, [7; 4096]).unwrap();
        qemu_img::to_qcow2(&raw, &image).unwrap();
        with_system(&image, &to).unwrap();
        let bytes = std::fs::read(&to).unwrap();
        assert!(bytes[1 << 20..] == [7; 4096]);
    }
}
