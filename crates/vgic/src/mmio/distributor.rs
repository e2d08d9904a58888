//! The distributor's registers ("The GIC Distributor register map").
//!
//! All are 32 bits wide, except that GICD_IPRIORITYR is byte-accessible, and GICD_IROUTER is 64 bits wide and
//! accessible by halves. Accesses of other sizes, and to unimplemented registers, are RAZ/WI.

use super::bank::{self, group};
use super::{Read, Size};
use crate::block::GroupEnables;
use crate::kick::{Bits, Kick};
use crate::{BLOCK, Distributor, INTID_END};

/// Distributor Control Register.
const CTLR: u32 = 0x0000;
/// Interrupt Controller Type Register.
const TYPER: u32 = 0x0004;
/// Distributor Implementer Identification Register.
const IIDR: u32 = 0x0008;
/// The first of the registers with one bit for each interrupt (GICD_IGROUPR).
const BITS: u32 = 0x0080;
/// The first of the Interrupt Priority Registers.
const IPRIORITYR: u32 = 0x0400;
/// Interrupt Processor Targets Registers: reserved with affinity routing.
const ITARGETSR: u32 = 0x0800;
/// The first of the Interrupt Configuration Registers.
const ICFGR: u32 = 0x0c00;
/// Interrupt Group Modifier Registers: reserved with one Security state.
const IGRPMODR: u32 = 0x0d00;
/// The first of the Interrupt Routing Registers (that of INTID 32 is at 0x6100).
const IROUTER: u32 = 0x6000;
/// The end of the Interrupt Routing Registers.
const IROUTER_END: u32 = IROUTER + 8 * INTID_END;

/// GICD_CTLR: affinity routing (ARE) and single Security state (DS) are RAO/WI.
const CTLR_FIXED: u32 = 1 << 4 | 1 << 6;
/// GICD_CTLR.RWP: register write pending.
const CTLR_RWP: u32 = 1 << 31;

/// GICD_TYPER except ITLinesNumber, without LPIs. IDbits: INTIDs have 10 bits. No message-based SPIs, extended
/// ranges, affinity 3 or range selector; 1-of-N SPIs are supported.
const TYPER_FIXED: u32 = 9 << 19;
/// Bits of GICD_TYPER that differ with LPIs. LPIS; num_LPIs, so that guests use no more than there are; IDbits: INTIDs have
/// 14 bits.
const TYPER_LPIS: u32 = 1 << 17 | (crate::LPIS.ilog2() - 1) << 11 | (9 ^ 13) << 19;
const _: () = assert!(crate::FIRST_LPI + crate::LPIS <= 1 << 14);

impl Distributor {
    /// Reads the register at `offset` (below [`GICD_SIZE`](crate::GICD_SIZE)).
    #[inline]
    pub fn read(&mut self, offset: u32, size: Size) -> Read {
        if size == Size::Word && offset < IPRIORITYR && offset & 3 == 0 {
            if offset == TYPER {
                return Read::Value(self.typer().into());
            }
            let kind = offset >> 7;
            if let Some(block) = self.block(spi_block(offset)) {
                if matches!(kind, group::ISENABLER | group::ICENABLER) {
                    return Read::Value(block.enabled.into());
                }
                if bank::hidden(block, kind) != 0 {
                    return self.ask_to_publish(offset);
                }
            }
        }
        Read::Value(self.read_published(offset, size))
    }

    /// Reads a register after [`Read::Stale`], once the vCPUs named there have published.
    #[inline(never)]
    pub fn read_published(&self, offset: u32, size: Size) -> u64 {
        match size {
            Size::Word if offset & 3 == 0 => self.read_word(offset).into(),
            Size::Byte if (IPRIORITYR..ITARGETSR).contains(&offset) => self.read_priorities(offset - IPRIORITYR, 1).into(),
            Size::Double if offset & 7 == 0 => self.route(offset).map_or(0, |(b, i)| {
                let route = self.routes[b][i];
                u64::from(route)
            }),
            _ => 0,
        }
    }

    /// ITLinesNumber: (n + 1) * 32 INTIDs.
    pub(super) fn typer(&self) -> u32 {
        // CPUNumber in a GICv2.
        let fixed = if self.gicv2 { u32::from(self.vcpus.clamp(1, 8) - 1) << 5 } else { TYPER_FIXED };
        let lpis = if self.has_lpis() { TYPER_LPIS } else { 0 };
        (fixed ^ lpis) | self.spi_blocks as u32
    }

    fn read_word(&self, offset: u32) -> u32 {
        match offset {
            CTLR => {
                let rwp = if self.settled() { 0 } else { CTLR_RWP };
                CTLR_FIXED | rwp | u32::from(self.enables.0)
            }
            TYPER => self.typer(),
            IIDR => bank::IIDR,
            BITS..IPRIORITYR => {
                let block = self.block(spi_block(offset));
                block.map_or(0, |block| bank::read_bits(block, offset >> 7))
            }
            IPRIORITYR..ITARGETSR => self.read_priorities(offset - IPRIORITYR, 4),
            ICFGR..IGRPMODR => {
                let half = (offset - ICFGR) / 4;
                let block = self.block((half as usize / 2).wrapping_sub(1));
                block.map_or(0, |block| bank::read_config(block, half))
            }
            IROUTER..IROUTER_END => match self.route(offset & !7) {
                // The upper half is Aff3, which is not implemented.
                Some((b, i)) if offset & 4 == 0 => self.routes[b][i],
                _ => 0,
            },
            _ => bank::identification(offset),
        }
    }

    /// Writes `value` to the register at `offset`.
    pub fn write(&mut self, offset: u32, size: Size, value: u64) -> Kick {
        match size {
            Size::Word if offset & 3 == 0 => self.write_word(offset, value as u32),
            Size::Byte if (IPRIORITYR..ITARGETSR).contains(&offset) => self.write_priorities(offset - IPRIORITYR, 1, value as u32),
            Size::Double if offset & 7 == 0 => self.write_route(offset, value as u32),
            _ => Kick::NONE,
        }
    }

    fn write_word(&mut self, offset: u32, value: u32) -> Kick {
        match offset {
            CTLR => self.set_enables(GroupEnables(value as u8 & GroupEnables::MASK)),
            BITS..IPRIORITYR => {
                let b = spi_block(offset);
                let kind = offset >> 7;
                if kind == group::ISACTIVER {
                    self.settle_homes(b, value);
                }
                let Some(block) = self.block_mut(b) else {
                    return Kick::NONE;
                };
                let bits = bank::write_bits(block, kind, value);
                self.note_changed(b, bits)
            }
            IPRIORITYR..ITARGETSR => self.write_priorities(offset - IPRIORITYR, 4, value),
            ICFGR..IGRPMODR => {
                let half = (offset - ICFGR) / 4;
                let b = (half as usize / 2).wrapping_sub(1);
                let Some(block) = self.block_mut(b) else {
                    return Kick::NONE;
                };
                let bits = bank::write_config(block, half, value, u32::MAX);
                self.note_changed(b, bits)
            }
            IROUTER..IROUTER_END if offset & 4 == 0 => self.write_route(offset, value),
            _ => Kick::NONE,
        }
    }

    fn read_priorities(&self, intid: u32, count: usize) -> u32 {
        let block = self.block((intid as usize / BLOCK).wrapping_sub(1));
        block.map_or(0, |block| bank::read_priorities(block, intid as usize % BLOCK, count))
    }

    fn write_priorities(&mut self, intid: u32, count: usize, value: u32) -> Kick {
        let b = (intid as usize / BLOCK).wrapping_sub(1);
        let mask = self.priority_mask;
        let Some(block) = self.block_mut(b) else {
            return Kick::NONE;
        };
        let bits = bank::write_priorities(block, intid as usize % BLOCK, count, value, mask);
        self.note_changed(b, bits)
    }

    /// The SPI of the GICD_IROUTER at `offset`.
    fn route(&self, offset: u32) -> Option<(usize, usize)> {
        self.locate(offset.checked_sub(IROUTER)? / 8)
    }

    fn write_route(&mut self, offset: u32, value: u32) -> Kick {
        let Some((b, i)) = self.route(offset) else {
            return Kick::NONE;
        };
        // Aff2, Aff1 and Aff0, or 1-of-N.
        let route = value & (Self::ANY | 0x00ff_ffff);
        if self.routes[b][i] == route {
            return Kick::NONE;
        }
        self.routes[b][i] = route;
        self.note_changed(b, 1 << i)
    }

    /// Assigns SPIs that a write is about to make active to the vCPUs that they are routed to.
    fn settle_homes(&mut self, b: usize, bits: u32) {
        let Some(block) = self.block(b) else {
            return;
        };
        for i in Bits(bits & !block.resident & !block.active) {
            self.set_home(b, i, self.target(b, i));
        }
    }

    /// Requests publication from the vCPUs that hold interrupts of the register at `offset`.
    #[cold]
    fn ask_to_publish(&mut self, offset: u32) -> Read {
        let b = spi_block(offset);
        let hidden = self.block(b).map_or(0, |block| bank::hidden(block, offset >> 7));
        let mut holders = Kick::NONE;
        for i in Bits(hidden) {
            holders |= Kick::one(self.owner(b, i).into());
        }
        self.unpublished |= holders;
        Read::Stale(holders)
    }
}

/// The SPI block of a register with one bit per interrupt. Out of range for the register of SGIs and PPIs,
/// which is in the redistributors.
#[inline]
fn spi_block(offset: u32) -> usize {
    (offset as usize >> 2 & 31).wrapping_sub(1)
}
