//! The registers of a GICv2's distributor (Arm GIC Architecture Specification, IHI 0048, Distributor register descriptions),
//! where they differ from those of [`super::distributor`]: its first words are banked and belong to the accessing vCPU's
//! [`Redistributor`], SPIs have target lists, and SGIs are sent here.
//!
//! One security state. Words are 32 bits wide; GICD_IPRIORITYR, GICD_ITARGETSR, GICD_CPENDSGIR and GICD_SPENDSGIR are
//! byte-accessible. Other accesses are RAZ/WI.

use super::bank::{self, group};
use super::{Read, Size};
use crate::block::GroupEnables;
use crate::kick::Kick;
use crate::redistributor::Redistributor;
use crate::{BLOCK, Distributor, INTID_END, SGIS};

/// Size of the frame in bytes.
pub const GICD_SIZE: u64 = 0x1000;

/// Most vCPUs: GICD_ITARGETSR has eight bits for an interrupt.
pub const MAX_VCPUS: usize = 8;

const CTLR: u32 = 0x000;
const TYPER: u32 = 0x004;
const IIDR: u32 = 0x008;
const IPRIORITYR: u32 = 0x400;
const ITARGETSR: u32 = 0x800;
const ICFGR: u32 = 0xc00;
const ICFGR_END: u32 = ICFGR + INTID_END / 4;
const SGIR: u32 = 0xf00;
const CPENDSGIR: u32 = 0xf10;
const SPENDSGIR: u32 = 0xf20;
const SPENDSGIR_END: u32 = 0xf30;
const IDENTIFICATION: u32 = 0xfd0;

/// SGI_base's offset in a redistributor's frames.
const SGI_BASE: u32 = 0x1_0000;
/// GICR_ISPENDR0 and GICR_ICPENDR0.
const ISPENDR0: u32 = SGI_BASE + 0x200;
const ICPENDR0: u32 = SGI_BASE + 0x280;
const SGI_MASK: u64 = (1 << SGIS) - 1;

/// Offset of a register of the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the accessing vCPU's redistributor, at an offset in its two frames.
    Private(u32),
    /// GICD_ITARGETSR0 to GICD_ITARGETSR7: each byte is the accessing vCPU.
    OwnTargets,
    /// GICD_SGIR, which is write-only.
    Sgir,
    /// GICD_CPENDSGIR or GICD_SPENDSGIR.
    PendingSgis(PendingSgis),
    /// In the distributor.
    Shared,
}

/// A byte, or four, of GICD_CPENDSGIR or GICD_SPENDSGIR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PendingSgis {
    /// GICD_SPENDSGIR.
    set: bool,
    first: u32,
}

impl Place {
    /// The place of the register at an offset below [`GICD_SIZE`].
    pub fn of(offset: u32) -> Self {
        match offset {
            // IGROUPR0 to ICACTIVER0.
            0x080..IPRIORITYR if offset & 0x7c == 0 => Self::Private(SGI_BASE + offset),
            _ if (IPRIORITYR..IPRIORITYR + BLOCK as u32).contains(&offset) => Self::Private(SGI_BASE + offset),
            _ if (ITARGETSR..ITARGETSR + BLOCK as u32).contains(&offset) => Self::OwnTargets,
            _ if (ICFGR..ICFGR + 8).contains(&offset) => Self::Private(SGI_BASE + offset),
            _ if (SGIR..SGIR + 4).contains(&offset) => Self::Sgir,
            CPENDSGIR..SPENDSGIR => Self::PendingSgis(PendingSgis { set: false, first: offset - CPENDSGIR }),
            SPENDSGIR..SPENDSGIR_END => Self::PendingSgis(PendingSgis { set: true, first: offset - SPENDSGIR }),
            _ => Self::Shared,
        }
    }

    /// The value that a write of `value` to a [`Place::Private`] register at `offset` has as one to the redistributor:
    /// pending bits of SGIs are read-only here.
    pub const fn private_value(offset: u32, value: u64) -> u64 {
        if offset == ISPENDR0 || offset == ICPENDR0 { value & !SGI_MASK } else { value }
    }
}

impl PendingSgis {
    /// GICR_ISPENDR0, from which [`value`](Self::value) takes the state.
    pub const PENDING: u32 = ISPENDR0;

    /// The value of a read of `size`. An SGI is pending from vCPU 0.
    pub fn value(self, pending: u64, size: Size) -> u64 {
        let byte = |n: u32| pending >> ((self.first + n) as usize % SGIS) & 1;
        match size {
            Size::Byte => byte(0),
            Size::Word if self.first.is_multiple_of(4) => (0..4).fold(0, |value, n| value | byte(n) << (8 * n)),
            _ => 0,
        }
    }

    /// The offset in the redistributor, and the value, of the write that has the effect of one of `value` here.
    pub fn write(self, size: Size, value: u64) -> Option<(u32, u64)> {
        let count = match size {
            Size::Byte => 1,
            Size::Word if self.first.is_multiple_of(4) => 4,
            _ => return None,
        };
        let named = |n: &u32| value >> (8 * n) & 0xff != 0;
        let sgis = (0..count).filter(named).fold(0, |sgis, n| sgis | 1 << ((self.first + n) as usize % SGIS));
        Some((if self.set { ISPENDR0 } else { ICPENDR0 }, sgis))
    }
}

/// The target of a write of GICD_SGIR by vCPU `sender` that names one vCPU, which need not be there.
#[inline(always)]
pub fn only_target(value: u64, sender: usize) -> Option<usize> {
    let list = value >> 16 & 0xff;
    match value >> 24 & 3 {
        0 if list.is_power_of_two() => Some(list.trailing_zeros() as usize),
        2 => Some(sender),
        _ => None,
    }
}

/// A decoded write of GICD_SGIR by vCPU `sender` of `vcpus`: the SGI and its targets.
pub fn decode_sgir(value: u64, sender: usize, vcpus: usize) -> (u32, Kick) {
    let all = Kick::below(vcpus.min(MAX_VCPUS));
    let targets = match value >> 24 & 3 {
        0 => Kick::of_word(0, value >> 16 & 0xff).and(all),
        1 => all.without(sender),
        2 => Kick::one(sender),
        // Reserved.
        _ => Kick::NONE,
    };
    (value as u32 & 0xf, targets)
}

/// The value of a read of GICD_ITARGETSR0 to GICD_ITARGETSR7 at `offset` by vCPU `vcpu` of `vcpus`. A uniprocessor's are
/// RAZ.
pub fn own_targets(offset: u32, vcpu: usize, vcpus: usize, size: Size) -> u64 {
    let mask = if vcpus == 1 { 0 } else { 1u32.checked_shl(vcpu as u32).unwrap_or(0) & 0xff };
    match size {
        Size::Byte => mask.into(),
        Size::Word if offset & 3 == 0 => (mask * 0x0101_0101).into(),
        _ => 0,
    }
}

impl Distributor {
    /// Reads the register at `offset`, a [`Place::Shared`] one.
    pub fn read_gicv2(&mut self, offset: u32, size: Size) -> Read {
        if size == Size::Word && offset & 3 == 0 && is_array(offset) {
            return self.read(offset, size);
        }
        Read::Value(self.read_published_gicv2(offset, size))
    }

    /// Reads a register after [`Read::Stale`], once the vCPUs named there have published.
    pub fn read_published_gicv2(&self, offset: u32, size: Size) -> u64 {
        match (offset, size) {
            (ITARGETSR..ICFGR, Size::Byte) => self.read_targets(offset - ITARGETSR, 1),
            (ITARGETSR..ICFGR, Size::Word) if offset & 3 == 0 => self.read_targets(offset - ITARGETSR, 4),
            (IPRIORITYR..ITARGETSR, Size::Byte) => self.read_published(offset, size),
            (_, Size::Word) if offset & 3 == 0 => match offset {
                CTLR => u64::from(self.enables.0),
                TYPER => self.typer().into(),
                IIDR => bank::IIDR.into(),
                IDENTIFICATION.. => identification(offset).into(),
                _ if is_array(offset) => self.read_published(offset, size),
                _ => 0,
            },
            _ => 0,
        }
    }

    /// Writes `value` to the register at `offset`, a [`Place::Shared`] one.
    pub fn write_gicv2(&mut self, offset: u32, size: Size, value: u64) -> Kick {
        match (offset, size) {
            (ITARGETSR..ICFGR, Size::Byte) => self.write_targets(offset - ITARGETSR, 1, value as u32),
            (ITARGETSR..ICFGR, Size::Word) if offset & 3 == 0 => self.write_targets(offset - ITARGETSR, 4, value as u32),
            (IPRIORITYR..ITARGETSR, Size::Byte) => self.write(offset, size, value),
            (CTLR, Size::Word) => self.set_enables(GroupEnables(value as u8 & GroupEnables::MASK)),
            (_, Size::Word) if is_array(offset) => self.write(offset, size, value),
            _ => Kick::NONE,
        }
    }

    /// Reads `count` target lists, starting with that of INTID `intid`.
    fn read_targets(&self, intid: u32, count: u32) -> u64 {
        let list = |n: u32| self.locate(intid + n).map_or(0, |(b, i)| u64::from(self.targets[b][i]));
        (0..count).fold(0, |value, n| value | list(n) << (8 * n))
    }

    fn write_targets(&mut self, intid: u32, count: u32, value: u32) -> Kick {
        let mut kick = Kick::NONE;
        for n in 0..count {
            let Some((b, i)) = self.locate(intid + n) else { continue };
            if self.set_targets(b, i, (value >> (8 * n)) as u8) {
                kick |= self.note_changed(b, 1 << i);
            }
        }
        kick
    }

    /// Sets the targets of an SPI, without effect on one that is under way. Returns whether it goes to another vCPU from here on.
    pub(crate) fn set_targets(&mut self, b: usize, i: usize, list: u8) -> bool {
        if self.vcpus == 1 {
            return false;
        }
        let list = list & (0xffu16 >> (8 - self.vcpus.min(8))) as u8;
        self.targets[b][i] = list;
        // 1 of N: the first one.
        let route = if list == 0 { Self::NOWHERE } else { stile_board::mpidr(list.trailing_zeros() as usize) as u32 };
        core::mem::replace(&mut self.routes[b][i], route) != route
    }

    /// Whether it is a GICv2's.
    pub fn is_gicv2(&self) -> bool {
        self.gicv2
    }

    /// Turns a distributor in reset state into a GICv2's: interrupts are in group 0 and sent to no vCPU. With a single
    /// vCPU they are sent to it: a uniprocessor's GIC has no target lists (RAZ/WI).
    pub fn become_gicv2(&mut self) {
        self.gicv2 = true;
        for block in &mut self.blocks {
            block.set_groups(0);
            block.acknowledged = block.entry;
        }
        if self.vcpus != 1 {
            self.routes = [[Self::NOWHERE; BLOCK]; crate::BLOCKS];
        }
    }
}

impl Redistributor {
    /// All SGIs and PPIs of a GICv2 are in group 0 after a reset.
    pub(crate) fn set_gicv2_groups(&mut self) {
        self.block.set_groups(0);
        self.block.acknowledged = self.block.entry;
    }
}

/// Whether the register at `offset` is one of an array that [`super::distributor`] has, too.
fn is_array(offset: u32) -> bool {
    let kind = offset >> 7;
    (group::IGROUPR..=group::ICACTIVER).contains(&kind) || (IPRIORITYR..ITARGETSR).contains(&offset) || (ICFGR..ICFGR_END).contains(&offset)
}

/// The identification registers, PIDR4 at 0xfd0 to CIDR3 at 0xffc: PIDR2 identifies a GICv2.
fn identification(offset: u32) -> u32 {
    const FROM_PIDR4: [u8; 12] = [0x04, 0, 0, 0, 0x90, 0xb4, 0x2b, 0, 0x0d, 0xf0, 0x05, 0xb1];
    FROM_PIDR4.get((offset - IDENTIFICATION) as usize / 4).map_or(0, |id| u32::from(*id))
}
