//! Second stages: faults, permissions, blocks, TLB maintenance, VMIDs, address translation instructions.

use core::sync::atomic::{AtomicU64, Ordering::*};

use payload::harness::Test;
use payload::prelude::*;

use crate::enter::check_end;
use crate::guest::{self, Exit, Guest, code};
use crate::stage2::{self, NO_FETCH, NORMAL, READ, Stage2, WRITE, forget, forget_all};

pub const TESTS: &[Test] = payload::tests![
    faults,
    permissions,
    blocks,
    maintenance,
    vmids,
    same_vmid_other_tables,
    granules,
    device,
    translate,
    running_elsewhere
];

/// An unmapped L2 address.
const NOWHERE: u64 = 0x9000_0000;

/// A second-stage fault of a data access or a fetch: class, fault status, address.
fn check_fault(exit: Exit, class: u64, status: u64, address: u64) -> Outcome {
    check_eq!(exit.vector, guest::SYNCHRONOUS, "the vector of a fault at {address:#x}: ESR_EL2 {:#x}", exit.esr);
    check_eq!(exit.class(), class, "EC of a fault at {address:#x}: ESR_EL2 {:#x}", exit.esr);
    check_eq!(exit.esr & 0x3F, status, "the fault status at {address:#x}");
    check_eq!(exit.far, address, "FAR_EL2");
    check_eq!(exit.hpfar & 0xFFF_FFFF_FFF0, address >> 12 << 4, "HPFAR_EL2");
    Ok(())
}

/// A load at x1.
const fn load() -> u32 {
    0xF940_0020 // ldr x0, [x1]
}

fn run_load(guest: &mut Guest, address: u64) -> Exit {
    guest.x[1] = address;
    guest.run(&[load(), payload::encode::hvc(0)])
}

fn run_store(guest: &mut Guest, address: u64, value: u64) -> Exit {
    guest.x[..2].copy_from_slice(&[value, address]);
    guest.run(code!("str x0, [x1]"))
}

/// Translation faults at each level, of loads, stores and fetches, with the syndrome of the access.
fn faults() -> Outcome {
    let stage2 = Stage2::new(2);
    let mut guest = Guest::new(stage2);
    check_fault(run_load(&mut guest, 0x40_0000_0000 - 8), 0x24, 0x05, 0x40_0000_0000 - 8)?;
    check_fault(run_load(&mut guest, guest::DATA + (8 << 20)), 0x24, 0x06, guest::DATA + (8 << 20))?;
    let exit = run_store(&mut guest, guest::DATA + 0x5678, 1);
    check_fault(exit, 0x24, 0x07, guest::DATA + 0x5678)?;
    // ISV, SAS of 8 bytes, SRT 0, SF, WnR.
    check_eq!(exit.esr & 0x1FF_FFC0, 1 << 24 | 3 << 22 | 1 << 15 | 1 << 6, "ISS");
    guest.x[1] = NOWHERE;
    check_fault(guest.run(code!("br x1")), 0x20, 0x06, NOWHERE)?;
    check_eq!(guest.pc, NOWHERE, "ELR_EL2");
    // Beyond 39 bits of T0SZ.
    check_fault(run_load(&mut guest, 1 << 39), 0x24, 0x04, 1 << 39)
}

/// S2AP, XN and the access flag.
fn permissions() -> Outcome {
    let stage2 = Stage2::new(3);
    let mut guest = Guest::new(stage2);
    let page = stage2::pages(1);
    stage2.page(NOWHERE, page, NORMAL | READ | NO_FETCH);
    check_end(run_load(&mut guest, NOWHERE + 8))?;
    check_eq!(guest.x[0], 0, "what was loaded");
    check_fault(run_store(&mut guest, NOWHERE + 8, 7), 0x24, 0x0F, NOWHERE + 8)?;
    guest.x[1] = NOWHERE;
    check_fault(guest.run(code!("br x1")), 0x20, 0x0F, NOWHERE)?;
    // Write without read.
    stage2.page(NOWHERE, page, NORMAL | WRITE);
    forget(NOWHERE);
    check_end(run_store(&mut guest, NOWHERE + 16, 7))?;
    check_fault(run_load(&mut guest, NOWHERE + 16), 0x24, 0x0F, NOWHERE + 16)?;
    // No access flag.
    stage2.page(NOWHERE, page, stage2::ALL & !(1 << 10));
    forget(NOWHERE);
    check_fault(run_load(&mut guest, NOWHERE), 0x24, 0x0B, NOWHERE)?;
    // More permissions need no maintenance but for the fault's own sake.
    stage2.page(NOWHERE, page, stage2::ALL);
    forget(NOWHERE);
    check_end(run_load(&mut guest, NOWHERE + 16))?;
    check_eq!(guest.x[0], 7, "what was stored without read permission");
    Ok(())
}

/// Blocks of 2 MiB and of 1 GiB lead where they say.
fn blocks() -> Outcome {
    let stage2 = Stage2::new(4);
    let mut guest = Guest::new(stage2);
    let page = stage2::pages(1);
    // SAFETY: pages just given to this function.
    let word = unsafe { AtomicU64::from_ptr(page as *mut u64) };
    for (level, size) in [(2, 2 << 20), (1, 1_u64 << 30)] {
        let base = 0x40_0000_0000 >> level << 1;
        stage2.block(base, level, page & !(size - 1), stage2::ALL);
        let value = 0x1000 + u64::from(level);
        check_end(run_store(&mut guest, base + (page & (size - 1)), value))?;
        check_eq!(word.load(Acquire), value, "what L2 wrote by a block of level {level}");
    }
    Ok(())
}

/// Each form of TLB maintenance that must make L2 see a change.
fn maintenance() -> Outcome {
    type Form = (&'static str, fn(u64));
    let forms: [Form; 9] = [
        ("IPAS2E1IS", forget),
        ("VMALLS12E1IS", |_| forget_all()),
        ("VMALLS12E1", |_| stage2::with_guest_regime(|| payload::instruction!("tlbi vmalls12e1"))),
        ("ALLE1IS", |_| stage2::with_guest_regime(|| payload::instruction!("tlbi alle1is"))),
        ("ALLE1", |_| stage2::with_guest_regime(|| payload::instruction!("tlbi alle1"))),
        // While TGE is set, as a kernel at EL2 sets it for itself.
        ("VMALLS12E1IS of a host", |_| payload::instruction!("dsb ishst; tlbi vmalls12e1is; dsb ish")),
        ("ALLE1IS of a host", |_| payload::instruction!("dsb ishst; tlbi alle1is; dsb ish")),
        ("IPAS2LE1IS", |ipa| {
            // SAFETY: TLB maintenance drops cached translations only, and the tables map what they mapped before.
            stage2::with_guest_regime(|| unsafe {
                core::arch::asm!("tlbi ipas2le1is, {}", "dsb ish", "tlbi vmalle1is", in(reg) ipa >> 12, options(nostack));
            });
        }),
        ("RIPAS2E1IS", |ipa| {
            // TG 4 KiB, two pages.
            let range = 1 << 46 | ipa >> 12;
            // SAFETY: TLB maintenance changes no mapping. TLBI RIPAS2E1IS.
            stage2::with_guest_regime(|| unsafe {
                core::arch::asm!("sys #4, c8, c0, #2, {}", "dsb ish", "tlbi vmalle1is", in(reg) range, options(nostack));
            });
        }),
    ];
    let stage2 = Stage2::new(5);
    let mut guest = Guest::new(stage2);
    let places = [stage2::pages(1), stage2::pages(1)];
    for (n, place) in places.into_iter().enumerate() {
        // SAFETY: pages just given to this function.
        unsafe { AtomicU64::from_ptr(place as *mut u64) }.store(n as u64 + 1, Release);
    }
    for (name, forget) in forms {
        if name.starts_with('R') && mrs!("ID_AA64ISAR0_EL1") >> 56 & 15 < 2 {
            continue;
        }
        for round in 0..4 {
            let now = round % 2;
            // Break before make.
            stage2.set(NOWHERE, 3, 0);
            forget(NOWHERE);
            check_fault(run_load(&mut guest, NOWHERE), 0x24, 0x07, NOWHERE)?;
            stage2.page(NOWHERE, places[now], stage2::ALL);
            check_end(run_load(&mut guest, NOWHERE))?;
            check_eq!(guest.x[0], now as u64 + 1, "L2's page after {name}");
        }
    }
    Ok(())
}

/// VMs with their own VMID and tables have their own memory at the same address, in whatever order they run,
/// without maintenance.
fn vmids() -> Outcome {
    const VMS: usize = 24;
    let mut vms = [None; VMS];
    for (n, vm) in vms.iter_mut().enumerate() {
        let stage2 = Stage2::new(n as u64 + 16);
        let mut guest = Guest::new(stage2);
        stage2.page(NOWHERE, stage2::pages(1), stage2::ALL);
        check_end(run_store(&mut guest, NOWHERE, n as u64))?;
        *vm = Some(stage2);
    }
    let mut random = payload::random::Random::new(1);
    for _ in 0..200 {
        let n = random.below(VMS as u64) as usize;
        let Some(stage2) = vms[n] else { continue };
        stage2.activate();
        let mut guest = Guest::bare();
        check_end(run_load(&mut guest, NOWHERE))?;
        check_eq!(guest.x[0], n as u64, "VM {n}'s memory");
    }
    Ok(())
}

/// One VMID taken from a VM and given to another, after maintenance.
fn same_vmid_other_tables() -> Outcome {
    for value in 1..=8 {
        let stage2 = Stage2::new(7);
        let mut guest = Guest::new(stage2);
        forget_all();
        let page = stage2::pages(1);
        // SAFETY: a page just given to this function.
        unsafe { AtomicU64::from_ptr(page as *mut u64) }.store(value, Release);
        stage2.page(NOWHERE, page, stage2::ALL);
        check_end(run_load(&mut guest, NOWHERE))?;
        check_eq!(guest.x[0], value, "what the new VM has");
    }
    Ok(())
}

/// Tables with the 64 KiB and 16 KiB granules, if the CPU supports them for the second stage.
fn granules() -> Outcome {
    let features = mrs!("ID_AA64MMFR0_EL1");
    // TGran64_2 and TGran16_2: 0 means as the first stage, 1 means no.
    let has64 = features >> 36 & 15 == 2 || features >> 36 & 15 == 0 && features >> 24 & 15 == 0;
    let has16 = features >> 32 & 15 == 2 || features >> 32 & 15 == 0 && features >> 20 & 15 != 0;
    check!(has64 || has16, "no granule but 4 KiB");
    let image = machine::ram().start;
    let common = crate::stage2::vtcr() & !(0xFF | 3 << 14);
    if has64 {
        // From level 2: entries of 512 MiB, for as many address bits as supported, at most 42. L2's first
        // block is L1's RAM, read-only and executable.
        let bits = [32, 36, 40, 42][(features & 15).min(3) as usize];
        let root = stage2::pages(32).next_multiple_of(0x1_0000);
        write(root + 8 * (image >> 29), image & !((1 << 29) - 1) | stage2::ALL | 1);
        run_by_blocks(common | 1 << 14 | 1 << 6 | (64 - bits), root)?;
    }
    if has16 {
        // 36 bits, from level 2: 2048 entries of 32 MiB.
        let root = stage2::pages(8).next_multiple_of(0x4000);
        write(root + 8 * (image >> 25), image | stage2::ALL | 1);
        run_by_blocks(common | 2 << 14 | 1 << 6 | 28, root)?;
    }
    Ok(())
}

fn write(address: u64, value: u64) {
    // SAFETY: callers pass the address of an entry of their own tables, aligned and accessed only by this function and the MMU.
    unsafe { AtomicU64::from_ptr(address as *mut u64) }.store(value, Release);
}

/// L2 runs where L1's image is.
fn run_by_blocks(vtcr: u64, root: u64) -> Outcome {
    let mut guest = Guest::bare();
    msr!("VTCR_EL2", vtcr);
    msr!("VTTBR_EL2", root | 9 << 48);
    forget_all();
    let code = code!("mov x0, #77");
    guest.pc = code.as_ptr() as u64;
    check_end(guest.resume())?;
    check_eq!(guest.x[0], 77, "x0");
    Ok(())
}

/// A device page maps the device.
fn device() -> Outcome {
    let stage2 = Stage2::new(10);
    let mut guest = Guest::new(stage2);
    stage2.page(NOWHERE, payload::board::GICD, READ | WRITE | 1 << 10);
    // GICD_TYPER.
    guest.x[1] = NOWHERE + 4;
    check_end(guest.run(code!("ldr w0, [x1]")))?;
    check_eq!(guest.x[0] as u32, gic::gicd(4).read(), "GICD_TYPER");
    Ok(())
}

/// AT S12E1R and S1E1R of L2's addresses; AT S1E2R of L1's own.
fn translate() -> Outcome {
    if !machine::is_stile() {
        skip!("QEMU itself fails an assertion at AT S12E1R without a first stage");
    }
    let stage2 = Stage2::new(11);
    let _guest = Guest::new(stage2);
    let page = stage2::pages(1);
    stage2.page(NOWHERE, page, NORMAL | READ);
    let at = |address: u64, which: fn(u64)| {
        stage2::with_guest_regime(|| which(address));
        mrs!("PAR_EL1")
    };
    macro_rules! at {
        ($name:literal) => {
            // SAFETY: AT changes PAR_EL1 only, which the compiler does not use.
            |address| unsafe { core::arch::asm!(concat!("at ", $name, ", {}"), "isb", in(reg) address, options(nostack)) }
        };
    }
    let par = at(NOWHERE + 0x123, at!("s12e1r"));
    check_eq!(par & 0xF_FFFF_FFFF_F001, page, "PAR_EL1 of S12E1R");
    let par = at(NOWHERE, at!("s12e1w"));
    // F, S, permission fault at level 3.
    check_eq!(par & 0x27F, 1 | 0x0F << 1 | 1 << 9, "PAR_EL1 of S12E1W");
    let par = at(NOWHERE + (1 << 30), at!("s12e0r"));
    check_eq!(par & 0x27F, 1 | 0x05 << 1 | 1 << 9, "PAR_EL1 of S12E0R");
    // The first stage is disabled.
    let par = at(0x1234_5000, at!("s1e1r"));
    check_eq!(par & 0xF_FFFF_FFFF_F001, 0x1234_5000, "PAR_EL1 of S1E1R");
    let own = payload::board::RAM + 0x12_3000;
    let par = at(own, at!("s1e2r"));
    check_eq!(par & 0xF_FFFF_FFFF_F001, own, "PAR_EL1 of S1E2R");
    // With TGE, S1E1R translates for L1 itself.
    let which: fn(u64) = at!("s1e1r");
    which(own);
    check_eq!(mrs!("PAR_EL1") & 0xF_FFFF_FFFF_F001, own, "PAR_EL1 of S1E1R with TGE");
    Ok(())
}

/// The root and VMID of the VM that another CPU takes memory from.
static SHARED: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
/// Address at which L2 counts its reads.
static READS: AtomicU64 = AtomicU64::new(0);
/// Address of the same page in L2.
const SAID: u64 = NOWHERE + 0x1000;

fn has_read() -> bool {
    // SAFETY: the page is L2's, and the read is single-copy atomic.
    unsafe { (READS.load(Acquire) as *const u64).read_volatile() > 0 }
}

/// L2 reads a page in a loop; another CPU takes the page away. L2 must fault.
fn running_elsewhere() -> Outcome {
    smp::need(2)?;
    for _ in 0..10 {
        let stage2 = Stage2::new(12);
        let mut guest = Guest::new(stage2);
        forget_all();
        stage2.page(NOWHERE, stage2::pages(1), stage2::ALL);
        SHARED[1].store(stage2.vmid, Release);
        SHARED[0].store(stage2.root, Release);
        let said = stage2::pages(1);
        stage2.page(SAID, said, stage2::ALL);
        READS.store(said, Release);
        smp::give(1, || {
            // However long that takes: the emulator may not have run it yet.
            check!(wait::until(has_read), "L2 has read nothing");
            // And for some more time, so that it is within its read loop.
            wait::spin(2_000);
            let stage2 = Stage2 { root: SHARED[0].load(Acquire), vmid: SHARED[1].load(Acquire) };
            stage2.activate();
            stage2.set(NOWHERE, 3, 0);
            forget(NOWHERE);
            Ok(())
        });
        guest.x[1] = NOWHERE;
        guest.x[2] = 0;
        guest.x[3] = SAID;
        let exit = guest.run(code!("772: ldr x0, [x1]", "add x2, x2, #1", "str x2, [x3]", "b 772b"));
        smp::join(1)?;
        check_fault(exit, 0x24, 0x07, NOWHERE)?;
    }
    Ok(())
}
