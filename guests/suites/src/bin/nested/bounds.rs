//! L1 fills as many shadows with as many shadow tables as it can, and then invalidates all of them at once.
//! The ledger's maxima bound the cost.

use payload::harness::Test;
use payload::prelude::*;

use crate::enter::check_end;
use crate::guest::{Guest, code};
use crate::stage2::{self, Stage2, with_guest_regime};

pub const TESTS: &[Test] = payload::tests![full_shadows];

/// Number of L2 VMs: as many as Stile has shadows.
const VMS: u64 = 16;
/// Number of tables per shadow: L2 accesses this many addresses, 2 MiB apart.
const TABLES: u64 = 1000;
/// The first of them.
const START: u64 = 0xC000_0000;
const STRIDE: u64 = 2 << 20;
/// Number of level 2 and level 3 table pairs of a VM with addresses a gigabyte apart.
const WIDE: u64 = 500;
/// VTTBR_EL2.VMID of the first; two VMs share each VMID.
const VMID: u64 = 200;

/// VMs that map one page at every address outside the gigabyte of their code: tables whose entries are all
/// equal.
fn make() -> [Stage2; VMS as usize] {
    let (middle, last, page) = (stage2::pages(1), stage2::pages(1), stage2::pages(1));
    for n in 0..512 {
        stage2::set_entry(middle, n, last | 3);
        stage2::set_entry(last, n, page | stage2::ALL | 3);
    }
    core::array::from_fn(|n| {
        let stage2 = Stage2::new(VMID + n as u64 / 2);
        for gigabyte in 0..512 {
            stage2.set_in_root(gigabyte << 30, 1, middle | 3);
        }
        stage2
    })
}

/// L2 touches all of them, in each VM.
fn fill(vms: &[Stage2]) -> Outcome {
    vms.iter().try_for_each(|stage2| touch(*stage2, STRIDE, TABLES))
}

fn touch(stage2: Stage2, stride: u64, count: u64) -> Outcome {
    let mut guest = Guest::new(stage2);
    guest.x[1..4].copy_from_slice(&[START, stride, count]);
    check_end(guest.run(code!("772: ldr x0, [x1]", "add x1, x1, x2", "subs x3, x3, #1", "b.ne 772b")))?;
    check_eq!(guest.x[0], 0, "what L2 read");
    Ok(())
}

/// Each kind of maintenance, with all shadows full, of all VMs or of the one that ran last.
fn full_shadows() -> Outcome {
    let vms = make();
    let kinds: [fn(); 4] = [
        || payload::instruction!("tlbi alle1"),
        || payload::instruction!("tlbi vmalls12e1is"),
        || {
            for n in 0..16 {
                // SAFETY: TLB maintenance drops cached translations only, and the tables map what they mapped before.
                unsafe { core::arch::asm!("tlbi ipas2e1is, {}", in(reg) (START + n * STRIDE) >> 12, options(nostack, preserves_flags)) };
            }
        },
        || {
            // TLBI RIPAS2E1IS: 32 * 2^11 pages of 4 KiB from the start on.
            if mrs!("ID_AA64ISAR0_EL1") >> 56 & 15 == 2 {
                let range = 1 << 46 | 2 << 44 | 31 << 39 | START >> 12;
                // SAFETY: TLB maintenance drops cached translations only, and the tables map what they mapped before.
                unsafe { core::arch::asm!("sys #4, c8, c0, #2, {}", in(reg) range, options(nostack, preserves_flags)) };
            }
        },
    ];
    fill(&vms)?;
    for kind in kinds {
        fill(&vms[VMS as usize - 2..])?;
        with_guest_regime(kind);
    }
    // As many entries of the root as there can be.
    for _ in 0..2 {
        touch(vms[0], 1 << 30, WIDE)?;
        with_guest_regime(|| payload::instruction!("tlbi alle1"));
    }
    // And they are full when the VM ends.
    fill(&vms)
}
