//! Media on which GRUB starts an image by Multiboot 2.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use stile::config::Arch;
use stile::debian;

/// GRUB's configuration: these commands come first. The memory map gets a hole that begins and ends within pages.
fn configuration(commands: &str) -> String {
    format!("set timeout=0\n{commands}insmod mmap\ncutmem 0x6000800 0x6001900\nmultiboot2 /boot/image\nboot\n")
}

/// A CD-ROM for a BIOS.
///
/// # Errors
/// GRUB's tools are missing or fail.
pub fn for_bios(dir: &Path, image: &Path) -> Result<PathBuf> {
    let (files, medium) = (dir.join("grub-bios"), dir.join("grub-bios.iso"));
    fs::create_dir_all(files.join("boot/grub"))?;
    fs::copy(image, files.join("boot/image"))?;
    fs::write(files.join("boot/grub/grub.cfg"), configuration("insmod vbe\n"))?;
    let arguments = ["--install-modules=multiboot2 vbe mmap", "--fonts=", "--locales=", "--themes=", "-o"];
    run("grub-mkrescue", &[&arguments.map(OsStr::new)[..], &[medium.as_os_str(), files.as_os_str()]].concat())?;
    Ok(medium)
}

/// Puts the first CPU's APIC into x2APIC mode, as firmware of large machines does.
const X2APIC: &str = "insmod wrmsr\nwrmsr 0x1b 0xfee00d00\nrdmsr -v base 0x1b\nif [ \"$base\" != \"fee00d00\" ]; then halt; fi\n";

/// A folder for UEFI firmware of a PC, which is to be a removable disk.
///
/// # Errors
/// Debian's package can't be fetched; GRUB's tools are missing or fail.
pub fn for_uefi(dir: &Path, image: &Path) -> Result<PathBuf> {
    let medium = dir.join("grub-uefi");
    let boot = medium.join("EFI/BOOT");
    fs::create_dir_all(&boot)?;
    let configured = dir.join("grub.cfg");
    fs::write(&configured, configuration(X2APIC))?;
    let modules = debian::tree(Arch::X86_64, &["grub-efi-amd64-bin"])?.join("usr/lib/grub/x86_64-efi");
    let program = boot.join("BOOTX64.EFI");
    let [configured, image] =
        [("boot/grub/grub.cfg", &configured), ("boot/image", &image.to_owned())].map(|(name, file)| format!("{name}={}", file.display()));
    let arguments = [
        "-O",
        "x86_64-efi",
        "--install-modules=multiboot2 mmap rdmsr wrmsr halt test normal efi_gop memdisk tar",
        "--modules=multiboot2 normal efi_gop",
        "--fonts=",
        "--locales=",
        "--themes=",
        "-d",
    ];
    let files = [modules.as_os_str(), OsStr::new("-o"), program.as_os_str(), OsStr::new(&configured), OsStr::new(&image)];
    run("grub-mkstandalone", &[&arguments.map(OsStr::new)[..], &files].concat())?;
    Ok(medium)
}

fn run(program: &str, arguments: &[&OsStr]) -> Result<()> {
    let output = Command::new(program).args(arguments).output().with_context(|| format!("{program} can't be run: install grub-common"))?;
    ensure!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}
