//! Device trees that lack one node or one property: each boot runs its guest, or says why it does not.

use std::fs;
use std::ops::Range;
use std::path::Path;

use anyhow::{Context, Result, bail};

use super::broken_tables::{REFUSED, runs_or_refuses};
use super::firmware_pc::{Firmware, Machine};
use super::{boards, broken_trees};
use stile::config::Arch;
use stile::programs::{PASSED, Programs};

/// The test's name.
pub const NAME: &str = "long/thinned-trees";

/// The machine, and the options of the emulator that its tree shows: as [`Machine::start`] has them, and with a second port, on which Stile
/// writes if the first one is not found.
const MACHINE: &str = "virt,virtualization=on,gic-version=3,iommu=smmuv3";
const CPU: &str = "max";
const OPTIONS: [&str; 6] = ["-smp", "2", "-serial", "null", "-serial", "null"];

/// Tokens of the structure block (Devicetree Specification 0.4, Flattened Devicetree Format).
const BEGIN_NODE: u32 = 1;
const END_NODE: u32 = 2;
const PROPERTY: u32 = 3;
const NOTHING: u32 = 4;
const TOKEN: usize = 4;

/// Boots with thinned trees.
///
/// # Errors
/// A boot panics, or goes on in silence; the missing part is in the message.
pub fn test() -> Result<(), String> {
    boot_all().map_err(|error| format!("{error:#}"))
}

fn boot_all() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let (config, image) = (dir.path().join("machine.toml"), dir.path().join("stile.img"));
    let kernel = Programs::build(Arch::Aarch64)?.path("psci")?;
    let vm = format!("[[vm]]\nname = \"guest\"\nkernel = \"{kernel}\"\nappend = \"stile only=off_and_on\"\nvcpus = 2\nmemory = \"64M\"\n");
    fs::write(&config, vm)?;
    boards::build(&config, &image)?;
    let tree = broken_trees::tree(MACHINE, &OPTIONS)?;
    for (number, (name, part)) in parts(&tree)?.into_iter().enumerate() {
        let mut thinned = tree.clone();
        thinned[part].chunks_mut(TOKEN).for_each(|token| token.copy_from_slice(&NOTHING.to_be_bytes()));
        let dir = dir.path().join(number.to_string());
        fs::create_dir(&dir)?;
        // One after the other: a message names the part.
        run(&dir, &image, &thinned).with_context(|| format!("without {name}"))?;
    }
    Ok(())
}

fn run(dir: &Path, image: &Path, tree: &[u8]) -> Result<()> {
    let (file, second) = (dir.join("tree"), dir.join("second.log"));
    fs::write(&file, tree)?;
    let (file, second_port) = (file.display().to_string(), format!("file:{}", second.display()));
    let board = Firmware { program: "qemu-system-aarch64", files: None, arguments: &["-M", MACHINE], cpu: CPU };
    let mut machine = Machine::start(dir, &board, ["-dtb", &file, "-kernel", ""], image, &["-serial", &second_port])?;
    runs_or_refuses(&mut machine, Some(&second), &[PASSED, REFUSED])
}

/// Names and places of a tree's nodes and properties, without the root and its cells, which the emulator itself needs. Of the many nodes of
/// one kind of device, the first.
fn parts(tree: &[u8]) -> Result<Vec<(String, Range<usize>)>> {
    const MANY: &str = "virtio_mmio";
    const NEEDED: [&str; 2] = [":#address-cells", ":#size-cells"];
    let word =
        |at: usize| tree.get(at..at + TOKEN).and_then(|bytes| bytes.try_into().ok()).map(u32::from_be_bytes).context("the tree ends early");
    let text = |at: usize| {
        let bytes = tree.get(at..).unwrap_or_default();
        String::from_utf8_lossy(bytes.split(|byte| *byte == 0).next().unwrap_or_default()).into_owned()
    };
    let (mut at, strings) = (word(8)? as usize, word(12)? as usize);
    let (mut parts, mut open, mut has_many) = (Vec::new(), Vec::<(String, usize)>::new(), false);
    loop {
        let start = at;
        let token = word(at)?;
        at += TOKEN;
        let path = open.last().map_or(String::new(), |(path, _)| path.clone());
        match token {
            BEGIN_NODE => {
                let name = text(at);
                at += (name.len() + 1).next_multiple_of(TOKEN);
                open.push((if open.is_empty() { String::new() } else { format!("{path}/{name}") }, start));
            }
            END_NODE => {
                let (path, start) = open.pop().context("a node ends that has not begun")?;
                if open.is_empty() {
                    return Ok(parts);
                }
                if !(has_many && path.contains(MANY)) {
                    parts.push((path.clone(), start..at));
                }
                has_many |= path.contains(MANY);
            }
            PROPERTY => {
                let (length, name) = (word(at)? as usize, text(strings + word(at + TOKEN)? as usize));
                at += 2 * TOKEN + length.next_multiple_of(TOKEN);
                let name = format!("{path}:{name}");
                if !(has_many && path.contains(MANY) || NEEDED.contains(&name.as_str())) {
                    parts.push((name, start..at));
                }
            }
            NOTHING => {}
            _ => bail!("token {token} at {start}"),
        }
    }
}
