//! Device trees that are malformed, contradict themselves or lack something: Stile says what is wrong. One with much space at its end works.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::scenario::{Expect, Scenario};
use super::test::Test;
use stile::config::Arch;
use stile::exit;
use stile::programs::{PASSED, Programs};

/// Changes of the emulated machine's tree: the test's name, bytes and their replacements, further options of the emulator, Stile's message,
/// and whether the guest runs.
struct Case {
    name: &'static str,
    changes: &'static [[&'static [u8]; 2]],
    options: &'static [&'static str],
    says: &'static str,
    runs: bool,
}

impl Case {
    /// A tree with which Stile refuses to start.
    const fn refused(name: &'static str, changes: &'static [[&'static [u8]; 2]], says: &'static str) -> Self {
        Self { name, changes, options: &[], says, runs: false }
    }
}

const MACHINE: &str = "virt,virtualization=on,gic-version=3";

const LONG: &str = "firmware/long-tree";

/// Addresses, of two cells: the distributor's, the first redistributor's, and one without a device.
const DISTRIBUTOR: &[u8] = &[0, 0, 0, 0, 8, 0, 0, 0];
const REDISTRIBUTORS: &[u8] = &[0, 0, 0, 0, 8, 0xa, 0, 0];
const NOTHING: &[u8] = &[0, 0, 0, 0, 0xf, 0, 0, 0];
/// Addresses of the first serial port and of the second one.
const PORTS: [&[u8]; 2] = [&[0, 0, 0, 0, 9, 0, 0, 0], &[0, 0, 0, 0, 9, 4, 0, 0]];

const CASES: [Case; 9] = [
    Case::refused("firmware/no-gic", &[[b"arm,gic-v3\0", b"none,gic3\0\0"]], "has neither a GICv3 nor a GICv2"),
    Case::refused("firmware/gic-in-memory", &[[DISTRIBUTOR, &[0, 0, 0, 0, 0x44, 0, 0, 0]]], "it has the registers of the GIC in memory"),
    // The name of the console's node (FDT_BEGIN_NODE before it) is not text.
    Case::refused(
        "firmware/malformed-tree",
        &[[b"\0\0\0\x01pl011@9000000\0", b"\0\0\0\x01pl\xff11@9000000\0"]],
        "the device tree is malformed",
    ),
    Case::refused("firmware/absent-distributor", &[[DISTRIBUTOR, NOTHING]], "the distributor at 0xf000000 does not answer"),
    Case::refused("firmware/absent-redistributors", &[[REDISTRIBUTORS, NOTHING]], "the redistributor at 0xf000000 does not answer"),
    // Flash memory.
    Case::refused(
        "firmware/flash-as-distributor",
        &[[DISTRIBUTOR, &[0, 0, 0, 0, 0, 1, 0, 0]]],
        "the distributor at 0x10000 is another device, or none",
    ),
    Case::refused(
        "firmware/unaligned-redistributors",
        &[[REDISTRIBUTORS, &[0, 0, 0, 0, 8, 0xa, 0, 2]]],
        "0x80a0002 is not at a multiple of 4",
    ),
    Case::refused(
        "firmware/distant-redistributors",
        &[[REDISTRIBUTORS, &[0, 0, 0x7f, 0xff, 8, 0xa, 0, 0]]],
        "0x7fff080a0000 is beyond the physical addresses",
    ),
    // The console's address is wrong, and the tree's second port has the address and the interrupt of the emulator's first one.
    Case {
        name: "firmware/absent-console",
        changes: &[
            [PORTS[0], NOTHING],
            [PORTS[1], PORTS[0]],
            [&[0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 4], &[0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 4]],
        ],
        options: &["-serial", "null", "-serial", "null"],
        says: "the serial port at 0xf000000 does not answer",
        runs: true,
    },
];

/// All of them.
///
/// # Errors
/// The guest is missing.
pub fn all(programs: &Programs) -> Result<Vec<Test>> {
    let kernel = programs.path("psci")?;
    let test = |case: &'static Case| {
        let kernel = kernel.clone();
        Test::made(case.name, Arch::Aarch64, move || case.scenario(&kernel))
    };
    let long = Test::made(LONG, Arch::Aarch64, {
        let kernel = kernel.clone();
        move || long(&kernel)
    });
    Ok(CASES.iter().map(test).chain([long]).collect())
}

/// A tree that is longer than the boot protocol allows, by space behind its blocks.
fn long(kernel: &str) -> Result<Scenario> {
    const LENGTH: u32 = 3 << 20;
    let mut tree = tree(MACHINE, &[])?;
    tree.resize(LENGTH as usize, 0);
    tree[4..8].copy_from_slice(&LENGTH.to_be_bytes());
    let scenario =
        Scenario::new(LONG, "--memory 64M --qemu-arg -dtb --qemu-arg {dir}/tree").with("--kernel", kernel).with("--append", "stile");
    let expect = Expect { output: vec![PASSED.to_owned()], ..Expect::default() };
    Ok(Scenario { files: vec![("tree", tree)], expect, ..scenario })
}

impl Case {
    fn scenario(&self, kernel: &str) -> Result<Scenario> {
        let mut tree = tree(MACHINE, self.options)?;
        for [from, to] in self.changes {
            let at = tree.windows(from.len()).position(|bytes| bytes == *from).with_context(|| format!("{} changes nothing", self.name))?;
            tree[at..at + to.len()].copy_from_slice(to);
        }
        let scenario = Scenario::new(self.name, "--memory 64M --qemu-arg -dtb --qemu-arg {dir}/tree").with("--kernel", kernel);
        let scenario = if self.runs { scenario.with("--append", "stile") } else { scenario };
        let (status, output) = if self.runs { (0, vec![PASSED.to_owned()]) } else { (exit::LACKING, Vec::new()) };
        let expect = Expect { status, output, notes: vec![self.says.into()], ..Expect::default() };
        Ok(Scenario { files: vec![("tree", tree)], expect, ..scenario })
    }
}

/// The tree of an emulated machine with some options, without the space behind it.
///
/// # Errors
/// The emulator refuses.
pub fn tree(machine: &str, options: &[&str]) -> Result<Vec<u8>> {
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("tree");
    let machine = format!("{machine},dumpdtb={}", file.display());
    let fixed = ["-M", &machine, "-cpu", "max", "-smp", "1", "-m", "512M", "-display", "none"];
    let output = Command::new("qemu-system-aarch64").args(fixed).args(options).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut tree = fs::read(file)?;
    let word = |at: usize| tree.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_be_bytes);
    // The last part is that of the strings: header, off_dt_strings and size_dt_strings.
    let length = word(12) + word(32);
    tree.truncate(length as usize);
    tree[4..8].copy_from_slice(&length.to_be_bytes());
    Ok(tree)
}
