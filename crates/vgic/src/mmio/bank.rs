//! Registers with the same layout in the distributor and in redistributors.

use crate::BLOCK;
use crate::block::Block;

/// Registers with one bit per interrupt, by bits 11 to 7 of their offset.
pub(super) mod group {
    /// GICD_IGROUPR, GICR_IGROUPR0.
    pub const IGROUPR: u32 = 0x080 >> 7;
    /// GICD_ISENABLER, GICR_ISENABLER0.
    pub const ISENABLER: u32 = 0x100 >> 7;
    /// GICD_ICENABLER, GICR_ICENABLER0.
    pub const ICENABLER: u32 = 0x180 >> 7;
    /// GICD_ISPENDR, GICR_ISPENDR0.
    pub const ISPENDR: u32 = 0x200 >> 7;
    /// GICD_ICPENDR, GICR_ICPENDR0.
    pub const ICPENDR: u32 = 0x280 >> 7;
    /// GICD_ISACTIVER, GICR_ISACTIVER0.
    pub const ISACTIVER: u32 = 0x300 >> 7;
    /// GICD_ICACTIVER, GICR_ICACTIVER0.
    pub const ICACTIVER: u32 = 0x380 >> 7;
}

/// GICD_IIDR and GICR_IIDR: Arm (JEP106 0x43b) as the implementer, product and revision zero.
pub(super) const IIDR: u32 = 0x43b;

/// The identification registers at the end of a frame ("Identification registers"), PIDR4 at 0xffd0 to CIDR3
/// at 0xfffc; other offsets read as zero. PIDR2 identifies a GICv3.
pub(super) fn identification(offset: u32) -> u32 {
    const FROM_PIDR4: [u8; 12] = [0x44, 0, 0, 0, 0x92, 0xb4, 0x3b, 0, 0x0d, 0xf0, 0x05, 0xb1];
    let n = (offset.wrapping_sub(0xffd0) / 4) as usize;
    FROM_PIDR4.get(n).map_or(0, |id| u32::from(*id))
}

/// Returns the interrupts whose list registers a read of this kind depends on.
pub(super) fn hidden(block: &Block, kind: u32) -> u32 {
    match kind {
        group::ISPENDR | group::ICPENDR => block.resident & !block.drop_pending,
        group::ISACTIVER | group::ICACTIVER => block.resident & !block.drop_active,
        _ => 0,
    }
}

/// Reads a register with one bit per interrupt.
#[inline]
pub(super) fn read_bits(block: &Block, kind: u32) -> u32 {
    match kind {
        group::ISENABLER | group::ICENABLER => block.enabled,
        group::IGROUPR => block.group1,
        group::ISPENDR | group::ICPENDR => block.pending_view(),
        group::ISACTIVER | group::ICACTIVER => block.active_view(),
        _ => 0,
    }
}

/// Writes a register with one bit per interrupt. Returns the affected interrupts.
pub(super) fn write_bits(block: &mut Block, kind: u32, value: u32) -> u32 {
    match kind {
        group::IGROUPR => block.set_groups(value),
        group::ISENABLER => block.enable(value),
        group::ICENABLER => block.disable(value),
        group::ISPENDR => block.set_pending(value),
        group::ICPENDR => block.clear_pending(value),
        group::ISACTIVER => block.set_active(value),
        group::ICACTIVER => block.clear_active(value),
        _ => 0,
    }
}

/// Reads `count` (1 or 4) priorities, starting at interrupt `i` of the block, one per byte.
pub(super) fn read_priorities(block: &Block, i: usize, count: usize) -> u32 {
    let entries = block.entry.iter().skip(i % BLOCK).take(count);
    entries.rev().fold(0, |value, entry| value << 8 | u32::from(entry.priority()))
}

/// Writes `count` (1 or 4) priorities; `mask` has the implemented bits. Returns the affected interrupts.
pub(super) fn write_priorities(block: &mut Block, i: usize, count: usize, value: u32, mask: u8) -> u32 {
    let bytes = value.to_le_bytes();
    let bytes = bytes.iter().take(count).enumerate();
    bytes.map(|(n, byte)| block.set_priority(i + n, byte & mask)).fold(0, |all, bit| all | bit)
}

/// Reads the configuration of interrupts 16`half` to 16`half` + 15 of the block: bit 1 of each pair is
/// set for an edge-triggered one.
pub(super) fn read_config(block: &Block, half: u32) -> u32 {
    let edge = block.edge >> (16 * (half & 1));
    (0..16).fold(0, |value, i| value | (edge >> i & 1) << (2 * i + 1))
}

/// Writes the configuration of the interrupts in `mask` among those of [`read_config`]. Returns the affected
/// interrupts.
pub(super) fn write_config(block: &mut Block, half: u32, value: u32, mask: u32) -> u32 {
    let shift = 16 * (half & 1);
    let edge = (0..16).fold(0, |edge, i| edge | (value >> (2 * i + 1) & 1) << i);
    block.set_edge(edge << shift, mask & 0xffff << shift)
}
