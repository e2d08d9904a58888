//! A CD-ROM that boots Stile, or another kernel, with GRUB.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use crate::{cleanup, exit};

/// The packages of the required tools.
pub const PACKAGES: &str = "grub-common grub-pc-bin xorriso mtools";

/// The boot protocol.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Boot {
    /// Multiboot, with this command line. Stile's image includes its virtual machines: no modules are loaded.
    Multiboot(String),
    /// Multiboot 2, with a frame buffer if the machine has one, on which Stile shows its log.
    Multiboot2,
    /// By the Linux boot protocol, with this command line and this initial RAM file system.
    Linux(String, PathBuf),
}

impl Default for Boot {
    fn default() -> Self {
        Self::Multiboot(String::new())
    }
}

impl Boot {
    /// GRUB's configuration, and the modules that it requires.
    fn configuration(&self) -> (String, &'static str) {
        let (load, modules) = match self {
            Self::Multiboot(arguments) => (format!("multiboot /boot/image {arguments}"), "multiboot"),
            Self::Multiboot2 => ("insmod vbe\nmultiboot2 /boot/image".to_owned(), "multiboot2 vbe"),
            Self::Linux(arguments, _) => (format!("linux /boot/image {arguments}\ninitrd /boot/initrd"), "linux"),
        };
        (format!("set timeout=0\n{load}\nboot\n"), modules)
    }
}

/// Type of an EFI system partition (UEFI Specification, 5.2.2 OS Types).
const EFI_SYSTEM: &str = "0xef";

/// xorriso's arguments for a file system that is a partition of a GPT, and a boot image of the CD-ROM for UEFI firmware.
fn efi_arguments(efi: &Path) -> impl Iterator<Item = &OsStr> {
    let partition = ["-append_partition", "2", EFI_SYSTEM].into_iter().map(OsStr::new).chain([efi.as_os_str()]);
    let boot = ["-appended_part_as_gpt", "-eltorito-alt-boot", "-e", "--interval:appended_partition_2:all::", "-no-emul-boot"];
    partition.chain(boot.map(OsStr::new))
}

/// Creates the CD-ROM `iso` of an image, which also works as a disk. UEFI firmware starts the program on the FAT file system `efi`, which
/// becomes a partition.
///
/// # Errors
/// A tool is missing or fails.
pub fn write(image: &Path, how: &Boot, efi: Option<&Path>, iso: &Path) -> Result<()> {
    let (files, _cleanup) = cleanup::removing(tempfile::tempdir).context("making a temporary directory")?;
    let boot = files.path().join("boot");
    fs::create_dir_all(boot.join("grub"))?;
    let copy = |from: &Path, name| fs::copy(from, boot.join(name)).with_context(|| format!("copying {}", from.display()));
    copy(image, "image")?;
    if let Boot::Linux(_, initrd) = how {
        copy(initrd, "initrd")?;
    }
    let (configuration, modules) = how.configuration();
    fs::write(boot.join("grub/grub.cfg"), configuration)?;
    let output = Command::new("grub-mkrescue")
        // Only the required modules: a full set of modules and fonts is megabytes.
        .arg(format!("--install-modules={modules}"))
        .args(["--fonts=", "--locales=", "--themes=", "-o"])
        .arg(iso)
        .arg(files.path())
        .args(efi.into_iter().flat_map(efi_arguments))
        .stdin(Stdio::null())
        // As for the emulator: Ctrl-C on the terminal is for this program alone.
        .process_group(0)
        .output()
        .map_err(|error| exit::lacking(format!("grub-mkrescue can't be run ({error}): install the packages {PACKAGES}")))?;
    if !output.status.success() || !iso.exists() {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(exit::lacking(format!(
            "grub-mkrescue fails (are the packages {PACKAGES} installed?): {}",
            said.lines().last().unwrap_or("it does not say why")
        )));
    }
    Ok(())
}
