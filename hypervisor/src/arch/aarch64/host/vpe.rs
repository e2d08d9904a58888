//! Residency of vPEs on redistributors (GICv4.0; Arm GIC Architecture Specification, IHI 0069, GICR_VPENDBASER). While a vPE
//! is resident, its pending LPIs are interrupts of the CPU's virtual interface; otherwise they are in its table.

use super::gic;
use super::mmio::{Mmio, wait};
use super::sysreg::dsb_ish;

const GICR_TYPER: usize = 0x8;
/// GICR_TYPER.VLPIS.
const VIRTUAL_LPIS: u64 = 1 << 1;
/// GICR_TYPER.RVPEID: GICv4.1, whose GICR_VPENDBASER has another format.
const NAMES_VPES: u64 = 1 << 7;

/// VLPI_base of a redistributor, and its registers.
const VLPI_FRAME: usize = 0x2_0000;
const GICR_VPROPBASER: usize = VLPI_FRAME + 0x70;
const GICR_VPENDBASER: usize = VLPI_FRAME + 0x78;
/// GICR_VPENDBASER, upper half: Valid, PendingLast, Dirty.
const VALID: u32 = 1 << 31;
const PENDING_LAST: u32 = 1 << 29;
const DIRTY: u32 = 1 << 28;

/// Whether a redistributor has residency as in GICv4.0.
pub fn can_be_on(redistributor: &Mmio) -> bool {
    redistributor.read64(GICR_TYPER) & (VIRTUAL_LPIS | NAMES_VPES) == VIRTUAL_LPIS
}

/// Makes a vPE resident on this CPU, where none is, by the values of GICR_VPROPBASER and GICR_VPENDBASER.
pub fn enter(cpu: usize, configuration: u64, pending: u64) {
    let gicr = gic::redistributor(cpu);
    gicr.write64(GICR_VPROPBASER, configuration);
    // Valid is in the upper half, which is written last.
    gicr.write64(GICR_VPENDBASER, pending);
    dsb_ish();
}

/// Makes the vPE that is resident on this CPU non-resident. Returns whether it has pending enabled LPIs.
///
/// # Errors
/// The redistributor does not answer.
pub fn depart(cpu: usize) -> Result<bool, &'static str> {
    const SILENT: &str = "the redistributor does not answer";
    let gicr = gic::redistributor(cpu);
    let upper = || gicr.read32(GICR_VPENDBASER + 4);
    // Valid must not change while the redistributor still reads the table.
    wait(SILENT, || upper() & DIRTY == 0)?;
    gicr.write32(GICR_VPENDBASER + 4, upper() & !(VALID | PENDING_LAST));
    wait(SILENT, || upper() & DIRTY == 0)?;
    Ok(upper() & PENDING_LAST != 0)
}
