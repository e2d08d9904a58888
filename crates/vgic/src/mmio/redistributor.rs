//! The redistributor's registers ("The GIC Redistributor register map"): RD_base, then SGI_base.
//!
//! All are 32 bits wide, except that GICR_IPRIORITYR is byte-accessible, and GICR_TYPER is 64 bits wide and
//! accessible by halves. Accesses of other sizes, and to unimplemented registers, are RAZ/WI.

use super::bank::{self, group};
use super::{Read, Size};
use crate::kick::{Delivery, Kick};
use crate::redistributor::priority_mask;
use crate::{BLOCK, Redistributor};

/// Redistributor Control Register.
const CTLR: u32 = 0x0000;
/// Redistributor Implementer Identification Register.
const IIDR: u32 = 0x0004;
/// Redistributor Type Register, 64 bits.
const TYPER: u32 = 0x0008;
/// The upper half of GICR_TYPER.
const TYPER_HIGH: u32 = TYPER + 4;
/// Redistributor Wake Register.
const WAKER: u32 = 0x0014;

/// Offset of SGI_base. From here the layout is the distributor's.
const SGI_BASE: u32 = 0x1_0000;
/// The end of the registers with one bit per interrupt.
const BITS_END: u32 = 0x0400;
/// The first of the Interrupt Priority Registers.
const IPRIORITYR: u32 = 0x0400;
const IPRIORITYR_END: u32 = IPRIORITYR + BLOCK as u32;
/// SGI Configuration Register.
const ICFGR0: u32 = 0x0c00;
/// PPI Configuration Register.
const ICFGR1: u32 = 0x0c04;

/// GICR_CTLR.RWP: register write pending.
const CTLR_RWP: u32 = 1 << 3;
/// GICR_WAKER.ProcessorSleep.
const PROCESSOR_SLEEP: u32 = 1 << 1;
/// GICR_WAKER.ChildrenAsleep: always equal to ProcessorSleep.
const CHILDREN_ASLEEP: u32 = 1 << 2;

impl Redistributor {
    /// Reads the register at `offset` (below [`GICR_SIZE`](crate::GICR_SIZE): RD_base, then
    /// SGI_base).
    ///
    /// [`Read::Stale`] names this vCPU alone: its owner must run [`sync_private`](Self::sync_private), which
    /// publishes. Once [`unpublished`](Self::unpublished) is false, [`read_published`](Self::read_published)
    /// returns the value.
    #[inline]
    pub fn read(&mut self, offset: u32, size: Size) -> Read {
        let word = size == Size::Word;
        if let Some(kind) = kind(offset).filter(|_| word) {
            if matches!(kind, group::ISENABLER | group::ICENABLER) {
                return Read::Value(self.block.enabled.into());
            }
            let lines = match kind {
                group::ISPENDR | group::ICPENDR => self.slots.hw_ppis,
                _ => 0,
            };
            if bank::hidden(&self.block, kind) | lines != 0 {
                self.unpublished = true;
                return Read::Stale(Kick::one(self.config.vcpu.into()));
            }
        }
        Read::Value(self.read_published(offset, size))
    }

    /// Reads a register after [`Read::Stale`], once the vCPU has published.
    #[inline(never)]
    pub fn read_published(&self, offset: u32, size: Size) -> u64 {
        match size {
            Size::Word if offset & 3 == 0 => self.read_word(offset).into(),
            Size::Byte => self.read_priorities(offset, 1).into(),
            Size::Double if offset == TYPER => self.typer(),
            _ => 0,
        }
    }

    fn read_word(&self, offset: u32) -> u32 {
        if let Some(kind) = kind(offset) {
            let lines = match kind {
                group::ISPENDR | group::ICPENDR => self.lines_seen,
                _ => 0,
            };
            return bank::read_bits(&self.block, kind) | lines;
        }
        match offset {
            CTLR if self.block.recall != 0 => CTLR_RWP,
            IIDR => bank::IIDR,
            TYPER => self.typer() as u32,
            TYPER_HIGH => (self.typer() >> 32) as u32,
            WAKER if self.asleep => PROCESSOR_SLEEP | CHILDREN_ASLEEP,
            0..SGI_BASE => bank::identification(offset),
            _ => match offset - SGI_BASE {
                IPRIORITYR..IPRIORITYR_END => self.read_priorities(offset, 4),
                ICFGR0 => bank::read_config(&self.block, 0),
                ICFGR1 => bank::read_config(&self.block, 1),
                _ => 0,
            },
        }
    }

    /// Affinity_Value, Processor_Number, Last: no LPIs, no extended PPIs.
    fn typer(&self) -> u64 {
        let vcpu = u64::from(self.config.vcpu);
        stile_board::mpidr(self.config.vcpu.into()) << 32 | vcpu << 8 | u64::from(self.config.last) << 4
    }

    /// Writes `value` to the register at `offset`. On [`Delivery::NeedsSync`] this vCPU (whichever wrote)
    /// must run [`sync_private`](Self::sync_private), which may in turn require `sync`.
    pub fn write(&mut self, offset: u32, size: Size, value: u64) -> Delivery {
        let value = value as u32;
        let bits = match size {
            Size::Word if offset & 3 == 0 => self.write_word(offset, value),
            Size::Byte => self.write_priorities(offset, 1, value),
            _ => 0,
        };
        if self.note_changed(bits) { Delivery::NeedsSync } else { Delivery::Done }
    }

    /// Returns the affected interrupts.
    fn write_word(&mut self, offset: u32, value: u32) -> u32 {
        if let Some(kind) = kind(offset) {
            return bank::write_bits(&mut self.block, kind, value);
        }
        if offset == WAKER {
            // Stored for reading back only. Interrupts are delivered even when asleep: some guests never
            // write it.
            self.asleep = value & PROCESSOR_SLEEP != 0;
        } else if offset == SGI_BASE + ICFGR1 {
            // PPIs backed by a physical interrupt stay level-sensitive.
            return bank::write_config(&mut self.block, 1, value, !self.slots.hw_ppis);
        }
        self.write_priorities(offset, 4, value)
    }

    fn read_priorities(&self, offset: u32, count: usize) -> u32 {
        priority(offset).map_or(0, |i| bank::read_priorities(&self.block, i, count))
    }

    fn write_priorities(&mut self, offset: u32, count: usize, value: u32) -> u32 {
        let mask = priority_mask(self.config.priority_bits);
        let block = &mut self.block;
        priority(offset).map_or(0, |i| bank::write_priorities(block, i, count, value, mask))
    }
}

/// The kind of a register with one bit per interrupt.
#[inline]
fn kind(offset: u32) -> Option<u32> {
    let offset = offset.wrapping_sub(SGI_BASE);
    (offset < BITS_END && offset & 0x7f == 0).then_some(offset >> 7)
}

/// The interrupt of a GICR_IPRIORITYR byte.
fn priority(offset: u32) -> Option<usize> {
    let i = offset.wrapping_sub(SGI_BASE + IPRIORITYR);
    (i < BLOCK as u32).then_some(i as usize)
}
