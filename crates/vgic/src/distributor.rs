//! The distributor: the SPIs of a VM.

use stile_board::{mpidr, vcpu_of_mpidr};

#[cfg(doc)]
use crate::INTID_END;
use crate::block::{Block, GroupEnables};
use crate::kick::{Bits, Kick};
use crate::redistributor::priority_mask;
use crate::{BLOCK, BLOCKS, FIRST_LPI, FIRST_SPI, MAX_VCPUS, SPI_BLOCKS};

/// No vCPU.
const NOBODY: u16 = u16::MAX;

/// The state of GICD: SPIs, routes, group enables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Distributor {
    pub(crate) blocks: [Block; BLOCKS],
    /// Number of implemented SPI blocks.
    pub(crate) spi_blocks: usize,
    /// Number of implemented blocks: SPIs, then LPIs.
    pub(crate) used_blocks: usize,
    pub(crate) enables: GroupEnables,
    /// vCPUs that have not applied a change of `enables` yet.
    pub(crate) unsynced: Kick,
    pub(crate) unpublished: Kick,
    /// GICD_IROUTER: Aff2, Aff1 and Aff0 in bits 23 to 0, Interrupt_Routing_Mode in bit 31.
    pub(crate) routes: [[u32; BLOCK]; BLOCKS],
    /// The vCPU on which an SPI is resident or active.
    home: [[u16; BLOCK]; BLOCKS],
    online: Kick,
    /// A GICv2's.
    pub(crate) gicv2: bool,
    /// GICD_ITARGETSR of a GICv2: vCPUs as bits.
    pub(crate) targets: [[u8; BLOCK]; BLOCKS],
    pub(crate) vcpus: u16,
    /// The implemented priority bits.
    pub(crate) priority_mask: u8,
}

impl Distributor {
    /// Interrupt_Routing_Mode in `routes`: 1-of-N.
    pub(crate) const ANY: u32 = 1 << 31;
    /// In `routes`: an affinity that no vCPU has.
    pub(crate) const NOWHERE: u32 = 0x00ff_ffff;

    /// A distributor in reset state for `vcpus` vCPUs (1 to [`MAX_VCPUS`]), with `priority_bits` (4 to 8),
    /// and with the INTIDs below `intids` (64 to [`INTID_END`], a multiple of 32). Guests initialize every
    /// implemented SPI, so there should be no more than devices need.
    pub fn new(vcpus: usize, priority_bits: u8, intids: u32) -> Self {
        let spi_blocks = (intids as usize / BLOCK).saturating_sub(1).clamp(1, SPI_BLOCKS);
        Self {
            spi_blocks,
            used_blocks: spi_blocks,
            blocks: core::array::from_fn(|b| Block::new(FIRST_SPI + (b * BLOCK) as u32, 0)),
            enables: GroupEnables::default(),
            unsynced: Kick::NONE,
            unpublished: Kick::NONE,
            routes: [[0; BLOCK]; BLOCKS],
            home: [[NOBODY; BLOCK]; BLOCKS],
            online: Kick::one(0),
            gicv2: false,
            targets: [[0; BLOCK]; BLOCKS],
            vcpus: vcpus.clamp(1, MAX_VCPUS) as u16,
            priority_mask: priority_mask(priority_bits),
        }
    }

    /// Block and index of an implemented SPI.
    pub(crate) fn locate(&self, intid: u32) -> Option<(usize, usize)> {
        let spi = intid.checked_sub(FIRST_SPI)? as usize;
        (spi < self.spi_blocks * BLOCK).then_some((spi / BLOCK, spi % BLOCK))
    }

    /// Block and index of an implemented SPI or LPI.
    pub(crate) fn locate_edge(&self, intid: u32) -> Option<(usize, usize)> {
        if intid >= FIRST_LPI { self.locate_lpi(intid) } else { self.locate(intid) }
    }

    /// SPI block `b`, if implemented.
    pub(crate) fn block(&self, b: usize) -> Option<&Block> {
        self.blocks.get(..self.spi_blocks)?.get(b)
    }

    /// SPI block `b`, if implemented, mutably.
    pub(crate) fn block_mut(&mut self, b: usize) -> Option<&mut Block> {
        self.blocks.get_mut(..self.spi_blocks)?.get_mut(b)
    }

    /// The first unimplemented INTID.
    pub(crate) fn intid_end(&self) -> u32 {
        ((self.spi_blocks + 1) * BLOCK) as u32
    }

    /// Resets the distributor, with all lines low and only vCPU 0 online. The redistributors must be reset
    /// with it.
    pub fn reset(&mut self) {
        let priority_bits = self.priority_mask.count_ones() as u8;
        let (gicv2, has_lpis) = (self.gicv2, self.has_lpis());
        *self = Self::new(self.vcpus.into(), priority_bits, self.intid_end());
        if gicv2 {
            self.become_gicv2();
        }
        if has_lpis {
            self.add_lpis();
        }
    }

    /// Sets the line of SPI `intid`; ignores other INTIDs. A rising edge makes an edge-triggered one pending.
    pub fn set_level(&mut self, intid: u32, high: bool) -> Kick {
        let Some((b, i)) = self.locate(intid) else {
            return Kick::NONE;
        };
        let bit = 1 << i;
        let block = &mut self.blocks[b];
        if (block.line & bit != 0) == high {
            return Kick::NONE;
        }
        block.line ^= bit;
        if block.edge & bit != 0 {
            if !high {
                return Kick::NONE;
            }
            block.pending |= bit;
        }
        self.note_changed(b, bit)
    }

    /// Pulses SPI or LPI `intid`, which makes it pending if it is edge-triggered. An LPI that no vCPU takes is dropped.
    pub fn pulse(&mut self, intid: u32) -> Kick {
        let Some((b, i)) = self.locate_edge(intid) else {
            return Kick::NONE;
        };
        let bit = 1 << i;
        if self.blocks[b].edge & bit == 0 || b >= self.spi_blocks && self.routes[b][i] == Self::NOWHERE {
            // A level-sensitive input samples no pulse.
            return Kick::NONE;
        }
        self.blocks[b].pending |= bit;
        self.note_changed(b, bit)
    }

    /// Records that vCPU `n` was powered on or off. 1-of-N SPIs (GICD_IROUTER.Interrupt_Routing_Mode) go to
    /// the lowest-numbered online vCPU. After reset only vCPU 0 is online.
    pub fn set_online(&mut self, n: usize, online: bool) -> Kick {
        let before = self.online;
        self.online = self.online.without(n);
        if online && n < usize::from(self.vcpus) {
            self.online |= Kick::one(n);
        }
        if before == self.online {
            return Kick::NONE;
        }
        let mut kick = Kick::NONE;
        for b in 0..self.spi_blocks {
            let routes = self.routes[b].iter().enumerate();
            let any = routes.map(|(i, r)| u32::from(r & Self::ANY != 0) << i).sum();
            kick |= self.note_changed(b, any);
        }
        kick
    }

    /// vCPUs with an outstanding publish request of [`Read::Stale`](crate::Read::Stale).
    #[inline]
    pub fn unpublished(&self) -> Kick {
        self.unpublished
    }

    /// Handles a change of `bits` of block `b`: recalls the resident ones. Returns the vCPUs to kick.
    pub(crate) fn note_changed(&mut self, b: usize, bits: u32) -> Kick {
        let block = &mut self.blocks[b];
        block.recall |= bits & block.resident;
        let concerned = bits & (block.resident | block.wanted());
        let mut kick = Kick::NONE;
        for i in Bits(concerned) {
            kick |= Kick::one(self.owner(b, i).into());
        }
        kick
    }

    /// Returns the vCPUs to kick after `bits` of block `b` have left list registers.
    pub(crate) fn notify_moved(&self, b: usize, bits: u32) -> Kick {
        let wanted = Bits(bits & self.blocks[b].wanted());
        wanted.fold(Kick::NONE, |kick, i| kick | Kick::one(self.owner(b, i).into()))
    }

    /// Deactivates SPI `intid`; ignores other INTIDs. Returns the vCPUs to kick.
    pub fn clear_active(&mut self, intid: u32) -> Kick {
        let Some((b, i)) = self.locate(intid) else {
            return Kick::NONE;
        };
        let bits = self.blocks[b].clear_active(1 << i);
        self.note_changed(b, bits)
    }

    /// Changes the group enables of GICD_CTLR.
    pub(crate) fn set_enables(&mut self, enables: GroupEnables) -> Kick {
        if enables == self.enables {
            return Kick::NONE;
        }
        self.enables = enables;
        for block in &mut self.blocks[..self.used_blocks] {
            block.set_enables(enables);
        }
        // SGIs and PPIs of each vCPU are affected, too.
        self.unsynced = Kick::below(self.vcpus.into());
        self.unsynced
    }

    /// Whether every affected vCPU has observed all writes (GICD_CTLR.RWP is clear).
    pub(crate) fn settled(&self) -> bool {
        self.unsynced.is_empty() && self.blocks[..self.used_blocks].iter().all(|block| block.recall == 0)
    }

    /// The vCPUs that have not observed all writes: they have to synchronize. Empty if GICD_CTLR.RWP is clear.
    pub fn unsettled(&self) -> Kick {
        let blocks = self.blocks[..self.used_blocks].iter().zip(&self.home);
        let recalled = blocks.flat_map(|(block, home)| Bits(block.recall).map(|i| Kick::one(home[i].into())));
        recalled.fold(self.unsynced, |all, one| all | one)
    }

    /// The target vCPU of SPI `i` of block `b` when it becomes pending.
    pub(crate) fn target(&self, b: usize, i: usize) -> u16 {
        let route = self.routes[b][i];
        if route & Self::ANY != 0 {
            self.online.first().map_or(NOBODY, |vcpu| vcpu as u16)
        } else {
            vcpu_of_mpidr(route.into(), self.vcpus.into()).map_or(NOBODY, |vcpu| vcpu as u16)
        }
    }

    /// The vCPU that must handle the current state of SPI `i` of block `b`.
    pub(crate) fn owner(&self, b: usize, i: usize) -> u16 {
        let block = &self.blocks[b];
        if (block.resident | block.active) >> i & 1 != 0 { self.home[b][i] } else { self.target(b, i) }
    }

    /// Whether SPI `i` of block `b`, which is resident, is so on vCPU `vcpu`, and routed to it by its affinity.
    #[inline(always)]
    pub(crate) fn is_home_and_target(&self, b: usize, i: usize, vcpu: u8) -> bool {
        self.home[b][i] == u16::from(vcpu) && u64::from(self.routes[b][i]) == mpidr(vcpu.into())
    }

    /// The vCPU on which SPI `i` of block `b` is resident or active, if it is.
    pub(crate) fn home_of(&self, b: usize, i: usize) -> u16 {
        self.home[b][i]
    }

    /// Records that SPI `i` of block `b` is resident or active on vCPU `vcpu`.
    pub(crate) fn set_home(&mut self, b: usize, i: usize, vcpu: u16) {
        self.home[b][i] = vcpu;
    }
}
