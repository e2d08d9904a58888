//! Media from which UEFI firmware starts Stile: `stile image`, and `stile run --uefi`.

use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use fatfs::{FileSystem, FormatVolumeOptions, FsOptions};
use gpt::disk::LogicalBlockSize;
use gpt::mbr::ProtectiveMBR;
use gpt::{GptConfig, partition_types};
use serde_json::json;
use stile_config::boot::{FIGURES, LONGEST, NAME, VMS};

use crate::args::ImageArgs;
use crate::config::{Arch, MachineConfig, units};
use crate::emulator::bochs;
use crate::vm_files::{self, VmFile};
use crate::{build, exit, out, replaced, secure_boot};

/// The folder of the program that firmware starts from a removable disk (UEFI Specification, 3.5.1.1 Removable Media Boot Behavior).
const FOLDER: [&str; 2] = ["EFI", "BOOT"];

/// The program's name in it.
fn program_name(arch: Arch) -> &'static str {
    match arch {
        Arch::Aarch64 => "BOOTAA64.EFI",
        Arch::X86_64 => "BOOTX64.EFI",
    }
}

const SECTOR: u64 = 512;
/// Partitions begin and end at multiples of this.
const ALIGN: u64 = 1 << 20;
/// The least partition: the smallest FAT32 has 65,525 clusters.
const LEAST: u64 = 40 << 20;

/// Free space for further kernels and initial RAM file systems, in a file system with a configuration.
const ROOM: u64 = 64 << 20;

/// The program's name for network boot, in the directory that a TFTP or HTTP server publishes.
const NETBOOT: &str = "stile.efi";

/// The contents of a medium's file system.
#[derive(Clone, Copy, Debug, Default)]
pub struct Contents<'a> {
    /// The program that firmware starts.
    pub program: &'a [u8],
    /// The text of the configuration; empty for none.
    pub text: &'a str,
    /// Whether there is a folder for a bench stick's figures.
    pub figures: bool,
    /// The files of VMs.
    pub files: &'a [VmFile],
}

/// Writes a disk image, a CD-ROM image, or a program for network boot, and prints how to use it.
///
/// # Errors
/// A mistake in the configuration; a failed fetch, build or write; for a CD-ROM, xorriso is missing.
pub fn image(args: &ImageArgs) -> Result<u8> {
    write_image(args, build::configure(&args.machine)?)
}

/// Writes such an image of a machine.
///
/// # Errors
/// As of [`image`].
pub fn write_image(args: &ImageArgs, config: MachineConfig) -> Result<u8> {
    let arch = config.arch;
    if let Some(output) = &args.output {
        replaced::check(output)?;
        // No device.
        replaced::target(output)?;
    }
    secure_boot::check(&args.signature)?;
    let text = &text(args)?;
    let figures = config.vms.iter().any(|vm| vm.techniques.counters);
    let files = &files(args, &config, text)?;
    let mut machine = build::machine(config, text)?;
    let program = &secure_boot::sign(&args.signature, std::mem::take(&mut machine.image.bytes))?;
    let contents = Contents { program, text, figures, files };
    let (path, size, use_it) = match (&args.netboot, &args.output) {
        (Some(folder), _) => {
            fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
            let path = folder.join(NETBOOT);
            replaced::replace(&path, |file| Ok(file.write_all(program)?))?;
            (path, program.len() as u64, "offer it as the boot file of your DHCP server, by TFTP or HTTP")
        }
        // One image is a CD-ROM and a disk, for UEFI firmware and a BIOS.
        (None, Some(output)) if arch == Arch::X86_64 => {
            let size = replaced::replace(output, |file| write_pc(file, contents))?;
            (output.clone(), size, "write it to a disk with dd, or to a CD-ROM; it starts from a BIOS, too")
        }
        (None, Some(output)) if args.iso => {
            let size = replaced::replace(output, |file| write_iso(file, contents))?;
            (output.clone(), size, "write it to a CD-ROM, or give it to a virtual drive")
        }
        (None, Some(output)) => (output.clone(), replaced::replace(output, |file| write(file, contents))?, "write it to a disk with dd"),
        (None, None) => unreachable!("one of them is required"),
    };
    let (cpus, memory) = (machine.config.cpus, machine.memory);
    if args.json {
        out::json(&json!({"output": path, "bytes": size, "cpus": cpus, "memory": memory}))?;
        return Ok(exit::OK);
    }
    out::line(format_args!(
        "{}: {}, for a machine with UEFI firmware, {} and {} of memory; {use_it}",
        path.display(),
        units::rounded_size(size),
        units::plural(cpus as usize, "CPU"),
        units::rounded_size(memory)
    ))?;
    Ok(exit::OK)
}

/// The text of the configuration file, which a file on the medium may replace. Empty if Stile is to ignore such a file: it would not
/// be signed, or there is no configuration file, or it is longer than Stile reads.
fn text(args: &ImageArgs) -> Result<String> {
    let (Some(path), None, None) = (&args.machine.config, &args.signature.sign, &args.netboot) else { return Ok(String::new()) };
    let text = fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    Ok(if text.len() <= LONGEST { text } else { String::new() })
}

/// The files of VMs that the user wants on the medium.
fn files(args: &ImageArgs, config: &MachineConfig, text: &str) -> Result<Vec<VmFile>> {
    if !args.files {
        return Ok(Vec::new());
    }
    if text.is_empty() {
        let what = format!("--files: with a configuration longer than {} KiB, Stile reads no files: shorten it", LONGEST >> 10);
        return Err(exit::usage(what));
    }
    let (files, left_out) = vm_files::of(config, text)?;
    if !left_out.is_empty() {
        let what = "Stile can't rebuild VMs with served devices, domains, UEFI firmware or, on a PC, a kernel of `stile` other than Linux, \
            nor VMs that share a file with one";
        out::note(format_args!("stile: --files: the files of {} are in the image only: {what}", left_out.join(", ")));
    }
    Ok(files)
}

/// Writes a CD-ROM image with a FAT file system that has the contents (UEFI Specification, 13.3.2.1 ISO-9660 and El Torito).
/// Returns its size in bytes.
///
/// # Errors
/// xorriso is missing or fails; the file can't be written.
pub fn write_iso(file: &mut File, contents: Contents<'_>) -> Result<u64> {
    let files = tempfile::tempdir().context("making a temporary directory")?;
    let [disk, iso] = ["disk/efi.img", "stick.iso"].map(|name| files.path().join(name));
    fs::create_dir(files.path().join("disk"))?;
    std::io::copy(&mut volume(Arch::Aarch64, contents.partition(), contents)?, &mut File::create(disk)?)?;
    // A length of one block stands for the rest of the medium: the field is too short for kernels.
    let output = Command::new("xorriso")
        .args(["-as", "mkisofs", "-quiet", "-V", "STILE", "-e", "efi.img", "-no-emul-boot", "-boot-load-size", "1", "-o"])
        .arg(&iso)
        .arg(files.path().join("disk"))
        .stdin(Stdio::null())
        .output()
        .map_err(|error| exit::lacking(format!("xorriso can't be run ({error}): install the package xorriso")))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(exit::lacking(format!("xorriso fails: {}", said.lines().last().unwrap_or("it does not say why"))));
    }
    Ok(std::io::copy(&mut File::open(iso)?, file)?)
}

/// Writes an image for a PC, which a BIOS (by GRUB) and UEFI firmware start from a CD-ROM and from a disk. Returns its size in bytes.
///
/// # Errors
/// GRUB's tools or xorriso are missing or fail; the file can't be written.
pub fn write_pc(file: &mut File, contents: Contents<'_>) -> Result<u64> {
    let files = tempfile::tempdir().context("making a temporary directory")?;
    let [efi, image, iso] = ["efi.img", "image", "stick.iso"].map(|name| files.path().join(name));
    std::io::copy(&mut volume(Arch::X86_64, contents.partition(), contents)?, &mut File::create(&efi)?)?;
    fs::write(&image, contents.program)?;
    bochs::write_iso(&image, &bochs::Boot::Multiboot2, Some(&efi), &iso)?;
    Ok(std::io::copy(&mut File::open(iso)?, file)?)
}

impl Contents<'_> {
    /// Size of a FAT file system for the contents, in bytes: with its tables.
    fn partition(&self) -> u64 {
        let files = self.files.iter().map(|file| file.bytes.len());
        let size: u64 = files.chain([self.program.len()]).map(|size| size as u64).sum();
        let room = if self.text.is_empty() { 0 } else { ROOM };
        (size + size / 64 + room + (2 << 20)).max(LEAST).next_multiple_of(ALIGN)
    }
}

/// Writes a GPT with one EFI system partition that has the contents. Returns the disk's size in bytes.
///
/// # Errors
/// The file can't be written.
pub fn write(file: &mut File, contents: Contents<'_>) -> Result<u64> {
    let partition = contents.partition();
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
    std::io::copy(&mut volume(Arch::Aarch64, partition, contents)?, file)?;
    file.flush()?;
    Ok(size)
}

/// Creates a FAT file system of `size` bytes, with `contents`, in a temporary file.
fn volume(arch: Arch, size: u64, contents: Contents<'_>) -> Result<File> {
    new_volume(arch, size, contents).with_context(|| format!("making the image's file system in {}", std::env::temp_dir().display()))
}

fn new_volume(arch: Arch, size: u64, contents: Contents<'_>) -> Result<File> {
    let mut file = tempfile::tempfile()?;
    file.set_len(size)?;
    fatfs::format_volume(&mut file, FormatVolumeOptions::new().volume_label(*b"STILE      "))?;
    let volume = FileSystem::new(&mut file, FsOptions::new())?;
    let [efi, boot] = FOLDER;
    volume.root_dir().create_dir(efi)?.create_dir(boot)?.create_file(program_name(arch))?.write_all(contents.program)?;
    if !contents.text.is_empty() {
        volume.root_dir().create_file(NAME)?.write_all(contents.text.as_bytes())?;
    }
    if contents.figures {
        volume.root_dir().create_dir(FIGURES)?;
    }
    if !contents.files.is_empty() {
        let folder = volume.root_dir().create_dir(VMS)?;
        for VmFile { name, bytes } in contents.files {
            // FAT has other names that are the same than `vm_files` knows, such as short ones.
            if folder.open_file(name).is_ok() {
                return Err(exit::usage(format!("the file {name} has the name of another one in the folder {VMS}: rename one")));
            }
            folder.create_file(name)?.write_all(bytes)?;
        }
    }
    volume.unmount()?;
    file.rewind()?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    fn program() -> Vec<u8> {
        (0..3_000_000_u32).map(|byte| byte as u8).collect()
    }

    /// Checks that a FAT file system has `program`.
    fn check(volume: Vec<u8>, program: &[u8]) {
        let volume = FileSystem::new(std::io::Cursor::new(volume), FsOptions::new()).unwrap();
        let mut found = Vec::new();
        volume.root_dir().open_file("efi/boot/bootaa64.efi").unwrap().read_to_end(&mut found).unwrap();
        assert!(found == program);
    }

    #[test]
    fn the_program_is_in_the_boot_catalog() {
        const BLOCK: usize = 2048;
        let program = program();
        let contents = Contents { program: &program, ..Contents::default() };
        let mut file = tempfile::tempfile().unwrap();
        let size = write_iso(&mut file, contents).unwrap();
        let mut iso = Vec::new();
        file.rewind().unwrap();
        std::io::copy(&mut file, &mut iso).unwrap();
        assert_eq!(iso.len() as u64, size);
        let word = |at: usize| u32::from_le_bytes(iso[at..at + 4].try_into().unwrap()) as usize;
        // The boot record volume descriptor, with the catalog's block (El Torito, 2.0 and 2.1).
        let record = 17 * BLOCK;
        assert!(iso[record..].starts_with(b"\0CD001\x01EL TORITO SPECIFICATION"));
        let catalog = word(record + 0x47) * BLOCK;
        // The validation entry is for EFI; the initial entry is bootable, without emulation, and has the image's block.
        assert_eq!((iso[catalog], iso[catalog + 1], iso[catalog + 32], iso[catalog + 33]), (1, 0xef, 0x88, 0));
        let start = word(catalog + 40) * BLOCK;
        check(iso[start..start + contents.partition() as usize].to_vec(), &program);
    }

    #[test]
    fn the_program_is_on_the_partition() {
        let program = program();
        let mut file = tempfile::tempfile().unwrap();
        let files = [VmFile { name: "vmlinuz größe".into(), bytes: vec![7; 5 << 20] }];
        let size = write(&mut file, Contents { program: &program, text: "[[vm]]\n", figures: true, files: &files }).unwrap();
        assert_eq!(file.metadata().unwrap().len(), size);
        let disk = GptConfig::new().open_from_device(&file).unwrap();
        let (_, entry) = disk.partitions().iter().next().unwrap();
        assert_eq!((&entry.name[..], entry.part_type_guid.guid), ("Stile", partition_types::EFI.guid));
        let start = entry.bytes_start(LogicalBlockSize::Lb512).unwrap();
        assert_eq!(start % ALIGN, 0);
        let mut bytes = vec![0; entry.bytes_len(LogicalBlockSize::Lb512).unwrap() as usize];
        file.seek(SeekFrom::Start(start)).unwrap();
        file.read_exact(&mut bytes).unwrap();
        let volume = FileSystem::new(std::io::Cursor::new(bytes.clone()), FsOptions::new()).unwrap();
        let mut text = String::new();
        volume.root_dir().open_file("stile.toml").unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "[[vm]]\n");
        assert_eq!(volume.root_dir().open_dir("figures").unwrap().iter().count(), 2, "itself and the root");
        let mut file = Vec::new();
        volume.root_dir().open_file("vms/vmlinuz größe").unwrap().read_to_end(&mut file).unwrap();
        assert!(file == files[0].bytes);
        check(bytes, &program);
    }

    #[test]
    fn files_whose_names_are_one_to_fat_are_refused() {
        for [one, other] in [["\u{c4}", "\u{e4}"], ["a long name.efi", "ALONGN~1.EFI"]] {
            let files = [one, other].map(|name| VmFile { name: name.into(), bytes: vec![1] });
            let made = |files: &[VmFile]| new_volume(Arch::Aarch64, LEAST, Contents { text: "[[vm]]\n", files, ..Contents::default() });
            assert!(made(&files[..1]).is_ok());
            let error = made(&files).unwrap_err().to_string();
            assert_eq!(error, format!("the file {other} has the name of another one in the folder VMS: rename one"));
        }
    }
}
