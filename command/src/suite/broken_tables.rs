//! ACPI tables of a PC with wrong bytes: each boot runs its guest, or says why it does not.
//!
//! A debugger changes the tables where the BIOS has put them, when the boot loader enters Stile.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

use super::debugger::Debugger;
use super::firmware_pc::{AMD_V, BIOS, Firmware, Machine, make_with, spcr};
use stile::programs::PASSED;

/// The test's name.
pub const NAME: &str = "long/broken-tables";

/// Number of boots: each has its own changes, which its number determines.
const BOOTS: u64 = 100;

/// A refusal of Stile's, and a panic.
pub const REFUSED: &str = "Stile can't run here: ";
const PANIC: &str = "panic: ";

/// Size of a table's header, and the offsets of its length and its checksum.
pub const HEADER: usize = 36;
const LENGTH: usize = 4;
const CHECKSUM: usize = 9;

/// The root pointer, among tables' names.
pub const ROOT_POINTER: &[u8; 4] = b"RSD ";

/// Tables that are changed: those that Stile reads.
const TABLES: [&[u8; 4]; 9] = [b"APIC", b"SRAT", b"MCFG", b"FACP", b"SPCR", b"DBG2", b"IVRS", b"RSDT", ROOT_POINTER];

/// A machine with all of these tables but the consoles': two nodes, and an IOMMU.
pub const MACHINE: [&str; 10] = [
    "-object",
    "memory-backend-ram,id=a,size=256M",
    "-object",
    "memory-backend-ram,id=b,size=256M",
    "-numa",
    "node,memdev=a,cpus=0",
    "-numa",
    "node,memdev=b,cpus=1",
    "-device",
    "amd-iommu,intremap=on,pt=off",
];

/// Boots with changed tables.
///
/// # Errors
/// A boot panics, or ends or goes on in silence; its number and changes are part of the message.
pub fn test() -> Result<(), String> {
    boot_all().map_err(|error| format!("{error:#}"))
}

fn boot_all() -> Result<()> {
    let dir = tempfile::tempdir()?;
    make_with(dir.path(), "pc", &["--netboot".as_ref(), dir.path().as_os_str(), "--append".as_ref(), "only=multiboot".as_ref()])?;
    let image = dir.path().join("stile.efi");
    let tables = consoles(dir.path())?;
    for boot in 0..BOOTS {
        let mut changes = Vec::new();
        // One after the other: a message names the boot.
        run(dir.path(), &image, &tables, boot, &mut changes).with_context(|| format!("boot {boot}: {}", changes.join(", ")))?;
    }
    Ok(())
}

/// Writes tables of two consoles, an SPCR and a DBG2, to files, and returns the emulator's values for `-acpitable`.
///
/// # Errors
/// A file can't be written.
pub fn consoles(dir: &Path) -> Result<[String; 2]> {
    let tables = [("spcr", spcr()), ("dbg2", dbg2())].map(|(name, table)| (dir.join(name), table));
    for (file, table) in &tables {
        fs::write(file, table)?;
    }
    Ok(tables.map(|(file, _)| format!("file={}", file.display())))
}

fn run(dir: &Path, image: &Path, [spcr, dbg2]: &[String; 2], boot: u64, changes: &mut Vec<String>) -> Result<()> {
    let dir = dir.join(boot.to_string());
    fs::create_dir(&dir)?;
    let second = dir.join("second.log");
    let socket = Debugger::argument(&dir);
    let second_port = format!("file:{}", second.display());
    let more = ["-serial", &second_port, "-acpitable", spcr, "-acpitable", dbg2, "-S", "-gdb", &socket];
    let more = [&MACHINE[..], &more].concat();
    let mut machine = Machine::start(&dir, &Firmware { cpu: AMD_V, ..BIOS }, ["-vga", "none", "-kernel", ""], image, &more)?;
    let mut debugger = Debugger::connect(&dir)?;
    debugger.run_to(entry(&fs::read(image)?)?)?;
    let mut random = Random(boot);
    let chosen = TABLES[random.below(TABLES.len())];
    let found = find(&mut debugger, chosen)?;
    change(&mut debugger, chosen, found, &mut random, changes)?;
    debugger.leave()?;
    // On either port: a changed SPCR may name none.
    runs_or_refuses(&mut machine, Some(&second), &[PASSED, REFUSED])
}

/// Waits for one of these messages on the first serial port, or on the second one, whose output is in the file `second`.
///
/// # Errors
/// Stile panicked, or none came in time.
pub fn runs_or_refuses(machine: &mut Machine, second: Option<&Path>, ends: &[&str]) -> Result<()> {
    let output = |machine: &Machine| {
        let more = second.map(|second| fs::read(second).unwrap_or_default()).unwrap_or_default();
        machine.serial() + &String::from_utf8_lossy(&more)
    };
    let ended = machine.wait_until(|machine| ends.iter().chain(&[PANIC]).any(|text| output(machine).contains(text)));
    let output = output(machine);
    ended.with_context(|| output.clone())?;
    ensure!(!output.contains(PANIC), "Stile panicked:\n{output}");
    Ok(())
}

/// Physical address at which a boot loader enters an image, by its Multiboot header.
fn entry(image: &[u8]) -> Result<u64> {
    const MAGIC: [u8; 4] = 0x1bad_b002_u32.to_le_bytes();
    const ENTRY: usize = 28;
    let header = image.windows(4).position(|bytes| bytes == MAGIC).context("the image has no Multiboot header")?;
    word(image, header + ENTRY)
}

/// A word of four bytes.
///
/// # Errors
/// The bytes end before.
pub fn word(bytes: &[u8], at: usize) -> Result<u64> {
    let word = bytes.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).context("a table ends early")?;
    Ok(u32::from_le_bytes(word).into())
}

/// Changes some bytes of a table at an address, and mostly its checksum, too.
///
/// # Errors
/// The emulator refuses.
pub fn change(
    debugger: &mut Debugger,
    chosen: &[u8; 4],
    (address, mut table): (u64, Vec<u8>),
    random: &mut Random,
    changes: &mut Vec<String>,
) -> Result<()> {
    let name = String::from_utf8_lossy(chosen).into_owned();
    let (checksum, start) = if chosen == ROOT_POINTER { (8, 0) } else { (CHECKSUM, if random.below(5) == 0 { 0 } else { HEADER }) };
    for _ in 0..[1, 1, 2, 4, 16][random.below(5)] {
        let at = start + random.below(table.len() - start);
        let value = [table[at] ^ 1 << random.below(8), random.below(256) as u8, 0, u8::MAX][random.below(4)];
        changes.push(format!("{name}+{at:#x} {:#x} to {value:#x}", table[at]));
        table[at] = value;
    }
    if random.below(10) != 0 {
        let sum = table.iter().fold(0_u8, |sum, byte| sum.wrapping_add(*byte));
        table[checksum] = table[checksum].wrapping_sub(sum);
    }
    debugger.write(address, &table)
}

/// Reads a table.
///
/// # Errors
/// The emulator refuses.
pub fn read(debugger: &mut Debugger, address: u64) -> Result<Vec<u8>> {
    let length = word(&debugger.read(address, HEADER)?, LENGTH)?;
    debugger.read(address, length as usize)
}

/// The address and the bytes of a table, or of the root pointer, "RSD PTR ".
fn find(debugger: &mut Debugger, name: &[u8; 4]) -> Result<(u64, Vec<u8>)> {
    const BIOS_AREA: u64 = 0xe_0000;
    /// Size of the root pointer's first version, and the offset of the RSDT's address in it.
    const ROOT: usize = 20;
    const RSDT: usize = 16;
    let area = debugger.read(BIOS_AREA, 0x2_0000)?;
    let at = area.windows(8).step_by(16).position(|bytes| bytes == b"RSD PTR ").context("the BIOS has no root pointer")? * 16;
    let root = area.get(at..at + ROOT).context("the root pointer ends early")?;
    if name == ROOT_POINTER {
        return Ok((BIOS_AREA + at as u64, root.to_vec()));
    }
    let address = word(root, RSDT)?;
    let rsdt = read(debugger, address)?;
    if name == b"RSDT" {
        return Ok((address, rsdt));
    }
    for at in (HEADER..rsdt.len()).step_by(4) {
        let address = word(&rsdt, at)?;
        let table = read(debugger, address)?;
        if table.starts_with(name) {
            return Ok((address, table));
        }
    }
    bail!("the machine has no table {}", String::from_utf8_lossy(name))
}

/// A "Debug Port Table 2" of the second serial port.
fn dbg2() -> Vec<u8> {
    /// Lengths of the table's part before the device, and of the device with its registers, their size and a name.
    const BEFORE: u8 = 44;
    const DEVICE: u8 = 22 + 12 + 4 + 2;
    let mut table = vec![0; usize::from(BEFORE + DEVICE)];
    table[..5].copy_from_slice(&[b'D', b'B', b'G', b'2', BEFORE + DEVICE]);
    (table[36], table[40]) = (BEFORE, 1);
    let device = &mut table[usize::from(BEFORE)..];
    // One address, a name of two bytes; a serial port (0x8000) of the 16550's kind (0); offsets of registers and their size.
    (device[1], device[3], device[4], device[6], device[13], device[18], device[20]) = (DEVICE, 1, 2, 38, 0x80, 22, 34);
    device[22..30].copy_from_slice(&[1, 8, 0, 1, 0xf8, 2, 0, 0]);
    (device[34], device[38]) = (8, b'.');
    table[CHECKSUM] = table.iter().fold(0_u8, |sum, byte| sum.wrapping_sub(*byte));
    table
}

/// Numbers that look random, the same for each seed: SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators").
pub struct Random(pub u64);

impl Random {
    /// The next one, below a limit.
    pub fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ mixed >> 31) % end as u64) as usize
    }
}
