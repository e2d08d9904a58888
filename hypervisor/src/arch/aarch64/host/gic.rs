//! The physical GICv3: distributor, this CPU's redistributor, and the CPU interface at EL2. Arm GIC Architecture
//! Specification (IHI 0069), chapters Programmers' model and The GIC system registers. [`gicv2`] has the
//! differences of a GICv2.

use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};

use stile_board::MAX_CPUS;
use stile_vgic::HostPriorities;

use super::board::{Board, Gic};
use super::gicv2::{self, read_gic, write_gic};
use super::mmio::Mmio;
use super::probe;
use super::sgi;
use super::sysreg::{dsb_ish, isb, read_sysreg, write_sysreg};
use crate::address_space::Span;
use crate::once::Once;

/// Priority of interrupts that guests can cause: kicks, maintenance, guests' timers.
pub(super) const PRIORITY: u8 = 0x80;
/// Priority of Stile's timer and the operator's line. An exit acknowledges one interrupt: the highest priority, then
/// the lowest INTID. Guests must not be able to starve these two. (There is no preemption: EL2 runs with interrupts
/// masked.)
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
/// GICD_CTLR: ARE_NS and EnableGrp1NS; with one security state ARE and EnableGrp1.
const GICD_CTLR_ON: u32 = 1 << 4 | 1 << 1;
const GICD_CTLR_RWP: u32 = 1 << 31;
/// GICD_CTLR.DS: one security state. With two, RES0 for non-secure accesses.
const GICD_CTLR_DS: u32 = 1 << 6;

const GICR_TYPER: usize = 0x8;
const GICR_WAKER: usize = 0x14;
const GICR_SGI: usize = 0x1_0000;
const GICR_ISACTIVER0: usize = GICR_SGI + 0x300;
const GICR_ICACTIVER0: usize = GICR_SGI + 0x380;

/// ICC_CTLR_EL1.EOImode.
pub const CTLR_EOI_MODE: u64 = 1 << 1;

/// Size of the distributor's registers in bytes.
const FRAME: u64 = 0x1_0000;
/// Stride of redistributors (GICv3; GICv4 has two more frames).
const GICV3_STRIDE: u64 = 0x2_0000;
const GICV4_STRIDE: u64 = 0x4_0000;

/// Bit mask of the SGIs and PPIs that Stile enables on every CPU.
pub(super) static OWN: AtomicU32 = AtomicU32::new(0);

/// Priority bits that the redistributors and CPU interfaces of all CPUs implement, as read at EL2.
static KEPT_PRIORITY: AtomicU8 = AtomicU8::new(u8::MAX);
/// The GIC has two security states.
static TWO_STATES: AtomicBool = AtomicBool::new(false);

static DISTRIBUTOR: Once<Mmio> = Once::new();
/// Virtual address of each CPU's redistributor; 0 until the CPU is set up.
static REDISTRIBUTORS: [AtomicU64; MAX_CPUS] = [const { AtomicU64::new(0) }; MAX_CPUS];
/// ICC_SGI1R_EL1 value that kicks each CPU.
static KICKS: [AtomicU64; MAX_CPUS] = [const { AtomicU64::new(0) }; MAX_CPUS];

/// Initializes the distributor: all SPIs in group 1, disabled, routed to the boot CPU. `ram` is the board's.
///
/// # Errors
/// A part of the GIC is not at the address that firmware's tables give.
pub fn setup_distributor(gic: &Gic, ram: &[Span]) -> Result<(), &'static str> {
    let gicd = match gic {
        Gic::V3 { gicd, .. } => setup_distributor_v3(&probe::claim_gic("distributor", gicd, ram, FRAME)?),
        Gic::V2(gic) => gicv2::setup_distributor(gic, ram, PRIORITY)?,
    };
    DISTRIBUTOR.set(gicd);
    Ok(())
}

fn setup_distributor_v3(gicd: &Mmio) -> Mmio {
    gicd.write32(GICD_CTLR, 0);
    wait_for_writes(gicd, GICD_CTLR, GICD_CTLR_RWP);
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
    wait_for_writes(gicd, GICD_CTLR, GICD_CTLR_RWP);
    TWO_STATES.store(gicd.read32(GICD_CTLR) & GICD_CTLR_DS == 0, Ordering::Relaxed);
    *gicd
}

/// Whether the machine's GIC looks like QEMU's, or that of a VM of Stile's, which may run on QEMU.
pub fn is_of_qemu() -> bool {
    gicv2::is_of_qemu(DISTRIBUTOR.get())
}

/// Waits until `bit` of the register at `control` is clear: register writes pending (RWP).
pub(super) fn wait_for_writes(registers: &Mmio, control: usize, bit: u32) {
    while registers.read32(control) & bit != 0 {
        core::hint::spin_loop();
    }
}

/// Finds and initializes this CPU's redistributor, and its CPU interface. `ppis` are the private interrupts to
/// enable, of which `timer` is Stile's own.
///
/// # Errors
/// A description, if the redistributor or the system registers are missing.
pub fn setup_cpu(board: &Board, cpu: usize, mpidr: u64, ppis: &[u32], timer: u32) -> Result<(), &'static str> {
    let mut enable = 1 << sgi::kick();
    for &ppi in ppis {
        enable |= 1u32.checked_shl(ppi).ok_or("a private interrupt of the board has an INTID above 31")?;
    }
    OWN.store(enable, Ordering::Relaxed);
    let Some(Gic::V3 { gicr, .. }) = &board.gic else {
        setup_cpu_v2(cpu, enable, timer);
        return Ok(());
    };
    let affinity = mpidr >> 32 << 24 & 0xff00_0000 | mpidr & 0xff_ffff;
    let mut found = None;
    for region in gicr {
        found = find_redistributor(region, &board.ram, affinity)?;
        if found.is_some() {
            break;
        }
    }
    let gicr = found.ok_or("no GICv3 redistributor for this CPU")?;
    REDISTRIBUTORS[cpu].store(gicr.base() as u64, Ordering::Relaxed);
    KICKS[cpu].store(sgi1r(mpidr, sgi::kick()), Ordering::Relaxed);

    // Clears ProcessorSleep, and waits until ChildrenAsleep is clear.
    let waker = gicr.read32(GICR_WAKER) & !2;
    gicr.write32(GICR_WAKER, waker);
    while gicr.read32(GICR_WAKER) & 4 != 0 {
        core::hint::spin_loop();
    }
    let frame = GICR_SGI;
    gicr.write32(frame + GICD_ICENABLER, u32::MAX);
    gicr.write32(frame + GICD_ICACTIVER, u32::MAX);
    gicr.write32(frame + GICD_IGROUPR, u32::MAX);
    // Priority bits that are not implemented are RES0.
    gicr.write32(frame + GICD_IPRIORITYR, u32::MAX);
    let kept_by_redistributor = gicr.read32(frame + GICD_IPRIORITYR) as u8;
    for word in 0..8 {
        gicr.write32(frame + GICD_IPRIORITYR + word * 4, u32::from_ne_bytes([PRIORITY; 4]));
    }
    set_priority(&gicr, frame, timer, OWN_PRIORITY);
    gicr.write32(frame + GICD_ISENABLER, enable);

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

/// [`setup_cpu`] on a machine with GICv2.
fn setup_cpu_v2(cpu: usize, enable: u32, timer: u32) {
    let gicd = DISTRIBUTOR.get();
    // The distributor's first registers are banked by CPU, and have the layout of a redistributor's second frame. The first
    // frame of a redistributor at this address is never accessed.
    let gicr = Mmio::new(gicd.base() - GICR_SGI);
    REDISTRIBUTORS[cpu].store(gicr.base() as u64, Ordering::Relaxed);
    let (kept, sgir) = gicv2::setup_private(gicd);
    KICKS[cpu].store((sgir | sgi::kick()).into(), Ordering::Relaxed);
    for word in 0..8 {
        gicd.write32(GICD_IPRIORITYR + word * 4, u32::from_ne_bytes([PRIORITY; 4]));
    }
    set_priority(gicd, 0, timer, OWN_PRIORITY);
    gicv2::enable_private(gicd, enable);
    KEPT_PRIORITY.fetch_and(kept & gicv2::open_interface(), Ordering::Relaxed);
}

/// Priorities of Stile's and guests' interrupts; `None` if there are too few to keep guests' below Stile's.
pub fn priorities() -> Option<HostPriorities> {
    HostPriorities::new(KEPT_PRIORITY.load(Ordering::Relaxed), has_two_states())
}

/// Whether the GIC has two security states: GICD_CTLR.DS is clear.
pub fn has_two_states() -> bool {
    TWO_STATES.load(Ordering::Relaxed)
}

/// Initializes this CPU's interface at EL2.
pub fn open_interface() {
    write_sysreg!(ICC_CTLR_EL1, CTLR_EOI_MODE); // deactivation is a step of its own
    write_sysreg!(ICC_PMR_EL1, 0xff);
    write_sysreg!(ICC_IGRPEN1_EL1, 1);
    isb();
}

/// Sets the priority of an interrupt. `base` is a distributor, or the SGI frame of a redistributor.
pub(super) fn set_priority(registers: &Mmio, base: usize, intid: u32, priority: u8) {
    let n = intid as usize;
    let word = base + GICD_IPRIORITYR + (n & !3);
    let mut priorities = registers.read32(word).to_le_bytes();
    priorities[n & 3] = priority;
    registers.write32(word, u32::from_le_bytes(priorities));
}

/// Returns the redistributor with an affinity, as in GICR_TYPER, if it is in the region.
///
/// # Errors
/// There is no redistributor at the address that firmware's tables give.
fn find_redistributor(region: &Span, ram: &[Span], affinity: u64) -> Result<Option<Mmio>, &'static str> {
    let mut offset = 0;
    while offset + GICV3_STRIDE <= region.end - region.start {
        let frames = region.start + offset..region.end;
        let frame = probe::claim_gic("redistributor", &frames, ram, GICV3_STRIDE)?;
        let typer = frame.read64(GICR_TYPER);
        if typer >> 32 == affinity {
            return Ok(Some(frame));
        }
        if typer >> 4 & 1 != 0 {
            break; // Last
        }
        // VLPIS: a GICv4 redistributor.
        offset += if typer >> 1 & 1 != 0 { GICV4_STRIDE } else { GICV3_STRIDE };
    }
    Ok(None)
}

/// Enables the SPI of the operator's line, routed to the CPU with affinity `mpidr`.
pub fn enable_spi(intid: u32, mpidr: u64) {
    enable(intid, mpidr, |gicd, _| set_priority(gicd, 0, intid, OWN_PRIORITY));
}

/// Routes an SPI to the CPU with affinity `mpidr`.
pub fn move_spi(intid: u32, mpidr: u64) {
    route_spi(DISTRIBUTOR.get(), intid as usize, mpidr);
}

/// Enables an edge-triggered SPI, routed to the CPU with affinity `mpidr`, at the priority of interrupts that guests
/// can cause.
pub fn enable_edge_spi(intid: u32, mpidr: u64) {
    enable(intid, mpidr, |gicd, n| {
        let register = GICD_ICFGR + n / 16 * 4;
        gicd.write32(register, gicd.read32(register) | 0b10 << (n % 16 * 2));
    });
}

/// Routes and enables an SPI after `prepare` has configured it. Other INTIDs are ignored.
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

/// Makes an edge-triggered SPI (INTID 32 to 1019) pending.
pub fn set_pending_spi(intid: u32) {
    let n = intid as usize;
    DISTRIBUTOR.get().write32(GICD_ISPENDR + n / 32 * 4, 1 << (n % 32));
}

fn route_spi(gicd: &Mmio, n: usize, mpidr: u64) {
    if gicv2::is_present() {
        // Only the boot CPU enables one, for itself.
        return gicv2::route_here(gicd, n);
    }
    gicd.write64(GICD_IROUTER + n * 8, mpidr & 0xff_00ff_ffff);
}

/// Redistributors of online CPUs, by CPU number.
pub fn redistributors() -> impl Iterator<Item = (usize, Mmio)> {
    let bases = REDISTRIBUTORS.iter().map(|base| base.load(Ordering::Relaxed) as usize);
    bases.enumerate().filter(|&(_, base)| base != 0).map(|(cpu, base)| (cpu, Mmio::new(base)))
}

/// Redistributor of an online CPU.
pub(super) fn redistributor(cpu: usize) -> Mmio {
    Mmio::new(REDISTRIBUTORS[cpu % MAX_CPUS].load(Ordering::Relaxed) as usize)
}

/// Returns the ICC_SGI1R_EL1 value that sends an SGI to the CPU with this affinity.
fn sgi1r(mpidr: u64, sgi: u32) -> u64 {
    let affinity = |n: u32| mpidr >> (if n == 3 { 32 } else { n * 8 }) & 0xff;
    affinity(3) << 48 | affinity(2) << 32 | u64::from(sgi) << 24 | affinity(1) << 16 | affinity(0) >> 4 << 44 | 1 << (affinity(0) & 0xf)
}

/// Sends an SGI to a CPU, under the conditions of [`kick`].
#[inline(always)]
pub fn send_sgi(cpu: usize, intid: u32) {
    write_gic!(ICC_SGI1R_EL1, to_sgi(KICKS[cpu % MAX_CPUS].load(Ordering::Relaxed), intid));
}

/// Replaces the INTID in an ICC_SGI1R_EL1 value.
fn to_sgi(value: u64, intid: u32) -> u64 {
    value & !(0xf << 24) | u64::from(intid) << 24
}

/// Orders earlier stores before a following kick, and before later loads of other CPUs' stores.
///
/// An interrupt must not overtake the stores that it announces (Arm ARM, Ordering of memory accesses and interrupts),
/// which takes a DSB; a DSB also orders stores before later loads.
#[inline(always)]
pub fn complete_stores() {
    dsb_ish();
}

/// Kicks another CPU: it exits or wakes, and checks for requests. To be called after [`complete_stores`]. The SGI is
/// sent by the next exception return or [`isb`] at the latest.
#[inline(always)]
pub fn kick(cpu: usize) {
    write_gic!(ICC_SGI1R_EL1, KICKS[cpu % MAX_CPUS].load(Ordering::Relaxed));
}

/// Acknowledges the pending interrupt of the highest priority, and returns its INTID (ICC_IAR1_EL1): 1023 if there is none.
#[inline(always)]
pub fn acknowledge() -> u32 {
    read_gic!(ICC_IAR1_EL1) as u32 & 0xff_ffff
}

/// Orders the acknowledgement of a kick before reads of the requests that it announced: a request added in between
/// would be missed (Arm GIC Architecture Specification, Observability of the effects of accesses to the GIC
/// registers: a DSB).
#[inline(always)]
pub fn complete_acknowledge() {
    // SAFETY: a barrier orders accesses, and changes neither memory nor a register that the compiler uses.
    unsafe { core::arch::asm!("dsb nsh", options(nostack, preserves_flags)) };
}

/// First INTID beyond SGIs, PPIs and SPIs: 1020 to 1023 are special, LPIs come later, and Stile enables none in
/// between.
pub const FIRST_SPECIAL: u32 = 1020;

/// Drops the priority of an interrupt (ICC_EOIR1_EL1), which stays active until it is deactivated, here or by the
/// guest.
#[inline(always)]
pub fn drop_priority(intid: u32) {
    write_gic!(ICC_EOIR1_EL1, u64::from(intid));
}

/// Deactivates an interrupt (ICC_DIR_EL1).
#[inline(always)]
pub fn deactivate(intid: u32) {
    write_gic!(ICC_DIR_EL1, u64::from(intid));
}

/// Sets or clears the active state of a private interrupt of CPU `cpu`, which is online.
pub fn set_active(cpu: usize, intid: u32, active: bool) {
    let gicr = Mmio::new(REDISTRIBUTORS[cpu].load(Ordering::Relaxed) as usize);
    gicr.write32(if active { GICR_ISACTIVER0 } else { GICR_ICACTIVER0 }, 1 << (intid & 31));
    if active {
        // Once it answers, the write has had its effect: a guest's deactivation by its list register comes later.
        gicr.read32(GICR_ISACTIVER0);
    }
    dsb_ish();
}
