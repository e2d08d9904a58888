//! Devices that firmware's tables may describe wrongly: checks of their addresses, and a first read that survives an external abort.
//!
//! An access to an address without a device ends in an external abort (Arm ARM, "External aborts"): synchronous, or as an SError.

use core::fmt::{self, Display};

use super::mmio::Mmio;
use super::mmu;
use super::sysreg::read_sysreg;
use crate::address_space::{self, Span};
use crate::console::log;

core::arch::global_asm!(include_str!("probe.S"));

unsafe extern "C" {
    fn probe_read(address: usize, bytes: u32) -> u64;
}

/// Reason not to use a device.
#[derive(Clone, Copy)]
pub enum Fault {
    /// Its registers are 32-bit words at an unaligned address.
    Unaligned,
    /// Its registers end beyond [`mmu::reach`].
    OutOfReach,
    /// The described span is too small for a device of its kind.
    Short,
    /// Its registers overlap memory.
    InMemory,
    /// The read of a register was aborted.
    Silent,
    /// Its registers are not those of such a device.
    Other,
}

impl Display for Fault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Fault::Unaligned => "is not at a multiple of 4",
            Fault::OutOfReach => "is beyond the physical addresses that Stile maps",
            Fault::Short => "has too few registers",
            Fault::InMemory => "is in memory",
            Fault::Silent => "does not answer",
            Fault::Other => "is another device, or none",
        })
    }
}

/// A register that is read to see whether a device is there.
#[derive(Clone, Copy)]
pub struct Probed {
    /// Its offset in bytes.
    pub at: usize,
    /// Whether it has 32 bits, at a multiple of 4, or else 8 bits.
    pub wide: bool,
}

/// Reads a register of a mapped device; `None` if the read is aborted. Only before guests run: the read changes ELR_EL2 and SPSR_EL2.
pub fn read(registers: &Mmio, Probed { at, wide }: Probed) -> Option<u32> {
    if read_sysreg!(CURRENTEL) != 2 << 2 {
        // At EL1 Stile can only report that it needs EL2.
        return Some(if wide { registers.read32(at) } else { registers.read8(at).into() });
    }
    // SAFETY: as for `Mmio`, only devices are mapped there. An abort is taken to vectors that skip the read; the registers of EL2 that
    // change are in use only by exits from guests, none of which runs. On return SErrors are masked again, as they are in all of Stile.
    let value = unsafe { probe_read(registers.base() + at, if wide { 4 } else { 1 }) };
    u32::try_from(value).ok()
}

/// Maps a device's registers if they have `least` bytes or more, do not overlap `taken`, and the probed one can be read.
///
/// # Errors
/// The check that failed.
pub fn map(registers: &Span, taken: &[Span], least: u64, probed: Probed) -> Result<Mmio, Fault> {
    let Span { start, end } = *registers;
    if probed.wide && !start.is_multiple_of(4) {
        return Err(Fault::Unaligned);
    }
    if end > mmu::reach() {
        return Err(Fault::OutOfReach);
    }
    if end.saturating_sub(start) < least {
        return Err(Fault::Short);
    }
    if taken.iter().any(|taken| taken.start < end && start < taken.end) {
        return Err(Fault::InMemory);
    }
    let mapped = Mmio::new(address_space::device(registers.clone()));
    read(&mapped, probed).ok_or(Fault::Silent)?;
    Ok(mapped)
}

/// Maps a device's registers if they have `least` bytes or more, do not overlap `ram`, and the word at offset `at` can be read.
///
/// # Errors
/// The device can't be used. The log has the reason.
pub fn claim(name: &str, registers: &Span, ram: &[Span], least: u64, at: usize) -> Result<Mmio, &'static str> {
    map(registers, ram, least, Probed { at, wide: true }).map_err(|fault| refuse(name, registers.start, fault))
}

/// Maps a part of a GICv3, whose frames have 64 KiB: `least` bytes or more.
///
/// # Errors
/// The part can't be used, or is not a GICv3's. The log has the reason.
pub fn claim_gic(name: &str, registers: &Span, ram: &[Span], least: u64) -> Result<Mmio, &'static str> {
    /// GICD_PIDR2, GICR_PIDR2, GITS_PIDR2 (Arm GIC Architecture Specification, "Identification registers").
    const PIDR2: usize = 0xffe8;
    let part = claim(name, registers, ram, least, PIDR2)?;
    // ArchRev.
    match part.read32(PIDR2) >> 4 & 0xf {
        3 | 4 => Ok(part),
        _ => Err(refuse(name, registers.start, Fault::Other)),
    }
}

fn refuse(name: &str, address: u64, fault: Fault) -> &'static str {
    log!("the {name} at {address:#x} {fault}");
    "the device tree, or an ACPI table, has a wrong address: see the log"
}
