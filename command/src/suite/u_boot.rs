//! U-Boot's UEFI implementation starts Stile from a disk. It loads an EFI program's headers and sections, and nothing between them.

use std::process::Command;

use anyhow::{Result, ensure};

use super::firmware_pc::{DISK, Firmware, Machine, Run};
use stile::config::Arch;
use stile::debian;
use stile::programs::{PASSED, Programs};

/// The test's name, and the test.
pub const TEST: (&str, Run) = ("firmware/u-boot", starts);

fn starts() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let image = dir.path().join("stick.img");
    let kernel = Programs::build(Arch::Aarch64)?.path("psci")?;
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["image", "--vcpus", "2", "--memory", "64M", "--append", "stile", "--kernel", &kernel, "-o"]).arg(&image);
    let output = command.output()?;
    ensure!(output.status.success(), "stile image: {}", String::from_utf8_lossy(&output.stderr));
    let boot_loader = debian::tree(Arch::Aarch64, &["u-boot-qemu"])?.join("usr/lib/u-boot/qemu_arm64/u-boot.bin").display().to_string();
    let arguments = ["-M", "virt,virtualization=on,gic-version=3", "-bios", &boot_loader];
    let board = Firmware { program: "qemu-system-aarch64", files: None, arguments: &arguments, cpu: "max" };
    let mut machine = Machine::start(dir.path(), &board, DISK, &image, &[])?;
    machine.wait_for(PASSED)?;
    machine.wait_for_end()
}
