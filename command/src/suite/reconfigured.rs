//! A stick whose configuration is changed on its partition: Stile applies what can change at boot, and refuses a file with mistakes in the
//! words of `stile check`. Its VMs are rebuilt with kernels on the partition, and with other memory and vCPUs.

use std::fs;
use std::io::{Cursor, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context, Result, ensure};
use fatfs::{FileSystem, FsOptions};
use flate2::Compression;
use flate2::write::GzEncoder;

use super::firmware_pc::{AMD_V, DISK, Firmware, Machine, PLAIN, edk2};
use super::screen;
use stile::config::Arch;
use stile::programs::{PASSED, Programs};

/// A test: the error is for people.
pub type Run = fn() -> Result<()>;

/// The tests' names, and the tests.
pub const TESTS: [(&str, Arch, Run); 4] = [
    ("firmware/stick", Arch::Aarch64, on_arm),
    ("firmware/pc-stick", Arch::X86_64, on_a_pc),
    ("firmware/stick-kernel", Arch::Aarch64, kernel_on_arm),
    ("firmware/pc-stick-kernel", Arch::X86_64, kernel_on_a_pc),
];

/// The configuration's name on the partition.
const NAME: &str = "STILE.TOML";

/// Label of the partition's file system, and where boot sectors of FAT16 and FAT32 have it.
const LABEL: &[u8] = b"STILE      ";
const LABEL_AT: [usize; 2] = [43, 71];

/// Debian's EDK2 on QEMU's board, with a screen.
fn on_arm() -> Result<()> {
    with_edk2(|board| reconfigure(Arch::Aarch64, board, ("psci", "stile"), &[]))
}

/// OVMF on a PC with AMD-V.
fn on_a_pc() -> Result<()> {
    reconfigure(Arch::X86_64, &Firmware { cpu: AMD_V, ..PLAIN }, ("pc", "only=multiboot"), &["-device", "VGA,romfile="])
}

/// As [`on_arm`].
fn kernel_on_arm() -> Result<()> {
    with_edk2(|board| remake(Arch::Aarch64, board, ("psci", "stile")))
}

/// As [`on_a_pc`].
fn kernel_on_a_pc() -> Result<()> {
    remake(Arch::X86_64, &Firmware { cpu: AMD_V, ..PLAIN }, ("pc", "only=multiboot"))
}

fn with_edk2(run: impl FnOnce(&Firmware<'_>) -> Result<()>) -> Result<()> {
    let firmware = edk2()?;
    let arguments = ["-M", "virt,virtualization=on,gic-version=3", "-bios", &firmware, "-device", "ramfb"];
    run(&Firmware { program: "qemu-system-aarch64", files: None, arguments: &arguments, cpu: "max" })
}

/// Starts a machine whose image has a kernel that does not run: with another, compressed kernel on the partition, beside an added VM; and
/// with the name of a missing file. Both VMs have disks in memory.
fn remake(arch: Arch, firmware: &Firmware<'_>, (program, append): (&str, &str)) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let kernel = fs::read(Programs::build(arch)?.path(program)?)?;
    let mut broken = kernel.clone();
    // The code behind the headers, of which Multiboot has one in the first 8 KiB.
    broken.get_mut(0x2000..).context("a short program")?.fill(0);
    fs::write(dir.path().join("old"), &broken)?;
    fs::write(dir.path().join("data.img"), [1; 4096])?;
    let disk = |file: &str| format!("disk = [{{ file = \"{file}\", in_memory = true }}]");
    let old_disk = disk("data.img");
    let text = format!("[machine]\narch = \"{arch}\"\nslice = \"2ms\"\n\n[[vm]]\nkernel = \"old\"\n{old_disk}\nmemory = \"32M\"\n");
    let image = dir.path().join("stick.img");
    fs::write(dir.path().join(NAME), &text)?;
    stile(dir.path(), &["image", NAME, "-o", "stick.img"])?;

    let added =
        format!("\n\n[[vm]]\nname = \"new\"\nkernel = \"plain\"\nappend = \"{append}\"\nmemory = \"32M\"\nvcpus = 4\n{}", disk("web.img"));
    let changed = text
        .replace("\"old\"", "\"kernels/Kernel-with-a-long-name\"")
        .replace("32M\"", &format!("64M\"\nvcpus = 4\nappend = \"{append}\"{added}"));
    let packed = zipped(&kernel)?;
    let files = [
        ("Kernel-with-a-long-name", &packed[..]),
        ("PLAIN", &kernel[..]),
        ("unused", &[1; 5000]),
        ("DATA.IMG", &[2; 5 << 20]),
        ("web.img", &[3; 512]),
    ];
    let mut machine = start(dir.path(), "changed", firmware, &image, &changed, &files, &[])?;
    machine.wait_for(PASSED)?;
    machine.wait_for_end()?;
    let log = machine.serial();
    ensure!(log.matches(PASSED).count() == 2, "one of two VMs does not pass:\n{log}");
    ensure!(log.contains(&format!("{NAME} changes new: added, VMS\\PLAIN")), "no VM is added:\n{log}");
    for key in ["kernel, VMS\\Kernel-with-a-long-name", "disk, VMS\\DATA.IMG", "append", "memory", "vcpus"] {
        ensure!(log.contains(&format!("{NAME} changes vm0: {key}")), "no {key:?}:\n{log}");
    }

    let wrong = changed.replace("with-a-long-name", "with-a-longer-name").replace("64M", "3M");
    let mut machine = start(dir.path(), "wrong", firmware, &image, &wrong, &files, &[])?;
    machine.wait_for("its configuration file has mistakes")?;
    let log = machine.serial();
    let expected = ["the folder VMS has no file \"Kernel-with-a-longer-name\"", "a virtual machine can't have 3M of memory"];
    for line in expected {
        ensure!(log.contains(line), "no {line:?}:\n{log}");
    }
    ensure!(!log.contains(PASSED), "{log}");
    Ok(())
}

/// The bytes, compressed by gzip.
fn zipped(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut to = GzEncoder::new(Vec::new(), Compression::fast());
    to.write_all(bytes)?;
    Ok(to.finish()?)
}

/// Starts a machine with two VMs, whose kernel is a file of the stick, with changes of the configuration, and with mistakes.
fn reconfigure(arch: Arch, firmware: &Firmware<'_>, (program, append): (&str, &str), more: &[&str]) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let kernel = Programs::build(arch)?.path(program)?;
    let vm =
        |name: &str| format!("\n[[vm]]\nname = \"{name}\"\nkernel = \"{kernel}\"\nappend = \"{append}\"\nmemory = \"64M\"\nvcpus = 4\n");
    let text = format!("[machine]\narch = \"{arch}\"\ncpus = 2\nslice = \"2ms\"\n{}{}", vm("one"), vm("two"));
    let image = dir.path().join("stick.img");
    fs::write(dir.path().join(NAME), &text)?;
    stile(dir.path(), &["image", NAME, "--files", "-o", "stick.img"])?;

    let changed = text.replace(&vm("two"), "").replace("2ms", "500us") + "weight = 300\ncpus = [1]\n";
    let mut machine = start(dir.path(), "changed", firmware, &image, &changed, &[], more)?;
    machine.wait_for(PASSED)?;
    machine.wait_for_end()?;
    let log = machine.serial();
    let from_stick = format!("changes one: kernel, VMS\\{program}");
    for line in ["changes slice", "changes one: weight", "changes one: cpus", &from_stick, "changes two: removed"] {
        ensure!(log.contains(&format!("{NAME} {line}")), "no {line:?}:\n{log}");
    }
    ensure!(log.matches(PASSED).count() == 1, "a removed VM runs:\n{log}");

    let wrong = text.replacen("vcpus = 4", "vcpus = 4\nweight = 0\ncap = \"x\"", 1).replacen("slice", "slcie", 1);
    let mut machine = start(dir.path(), "wrong", firmware, &image, &wrong, &[], more)?;
    machine.wait_for("its configuration file has mistakes")?;
    fs::write(dir.path().join(NAME), &wrong)?;
    let check = Command::new(std::env::current_exe()?).args(["check", NAME]).current_dir(dir.path()).output()?;
    let check = String::from_utf8_lossy(&check.stderr).into_owned();
    let log = machine.serial();
    for line in check.lines().filter(|line| !line.trim().is_empty()) {
        ensure!(log.contains(line.trim_end()), "`stile check` says {line:?}, but Stile:\n{log}");
    }
    ensure!(check.contains("did you mean \"slice\"?") && !log.contains(PASSED), "{check}\n{log}");
    machine.retry(|| screen::check(&dir.path().join("wrong"), &["The machine stays on, so that this can be read."]))?;
    drop(machine);

    let other = text.replacen("vcpus = 4", "vcpus = 4\nnested = true", 1);
    let mut machine = start(dir.path(), "other", firmware, &image, &other, &[], more)?;
    machine.wait_for("\"nested\" can't be added here: the image was made without it; expected no such key")
}

/// Runs this command.
fn stile(dir: &Path, arguments: &[&str]) -> Result<Output> {
    let output = Command::new(std::env::current_exe()?).args(arguments).current_dir(dir).output()?;
    ensure!(output.status.success(), "stile {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr));
    Ok(output)
}

/// Starts a machine from a copy of the image with another configuration file on it, and `files` in the folder `VMS`.
fn start(
    dir: &Path,
    name: &str,
    firmware: &Firmware<'_>,
    image: &Path,
    text: &str,
    files: &[(&str, &[u8])],
    more: &[&str],
) -> Result<Machine> {
    let dir = dir.join(name);
    fs::create_dir(&dir)?;
    let image = with_file(&dir, image, text, files)?;
    Machine::start(&dir, firmware, DISK, &image, more)
}

/// Copies the image, and replaces and adds the files as its user would.
fn with_file(dir: &Path, image: &Path, text: &str, files: &[(&str, &[u8])]) -> Result<PathBuf> {
    let mut bytes = fs::read(image)?;
    let mut volume = bytes.split_off(volume(&bytes)?);
    let file_system = FileSystem::new(Cursor::new(&mut volume), FsOptions::new())?;
    let mut file = file_system.root_dir().open_file(NAME)?;
    let mut old = String::new();
    file.read_to_string(&mut old)?;
    ensure!(old.contains("slice = \"2ms\""), "the partition has another file: {old}");
    drop(file);
    file_system.root_dir().remove(NAME)?;
    file_system.root_dir().create_file(NAME)?.write_all(text.as_bytes())?;
    if !files.is_empty() {
        let folder = file_system.root_dir().create_dir("VMS")?;
        files.iter().try_for_each(|(name, bytes)| folder.create_file(name)?.write_all(bytes))?;
    }
    file_system.unmount()?;
    bytes.append(&mut volume);
    let copy = dir.join("stick.img");
    fs::write(&copy, bytes)?;
    Ok(copy)
}

/// The offset of the file system in an image.
///
/// # Errors
/// There is none.
pub fn volume(image: &[u8]) -> Result<usize> {
    let has_label = |sector: &[u8]| LABEL_AT.iter().any(|&at| sector.get(at..at + LABEL.len()) == Some(LABEL));
    let is_volume = |sector: &[u8]| has_label(sector) && sector.ends_with(&[0x55, 0xaa]);
    Ok(512 * image.chunks_exact(512).position(is_volume).context("the image has no EFI system partition")?)
}
