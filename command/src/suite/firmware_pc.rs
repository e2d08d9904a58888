//! UEFI firmware (OVMF) starts Stile on a PC, from a disk and a CD-ROM, and with Secure Boot; so does a BIOS.
//!
//! One image has programs with VMX and with AMD-V. QEMU's emulated processors have AMD-V, or neither: then the way ends where Stile says so, on
//! the serial line and on the screen.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;

use super::slowdown::stretched;
use super::{grub, screen};
use stile::child::end_with_parent;
use stile::config::Arch;
use stile::debian;
use stile::programs::{PASSED, Programs};

/// A test: the error is for people.
pub type Run = fn() -> Result<()>;

/// The tests' names, and the tests.
pub const TESTS: [(&str, Run); 5] = [
    ("firmware/pc", starts),
    ("firmware/pc-amd", runs_on_amd_v),
    ("firmware/pc-multiboot2", starts_by_multiboot2),
    ("firmware/pc-second-port", finds_the_second_port),
    ("firmware/pc-secure-boot", checks_signatures),
];

/// The emulator.
const PROGRAM: &str = "qemu-system-x86_64";

/// Last message of Stile on a CPU without both.
const NEITHER: &str = "Stile can't run here: the CPU has neither VMX nor AMD-V";

/// Time limit of a run: firmware takes ten seconds on an idle machine.
const LIMIT: Duration = Duration::from_secs(300);

/// Passphrase of the key that Debian's firmware for tests trusts (README.Debian of package ovmf).
const PASSPHRASE: &str = "snakeoil";

/// A machine's emulator and firmware.
pub struct Firmware<'a> {
    /// The emulator.
    pub program: &'static str,
    /// Code and variables in the folder of Debian's package; `None` for the emulator's BIOS.
    pub files: Option<[&'static str; 2]>,
    /// Further arguments of the emulator.
    pub arguments: &'a [&'a str],
    /// The processor.
    pub cpu: &'static str,
}

/// A processor with neither VMX nor AMD-V, and one with AMD-V.
const NO_VIRTUALIZATION: &str = "max,-svm";
pub const AMD_V: &str = "max";

/// OVMF.
pub const PLAIN: Firmware<'_> =
    Firmware { program: PROGRAM, files: Some(["OVMF_CODE_4M.fd", "OVMF_VARS_4M.fd"]), arguments: &["-M", "q35"], cpu: NO_VIRTUALIZATION };

/// The emulator's BIOS.
pub const BIOS: Firmware<'_> = Firmware { program: PROGRAM, files: None, arguments: &["-M", "q35"], cpu: NO_VIRTUALIZATION };

/// Firmware with Secure Boot on, which keeps its variables from others by system management mode.
const SECURE: Firmware<'_> = Firmware {
    program: PROGRAM,
    files: Some(["OVMF_CODE_4M.secboot.fd", "OVMF_VARS_4M.snakeoil.fd"]),
    arguments: &["-M", "q35,smm=on", "-global", "driver=cfi.pflash01,property=secure,value=on"],
    cpu: NO_VIRTUALIZATION,
};

/// Media, as the emulator's arguments, which `FILE` in them follows.
pub const DISK: [&str; 4] = ["-device", "virtio-blk-pci,drive=stick,romfile=", "-drive", "if=none,id=stick,format=raw,readonly=on,file="];
pub const WRITABLE_DISK: [&str; 4] = ["-device", "virtio-blk-pci,drive=stick,romfile=", "-drive", "if=none,id=stick,format=raw,file="];
pub const CD: [&str; 4] = ["-device", "ide-cd,drive=stick", "-drive", "if=none,id=stick,media=cdrom,format=raw,readonly=on,file="];

/// A folder as a disk, which the emulator makes of it.
pub const FOLDER: [&str; 4] =
    ["-device", "virtio-blk-pci,drive=stick,romfile=", "-drive", "if=none,id=stick,format=raw,readonly=on,file=fat:"];

/// Firmware starts Stile from a disk and from a CD-ROM. Its log is on the serial line and on the screen, where it stays. A BIOS
/// starts Stile, too: with a screen, and without one.
fn starts() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let image = image(dir.path(), "vmx", &[])?;
    let lines = ["Stile ", NEITHER, "The machine stays on, so that this can be read."];
    for (media, name) in [(DISK, "disk"), (CD, "cd")] {
        let dir = dir.path().join(name);
        fs::create_dir(&dir)?;
        let mut machine = Machine::start(&dir, &PLAIN, media, &image, &["-device", "VGA,romfile="])?;
        machine.wait_for(NEITHER).with_context(|| format!("from a {name}"))?;
        machine.retry(|| screen::check(&dir, &lines))?;
    }
    for (media, name, has_screen) in [(DISK, "bios-disk", false), (CD, "bios-cd", true)] {
        let dir = dir.path().join(name);
        fs::create_dir(&dir)?;
        let mut machine = Machine::start(&dir, &BIOS, media, &image, if has_screen { &["-vga", "std"] } else { &[] })?;
        machine.wait_for(NEITHER).with_context(|| format!("from a {name}"))?;
        if has_screen {
            machine.retry(|| screen::check(&dir, &lines))?;
        } else {
            machine.wait_for_end()?;
        }
    }
    Ok(())
}

/// With Secure Boot, firmware starts a signed program only. Without a screen the machine turns off.
fn checks_signatures() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let keys = tree()?.join("usr/share/ovmf");
    let key = dir.path().join("key.pem");
    let status = Command::new("openssl")
        .args(["pkey", "-passin", &format!("pass:{PASSPHRASE}"), "-in"])
        .arg(keys.join("PkKek-1-snakeoil.key"))
        .arg("-out")
        .arg(&key)
        .status()
        .context("running openssl")?;
    ensure!(status.success(), "openssl can't read the key of Debian's firmware");
    let certificate = keys.join("PkKek-1-snakeoil.pem").display().to_string();
    let key = key.display().to_string();
    for (signature, message) in [(&[][..], "Access Denied"), (&["--sign", &key, "--cert", &certificate][..], NEITHER)] {
        let dir = dir.path().join(signature.len().to_string());
        fs::create_dir(&dir)?;
        let image = image(&dir, "vmx", signature)?;
        let mut machine = Machine::start(&dir, &SECURE, DISK, &image, &[])?;
        machine.wait_for(message)?;
        if message == NEITHER {
            machine.wait_for_end()?;
        }
    }
    Ok(())
}

/// On a processor with AMD-V the same image runs a guest, started by firmware and by a BIOS.
fn runs_on_amd_v() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let image = image(dir.path(), "pc", &["--append", "only=multiboot"])?;
    for (firmware, media, name) in [(PLAIN, DISK, "disk"), (BIOS, CD, "bios-cd")] {
        let dir = dir.path().join(name);
        fs::create_dir(&dir)?;
        let mut machine = Machine::start(&dir, &Firmware { cpu: AMD_V, ..firmware }, media, &image, &[])?;
        machine.wait_for(PASSED).with_context(|| format!("from a {name}"))?;
        machine.wait_for_end()?;
    }
    Ok(())
}

/// GRUB starts Stile by Multiboot 2, under a BIOS and under UEFI firmware. The console is the second serial port, which an SPCR names. With the
/// BIOS, too, the log is on the screen, in the mode that GRUB sets.
fn starts_by_multiboot2() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let (program, table) = (dir.path().join("stile.efi"), dir.path().join("spcr"));
    make_with(dir.path(), "pc", &["--netboot".as_ref(), dir.path().as_os_str(), "--append".as_ref(), "only=multiboot".as_ref()])?;
    fs::write(&table, spcr())?;
    let acpi = format!("file={}", table.display());
    let second_port = ["-M", "q35", "-serial", "null", "-acpitable", &acpi];

    let medium = grub::for_bios(dir.path(), &program)?;
    let bios = dir.path().join("bios");
    fs::create_dir(&bios)?;
    let mut machine = Machine::start(&bios, &Firmware { arguments: &second_port, ..BIOS }, CD, &medium, &["-vga", "std"])?;
    machine.wait_for(NEITHER).context("under a BIOS")?;
    machine.retry(|| screen::check(&bios, &["Stile ", NEITHER, "The machine stays on, so that this can be read."]))?;
    drop(machine);

    let medium = grub::for_uefi(dir.path(), &program)?;
    let uefi = dir.path().join("uefi");
    fs::create_dir(&uefi)?;
    let mut machine = Machine::start(&uefi, &Firmware { arguments: &second_port, cpu: AMD_V, ..PLAIN }, FOLDER, &medium, &[])?;
    machine.wait_for(PASSED).context("under UEFI firmware")?;
    machine.wait_for_end()
}

/// The only serial port is the second one, and no table names it.
fn finds_the_second_port() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let image = image(dir.path(), "pc", &["--append", "only=multiboot"])?;
    let arguments = ["-M", "q35", "-serial", "none"];
    let mut machine = Machine::start(dir.path(), &Firmware { arguments: &arguments, cpu: AMD_V, ..BIOS }, CD, &image, &[])?;
    machine.wait_for(PASSED)?;
    machine.wait_for_end()
}

/// A "Serial Port Console Redirection Table" of the second serial port, at 115,200 baud.
pub fn spcr() -> Vec<u8> {
    let mut table = vec![0; 80];
    table[..9].copy_from_slice(b"SPCR\x50\0\0\0\x02");
    // "Base Address": a byte in I/O ports; interrupt 3 by the 8259s; the speed.
    table[40..52].copy_from_slice(&[1, 8, 0, 1, 0xf8, 2, 0, 0, 0, 0, 0, 0]);
    (table[52], table[53], table[58]) = (1, 3, 7);
    table[9] = table.iter().fold(0_u8, |sum, byte| sum.wrapping_sub(*byte));
    table
}

/// Makes an image by `stile image` with a program for guests.
///
/// # Errors
/// The guest does not compile, or the image can't be made.
pub fn image(dir: &Path, program: &str, arguments: &[&str]) -> Result<PathBuf> {
    let image = dir.join("stick.img");
    make_with(dir, program, &[&[OsStr::new("-o"), image.as_os_str()][..], &arguments.iter().map(OsStr::new).collect::<Vec<_>>()].concat())?;
    Ok(image)
}

/// Runs `stile image` with a program for guests.
///
/// # Errors
/// The guest does not compile, or the image can't be made.
pub fn make_with(dir: &Path, program: &str, arguments: &[&OsStr]) -> Result<()> {
    let kernel = Programs::build(Arch::X86_64)?.path(program)?;
    let machine = ["--arch", "x86_64", "--memory", "64M", "--kernel", &kernel].map(OsStr::new);
    make(dir, &[&machine, arguments].concat())
}

/// Runs `stile image`.
///
/// # Errors
/// It fails.
pub fn make(dir: &Path, arguments: &[&OsStr]) -> Result<()> {
    let output = Command::new(std::env::current_exe()?).arg("image").args(arguments).current_dir(dir).output()?;
    ensure!(output.status.success(), "stile image: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// Debian's EDK2 for QEMU's Arm board.
///
/// # Errors
/// The package can't be fetched.
pub fn edk2() -> Result<String> {
    Ok(debian::tree(Arch::Aarch64, &["qemu-efi-aarch64"])?.join("usr/share/qemu-efi-aarch64/QEMU_EFI.fd").display().to_string())
}

/// Debian's package with the firmware.
fn tree() -> Result<PathBuf> {
    debian::tree(Arch::X86_64, &["ovmf"])
}

/// An emulated PC.
pub struct Machine {
    child: Child,
    log: PathBuf,
    until: Instant,
}

impl Machine {
    /// Starts it with a medium; its files are in `dir`.
    ///
    /// # Errors
    /// The emulator or the firmware is missing.
    pub fn start(dir: &Path, firmware: &Firmware<'_>, media: [&str; 4], image: &Path, more: &[&str]) -> Result<Machine> {
        let log = dir.join("serial.log");
        let [option, device, drive, file] = media;
        let mut command = Command::new(firmware.program);
        command
            .args(firmware.arguments)
            .args(["-accel", "tcg", "-cpu", firmware.cpu, "-smp", "2", "-m", "512M", "-nodefaults", "-no-user-config", "-display", "none"])
            .args(["-no-reboot", drive, &format!("{file}{}", image.display()), option, device])
            .args(["-serial", &format!("file:{}", log.display())])
            .args(more)
            .args(screen::control(dir))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::inherit());
        if let Some(names) = firmware.files {
            let [code, original] = names.map(|name| tree().map(|tree| tree.join("usr/share/OVMF").join(name)));
            let (code, variables) = (code?, dir.join("variables.fd"));
            // A machine that starts again keeps them.
            if !variables.exists() {
                fs::copy(original?, &variables).context("copying the firmware's variables")?;
            }
            command
                .args(["-drive", &format!("if=pflash,format=raw,readonly=on,file={}", code.display())])
                .args(["-drive", &format!("if=pflash,format=raw,file={}", variables.display())]);
        }
        let child = end_with_parent(&mut command, Signal::KILL)
            .spawn()
            .with_context(|| format!("{} can't be run: install its package", firmware.program))?;
        Ok(Machine { child, log, until: Instant::now() + stretched(LIMIT) })
    }

    /// Waits until the serial line has a text.
    ///
    /// # Errors
    /// The machine ends before, or the time limit does.
    pub fn wait_for(&mut self, text: &str) -> Result<()> {
        let ended = self.wait_until(|machine| machine.serial().contains(text));
        ended.with_context(|| format!("no {text:?} on the serial line:\n{}", self.serial()))
    }

    /// Waits until a condition holds.
    ///
    /// # Errors
    /// The machine ends before, or the time limit does.
    pub fn wait_until(&mut self, condition: impl Fn(&Machine) -> bool) -> Result<()> {
        while !condition(self) {
            if self.child.try_wait()?.is_some() && !condition(self) {
                bail!("the machine ended before");
            }
            self.pause()?;
        }
        Ok(())
    }

    /// Lets the machine run for a moment.
    ///
    /// # Errors
    /// It has ended, or the time limit has passed.
    pub fn run_on(&mut self) -> Result<()> {
        ensure!(self.child.try_wait()?.is_none(), "the machine has ended:\n{}", self.serial());
        self.pause()
    }

    /// Waits until the machine turns off.
    ///
    /// # Errors
    /// The time limit ends before.
    pub fn wait_for_end(&mut self) -> Result<()> {
        while self.child.try_wait()?.is_none() {
            self.pause().context("the machine does not turn off")?;
        }
        Ok(())
    }

    /// Repeats a check until it passes.
    ///
    /// # Errors
    /// The check's, at the time limit.
    pub fn retry(&self, check: impl Fn() -> Result<(), String>) -> Result<()> {
        while let Err(why) = check() {
            self.pause().context(why)?;
        }
        Ok(())
    }

    fn pause(&self) -> Result<()> {
        ensure!(Instant::now() < self.until, "the time limit has passed; the end of the serial line:\n{}", self.serial());
        thread::sleep(Duration::from_millis(200));
        Ok(())
    }

    /// Text of the serial line.
    pub fn serial(&self) -> String {
        // The emulator creates it.
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
