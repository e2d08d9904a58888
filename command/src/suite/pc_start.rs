//! Starts on PCs whose firmware or boot loader leaves processors in unusual states: five-level paging, no execute-disable bit, locked VMX.
//! And the screen after functions were stopped.

use std::ffi::OsStr;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::firmware_pc::{AMD_V, BIOS, CD, DISK, Firmware, Machine, PLAIN, Run, image, make, make_with};
use super::slowdown::stretched;
use super::{grub, screen};
use stile::config::Arch;
use stile::emulator::{Boot, Machine as Emulated, Pc, bochs};
use stile::programs::{PASSED, Programs};

/// The tests' names, and the tests.
pub const TESTS: [(&str, Run); 5] = [
    ("firmware/pc-five-levels", five_levels_of_a_loader),
    ("firmware/pc-five-levels-uefi", five_levels_of_firmware),
    ("firmware/pc-no-execute-disable", no_execute_disable),
    ("firmware/pc-screen-stays", screen_stays),
    ("firmware/pc-vmx-locked", locked_vmx),
];

/// A guest that ends at once.
const SHORT: [&str; 2] = ["--append", "only=multiboot"];

/// CR4.LA57.
const LA57: u64 = 1 << 12;

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

/// Firmware runs with five-level paging. Debian's OVMF does not turn it on, so a debugger puts a table above the firmware's while it waits
/// for a key. The machine has one CPU: the firmware has set up others for its own tables by then.
fn five_levels_of_firmware() -> Result<()> {
    /// A page of memory that firmware leaves alone.
    const TOP: u64 = 64 << 20;
    const PRESENT_WRITABLE: u64 = 0b11;
    let dir = tempfile::tempdir()?;
    let image = image(dir.path(), "pc", &SHORT)?;
    let socket = Debugger::argument(dir.path());
    let waits = ["-smp", "1", "-boot", "menu=on,splash-time=20000", "-gdb", &socket];
    let mut machine = Machine::start(dir.path(), &Firmware { cpu: AMD_V, ..PLAIN }, DISK, &image, &waits)?;
    // The firmware clears the terminal before it waits.
    machine.wait_for("\x1b[")?;
    let mut debugger = Debugger::connect(dir.path())?;
    let (root, value) = (debugger.register(CR3)?, debugger.register(CR4)?);
    ensure!(value & LA57 == 0, "the firmware has turned five-level paging on by itself: the test needs no debugger any more");
    let mut table = [0; 512];
    table[0] = root & !0xfff | PRESENT_WRITABLE;
    debugger.write(TOP, &table)?;
    debugger.set_register(CR3, TOP)?;
    debugger.set_register(CR4, value | LA57)?;
    debugger.leave()?;
    machine.wait_for(PASSED)?;
    machine.wait_for_end()
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

/// QEMU's numbers of these registers in its protocol for debuggers.
const CR3: u32 = 29;
const CR4: u32 = 30;

/// A debugger of the emulated machine, by GDB's remote serial protocol. The machine stands still while it is connected.
struct Debugger(UnixStream);

impl Debugger {
    /// The emulator's argument after `-gdb`.
    fn argument(dir: &Path) -> String {
        format!("unix:{},server=on,wait=off", dir.join("gdb.sock").display())
    }

    fn connect(dir: &Path) -> Result<Debugger> {
        const TRIES: u32 = 300;
        let mut tries = 0..TRIES;
        let socket = loop {
            match UnixStream::connect(dir.join("gdb.sock")) {
                Ok(socket) => break socket,
                Err(error) if error.kind() != ErrorKind::NotFound && error.kind() != ErrorKind::ConnectionRefused => {
                    return Err(error.into());
                }
                Err(error) if tries.next().is_none() => return Err(error).context("connecting to the emulator"),
                Err(_) => thread::sleep(Duration::from_millis(100)),
            }
        };
        socket.set_read_timeout(Some(Duration::from_secs(60)))?;
        let mut debugger = Debugger(socket);
        debugger.ask("?")?;
        Ok(debugger)
    }

    /// Sends a packet. Returns the answer.
    fn ask(&mut self, packet: &str) -> Result<String> {
        let sum = packet.bytes().fold(0_u8, u8::wrapping_add);
        write!(self.0, "${packet}#{sum:02x}")?;
        let mut byte = || -> Result<u8> {
            let mut byte = [0];
            self.0.read_exact(&mut byte)?;
            Ok(byte[0])
        };
        while byte()? != b'$' {}
        let mut answer = String::new();
        loop {
            match byte()? {
                b'#' => break,
                other => answer.push(other.into()),
            }
        }
        // The sum.
        for _ in 0..2 {
            byte()?;
        }
        write!(self.0, "+")?;
        Ok(answer)
    }

    fn expect_ok(&mut self, packet: &str) -> Result<()> {
        let answer = self.ask(packet)?;
        ensure!(answer == "OK", "the emulator answers {answer:?} to {packet:?}");
        Ok(())
    }

    fn register(&mut self, number: u32) -> Result<u64> {
        let answer = self.ask(&format!("p{number:x}"))?;
        Ok(u64::from_str_radix(&answer, 16).with_context(|| format!("register {number} is {answer:?}"))?.swap_bytes())
    }

    fn set_register(&mut self, number: u32, value: u64) -> Result<()> {
        self.expect_ok(&format!("P{number:x}={:016x}", value.swap_bytes()))
    }

    fn write(&mut self, address: u64, words: &[u64]) -> Result<()> {
        /// Words of a packet, whose length is limited.
        const MOST: usize = 64;
        for (address, words) in (address..).step_by(8 * MOST).zip(words.chunks(MOST)) {
            let bytes: String = words.iter().map(|word| format!("{:016x}", word.swap_bytes())).collect();
            self.expect_ok(&format!("M{address:x},{:x}:{bytes}", 8 * words.len()))?;
        }
        Ok(())
    }

    /// Disconnects: the machine goes on.
    fn leave(mut self) -> Result<()> {
        self.expect_ok("D")
    }
}
