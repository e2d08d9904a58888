//! Machine description from the device tree: CPUs, memory, arguments.

use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use dtoolkit::fdt::Fdt;
use dtoolkit::{Node, Property};

use crate::board;

/// The device tree's magic number (Devicetree Specification, "Header").
const MAGIC: u32 = 0xd00d_feed;

static TREE: AtomicUsize = AtomicUsize::new(0);
// Frequently used values, read from the tree once.
static CPUS: AtomicUsize = AtomicUsize::new(1);
static RAM_SIZE: AtomicU64 = AtomicU64::new(0x20_0000);
static STILE: AtomicBool = AtomicBool::new(false);
static GICV2: AtomicBool = AtomicBool::new(false);

/// Locates the device tree. `address` is the entry value; if a loader of ELF files passes none, the tree is
/// expected at the start of RAM.
pub(crate) fn init(address: u64) {
    for candidate in [address, board::RAM] {
        // SAFETY: RAM is mapped, and nothing else is read.
        if in_ram(candidate) && unsafe { (candidate as *const u32).read_volatile() } == MAGIC.to_be() {
            TREE.store(candidate as usize, Ordering::Release);
            break;
        }
    }
    let Some(tree) = tree() else { return };
    CPUS.store(tree.cpus().map_or(1, |cpus| cpus.cpus().count()).clamp(1, board::MAX_CPUS), Ordering::Release);
    let memory = tree.find_node("/memory").and_then(|memory| memory.reg().ok()?);
    let region = memory.into_iter().flatten().find(|region| region.address() == Ok(board::RAM));
    if let Some(size) = region.and_then(|region| region.size().ok()) {
        RAM_SIZE.store(size, Ordering::Release);
    }
    STILE.store(has("stile"), Ordering::Release);
    let gic = tree.find_node("/intc@8000000");
    let has_name = |name: &str| gic.is_some_and(|gic| gic.compatible().is_some_and(|mut names| names.any(|other| other == name)));
    GICV2.store(has_name("arm,cortex-a15-gic") || has_name("arm,gic-400"), Ordering::Release);
}

fn in_ram(address: u64) -> bool {
    address >= board::RAM && address.is_multiple_of(8)
}

fn tree() -> Option<Fdt<'static>> {
    match TREE.load(Ordering::Acquire) {
        0 => None,
        // SAFETY: `init` found a device tree there, and guests never overwrite it or memory below their own
        // image.
        address => Some(unsafe { Fdt::from_raw_unchecked(address as *const u8) }),
    }
}

/// Address of the device tree, 0 if none.
pub fn tree_address() -> u64 {
    TREE.load(Ordering::Acquire) as u64
}

/// Number of CPUs to use: 1 to [`board::MAX_CPUS`].
pub fn cpus() -> usize {
    CPUS.load(Ordering::Acquire)
}

/// RAM's address range. Without a device tree, the minimum that a guest needs.
pub fn ram() -> Range<u64> {
    board::RAM..board::RAM + RAM_SIZE.load(Ordering::Acquire)
}

/// RAM after the guest's image, without the device tree.
pub fn free_ram() -> Range<u64> {
    unsafe extern "C" {
        static __image_end: u8;
    }
    let start = &raw const __image_end as u64;
    let ram = ram();
    match tree() {
        // The tree is after the image, below the end of RAM.
        Some(tree) if tree_address() >= start => {
            let tree = tree_address()..tree_address() + tree.data().len() as u64;
            let behind = tree.end.next_multiple_of(4096)..ram.end;
            let before = start..tree.start & !4095;
            if before.end.saturating_sub(before.start) > behind.end.saturating_sub(behind.start) { before } else { behind }
        }
        _ => start..ram.end,
    }
}

fn arguments() -> impl Iterator<Item = &'static str> {
    let chosen = tree().and_then(|tree| tree.find_node("/chosen"));
    let line = chosen.and_then(|chosen| chosen.property("bootargs")?.value_as::<&str>().ok()).unwrap_or("");
    line.split_ascii_whitespace()
}

/// Whether this guest runs at EL2.
pub fn at_el2() -> bool {
    crate::mrs!("CurrentEL") == 2 << 2
}

/// Whether a word is among the boot arguments.
pub fn has(word: &str) -> bool {
    arguments().any(|argument| argument == word)
}

/// Whether the interrupt controller is a GICv2.
pub fn is_gicv2() -> bool {
    GICV2.load(Ordering::Acquire)
}

/// Whether this is a VM of Stile, according to the boot argument `stile`. Tests of features that Stile hides,
/// and of its choices where the architecture permits several, depend on it.
pub fn is_stile() -> bool {
    STILE.load(Ordering::Acquire)
}

/// The text after `name=` among the boot arguments.
pub fn text(name: &str) -> Option<&'static str> {
    arguments().find_map(|argument| argument.strip_prefix(name)?.strip_prefix('='))
}

/// The number after `name=` among the boot arguments, or `default`.
pub fn number(name: &str, default: u64) -> u64 {
    text(name).and_then(|text| text.parse().ok()).unwrap_or(default)
}
