//! Shared translations: a change by one CPU, with broadcast TLB maintenance, is observed by all.

use core::sync::atomic::{AtomicU64, Ordering::*};

use payload::exception::catch;
use payload::harness::Test;
use payload::mmu::{self, Memory, PAGES, PAGES_ENTRY, ROOT, TABLE, Table};
use payload::prelude::*;
use payload::tests;

pub const TESTS: &[Test] = tests![tlb_shootdown];

#[repr(C, align(4096))]
struct Frame([AtomicU64; 512]);

static LEVEL2: Table = Table::new();
static LEVEL3: Table = Table::new();
static FRAMES: [Frame; 2] = [const { Frame([const { AtomicU64::new(0) }; 512]) }; 2];
static BARRIER: smp::Barrier = smp::Barrier::new();

/// Reads the first word of the page.
fn read() -> u64 {
    let value;
    // SAFETY: a load whose exception is caught if the page is not mapped.
    unsafe { core::arch::asm!("ldr {}, [{}]", out(reg) value, in(reg) PAGES, options(nostack)) };
    value
}

fn replace(entry: u64) {
    LEVEL3.set(0, 0);
    mmu::forget(PAGES);
    LEVEL3.set(0, entry);
    payload::instruction!("dsb ish");
    payload::instruction!("isb");
}

fn tlb_shootdown() -> Outcome {
    const ROUNDS: u64 = 25;
    LEVEL2.set(0, LEVEL3.address() | TABLE);
    ROOT.set(PAGES_ENTRY, LEVEL2.address() | TABLE);
    mmu::forget(PAGES);
    let outcome = smp::on_all(|| {
        for round in 0..ROUNDS {
            if smp::this() == 0 {
                let frame = &FRAMES[round as usize % 2];
                frame.0[0].store(round, Release);
                replace(mmu::page(frame as *const Frame as u64, Memory::Normal));
            }
            BARRIER.wait()?;
            check_eq!(read(), round, "CPU {}: what the page holds after it was mapped anew", smp::this());
            BARRIER.wait()?;
            if smp::this() == 0 {
                replace(0);
            }
            BARRIER.wait()?;
            let fault = catch(|| {
                read();
            });
            let Some(fault) = fault else {
                return Err(Fail::new(format_args!("CPU {}: the page can be read after it was unmapped", smp::this())));
            };
            check_eq!(fault.status(), 0x07, "CPU {}: DFSC (translation fault, level 3)", smp::this());
            check_eq!(fault.far, PAGES, "CPU {}: FAR", smp::this());
            BARRIER.wait()?;
        }
        Ok(())
    });
    ROOT.set(PAGES_ENTRY, 0);
    mmu::forget(PAGES);
    outcome
}
