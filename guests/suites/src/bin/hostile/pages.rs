//! Pages that all CPUs map, change and use concurrently. They contain memory that nothing depends on, so that
//! stale translations are harmless.

use core::sync::atomic::AtomicU64;

use payload::encode::{load, store};
use payload::mmu::{self, Memory, PAGES, PAGES_ENTRY, ROOT, TABLE, Table};
use payload::probe;
use payload::random::Random;

/// The GiB after that of the random tables.
const FIRST: u64 = PAGES + (1 << 30);
const COUNT: u64 = 16;
/// Descriptor: AP[2:1], AF, PXN and UXN.
const NEVER_EXECUTED: u64 = 3 << 53;
const CHANGED: u64 = 3 << 6 | 1 << 10 | 1 << 51 | 1 << 52;

#[repr(C, align(4096))]
struct Page([AtomicU64; 512]);

static SCRATCH: [Page; COUNT as usize] = [const { Page([const { AtomicU64::new(0) }; 512]) }; COUNT as usize];
static LEVEL_2: Table = Table::new();
static LEVEL_3: Table = Table::new();

/// Changes a page's entry, with maintenance or without, and uses some page.
pub fn once(random: &mut Random) -> u64 {
    change(random);
    let mut registers = core::array::from_fn(|_| random.odd());
    registers[1] = address(random);
    let size = random.below(4) as u32;
    let word = if random.below(2) == 0 { load(size, 2, 1) } else { store(size, 2, 1) };
    probe::run(&[word], &mut registers);
    2
}

/// An address in some page.
pub fn address(random: &mut Random) -> u64 {
    FIRST + random.below(4096 * COUNT)
}

/// Changes a page's entry, with maintenance or without.
pub fn change(random: &mut Random) {
    ROOT.set(PAGES_ENTRY + 1, LEVEL_2.0.as_ptr() as u64 | TABLE);
    let page = random.below(COUNT);
    match random.below(8) {
        // The whole table is unmapped for a while.
        0 => LEVEL_2.set(0, 0),
        1..4 => LEVEL_2.set(0, LEVEL_3.0.as_ptr() as u64 | TABLE),
        _ => {
            let scratch = SCRATCH[random.below(COUNT) as usize].0.as_ptr() as u64;
            let memory = random.pick(&[Memory::Device, Memory::Normal, Memory::Uncached]);
            let entry = mmu::page(scratch, memory) ^ random.bits() & CHANGED;
            LEVEL_3.set(page as usize, if random.below(4) == 0 { 0 } else { entry | NEVER_EXECUTED });
        }
    }
    if random.below(3) > 0 {
        mmu::forget(FIRST + 4096 * page);
    }
}
