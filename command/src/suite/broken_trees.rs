//! Device trees that are malformed, contradict themselves or lack something: Stile says what is wrong. One with much space at its end works.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::scenario::{Expect, Scenario};
use super::test::Test;
use stile::config::Arch;
use stile::exit;
use stile::programs::{PASSED, Programs};

/// A change of the emulated machine's tree: the test's name, bytes and what replaces them, and what Stile says.
struct Case {
    name: &'static str,
    change: [&'static [u8]; 2],
    says: &'static str,
}

const LONG: &str = "firmware/long-tree";

const CASES: [Case; 3] = [
    Case { name: "firmware/no-gic", change: [b"arm,gic-v3\0", b"none,gic3\0\0"], says: "has neither a GICv3 nor a GICv2" },
    // The distributor's address, of two cells.
    Case {
        name: "firmware/gic-in-memory",
        change: [&[0, 0, 0, 0, 8, 0, 0, 0], &[0, 0, 0, 0, 0x44, 0, 0, 0]],
        says: "it has the registers of the GIC in memory",
    },
    // The name of the console's node (FDT_BEGIN_NODE before it) is not text.
    Case {
        name: "firmware/malformed-tree",
        change: [b"\0\0\0\x01pl011@9000000\0", b"\0\0\0\x01pl\xff11@9000000\0"],
        says: "the device tree is malformed",
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
    let mut tree = tree()?;
    tree.resize(LENGTH as usize, 0);
    tree[4..8].copy_from_slice(&LENGTH.to_be_bytes());
    let scenario =
        Scenario::new(LONG, "--memory 64M --qemu-arg -dtb --qemu-arg {dir}/tree").with("--kernel", kernel).with("--append", "stile");
    let expect = Expect { output: vec![PASSED.to_owned()], ..Expect::default() };
    Ok(Scenario { files: vec![("tree", tree)], expect, ..scenario })
}

impl Case {
    fn scenario(&self, kernel: &str) -> Result<Scenario> {
        let [from, to] = self.change;
        let mut tree = tree()?;
        let at = tree.windows(from.len()).position(|bytes| bytes == from).with_context(|| format!("{} changes nothing", self.name))?;
        tree[at..at + to.len()].copy_from_slice(to);
        let scenario = Scenario::new(self.name, "--memory 64M --qemu-arg -dtb --qemu-arg {dir}/tree").with("--kernel", kernel);
        let expect = Expect { status: exit::LACKING, notes: vec![self.says.into()], ..Expect::default() };
        Ok(Scenario { files: vec![("tree", tree)], expect, ..scenario })
    }
}

/// The emulator's tree, without the space behind it.
fn tree() -> Result<Vec<u8>> {
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("tree");
    let machine = format!("virt,virtualization=on,gic-version=3,dumpdtb={}", file.display());
    let output = Command::new("qemu-system-aarch64").args(["-M", &machine, "-cpu", "max", "-smp", "1", "-m", "512M"]).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut tree = fs::read(file)?;
    let word = |at: usize| tree.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_be_bytes);
    // The last part is that of the strings: header, off_dt_strings and size_dt_strings.
    let length = word(12) + word(32);
    tree.truncate(length as usize);
    tree[4..8].copy_from_slice(&length.to_be_bytes());
    Ok(tree)
}
