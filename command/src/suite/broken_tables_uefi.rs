//! ACPI tables of a PC with wrong bytes, started by UEFI firmware: each boot runs its guest, or says why it does not. A table at an address
//! where firmware maps no memory must not end in firmware's exception handler.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::broken_tables::{HEADER, MACHINE, REFUSED, ROOT_POINTER, Random, change, consoles, runs_or_refuses};
use super::broken_tables_arm::{Stay, find};
use super::debugger::{Debugger, RDX, RIP};
use super::firmware_pc::{AMD_V, FOLDER, Firmware, Machine, PLAIN, make_with};
use stile::programs::PASSED;

/// The test's name.
pub const NAME: &str = "long/broken-tables-uefi";

/// Number of boots with random bytes: the boot's number is the seed.
const BOOTS: u64 = 60;

/// Tables that are changed: those that Stile reads.
const TABLES: [&[u8; 4]; 9] = [b"APIC", b"SRAT", b"MCFG", b"FACP", b"SPCR", b"DBG2", b"IVRS", b"XSDT", ROOT_POINTER];

/// Addresses of tables that are not there: firmware maps the first 4 GiB and all memory, and leaves the first page unmapped.
const NOWHERE: [u64; 6] = [8, 0xc000_0000, 0xfee0_0000, 1 << 33, 1 << 46, 1 << 63];

/// `jmp .`, and the registers with its address and that of firmware's system table.
const STAY: Stay = Stay { instruction: &[0xeb, 0xfe], pc: RIP, system: RDX };

/// A change of firmware's tables.
enum Change {
    /// Wrong bytes, determined by a seed.
    Random(u64),
    /// The first entry of the XSDT.
    Table(u64),
    /// The root pointer's addresses of XSDT and RSDT.
    Roots(u64),
}

/// Boots with changed tables.
///
/// # Errors
/// A boot panics, or ends or goes on in silence; its number and changes are part of the message.
pub fn test() -> Result<()> {
    let dir = tempfile::tempdir()?;
    make_with(dir.path(), "pc", &["--netboot".as_ref(), dir.path().as_os_str(), "--append".as_ref(), "only=multiboot".as_ref()])?;
    let mut image = fs::read(dir.path().join("stile.efi"))?;
    let original = STAY.insert(&mut image)?;
    let (medium, program) = (dir.path().join("medium"), "EFI/BOOT");
    fs::create_dir_all(medium.join(program))?;
    fs::write(medium.join(program).join("BOOTX64.EFI"), image)?;
    let tables = consoles(dir.path())?;
    let changes = NOWHERE.into_iter().flat_map(|at| [Change::Table(at), Change::Roots(at)]).chain((0..BOOTS).map(Change::Random));
    for (boot, change) in changes.enumerate() {
        let mut done = Vec::new();
        // One after the other: a message names the boot.
        let dir = dir.path().join(boot.to_string());
        run(&dir, &medium, &tables, &original, &change, &mut done).with_context(|| format!("boot {boot}: {}", done.join(", ")))?;
    }
    Ok(())
}

fn run(dir: &Path, medium: &Path, [spcr, dbg2]: &[String; 2], original: &[u8], change: &Change, done: &mut Vec<String>) -> Result<()> {
    fs::create_dir(dir)?;
    let second = dir.join("second.log");
    let (socket, second_port) = (Debugger::argument(dir), format!("file:{}", second.display()));
    let more = ["-serial", &second_port, "-acpitable", spcr, "-acpitable", dbg2, "-gdb", &socket];
    let more = [&MACHINE[..], &more].concat();
    let mut machine = Machine::start(dir, &Firmware { cpu: AMD_V, ..PLAIN }, FOLDER, medium, &more)?;
    let (mut debugger, at) = STAY.wait(dir, &mut machine)?;
    apply(&mut debugger, change, done)?;
    debugger.write(at, original)?;
    debugger.leave()?;
    // On either port: a changed SPCR may name none.
    runs_or_refuses(&mut machine, Some(&second), &[PASSED, REFUSED])
}

fn apply(debugger: &mut Debugger, wanted: &Change, done: &mut Vec<String>) -> Result<()> {
    /// Offsets of the root pointer's checksums, of the first version and of all of it, and of its addresses.
    const SUMS: [(usize, usize); 2] = [(8, 20), (32, 36)];
    const RSDT: usize = 16;
    const XSDT: usize = 24;
    let corrected = |table: &mut [u8], sum: usize, length: usize| {
        let all = table.iter().take(length).fold(0_u8, |sum, byte| sum.wrapping_add(*byte));
        table[sum] = table[sum].wrapping_sub(all);
    };
    match *wanted {
        Change::Random(seed) => {
            let mut random = Random(seed);
            let chosen = TABLES[random.below(TABLES.len())];
            let found = find(debugger, STAY.system, chosen)?;
            change(debugger, chosen, found, &mut random, done)
        }
        Change::Table(to) => {
            let (at, mut table) = find(debugger, STAY.system, b"XSDT")?;
            table[HEADER..HEADER + 8].copy_from_slice(&to.to_le_bytes());
            let length = table.len();
            corrected(&mut table, 9, length);
            done.push(format!("the first table at {to:#x}"));
            debugger.write(at, &table)
        }
        Change::Roots(to) => {
            let (at, mut table) = find(debugger, STAY.system, ROOT_POINTER)?;
            table[RSDT..RSDT + 4].copy_from_slice(&to.to_le_bytes()[..4]);
            table[XSDT..XSDT + 8].copy_from_slice(&to.to_le_bytes());
            for (sum, length) in SUMS {
                corrected(&mut table, sum, length);
            }
            done.push(format!("the roots at {to:#x}"));
            debugger.write(at, &table)
        }
    }
}
