//! Firmware at EL3 that keeps SGIs 8 to 15 for itself, as TF-A does on boards: Stile wakes its CPUs all the same.
//!
//! Debian has no such firmware for an emulated board with two CPUs, so that a few instructions take its place. PSCI remains the emulator's.

use std::fs;

use anyhow::{Result, ensure};

use super::boards::Run;
use super::firmware_pc::{Firmware, Machine};
use stile::config::Arch;
use stile::programs::{PASSED, Programs};

/// The test's name, and the test.
pub const TEST: (&str, Run) = ("firmware/secure-sgis", wakes);

/// Addresses of the emulator's machine `virt`: its tree, where Stile is loaded, and where the firmware is.
const TREE: u32 = 0x4000_0000;
const IMAGE: u32 = 0x4020_0000;
const FIRMWARE: u32 = 0x5ff0_0000;

/// Registers of the GIC: GICD_CTLR, GICD_IGROUPR1, and GICR_IGROUPR0 of the first CPU and its distance to the second's.
const CONTROL: u32 = 0x800_0000;
const GROUPS: u32 = 0x800_0084;
const PRIVATE_GROUPS: u32 = 0x80b_0080;
const STRIDE: u32 = 0x2_0000;
/// GICD_CTLR: affinity routing of both states; with all groups enabled.
const ROUTING: u32 = 0x30;
const ENABLED: u32 = 0x37;

/// SCR_EL3: NS, RES1, HCE, RW. SPSR_EL3: EL2 with its stack pointer, all exceptions masked.
const SCR: u32 = 0x531;
const SPSR: u32 = 0x3c9;

/// A CPU without features that firmware has to enable for EL2.
const CPU: &str = "cortex-a72";

fn wakes() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let (config, image, firmware) = (dir.path().join("machine.toml"), dir.path().join("stile.img"), dir.path().join("firmware"));
    let kernel = Programs::build(Arch::Aarch64)?.path("psci")?;
    fs::write(&config, format!("[[vm]]\nname = \"guest\"\nkernel = \"{kernel}\"\nappend = \"stile\"\nvcpus = 2\nmemory = \"64M\"\n"))?;
    super::boards::build(&config, &image)?;
    fs::write(&firmware, program())?;
    let start = format!("loader,addr={FIRMWARE:#x},force-raw=on,cpu-num=0,file={}", firmware.display());
    let media = ["-device", &start, "-device", &format!("loader,addr={IMAGE:#x},force-raw=on,file=")];
    let arguments = ["-M", "virt,secure=on,virtualization=on,gic-version=3"];
    let board = Firmware { program: "qemu-system-aarch64", files: None, arguments: &arguments, cpu: CPU };
    let mut machine = Machine::start(dir.path(), &board, media, &image, &[])?;
    machine.wait_for(PASSED)?;
    ensure!(!machine.serial().contains("has not started"), "{}", machine.serial());
    Ok(())
}

/// Instructions at EL3: gives all interrupts but SGIs 8 to 15 to non-secure software, and enters Stile at EL2.
fn program() -> Vec<u8> {
    let mut words = Vec::new();
    let mut store = |address: u32, value: u32| {
        words.extend(constant(0, address));
        words.extend(constant(1, value));
        words.push(0xb900_0001); // str w1, [x0]
    };
    store(CONTROL, ROUTING);
    (GROUPS..).step_by(4).take(8).for_each(|address| store(address, u32::MAX));
    [PRIVATE_GROUPS, PRIVATE_GROUPS + STRIDE].into_iter().for_each(|address| store(address, 0xffff_00ff));
    store(CONTROL, ENABLED);
    // msr scr_el3, x0; msr spsr_el3, x0; msr elr_el3, x0
    for (value, write) in [(SCR, 0xd51e_1100), (SPSR, 0xd51e_4000), (IMAGE, 0xd51e_4020)] {
        words.extend(constant(0, value));
        words.push(write);
    }
    words.extend(constant(0, TREE));
    // The boot protocol's: x1 to x3 are zero. Then eret.
    words.extend([0xd280_0001, 0xd280_0002, 0xd280_0003, 0xd69f_03e0]);
    words.into_iter().flat_map(u32::to_le_bytes).collect()
}

/// Sets a register: movz, and movk of the upper half.
fn constant(register: u32, value: u32) -> [u32; 2] {
    [0xd280_0000 | (value & 0xffff) << 5 | register, 0xf2a0_0000 | (value >> 16) << 5 | register]
}
