//! The board's own GICv3: distributor, this CPU's redistributor, and the CPU interface as EL2 uses it.
//! Arm GIC Architecture Specification (IHI 0069), chapters Programmers' model and The GIC system registers.

use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};

use stile_board::MAX_CPUS;
use stile_vgic::HostPriorities;

use super::board::Board;
use super::mmio::Mmio;
use super::sysreg::{dsb_ish, isb, read_sysreg, write_sysreg};
use crate::address_space::{self, Span};
use crate::once::Once;

/// The SGI by which one CPU makes another look at its work.
pub const KICK: u32 = 0;

/// [`KICK`] for CPUs that a guest may have for its own interrupts: most guests leave this SGI alone.
pub const OWNED_KICK: u32 = 15;

/// Priority of interrupts that a guest can cause: kicks, maintenance, guests' timers.
pub(super) const PRIORITY: u8 = 0x80;
/// Priority of Stile's timer and of the operator's line. An exit acknowledges one interrupt, the one of the highest priority, then of the
/// lowest INTID: no guest may keep these two waiting. (Nothing preempts: EL2 runs with interrupts masked.)
const OWN_PRIORITY: u8 = 0x40;

const GICD_CTLR: usize = 0x0;
const GICD_TYPER: usize = 0x4;
const GICD_IGROUPR: usize = 0x80;
const GICD_ISENABLER: usize = 0x100;
const GICD_ISPENDR: usize = 0x200;
const GICD_ICENABLER: usize = 0x180;
const GICD_ICACTIVER: usize = 0x380;
const GICD_IPRIORITYR: usize = 0x400;
const GICD_ICFGR: usize = 0xc00;
const GICD_IROUTER: usize = 0x6000;
/// ARE_NS, EnableGrp1NS; without two security states ARE and EnableGrp1.
const GICD_CTLR_ON: u32 = 1 << 4 | 1 << 1;
const GICD_CTLR_RWP: u32 = 1 << 31;
/// There is one security state; with two, this is no bit that non-secure accesses see.
const GICD_CTLR_DS: u32 = 1 << 6;

const GICR_TYPER: usize = 0x8;
const GICR_WAKER: usize = 0x14;
const GICR_SGI: usize = 0x1_0000;
const GICR_ISACTIVER0: usize = GICR_SGI + 0x300;
const GICR_ICACTIVER0: usize = GICR_SGI + 0x380;

/// ICC_CTLR_EL1.EOImode.
pub const CTLR_EOI_MODE: u64 = 1 << 1;

/// Redistributors of one kind lie this far apart (GICv3; GICv4 has two frames more).
const GICV3_STRIDE: u64 = 0x2_0000;
const GICV4_STRIDE: u64 = 0x4_0000;

/// The private interrupts that Stile takes.
pub(super) static OWN: AtomicU32 = AtomicU32::new(0);

/// The bits of a priority that all CPUs' redistributors and interfaces keep, as Stile sees them.
static KEPT_PRIORITY: AtomicU8 = AtomicU8::new(u8::MAX);
static TWO_STATES: AtomicBool = AtomicBool::new(false);

static DISTRIBUTOR: Once<Mmio> = Once::new();
static REDISTRIBUTORS: [AtomicU64; MAX_CPUS] = [const { AtomicU64::new(0) }; MAX_CPUS];
/// Value for ICC_SGI1R_EL1 that kicks each CPU.
static KICKS: [AtomicU64; MAX_CPUS] = [const { AtomicU64::new(0) }; MAX_CPUS];

/// Sets up the distributor: all SPIs in group 1, off, and sent to the first CPU.
pub fn setup_distributor(gicd: &Span) {
    let gicd = Mmio::new(address_space::device(gicd.clone()));
    gicd.write32(GICD_CTLR, 0);
    wait_for_writes(&gicd, GICD_CTLR, GICD_CTLR_RWP);
    let lines = 32 * ((gicd.read32(GICD_TYPER) & 0x1f) as usize + 1);
    for n in (32..lines.min(1020)).step_by(32) {
        gicd.write32(GICD_ICENABLER + n / 8, u32::MAX);
        gicd.write32(GICD_ICACTIVER + n / 8, u32::MAX);
        gicd.write32(GICD_IGROUPR + n / 8, u32::MAX);
        for word in 0..8 {
            gicd.write32(GICD_IPRIORITYR + n + word * 4, u32::from_ne_bytes([PRIORITY; 4]));
        }
    }
    gicd.write32(GICD_CTLR, GICD_CTLR_ON);
    wait_for_writes(&gicd, GICD_CTLR, GICD_CTLR_RWP);
    TWO_STATES.store(gicd.read32(GICD_CTLR) & GICD_CTLR_DS == 0, Ordering::Relaxed);
    DISTRIBUTOR.set(gicd);
}

pub(super) fn wait_for_writes(registers: &Mmio, control: usize, bit: u32) {
    while registers.read32(control) & bit != 0 {
        core::hint::spin_loop();
    }
}

/// Finds this CPU's redistributor and sets it up with its CPU interface; `ppis` are the private interrupts to take, `timer` the one of them
/// that is Stile's own.
///
/// # Errors
/// In words, if the redistributor or the system registers are not there.
pub fn setup_cpu(board: &Board, cpu: usize, mpidr: u64, ppis: &[u32], timer: u32) -> Result<(), &'static str> {
    let affinity = mpidr >> 32 << 24 & 0xff00_0000 | mpidr & 0xff_ffff;
    let gicr = board.gicr.iter().find_map(|region| find_redistributor(region, affinity)).ok_or("no GICv3 redistributor for this CPU")?;
    REDISTRIBUTORS[cpu].store(gicr.base() as u64, Ordering::Relaxed);
    KICKS[cpu].store(sgi1r(mpidr, KICK), Ordering::Relaxed);

    let waker = gicr.read32(GICR_WAKER) & !2;
    gicr.write32(GICR_WAKER, waker);
    while gicr.read32(GICR_WAKER) & 4 != 0 {
        core::hint::spin_loop();
    }
    let frame = GICR_SGI;
    gicr.write32(frame + GICD_ICENABLER, u32::MAX);
    gicr.write32(frame + GICD_ICACTIVER, u32::MAX);
    gicr.write32(frame + GICD_IGROUPR, u32::MAX);
    gicr.write32(frame + GICD_IPRIORITYR, u32::MAX);
    let kept_by_redistributor = gicr.read32(frame + GICD_IPRIORITYR) as u8;
    for word in 0..8 {
        gicr.write32(frame + GICD_IPRIORITYR + word * 4, u32::from_ne_bytes([PRIORITY; 4]));
    }
    let mut enable = 1 << KICK | 1 << OWNED_KICK;
    for &ppi in ppis {
        enable |= 1u32.checked_shl(ppi).ok_or("a private interrupt of the board has an INTID above 31")?;
    }
    set_priority(&gicr, frame, timer, OWN_PRIORITY);
    gicr.write32(frame + GICD_ISENABLER, enable);
    OWN.store(enable, Ordering::Relaxed);

    // ICC_SRE_EL2: SRE, DFB, DIB, Enable.
    write_sysreg!(ICC_SRE_EL2, 0xf);
    isb();
    if read_sysreg!(ICC_SRE_EL2) & 1 == 0 {
        return Err("the GIC's CPU interface has no system registers");
    }
    write_sysreg!(ICC_SRE_EL1, 0x7); // ICC_SRE_EL1, for guests: SRE, DFB, DIB
    open_interface();
    let kept_by_interface = read_sysreg!(ICC_PMR_EL1) as u8;
    KEPT_PRIORITY.fetch_and(kept_by_redistributor & kept_by_interface, Ordering::Relaxed);
    Ok(())
}

/// The priorities that interrupts can have; `None` if they are too few for guests' to be below Stile's.
pub fn priorities() -> Option<HostPriorities> {
    HostPriorities::new(KEPT_PRIORITY.load(Ordering::Relaxed), has_two_states())
}

/// Whether the GIC has two security states: GICD_CTLR.DS is clear.
pub fn has_two_states() -> bool {
    TWO_STATES.load(Ordering::Relaxed)
}

/// Sets up this CPU's interface as EL2 uses it.
pub fn open_interface() {
    write_sysreg!(ICC_CTLR_EL1, CTLR_EOI_MODE); // deactivation is a step of its own
    write_sysreg!(ICC_PMR_EL1, 0xff);
    write_sysreg!(ICC_IGRPEN1_EL1, 1);
    isb();
}

/// Sets the priority of an interrupt, whose registers start at `base` (a distributor, or the SGI frame of a redistributor).
pub(super) fn set_priority(registers: &Mmio, base: usize, intid: u32, priority: u8) {
    let n = intid as usize;
    let word = base + GICD_IPRIORITYR + (n & !3);
    let mut priorities = registers.read32(word).to_le_bytes();
    priorities[n & 3] = priority;
    registers.write32(word, u32::from_le_bytes(priorities));
}

fn find_redistributor(region: &Span, affinity: u64) -> Option<Mmio> {
    let registers = Mmio::new(address_space::device(region.clone()));
    let mut offset = 0;
    while offset + GICV3_STRIDE <= region.end - region.start {
        let frame = registers.at(offset as usize);
        let typer = frame.read64(GICR_TYPER);
        if typer >> 32 == affinity {
            return Some(frame);
        }
        if typer >> 4 & 1 != 0 {
            break; // Last
        }
        // VLPIS: a GICv4 redistributor.
        offset += if typer >> 1 & 1 != 0 { GICV4_STRIDE } else { GICV3_STRIDE };
    }
    None
}

/// Lets the SPI of the operator's line come to the CPU of affinity `mpidr`.
pub fn enable_spi(intid: u32, mpidr: u64) {
    enable(intid, mpidr, |gicd, _| set_priority(gicd, 0, intid, OWN_PRIORITY));
}

/// Has an SPI come to the CPU of affinity `mpidr` from now on.
pub fn move_spi(intid: u32, mpidr: u64) {
    route_spi(DISTRIBUTOR.get(), intid as usize, mpidr);
}

/// Lets an edge-triggered SPI come to the CPU of affinity `mpidr`, with the priority of interrupts that guests can cause.
pub fn enable_edge_spi(intid: u32, mpidr: u64) {
    enable(intid, mpidr, |gicd, n| {
        let register = GICD_ICFGR + n / 16 * 4;
        gicd.write32(register, gicd.read32(register) | 0b10 << (n % 16 * 2));
    });
}

/// Routes an SPI to a CPU and enables it, once `prepare` has set it up. Other INTIDs than those of SPIs are left alone.
fn enable(intid: u32, mpidr: u64, prepare: impl FnOnce(&Mmio, usize)) {
    let gicd = DISTRIBUTOR.get();
    let n = intid as usize;
    if !(32..1020).contains(&n) {
        return;
    }
    prepare(gicd, n);
    route_spi(gicd, n, mpidr);
    gicd.write32(GICD_ISENABLER + n / 32 * 4, 1 << (n % 32));
}

/// Makes an edge-triggered SPI pending.
pub fn set_pending_spi(intid: u32) {
    let n = intid as usize;
    DISTRIBUTOR.get().write32(GICD_ISPENDR + n / 32 * 4, 1 << (n % 32));
}

fn route_spi(gicd: &Mmio, n: usize, mpidr: u64) {
    gicd.write64(GICD_IROUTER + n * 8, mpidr & 0xff_00ff_ffff);
}

/// The redistributors of the CPUs that are online, with the CPUs' numbers.
pub fn redistributors() -> impl Iterator<Item = (usize, Mmio)> {
    let bases = REDISTRIBUTORS.iter().map(|base| base.load(Ordering::Relaxed) as usize);
    bases.enumerate().filter(|&(_, base)| base != 0).map(|(cpu, base)| (cpu, Mmio::new(base)))
}

/// The redistributor of a CPU that is online.
pub(super) fn redistributor(cpu: usize) -> Mmio {
    Mmio::new(REDISTRIBUTORS[cpu % MAX_CPUS].load(Ordering::Relaxed) as usize)
}

/// ICC_SGI1R_EL1 for one CPU.
fn sgi1r(mpidr: u64, sgi: u32) -> u64 {
    let affinity = |n: u32| mpidr >> (if n == 3 { 32 } else { n * 8 }) & 0xff;
    affinity(3) << 48 | affinity(2) << 32 | u64::from(sgi) << 24 | affinity(1) << 16 | affinity(0) >> 4 << 44 | 1 << (affinity(0) & 0xf)
}

/// From now on this CPU is kicked by [`OWNED_KICK`].
pub fn set_owned(cpu: usize) {
    let kick = &KICKS[cpu % MAX_CPUS];
    kick.store(to_sgi(kick.load(Ordering::Relaxed), OWNED_KICK), Ordering::Relaxed);
}

/// From now on this CPU is kicked by [`KICK`] again.
pub fn set_shared(cpu: usize) {
    // It may have been disabled while a guest had the CPU's SGIs.
    redistributor(cpu).write32(GICR_SGI + GICD_ISENABLER, 1 << KICK);
    dsb_ish();
    let kick = &KICKS[cpu % MAX_CPUS];
    kick.store(to_sgi(kick.load(Ordering::Relaxed), KICK), Ordering::Relaxed);
}

/// Sends an SGI to a CPU, as [`kick`] does.
#[inline(always)]
pub fn send_sgi(cpu: usize, intid: u32) {
    write_sysreg!(ICC_SGI1R_EL1, to_sgi(KICKS[cpu % MAX_CPUS].load(Ordering::Relaxed), intid));
}

/// Replaces the SGI in a value for ICC_SGI1R_EL1.
fn to_sgi(value: u64, intid: u32) -> u64 {
    value & !(0xf << 24) | u64::from(intid) << 24
}

/// Completes what was written: for whoever is kicked next, and before what others wrote is read.
///
/// An interrupt must not overtake what it announces (Arm ARM, Ordering of memory accesses and interrupts): that takes a DSB, and a DSB is
/// a barrier between stores and loads, too.
#[inline(always)]
pub fn complete_stores() {
    dsb_ish();
}

/// Makes another CPU exit, or wake, and look for work: after [`complete_stores`]. It is sent by the next exception return or
/// [`isb`] at the latest.
#[inline(always)]
pub fn kick(cpu: usize) {
    write_sysreg!(ICC_SGI1R_EL1, KICKS[cpu % MAX_CPUS].load(Ordering::Relaxed));
}

/// ICC_IAR1_EL1: takes the pending interrupt.
#[inline(always)]
pub fn acknowledge() -> u32 {
    read_sysreg!(ICC_IAR1_EL1) as u32 & 0xff_ffff
}

/// A kick that comes from now on is one of its own. What it was for must not be read earlier: it would be missed if it came
/// between the reading and the acknowledgement (Arm GIC Architecture Specification, Observability of the effects of accesses to the GIC
/// registers: a DSB).
#[inline(always)]
pub fn complete_acknowledge() {
    // SAFETY: a barrier.
    unsafe { core::arch::asm!("dsb nsh", options(nostack, preserves_flags)) };
}

/// The first INTID that is no SGI, PPI or SPI: 1020 to 1023 are special, LPIs come later, and Stile enables none of those between.
pub const FIRST_SPECIAL: u32 = 1020;

/// ICC_EOIR1_EL1: other interrupts may come; this one stays active until it is deactivated, here or by the guest.
#[inline(always)]
pub fn drop_priority(intid: u32) {
    write_sysreg!(ICC_EOIR1_EL1, u64::from(intid));
}

/// ICC_DIR_EL1.
#[inline(always)]
pub fn deactivate(intid: u32) {
    write_sysreg!(ICC_DIR_EL1, u64::from(intid));
}

/// Sets or clears the active state of a private interrupt of this CPU, without taking it.
pub fn set_active(cpu: usize, intid: u32, active: bool) {
    let gicr = Mmio::new(REDISTRIBUTORS[cpu].load(Ordering::Relaxed) as usize);
    gicr.write32(if active { GICR_ISACTIVER0 } else { GICR_ICACTIVER0 }, 1 << (intid & 31));
    dsb_ish();
}
