//! Starts on PCs whose firmware or boot loader leaves processors in unusual states: five-level paging, no execute-disable bit, locked VMX.
//! And the screen after functions were stopped.

use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::debugger::{CR3, CR4, Debugger, RAX, RSP};
use super::firmware_pc::{AMD_V, BIOS, CD, DISK, Firmware, Machine, PLAIN, Run, image, make, make_with};
use super::slowdown::stretched;
use super::{grub, screen};
use stile::config::Arch;
use stile::emulator::{Boot, Machine as Emulated, Pc, bochs};
use stile::programs::{PASSED, Programs};

/// The tests' names, and the tests.
pub const TESTS: [(&str, Run); 6] = [
    ("firmware/pc-five-levels", five_levels_of_a_loader),
    ("firmware/pc-five-levels-uefi", five_levels_of_firmware),
    ("firmware/pc-no-execute-disable", no_execute_disable),
    ("firmware/pc-no-memory", no_memory),
    ("firmware/pc-screen-stays", screen_stays),
    ("firmware/pc-vmx-locked", locked_vmx),
];

/// A guest that ends at once.
const SHORT: [&str; 2] = ["--append", "only=multiboot"];

/// CR4.LA57.
const LA57: u64 = 1 << 12;

/// Firmware has no memory where Stile needs it. No emulated PC lacks it, so that the image asks for memory below one page.
fn no_memory() -> Result<()> {
    /// The limit of AllocatePages in `efi.S`, 4 GiB: `mov eax, 0xffffffff`, `mov [rsp + 40], rax`.
    const LIMIT: [u8; 10] = [0xb8, 0xff, 0xff, 0xff, 0xff, 0x48, 0x89, 0x44, 0x24, 0x28];
    let dir = tempfile::tempdir()?;
    let image = image(dir.path(), "pc", &SHORT)?;
    let mut bytes = fs::read(&image)?;
    let places: Vec<usize> = bytes.windows(LIMIT.len()).enumerate().filter(|(_, code)| **code == LIMIT).map(|(at, _)| at).collect();
    ensure!(!places.is_empty(), "the image has other code");
    for at in places {
        bytes[at + 1..at + 5].copy_from_slice(&0xfff_u32.to_le_bytes());
    }
    fs::write(&image, bytes)?;
    let mut machine = Machine::start(dir.path(), &Firmware { cpu: AMD_V, ..PLAIN }, DISK, &image, &[])?;
    machine.wait_for("Stile can't run here: the firmware has no memory below 4 GiB for the image")
}

/// A loader leaves CR4.LA57 set, without paging.
fn five_levels_of_a_loader() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let image = image(dir.path(), "pc", &SHORT)?;
    // Stopped at its first instruction. Neither the BIOS nor GRUB writes CR4.
    let socket = Debugger::argument(dir.path());
    let mut machine = Machine::start(dir.path(), &Firmware { cpu: AMD_V, ..BIOS }, CD, &image, &["-S", "-gdb", &socket])?;
    let mut debugger = Debugger::connect(dir.path())?;
    let value = debugger.register(CR4)?;
    debugger.set_register(CR4, value | LA57)?;
    debugger.leave()?;
    machine.wait_for(PASSED)?;
    machine.wait_for_end()
}

/// Firmware runs with five-level paging, and with one or several CPUs. Debian's OVMF does not turn it on, so a debugger puts a table above the
/// firmware's while it waits for a key. While boot services end, the first CPU has four levels again: there the firmware starts other CPUs
/// in the state of the first one, but with the CR4 that it had before.
fn five_levels_of_firmware() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let image = image(dir.path(), "pc", &SHORT)?;
    for cpus in ["1", "2", "4"] {
        let dir = dir.path().join(cpus);
        fs::create_dir(&dir)?;
        five_levels_with(&dir, &image, cpus).with_context(|| format!("with {cpus} CPUs"))?;
    }
    Ok(())
}

fn five_levels_with(dir: &Path, image: &Path, cpus: &str) -> Result<()> {
    /// Two pages of memory that firmware and Stile leave alone: both take memory from its end.
    const TOP: u64 = 64 << 20;
    const FOUR_LEVELS: u64 = TOP + TABLE as u64;
    let socket = Debugger::argument(dir);
    let waits = ["-smp", cpus, "-boot", "menu=on,splash-time=20000", "-gdb", &socket];
    let mut machine = Machine::start(dir, &Firmware { cpu: AMD_V, ..PLAIN }, DISK, image, &waits)?;
    // The firmware clears the terminal before it waits.
    machine.wait_for("\x1b[")?;
    let mut debugger = Debugger::connect(dir)?;
    let (root, value) = (debugger.register(CR3)? & ADDRESS, debugger.register(CR4)?);
    ensure!(value & LA57 == 0, "the firmware has turned five-level paging on by itself: the test needs no debugger any more");
    let mut table = [0; TABLE];
    table[..8].copy_from_slice(&(root | PRESENT_WRITABLE).to_le_bytes());
    debugger.write(TOP, &table)?;
    debugger.set_register(CR3, TOP)?;
    debugger.set_register(CR4, value | LA57)?;

    let end = end_of_boot_services(&mut debugger)?;
    debugger.run_to(end)?;
    let five_levels = debugger.register(CR3)?;
    let mut table = debugger.read(root, TABLE)?;
    // Stile has mapped itself at the end of the addresses, by a table of its own.
    let own = debugger.read_word((five_levels & ADDRESS) + LAST)? & ADDRESS;
    table[LAST as usize..].copy_from_slice(&debugger.read(own + LAST, 8)?);
    debugger.write(FOUR_LEVELS, &table)?;
    debugger.set_register(CR3, FOUR_LEVELS)?;
    debugger.set_register(CR4, value)?;
    let stack = debugger.register(RSP)?;
    let caller = debugger.read_word(stack)?;
    debugger.run_to(caller)?;
    ensure!(debugger.register(RAX)? == 0, "boot services did not end at once");
    debugger.set_register(CR3, five_levels)?;
    debugger.set_register(CR4, value | LA57)?;
    debugger.leave()?;
    machine.wait_for(PASSED)?;
    machine.wait_for_end()
}

/// Size of a table, the offset of its last entry, the address in an entry, and flags.
const TABLE: usize = 4096;
const LAST: u64 = TABLE as u64 - 8;
const ADDRESS: u64 = 0xf_ffff_ffff_f000;
const PRESENT_WRITABLE: u64 = 0b11;

/// Address of ExitBootServices.
fn end_of_boot_services(debugger: &mut Debugger) -> Result<u64> {
    /// Firmware leaves a pointer to its system table for debuggers at a multiple of this (UEFI Specification, "EFI_SYSTEM_TABLE_POINTER").
    const STEP: u64 = 4 << 20;
    const MEMORY: u64 = 512 << 20;
    /// Offsets of the table of boot services in the system table, and of the function in that.
    const BOOT_SERVICES: u64 = 0x60;
    const EXIT: u64 = 0xe8;
    for at in (0..MEMORY / STEP).rev().map(|n| n * STEP) {
        if debugger.read(at, 8)? == *b"IBI SYST" {
            let system = debugger.read_word(at + 8)?;
            let services = debugger.read_word(system + BOOT_SERVICES)?;
            return debugger.read_word(services + EXIT);
        }
    }
    bail!("the firmware has no pointer to its system table")
}

/// A CPU whose execute-disable bit is absent or hidden, with which Stile's tables are invalid.
fn no_execute_disable() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let image = image(dir.path(), "pc", &SHORT)?;
    let mut machine = Machine::start(dir.path(), &Firmware { cpu: "max,-nx", ..BIOS }, CD, &image, &[])?;
    machine.wait_for("Stile can't run here: the CPU has no execute-disable bit, or the firmware hides it")
}

/// Stile has stopped all functions to assign one to a VM, and finds it missing. The screen, a function of the same bus, still shows the
/// message.
fn screen_stays() -> Result<()> {
    const MISSING: &str = "can't be assigned: ";
    let dir = tempfile::tempdir()?;
    let kernel = Programs::build(Arch::X86_64)?.path("pc")?;
    let config = format!(
        "[machine]\narch = \"x86_64\"\ncpu = \"max\"\ncpus = 2\n\n\
         [[vm]]\nname = \"owner\"\nkernel = \"{kernel}\"\nmemory = \"64M\"\n[[vm.pci]]\nfunction = \"0000:00:1e.0\"\n"
    );
    fs::write(dir.path().join("machine.toml"), config)?;
    make(dir.path(), &["machine.toml".as_ref(), "--netboot".as_ref(), dir.path().as_os_str()])?;
    let medium = grub::for_bios(dir.path(), &dir.path().join("stile.efi"))?;
    let devices = ["-device", "amd-iommu,intremap=on,pt=off", "-vga", "std"];
    let mut machine = Machine::start(dir.path(), &Firmware { cpu: AMD_V, ..BIOS }, CD, &medium, &devices)?;
    machine.wait_for(MISSING)?;
    machine.retry(|| screen::check(dir.path(), &["owner: function 0000:00:1e.0 can't be assigned: ", "Stile can't run here: "]))
}

/// A BIOS that locks VMX while it is off is reported; one that leaves it off and unlocked is no obstacle.
fn locked_vmx() -> Result<()> {
    /// The BIOS's `or eax, 5` and `wrmsr`, on the register with a lock (bit 0) and VMX (bit 2).
    const ENABLE: [u8; 5] = [0x83, 0xc8, 5, 0x0f, 0x30];
    let dir = tempfile::tempdir()?;
    let stick = dir.path().join("stile.efi");
    make_with(dir.path(), "pc", &[&SHORT.map(OsStr::new)[..], &["--netboot".as_ref(), dir.path().as_os_str()]].concat())?;
    let original = fs::read(bochs::ensure()?.dir.join("BIOS-bochs-latest")).context("reading the BIOS")?;
    for (bits, says) in [(1, "Stile can't run here: the firmware has locked VMX: its setup may have a switch"), (0, PASSED)] {
        let mut bios = original.clone();
        let places: Vec<_> = (0..bios.len()).filter(|&at| bios[at..].starts_with(&ENABLE)).collect();
        ensure!(places.len() == 2, "the BIOS sets IA32_FEATURE_CONTROL at {} places", places.len());
        places.into_iter().for_each(|at| bios[at + 2] = bits);
        let file = dir.path().join("bios");
        fs::write(&file, bios)?;
        let extra = vec![format!("romimage: file=\"{}\", options=fastboot", file.display())];
        let pc = Pc { cpu: "corei7_skylake_x".into(), cpus: 2, memory: 512 << 20, boot: Boot::default(), extra, counts: None };
        let (mut emulator, mut pipes) = Emulated::Pc(pc).start(&stick)?;
        let reader = thread::spawn(move || {
            let mut output = Vec::new();
            // Bochs resets the connection when it ends.
            let _ = pipes.output.read_to_end(&mut output);
            String::from_utf8_lossy(&output).into_owned()
        });
        let ended = emulator.wait(stretched(Duration::from_secs(300)));
        emulator.kill();
        let output = reader.join().ok().context("the reader panicked")?;
        ensure!(ended.is_some() && output.contains(says), "no {says:?}:\n{output}");
    }
    Ok(())
}
