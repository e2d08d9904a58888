//! ACPI tables of an Arm machine with wrong bytes: each boot runs its guest, or says why it does not.
//!
//! EDK2 starts Stile. The image's first instruction for firmware is a branch to itself: a debugger waits for it, changes the tables that
//! firmware has installed, and puts the instruction back.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use super::broken_tables::{HEADER, REFUSED, ROOT_POINTER, Random, change, read, runs_or_refuses, word};
use super::debugger::{Debugger, PC, X1};
use super::firmware_pc::{Firmware, Machine, edk2, make};
use stile::config::Arch;
use stile::programs::{PASSED, Programs};

/// The test's name.
pub const NAME: &str = "long/broken-tables-arm";

/// Number of boots: each has its own changes, which its number determines.
const BOOTS: u64 = 100;

/// Tables that are changed: those that Stile reads, and others that describe the machine.
const TABLES: [&[u8; 4]; 11] = [b"APIC", b"GTDT", b"FACP", b"SPCR", b"DBG2", b"SRAT", b"MCFG", b"IORT", b"PPTT", b"XSDT", ROOT_POINTER];

/// A machine with all of these tables: two nodes.
const MACHINE: [&str; 8] = [
    "-object",
    "memory-backend-ram,id=a,size=256M",
    "-object",
    "memory-backend-ram,id=b,size=256M",
    "-numa",
    "node,memdev=a,cpus=0-1",
    "-numa",
    "node,memdev=b",
];

/// The instruction `b .`, and the registers with its address and that of firmware's system table.
const STAY: Stay = Stay { instruction: &0x1400_0000_u32.to_le_bytes(), pc: PC, system: X1 };

/// Boots with changed tables.
///
/// # Errors
/// A boot panics, or ends or goes on in silence; its number and changes are part of the message.
pub fn test() -> Result<(), String> {
    boot_all().map_err(|error| format!("{error:#}"))
}

fn boot_all() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let kernel = Programs::build(Arch::Aarch64)?.path("psci")?;
    let arguments = ["--vcpus", "2", "--memory", "64M", "--append", "stile only=version", "--kernel", &kernel, "--netboot"];
    make(dir.path(), &[&arguments.map(AsRef::as_ref)[..], &[dir.path().as_os_str()]].concat())?;
    let file = dir.path().join("stile.efi");
    let mut image = fs::read(&file)?;
    let original = STAY.insert(&mut image)?;
    fs::write(&file, image)?;
    let firmware = edk2()?;
    for boot in 0..BOOTS {
        let mut changes = Vec::new();
        // One after the other: a message names the boot.
        run(dir.path(), &firmware, &file, &original, boot, &mut changes).with_context(|| format!("boot {boot}: {}", changes.join(", ")))?;
    }
    Ok(())
}

fn run(dir: &Path, firmware: &str, image: &Path, original: &[u8], boot: u64, changes: &mut Vec<String>) -> Result<()> {
    let dir = dir.join(boot.to_string());
    fs::create_dir(&dir)?;
    let socket = Debugger::argument(&dir);
    let more = [&MACHINE[..], &["-gdb", &socket]].concat();
    let arguments = ["-M", "virt,virtualization=on,gic-version=3,iommu=smmuv3", "-bios", firmware];
    let board = Firmware { program: "qemu-system-aarch64", files: None, arguments: &arguments, cpu: "cortex-a72" };
    let mut machine = Machine::start(&dir, &board, ["-vga", "none", "-kernel", ""], image, &more)?;
    let (mut debugger, at) = STAY.wait(&dir, &mut machine)?;
    let mut random = Random(boot);
    let chosen = TABLES[random.below(TABLES.len())];
    let found = find(&mut debugger, STAY.system, chosen)?;
    change(&mut debugger, chosen, found, &mut random, changes)?;
    debugger.write(at, original)?;
    debugger.leave()?;
    runs_or_refuses(&mut machine, None, &[PASSED, REFUSED])
}

/// A branch to itself at an image's entry, where a debugger finds the CPU.
pub struct Stay {
    /// The instruction.
    pub instruction: &'static [u8],
    /// The debugger's number of the program counter.
    pub pc: u32,
    /// The number of the register in which firmware passes its system table.
    pub system: u32,
}

impl Stay {
    /// Puts the instruction at an image's entry. Returns the bytes that were there.
    ///
    /// # Errors
    /// The image is no EFI program.
    pub fn insert(&self, image: &mut [u8]) -> Result<Vec<u8>> {
        let entry = entry(image)?;
        let first = image.get_mut(entry..entry + self.instruction.len()).context("the image ends before its entry")?;
        let original = first.to_vec();
        first.copy_from_slice(self.instruction);
        Ok(original)
    }

    /// Waits until firmware has entered the image. Returns the entry's address.
    ///
    /// # Errors
    /// The machine ends, or the time limit expires, before that.
    pub fn wait(&self, dir: &Path, machine: &mut Machine) -> Result<(Debugger, u64)> {
        loop {
            machine.run_on()?;
            let mut debugger = Debugger::connect(dir)?;
            let at = debugger.register(self.pc)?;
            if debugger.read(at, self.instruction.len()).is_ok_and(|bytes| bytes == self.instruction) {
                return Ok((debugger, at));
            }
            debugger.leave()?;
        }
    }
}

/// Offset of an EFI program's entry in its file (PE Format, Optional Header: AddressOfEntryPoint; Section Table).
fn entry(image: &[u8]) -> Result<usize> {
    const SECTION: usize = 40;
    let half = |at: usize| Some(usize::from(u16::from_le_bytes(image.get(at..at + 2)?.try_into().ok()?)));
    let header = word(image, 0x3c)? as usize;
    let address = word(image, header + 0x28)?;
    let (sections, optional) = (half(header + 6), half(header + 20));
    let (sections, optional) = sections.zip(optional).context("the image is no EFI program")?;
    for section in (header + 24 + optional..).step_by(SECTION).take(sections) {
        let (length, start, offset) = (word(image, section + 8)?, word(image, section + 12)?, word(image, section + 20)?);
        if (start..start + length).contains(&address) {
            return Ok((address - start + offset) as usize);
        }
    }
    bail!("the image's entry is in no section")
}

/// The address and the bytes of a table, or of the root pointer, while the CPU is at the image's entry and the register `system` has the
/// address of firmware's system table (UEFI Specification, EFI System Table, EFI Configuration Table).
///
/// # Errors
/// There is no such table.
pub fn find(debugger: &mut Debugger, system: u32, name: &[u8; 4]) -> Result<(u64, Vec<u8>)> {
    const NUMBER_OF_ENTRIES: u64 = 0x68;
    const ENTRIES: u64 = 0x70;
    const ENTRY: usize = 24;
    const ACPI_2: [u8; 16] = [0x71, 0xe8, 0x68, 0x88, 0xf1, 0xe4, 0xd3, 0x11, 0xbc, 0x22, 0x00, 0x80, 0xc7, 0x3c, 0x88, 0x81];
    /// Size of the root pointer, and the offset of the XSDT's address in it.
    const ROOT: usize = 36;
    const XSDT: usize = 24;
    let system = debugger.register(system)?;
    let (number, entries) = (debugger.read_word(system + NUMBER_OF_ENTRIES)?, debugger.read_word(system + ENTRIES)?);
    let entries = debugger.read(entries, number as usize * ENTRY)?;
    let root = entries.chunks(ENTRY).find(|entry| entry.starts_with(&ACPI_2)).context("firmware has no ACPI tables")?;
    let double = |bytes: &[u8], at: usize| Ok::<_, anyhow::Error>(word(bytes, at)? | word(bytes, at + 4)? << 32);
    let at = double(root, ACPI_2.len())?;
    let root = debugger.read(at, ROOT)?;
    if name == ROOT_POINTER {
        return Ok((at, root));
    }
    let at = double(&root, XSDT)?;
    let xsdt = read(debugger, at)?;
    if name == b"XSDT" {
        return Ok((at, xsdt));
    }
    for entry in xsdt.get(HEADER..).unwrap_or_default().chunks(8) {
        let at = double(entry, 0)?;
        let table = read(debugger, at)?;
        if table.starts_with(name) {
            return Ok((at, table));
        }
    }
    bail!("the machine has no table {}", String::from_utf8_lossy(name))
}
