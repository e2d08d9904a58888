//! A disk that UEFI firmware starts Stile from: `stile image`, and `stile run --uefi`.

use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result};
use fatfs::{FileSystem, FormatVolumeOptions, FsOptions};
use gpt::disk::LogicalBlockSize;
use gpt::mbr::ProtectiveMBR;
use gpt::{GptConfig, partition_types};

use crate::args::ImageArgs;
use crate::config::{Arch, units};
use crate::{build, exit, out};

/// The program that firmware starts from a removable disk (UEFI Specification, 3.5.1.1 Removable Media Boot Behavior).
const PROGRAM: [&str; 3] = ["EFI", "BOOT", "BOOTAA64.EFI"];

const SECTOR: u64 = 512;
/// Partitions begin and end at multiples of this.
const ALIGN: u64 = 1 << 20;
/// The least partition: the smallest FAT32 has 65,525 clusters.
const LEAST: u64 = 40 << 20;

/// Makes the image, and prints what it is.
///
/// # Errors
/// The configuration has a mistake; something can't be fetched, built or written.
pub fn image(args: &ImageArgs) -> Result<u8> {
    let machine = build::machine(&args.machine)?;
    if machine.config.arch != Arch::Aarch64 {
        return Err(exit::usage("a disk for UEFI firmware can be made for aarch64 only; `stile build` writes a CD-ROM for x86_64"));
    }
    let path = args.output.display();
    let folder = args.output.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut builder = tempfile::Builder::new();
    // As of any new file: the user's umask takes some away.
    builder.permissions(fs::Permissions::from_mode(0o666));
    let mut file = builder.tempfile_in(folder).with_context(|| format!("writing {path}"))?;
    let size = write(file.as_file_mut(), &machine.image.bytes).with_context(|| format!("writing {path}"))?;
    file.persist(&args.output).with_context(|| format!("writing {path}"))?;
    out::line(format_args!(
        "{path}: {}, for a machine with UEFI firmware, {} and {} of memory; write it to a disk with dd",
        units::rounded_size(size),
        units::plural(machine.config.cpus as usize, "CPU"),
        units::rounded_size(machine.memory)
    ))?;
    Ok(exit::OK)
}

/// Writes a GPT with one EFI system partition that has `program` in it. Returns the disk's size in bytes.
///
/// # Errors
/// The file can't be written.
pub fn write(file: &mut File, program: &[u8]) -> Result<u64> {
    let partition = (program.len() as u64 + program.len() as u64 / 64 + (2 << 20)).max(LEAST).next_multiple_of(ALIGN);
    // The table, and its copy at the end.
    let size = partition + 2 * ALIGN;
    file.set_len(size)?;
    let sectors = u32::try_from(size / SECTOR - 1).unwrap_or(u32::MAX);
    ProtectiveMBR::with_lb_size(sectors).overwrite_lba0(file)?;
    let mut disk = GptConfig::new().writable(true).logical_block_size(LogicalBlockSize::Lb512).create_from_device(&mut *file, None)?;
    disk.add_partition("Stile", partition, partition_types::EFI, 0, Some(ALIGN / SECTOR))?;
    let (_, entry) = disk.partitions().iter().next().context("the disk has no partition")?;
    let start = entry.bytes_start(LogicalBlockSize::Lb512)?;
    disk.write()?;
    file.seek(SeekFrom::Start(start))?;
    std::io::copy(&mut volume(partition, program)?, file)?;
    file.flush()?;
    Ok(size)
}

/// A FAT file system of so many bytes, from its beginning.
fn volume(size: u64, program: &[u8]) -> Result<File> {
    let mut file = tempfile::tempfile()?;
    file.set_len(size)?;
    fatfs::format_volume(&mut file, FormatVolumeOptions::new().volume_label(*b"STILE      "))?;
    let volume = FileSystem::new(&mut file, FsOptions::new())?;
    let [efi, boot, name] = PROGRAM;
    volume.root_dir().create_dir(efi)?.create_dir(boot)?.create_file(name)?.write_all(program)?;
    volume.unmount()?;
    file.rewind()?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn the_program_is_on_the_partition() {
        let program: Vec<u8> = (0..3_000_000_u32).map(|byte| byte as u8).collect();
        let mut file = tempfile::tempfile().unwrap();
        let size = write(&mut file, &program).unwrap();
        assert_eq!(file.metadata().unwrap().len(), size);
        let disk = GptConfig::new().open_from_device(&file).unwrap();
        let (_, entry) = disk.partitions().iter().next().unwrap();
        assert_eq!((&entry.name[..], entry.part_type_guid.guid), ("Stile", partition_types::EFI.guid));
        let start = entry.bytes_start(LogicalBlockSize::Lb512).unwrap();
        assert_eq!(start % ALIGN, 0);
        let mut bytes = vec![0; entry.bytes_len(LogicalBlockSize::Lb512).unwrap() as usize];
        file.seek(SeekFrom::Start(start)).unwrap();
        file.read_exact(&mut bytes).unwrap();
        let volume = FileSystem::new(std::io::Cursor::new(bytes), FsOptions::new()).unwrap();
        let mut found = Vec::new();
        volume.root_dir().open_file("efi/boot/bootaa64.efi").unwrap().read_to_end(&mut found).unwrap();
        assert!(found == program);
    }
}
