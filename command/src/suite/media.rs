//! UEFI firmware starts Stile from other media than a disk: from a CD-ROM, and by network.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::firmware_pc::{AMD_V, Firmware, Machine, PLAIN, Run, edk2, make, make_with};
use super::http_boot;
use stile::config::Arch;
use stile::programs::{PASSED, Programs};

/// The tests' names, and the tests.
pub const TESTS: [(&str, Arch, Run); 3] = [
    ("firmware/iso", Arch::Aarch64, cd_on_arm),
    ("firmware/netboot", Arch::Aarch64, network_on_arm),
    ("firmware/pc-netboot", Arch::X86_64, network_on_a_pc),
];

/// The emulator's arguments for a CD-ROM at a SCSI or a USB controller, without the file's path, which is appended.
const SCSI_CD: [&str; 4] = ["-device", "scsi-cd,drive=stick", "-drive", CD];
const USB_CD: [&str; 4] = ["-device", "usb-storage,drive=stick", "-drive", CD];
const CD: &str = "if=none,id=stick,media=cdrom,format=raw,readonly=on,file=";

/// The emulator's arguments for its DHCP and TFTP servers, without the folder's path, which is appended.
const PXE: [&str; 4] = ["-device", "virtio-net-pci,netdev=nic,romfile=", "-netdev", "user,id=nic,bootfile=stile.efi,tftp="];

/// Arm's machine, with ACPI tables or a device tree.
const ACPI: &str = "virt,virtualization=on,gic-version=3";
const TREE: &str = "virt,virtualization=on,gic-version=3,acpi=off";

fn cd_on_arm() -> Result<()> {
    let dir = tempfile::tempdir()?;
    make_for_arm(dir.path(), &["--iso", "-o", "stick.iso"].map(OsStr::new))?;
    let image = dir.path().join("stick.iso");
    for (machine, controller, medium) in [(ACPI, "virtio-scsi-pci", SCSI_CD), (TREE, "qemu-xhci", USB_CD)] {
        let arguments = ["-M", machine, "-bios", &edk2()?, "-device", controller];
        boots(dir.path(), controller, &arm(&arguments), medium, &image, &[])?;
    }
    Ok(())
}

fn network_on_arm() -> Result<()> {
    let dir = tempfile::tempdir()?;
    make_for_arm(dir.path(), &["--netboot".as_ref(), dir.path().as_os_str()])?;
    let firmware = edk2()?;
    boots_by_network(dir.path(), &arm(&["-M", TREE, "-bios", &firmware]), &arm(&["-M", ACPI, "-bios", &firmware]))
}

/// With AMD-V, on which the image runs a guest.
fn network_on_a_pc() -> Result<()> {
    let dir = tempfile::tempdir()?;
    make_with(dir.path(), "pc", &["--netboot".as_ref(), dir.path().as_os_str(), "--append".as_ref(), "only=multiboot".as_ref()])?;
    let board = Firmware { cpu: AMD_V, ..PLAIN };
    boots_by_network(dir.path(), &board, &board)
}

/// Boots one machine by PXE, and one by HTTP, with the program for network boot in `dir`.
fn boots_by_network(dir: &Path, by_pxe: &Firmware<'_>, by_http: &Firmware<'_>) -> Result<()> {
    boots(dir, "pxe", by_pxe, PXE, dir, &[])?;
    let socket = http_boot::serve(dir, &dir.join("stile.efi"))?;
    boots(dir, "http", by_http, http_boot::MEDIUM, &socket, &http_boot::MORE)
}

fn boots(dir: &Path, name: &str, board: &Firmware<'_>, medium: [&str; 4], image: &Path, more: &[&str]) -> Result<()> {
    let dir = dir.join(name);
    fs::create_dir(&dir)?;
    let mut machine = Machine::start(&dir, board, medium, image, more)?;
    machine.wait_for(PASSED).with_context(|| name.to_owned())?;
    machine.wait_for_end()
}

fn arm<'a>(arguments: &'a [&'a str]) -> Firmware<'a> {
    Firmware { program: "qemu-system-aarch64", files: None, arguments, cpu: "max" }
}

/// Makes an image with a guest for Arm by `stile image`.
///
/// # Errors
/// The guest does not compile, or the image can't be made.
pub fn make_for_arm(dir: &Path, arguments: &[&OsStr]) -> Result<()> {
    let kernel = Programs::build(Arch::Aarch64)?.path("psci")?;
    let machine = ["--vcpus", "2", "--memory", "64M", "--append", "stile only=version", "--kernel", &kernel].map(OsStr::new);
    make(dir, &[&machine, arguments].concat())
}
