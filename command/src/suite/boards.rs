//! Emulated boards with Debian's device trees. The Raspberry Pi 4: a GIC-400, CPUs that wait at spin tables, buses that translate
//! addresses, two kinds of serial port, and no PSCI. Xilinx's ZCU102: a GIC-400 whose pages are repeated, and Cadence's serial port.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;

use super::slowdown::stretched;
use stile::child::end_with_parent;
use stile::config::Arch;
use stile::debian::{self, Board, Freshness};
use stile::programs::{PASSED, Programs};

/// A test: the error is for people.
pub type Run = fn() -> Result<()>;

/// The tests' names, and the tests.
pub const TESTS: [(&str, Run); 3] = [
    ("gicv2/raspi4b/pl011", || raspberry_pi("smp", PL011)),
    ("gicv2/raspi4b/mini-uart", || raspberry_pi("gic", MINI_UART)),
    ("gicv2/zcu102", zcu102),
];

/// The number of the Raspberry Pi's serial port.
const PL011: usize = 0;
const MINI_UART: usize = 1;

const PROGRAM: &str = "qemu-system-aarch64";

/// Time limit of a run, which takes 6 seconds of CPU time and waits for timers.
const LIMIT: Duration = Duration::from_secs(300);

/// Runs a suite on the Raspberry Pi 4 with the console at one of its ports.
fn raspberry_pi(suite: &str, port: usize) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let tree = raspberry_pis_tree(dir.path(), port)?;
    run(dir.path(), &["-M", "raspi4b"], &tree, suite, port, "Raspberry Pi 4")
}

/// Runs a suite on Xilinx's ZCU102.
fn zcu102() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let tree = debian::device_tree(Board::Zcu102, Freshness::Weekly)?;
    run(dir.path(), &["-M", "xlnx-zcu102,virtualization=on", "-smp", "4", "-m", "1G"], &tree, "smp", 0, "ZynqMP ZCU102")
}

/// Runs a suite with as many vCPUs as the board has CPUs. In the end the board turns off. `port`: the number of the serial port
/// that is the console, of two.
fn run(dir: &Path, machine: &[&str], tree: &Path, suite: &str, port: usize, model: &str) -> Result<()> {
    let image = image(dir, &Programs::build(Arch::Aarch64)?.path(suite)?)?;
    let log = dir.join("serial.log");
    let mut command = Command::new(PROGRAM);
    command.args(machine).args(["-display", "none", "-no-reboot", "-kernel"]).arg(image).arg("-dtb").arg(tree);
    for number in 0..2 {
        command.args(["-serial", &if number == port { format!("file:{}", log.display()) } else { "null".to_owned() }]);
    }
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = end_with_parent(&mut command, Signal::KILL)
        .spawn()
        .with_context(|| format!("{PROGRAM} can't be run: install the package qemu-system-arm"))?;
    let until = Instant::now() + stretched(LIMIT);
    let text = || String::from_utf8_lossy(&fs::read(&log).unwrap_or_default()).into_owned();
    while child.try_wait()?.is_none() {
        if Instant::now() > until {
            child.kill()?;
            child.wait()?;
            bail!("the board has not turned off in time; its serial line:\n{}", text());
        }
        thread::sleep(Duration::from_millis(200));
    }
    let text = text();
    let all_start = !text.contains("start: ") && !text.contains("has not started");
    ensure!(text.contains(model) && text.contains(PASSED) && all_start, "the serial line:\n{text}");
    Ok(())
}

/// Makes an image by `stile build`.
fn image(dir: &Path, kernel: &str) -> Result<PathBuf> {
    let (config, image) = (dir.join("machine.toml"), dir.join("stile.img"));
    let vm = format!("[[vm]]\nname = \"guest\"\nkernel = \"{kernel}\"\nappend = \"stile\"\nvcpus = 4\nmemory = \"64M\"\n");
    fs::write(&config, format!("[machine]\ngic = 2\ncpus = 4\n{vm}"))?;
    build(&config, &image)?;
    Ok(image)
}

/// Runs `stile build`.
///
/// # Errors
/// It fails.
pub fn build(config: &Path, image: &Path) -> Result<()> {
    let output = Command::new(std::env::current_exe()?).arg("build").arg(config).arg("-o").arg(image).output()?;
    ensure!(output.status.success(), "stile build: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// Debian's tree of the Raspberry Pi 4, whose console is the mini UART; without that choice it is the PL011.
fn raspberry_pis_tree(dir: &Path, port: usize) -> Result<PathBuf> {
    const CHOICE: &[u8] = b"serial1:115200n8";
    let original = debian::device_tree(Board::RaspberryPi4, Freshness::Weekly)?;
    if port == MINI_UART {
        return Ok(original);
    }
    let mut tree = fs::read(original)?;
    let choice = tree.windows(CHOICE.len()).position(|text| text == CHOICE).context("Debian's tree has another console")?;
    tree[choice + 6] = b'0';
    let changed = dir.join("device-tree");
    fs::write(&changed, tree)?;
    Ok(changed)
}
