//! GICv2: the physical distributor and CPU interface, and the virtual interface control (GICH), all in memory. Arm GIC
//! Architecture Specification (IHI 0048), Programmers' Model and GIC support for virtualization.
//!
//! Stile accesses GICv3's system registers. Each access that may happen on a machine with a GICv2 is a *site*
//! ([`read_gic`], [`write_gic`]), one instruction, and on such a machine [`adopt`] replaces it with a branch to code that
//! accesses the register's equivalent in memory (`gicv2.S`). So the exit path of GICv3 has no instruction for GICv2.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use core::mem::offset_of;

use super::cpu::Local;
use super::mmio::Mmio;
use super::probe;
use crate::address_space::Span;
use stile_firmware::gicv2::Gicv2;

use crate::cpu::Block;

core::arch::global_asm!(
    include_str!("gicv2.S"),
    ACKNOWLEDGED = const offset_of!(Block, local) + offset_of!(Local, acknowledged),
);

/// Reads a register of the CPU interface or of the virtual interface control.
macro_rules! read_gic {
    ($name:ident) => {{
        let value: u64;
        // SAFETY: on a machine with GICv3, reading its register does not affect memory. On one with GICv2 the instruction at
        // 661 is replaced: the code at 662 keeps all registers but the output, and the memory above the stack pointer.
        unsafe {
            core::arch::asm!(
                concat!("661: mrs {value}, ", stile_sysreg::operand!($name)),
                ".pushsection .gic_sites, \"a\"",
                ".balign 4",
                ".word 661b - ., 662f - .",
                ".popsection",
                ".pushsection .text.gicv2, \"ax\"",
                "662: stp x0, x30, [sp, #-32]!",
                concat!("bl gicv2_read_", stringify!($name)),
                "str x0, [sp, #16]",
                "ldp x0, x30, [sp]",
                "ldr {value}, [sp, #16]",
                "add sp, sp, #32",
                "b 663f",
                ".popsection",
                "663:",
                value = out(reg) value,
                options(nostack, preserves_flags)
            )
        };
        value
    }};
}

/// Writes such a register.
macro_rules! write_gic {
    ($name:ident, $value:expr) => {{
        let value: u64 = $value;
        // SAFETY: as `read_gic`; no register of the interrupt controller affects Rust's memory.
        unsafe {
            core::arch::asm!(
                concat!("661: msr ", stile_sysreg::operand!($name), ", {value}"),
                ".pushsection .gic_sites, \"a\"",
                ".balign 4",
                ".word 661b - ., 662f - .",
                ".popsection",
                ".pushsection .text.gicv2, \"ax\"",
                "662: stp x0, x30, [sp, #-16]!",
                "mov x0, {value}",
                concat!("bl gicv2_write_", stringify!($name)),
                "ldp x0, x30, [sp], #16",
                "b 663f",
                ".popsection",
                "663:",
                value = in(reg) value,
                options(nostack, preserves_flags)
            )
        };
    }};
}

pub(crate) use {read_gic, write_gic};

/// A site: distances to its instruction and to its replacement, from the word itself.
#[repr(C)]
struct Site {
    instruction: i32,
    replacement: i32,
}

unsafe extern "C" {
    static __gic_sites_start: Site;
    static __gic_sites_end: Site;
}

/// Virtual addresses of GICD, GICC, GICC's second page and GICH; and [`ENDS`].
#[unsafe(no_mangle)]
static GICV2_BASES: [AtomicU64; 5] = [const { AtomicU64::new(0) }; 5];

/// Index of a word that is 1 if the guest's end of an interrupt that is linked to a physical one needs a maintenance
/// interrupt. QEMU (10.0, `gic_complete_irq`) deactivates the physical one, but does not signal it again though its line
/// is still high; another access to the GIC does.
const ENDS: usize = 4;

unsafe extern "C" {
    // Entries of gicv2.S, and of sgi.S.
    static gicv2_read_ICC_IAR1_EL1: u32;
    static gicv2_write_ICC_EOIR1_EL1: u32;
    static gicv2_write_ICC_DIR_EL1: u32;
    static sgi_read_iar: u32;
    static sgi_read_iar_v2: u32;
    static sgi_write_eoir: u32;
    static sgi_write_dir: u32;
}

/// Instructions that acknowledge, end and deactivate interrupts, but for their general register: MRS of ICC_IAR1_EL1, MSR of
/// ICC_EOIR1_EL1 and ICC_DIR_EL1.
const OF_INTERRUPTS: [u32; 3] = [0xd538_cc00, 0xd518_cc20, 0xd518_cb20];
/// The general register of such an instruction.
const REGISTER: u32 = 0x1f;

static PRESENT: AtomicBool = AtomicBool::new(false);

/// Whether the machine has a GICv2, as [`Board::gicv2`](super::board::Board::gicv2) has it: one load, for the exit path.
pub fn is_present() -> bool {
    PRESENT.load(Ordering::Relaxed)
}

/// Patches the sites: all on a machine with a GICv2 (`present`); else, if firmware keeps some SGIs (`shared`), those that access
/// INTIDs (`OF_INTERRUPTS`).
///
/// # Safety
/// The boot tables are in use, in which code is writable, and no other CPU runs.
pub unsafe fn adopt(present: bool, shared: bool) {
    PRESENT.store(present, Ordering::Relaxed);
    let (start, end) = (&raw const __gic_sites_start, &raw const __gic_sites_end);
    // SAFETY: the linker script places the array between the two symbols, and nothing changes it.
    let sites = unsafe { core::slice::from_raw_parts(start, end.offset_from_unsigned(start)) };
    for site in sites {
        let at = |word: &i32| (&raw const *word as u64).wrapping_add_signed((*word).into());
        let (instruction, replacement) = (at(&site.instruction), at(&site.replacement));
        // SAFETY: a site is an instruction of Stile's.
        let word = unsafe { (instruction as *const u32).read_volatile() };
        if present || shared && OF_INTERRUPTS.contains(&(word & !REGISTER)) {
            // SAFETY: by this function's contract.
            unsafe { redirect(instruction, replacement) };
        }
    }
    let entries = match present {
        true => &[(&raw const gicv2_read_ICC_IAR1_EL1, &raw const sgi_read_iar_v2)][..],
        false => &[
            (&raw const gicv2_read_ICC_IAR1_EL1, &raw const sgi_read_iar),
            (&raw const gicv2_write_ICC_EOIR1_EL1, &raw const sgi_write_eoir),
            (&raw const gicv2_write_ICC_DIR_EL1, &raw const sgi_write_dir),
        ],
    };
    for &(entry, replacement) in entries.iter().filter(|_| shared) {
        // SAFETY: an entry is an instruction, writable by this function's contract.
        unsafe { redirect(entry as u64, replacement as u64) };
    }
    // SAFETY: barriers change no register and no memory.
    unsafe { core::arch::asm!("dsb ish", "isb", options(nostack, preserves_flags)) };
}

/// Replaces an instruction with a branch.
///
/// # Safety
/// `instruction` is the address of one of Stile's, which is writable, and no other CPU runs.
unsafe fn redirect(instruction: u64, to: u64) {
    // B: the image is shorter than its range, 128 MiB.
    let branch = 0b101 << 26 | (to.wrapping_sub(instruction) >> 2) as u32 & 0x3ff_ffff;
    // SAFETY: it is writable by this function's contract. The cache maintenance (Arm ARM, Self-modifying code) is complete before
    // the instruction is executed next.
    unsafe {
        (instruction as *mut u32).write_volatile(branch);
        core::arch::asm!("dc cvau, {0}", "dsb ish", "ic ivau, {0}", in(reg) instruction, options(nostack, preserves_flags));
    }
}

const GICD_CTLR: usize = 0x0;
const GICD_TYPER: usize = 0x4;
const GICD_IIDR: usize = 0x8;
/// GICD_IIDR of QEMU (10.0), with either version: Arm, without a product or revision. A GIC-400 has product 2.
const IIDR_OF_QEMU: u32 = 0x43b;
const GICD_ISENABLER: usize = 0x100;
const GICD_ICENABLER: usize = 0x180;
const GICD_ICACTIVER: usize = 0x380;
const GICD_IPRIORITYR: usize = 0x400;
const GICD_ITARGETSR: usize = 0x800;
const GICC_CTLR: usize = 0x0;
const GICC_PMR: usize = 0x4;
const GICC_IIDR: usize = 0xfc;
const GICH_VTR: usize = 0x4;
/// GICD_CTLR, GICC_CTLR: enables the interrupts of the security state that Stile runs in.
const ENABLE: u32 = 1 << 0;
/// GICC_CTLR.EOImode, or EOImodeNS of a GIC with two security states.
const EOI_MODE: u32 = 1 << 9;

/// Whether a distributor of either version looks like QEMU's.
pub(super) fn is_of_qemu(gicd: &Mmio) -> bool {
    gicd.read32(GICD_IIDR) == IIDR_OF_QEMU
}

/// Maps the registers, and initializes the distributor: all SPIs disabled, sent to the boot CPU, at `priority`. Returns
/// the distributor. `ram` is the board's.
///
/// # Errors
/// A part of the GIC is not at the address that firmware's tables give.
pub fn setup_distributor(gic: &Gicv2, ram: &[Span], priority: u8) -> Result<Mmio, &'static str> {
    let first = gic.interface_offset() as usize;
    let gicd = probe::claim("distributor", &gic.gicd, ram, 4, GICD_TYPER)?.base();
    let first = first + probe::claim("GIC's CPU interface", &gic.gicc, ram, 4, first + GICC_IIDR)?.base();
    let gich = probe::claim("GIC's virtual interface control", &gic.gich, ram, 4, GICH_VTR)?.base();
    // Only guests access GICV: check that it is there.
    probe::claim("GIC's virtual CPU interface", &gic.gicv, ram, 4, GICC_PMR)?;
    for (base, at) in GICV2_BASES.iter().zip([gicd, first, first + 0x1000, gich]) {
        base.store(at as u64, Ordering::Relaxed);
    }
    let gicd = Mmio::new(gicd);
    GICV2_BASES[ENDS].store(u64::from(is_of_qemu(&gicd)), Ordering::Relaxed);
    gicd.write32(GICD_CTLR, 0);
    let lines = 32 * ((gicd.read32(GICD_TYPER) & 0x1f) as usize + 1);
    let boot_cpu = interface_mask(&gicd);
    for n in (32..lines.min(1020)).step_by(32) {
        gicd.write32(GICD_ICENABLER + n / 8, u32::MAX);
        gicd.write32(GICD_ICACTIVER + n / 8, u32::MAX);
        for word in 0..8 {
            gicd.write32(GICD_IPRIORITYR + n + word * 4, u32::from_ne_bytes([priority; 4]));
            gicd.write32(GICD_ITARGETSR + n + word * 4, u32::from_ne_bytes([boot_cpu; 4]));
        }
    }
    gicd.write32(GICD_CTLR, ENABLE);
    Ok(gicd)
}

/// Disables the private interrupts of the calling CPU. Returns the priority bits that the distributor keeps, and the value
/// of GICD_SGIR that sends SGI 0 to this CPU.
pub fn setup_private(gicd: &Mmio) -> (u8, u32) {
    gicd.write32(GICD_ICENABLER, u32::MAX);
    gicd.write32(GICD_ICACTIVER, u32::MAX);
    gicd.write32(GICD_IPRIORITYR, u32::MAX);
    (gicd.read32(GICD_IPRIORITYR) as u8, u32::from(interface_mask(gicd)) << 16)
}

/// Enables private interrupts of the calling CPU.
pub fn enable_private(gicd: &Mmio, ppis: u32) {
    gicd.write32(GICD_ISENABLER, ppis);
}

/// Initializes this CPU's interface. Returns the priority bits that it keeps.
pub fn open_interface() -> u8 {
    let gicc = Mmio::new(GICV2_BASES[1].load(Ordering::Relaxed) as usize);
    gicc.write32(GICC_PMR, 0xff);
    gicc.write32(GICC_CTLR, EOI_MODE | ENABLE);
    gicc.read32(GICC_PMR) as u8
}

/// The calling CPU as a bit of GICD_ITARGETSR: its banked first registers have it in each field that is implemented. With
/// a single CPU they read as zero.
fn interface_mask(gicd: &Mmio) -> u8 {
    let words = (0..8).map(|word| gicd.read32(GICD_ITARGETSR + word * 4));
    let mask = words.flat_map(u32::to_le_bytes).find(|&mask| mask != 0);
    mask.unwrap_or(1)
}

/// Sends SPI `n` to the calling CPU.
pub fn route_here(gicd: &Mmio, n: usize) {
    let word = GICD_ITARGETSR + (n & !3);
    let mut targets = gicd.read32(word).to_le_bytes();
    targets[n & 3] = interface_mask(gicd);
    gicd.write32(word, u32::from_le_bytes(targets));
}
