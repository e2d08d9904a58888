//! LPIs: the interrupts of an ITS, in blocks behind those of SPIs.
//!
//! Their state is that of edge-triggered SPIs in group 1, except that they are never active: an acknowledged LPI leaves its
//! list register with the priority drop, or at once. Their enables and priorities come from a table in the guest's memory,
//! which the ITS reads on the guest's request.

use stile_board::mpidr;

use crate::block::Block;
use crate::distributor::Distributor;
use crate::kick::Kick;
use crate::{BLOCK, FIRST_LPI, LPI_BLOCKS, LPIS, SPI_BLOCKS_WITH_LPIS};

/// LPI configuration table: the LPI is enabled.
const ENABLED: u8 = 1;
/// LPI configuration table: the priority.
const PRIORITY: u8 = 0xfc;

impl Distributor {
    /// Adds LPIs, routed to no vCPU and disabled, to a GICv3 in reset state. It has 96 SPIs then.
    pub fn add_lpis(&mut self) {
        self.spi_blocks = SPI_BLOCKS_WITH_LPIS;
        self.used_blocks = SPI_BLOCKS_WITH_LPIS + LPI_BLOCKS;
        for n in 0..LPI_BLOCKS {
            let b = SPI_BLOCKS_WITH_LPIS + n;
            self.blocks[b] = Block::new(FIRST_LPI + (n * BLOCK) as u32, u32::MAX);
            self.routes[b] = [Self::NOWHERE; BLOCK];
        }
    }

    /// Whether it has LPIs.
    pub fn has_lpis(&self) -> bool {
        self.used_blocks > self.spi_blocks
    }

    /// Block and index of an LPI.
    #[inline]
    pub(crate) fn locate_lpi(&self, intid: u32) -> Option<(usize, usize)> {
        let n = intid.wrapping_sub(FIRST_LPI);
        let b = SPI_BLOCKS_WITH_LPIS + n as usize / BLOCK;
        (n < LPIS && self.has_lpis()).then_some((b, n as usize % BLOCK))
    }

    /// Routes an LPI to a vCPU, which takes it if it is pending, or to none, where it ceases to be pending. Ignores other
    /// INTIDs.
    pub fn route_lpi(&mut self, intid: u32, vcpu: Option<usize>) -> Kick {
        let Some((b, i)) = self.locate_lpi(intid) else { return Kick::NONE };
        let route = vcpu.filter(|&vcpu| vcpu < self.vcpus.into()).map_or(Self::NOWHERE, |vcpu| mpidr(vcpu) as u32);
        if self.routes[b][i] == route {
            return Kick::NONE;
        }
        self.routes[b][i] = route;
        if route == Self::NOWHERE {
            self.blocks[b].clear_pending(1 << i);
        }
        self.note_changed(b, 1 << i)
    }

    /// Configures an LPI by its byte of the LPI configuration table.
    pub fn configure_lpi(&mut self, intid: u32, configuration: u8) -> Kick {
        let Some((b, i)) = self.locate_lpi(intid) else { return Kick::NONE };
        let priority = configuration & PRIORITY & self.priority_mask;
        let block = &mut self.blocks[b];
        let enabled = if configuration & ENABLED != 0 { block.enable(1 << i) } else { block.disable(1 << i) };
        let changed = enabled | block.set_priority(i, priority);
        self.note_changed(b, changed)
    }

    /// Makes an LPI not pending.
    pub fn clear_lpi(&mut self, intid: u32) -> Kick {
        let Some((b, i)) = self.locate_lpi(intid) else { return Kick::NONE };
        let bits = self.blocks[b].clear_pending(1 << i);
        self.note_changed(b, bits)
    }
}
