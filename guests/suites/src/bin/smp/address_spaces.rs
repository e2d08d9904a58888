//! Per-CPU translations: different tables under the same ASID, and TLB maintenance without broadcast.
//!
//! Legal on hardware, as CPUs need not share an ASID space (TTBR.CnP 0). But vCPUs of a VM that share a CPU
//! have the same VMID: TLB entries of one must not be used by the next.

use core::sync::atomic::{AtomicU64, Ordering::*};

use payload::board::MAX_CPUS;
use payload::harness::Test;
use payload::mmu::{self, Memory, NOT_GLOBAL, PAGES, PAGES_ENTRY, ROOT, TABLE, Table};
use payload::prelude::*;
use payload::{instruction, tests};

pub const TESTS: &[Test] = tests![same_asid_other_tables, same_asid_local_maintenance, global_page_of_ones_own];

const ASID: u64 = 5;

#[repr(C, align(4096))]
struct Frame([AtomicU64; 512]);

/// A CPU's own root, and the path to one page.
struct Space {
    root: Table,
    level2: Table,
    level3: Table,
    frames: [Frame; 2],
}

static SPACES: [Space; MAX_CPUS] = [const {
    Space {
        root: Table::new(),
        level2: Table::new(),
        level3: Table::new(),
        frames: [const { Frame([const { AtomicU64::new(0) }; 512]) }; 2],
    }
}; MAX_CPUS];

impl Space {
    /// Fills the tables; the page is not mapped.
    fn prepare(&self, cpu: u64) {
        for (index, entry) in ROOT.0.iter().enumerate() {
            self.root.set(index, entry.load(Relaxed));
        }
        self.root.set(PAGES_ENTRY, self.level2.address() | TABLE);
        self.level2.set(0, self.level3.address() | TABLE);
        for (index, frame) in self.frames.iter().enumerate() {
            frame.0[0].store(cpu << 8 | index as u64, Relaxed);
        }
    }

    fn map(&self, frame: usize, extra: u64) {
        self.level3.set(0, mmu::page(&self.frames[frame] as *const Frame as u64, Memory::Normal) | extra);
    }
}

/// Switches this CPU to tables, with all that it remembers of others forgotten, on this CPU only.
fn switch(root: &Table, asid: u64) {
    msr!("TTBR0_EL1", root.address() | asid << 48);
    forget_all();
}

fn forget_all() {
    instruction!("dsb nshst");
    instruction!("tlbi vmalle1");
    instruction!("dsb nsh");
    instruction!("isb");
}

/// Forgets the page, under the ASID, on this CPU only.
fn forget_page() {
    instruction!("dsb nshst");
    // SAFETY: TLB maintenance drops cached translations only, and the tables map what they mapped before.
    unsafe { core::arch::asm!("tlbi vae1, {}", in(reg) ASID << 48 | PAGES >> 12, options(nostack)) };
    instruction!("dsb nsh");
    instruction!("isb");
}

fn read() -> u64 {
    let value;
    // SAFETY: callers have mapped the page, readable, and the load writes only an output.
    unsafe { core::arch::asm!("ldr {}, [{}]", out(reg) value, in(reg) PAGES, options(nostack)) };
    value
}

/// Reads the page for a while: it must be this CPU's frame all the time.
fn watch(frame: usize) -> Outcome {
    let wanted = (smp::this() << 8 | frame) as u64;
    let end = wait::now() + wait::ticks(2_000);
    while wait::now() < end {
        let got = read();
        check!(got == wanted, "CPU {}: the page is frame {} of CPU {}, expected {frame}", smp::this(), got & 0xFF, got >> 8);
    }
    Ok(())
}

/// Runs with this CPU's own tables, then returns to the common ones.
fn in_own_space(run: impl FnOnce(&Space) -> Outcome) -> Outcome {
    let space = &SPACES[smp::this()];
    space.prepare(smp::this() as u64);
    switch(&space.root, ASID);
    let outcome = run(space);
    switch(&ROOT, 0);
    outcome
}

fn same_asid_other_tables() -> Outcome {
    smp::on_all(|| {
        in_own_space(|space| {
            space.map(0, NOT_GLOBAL);
            instruction!("isb");
            for _ in 0..60 {
                watch(0)?;
            }
            Ok(())
        })
    })
}

fn same_asid_local_maintenance() -> Outcome {
    smp::on_all(|| {
        in_own_space(|space| {
            for round in 0..60 {
                space.level3.set(0, 0);
                forget_page();
                space.map(round % 2, NOT_GLOBAL);
                instruction!("isb");
                watch(round % 2)?;
            }
            Ok(())
        })
    })
}

fn global_page_of_ones_own() -> Outcome {
    smp::on_all(|| {
        in_own_space(|space| {
            for round in 0..30 {
                space.level3.set(0, 0);
                forget_all();
                space.map(round % 2, 0);
                instruction!("isb");
                watch(round % 2)?;
            }
            Ok(())
        })
    })
}
