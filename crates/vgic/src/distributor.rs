//! The distributor: the SPIs of a VM.

#[cfg(doc)]
use crate::INTID_END;
use crate::block::{Block, GroupEnables};
use crate::kick::{Bits, Kick};
use crate::redistributor::priority_mask;
use crate::{BLOCK, FIRST_SPI, MAX_VCPUS, SPI_BLOCKS};

/// No vCPU.
const NOBODY: u8 = u8::MAX;

/// The state of GICD: SPIs, their routes, the group enables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Distributor {
    pub(crate) blocks: [Block; SPI_BLOCKS],
    /// How many of them are there.
    pub(crate) spi_blocks: usize,
    pub(crate) enables: GroupEnables,
    /// vCPUs that have not yet taken over a change of `enables`.
    pub(crate) unsynced: Kick,
    pub(crate) unpublished: Kick,
    /// GICD_IROUTER: Aff2, Aff1 and Aff0 in bits 23 to 0, Interrupt_Routing_Mode in bit 31.
    pub(crate) routes: [[u32; BLOCK]; SPI_BLOCKS],
    /// The vCPU that holds an SPI in a list register, or for which it is active.
    home: [[u8; BLOCK]; SPI_BLOCKS],
    online: Kick,
    pub(crate) vcpus: u8,
    /// The bits of a priority that are there.
    pub(crate) priority_mask: u8,
}

impl Distributor {
    /// Interrupt_Routing_Mode as kept in `routes`: any one vCPU.
    pub(crate) const ANY: u32 = 1 << 31;

    /// A distributor after reset, for `vcpus` (1 to [`MAX_VCPUS`]) of them, with `priority_bits` (4 to
    /// 8) of priority, and with the INTIDs below `intids` (64 to [`INTID_END`], a multiple of 32). A guest sets up each SPI that there
    /// is, so there had better be no more than devices need.
    pub fn new(vcpus: usize, priority_bits: u8, intids: u32) -> Self {
        Self {
            spi_blocks: (intids as usize / BLOCK).saturating_sub(1).clamp(1, SPI_BLOCKS),
            blocks: core::array::from_fn(|b| Block::new(FIRST_SPI + (b * BLOCK) as u32, 0)),
            enables: GroupEnables::default(),
            unsynced: Kick::NONE,
            unpublished: Kick::NONE,
            routes: [[0; BLOCK]; SPI_BLOCKS],
            home: [[NOBODY; BLOCK]; SPI_BLOCKS],
            online: Kick::one(0),
            vcpus: vcpus.clamp(1, MAX_VCPUS) as u8,
            priority_mask: priority_mask(priority_bits),
        }
    }

    /// The block and the place in it of an SPI that there is.
    pub(crate) fn locate(&self, intid: u32) -> Option<(usize, usize)> {
        let spi = intid.checked_sub(FIRST_SPI)? as usize;
        (spi < self.spi_blocks * BLOCK).then_some((spi / BLOCK, spi % BLOCK))
    }

    /// SPI block `b`, if it is there.
    pub(crate) fn block(&self, b: usize) -> Option<&Block> {
        self.blocks.get(..self.spi_blocks)?.get(b)
    }

    /// As above.
    pub(crate) fn block_mut(&mut self, b: usize) -> Option<&mut Block> {
        self.blocks.get_mut(..self.spi_blocks)?.get_mut(b)
    }

    /// The first INTID that is not there.
    pub(crate) fn intid_end(&self) -> u32 {
        ((self.spi_blocks + 1) * BLOCK) as u32
    }

    /// Back to the state after reset, all lines low and only vCPU 0 online. The redistributors must be
    /// reset with it.
    pub fn reset(&mut self) {
        let priority_bits = self.priority_mask.count_ones() as u8;
        *self = Self::new(self.vcpus.into(), priority_bits, self.intid_end());
    }

    /// Sets the line of SPI `intid`; other INTIDs do nothing. For an edge-triggered one, a rise makes
    /// it pending.
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
        self.attend(b, bit)
    }

    /// Makes SPI `intid` pending, as a rise and a fall of its line do if it is edge-triggered.
    pub fn pulse(&mut self, intid: u32) -> Kick {
        let Some((b, i)) = self.locate(intid) else {
            return Kick::NONE;
        };
        let bit = 1 << i;
        if self.blocks[b].edge & bit == 0 {
            // A level-sensitive input that is high for no time is not seen.
            return Kick::NONE;
        }
        self.blocks[b].pending |= bit;
        self.attend(b, bit)
    }

    /// vCPU `n` was powered on or off. 1-of-N SPIs (GICD_IROUTER.Interrupt_Routing_Mode) go to the
    /// lowest-numbered vCPU that is on. After reset only vCPU 0 is.
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
            kick |= self.attend(b, any);
        }
        kick
    }

    /// vCPUs that have not yet published what a [`Read::Stale`](crate::Read::Stale) asked them for.
    #[inline]
    pub fn unpublished(&self) -> Kick {
        self.unpublished
    }

    /// Something changed for `bits` of block `b`: recalls those that are resident, and names the vCPUs
    /// that have to look.
    pub(crate) fn attend(&mut self, b: usize, bits: u32) -> Kick {
        let block = &mut self.blocks[b];
        block.recall |= bits & block.resident;
        let concerned = bits & (block.resident | block.wanted());
        let mut kick = Kick::NONE;
        for i in Bits(concerned) {
            kick |= Kick::one(self.owner(b, i).into());
        }
        kick
    }

    /// `bits` of block `b` have left list registers: names the vCPUs that may take them now.
    pub(crate) fn attend_moved(&self, b: usize, bits: u32) -> Kick {
        let wanted = Bits(bits & self.blocks[b].wanted());
        wanted.fold(Kick::NONE, |kick, i| kick | Kick::one(self.owner(b, i).into()))
    }

    /// Makes SPI `intid` inactive, as a deactivation does. Nothing if that is no SPI. Returns who must look.
    pub fn clear_active(&mut self, intid: u32) -> Kick {
        let Some((b, i)) = self.locate(intid) else {
            return Kick::NONE;
        };
        let bits = self.blocks[b].clear_active(1 << i);
        self.attend(b, bits)
    }

    /// Changes the group enables of GICD_CTLR.
    pub(crate) fn set_enables(&mut self, enables: GroupEnables) -> Kick {
        if enables == self.enables {
            return Kick::NONE;
        }
        self.enables = enables;
        for block in &mut self.blocks {
            block.set_enables(enables);
        }
        // The SGIs and PPIs of each vCPU are concerned, too.
        self.unsynced = Kick((1u32 << self.vcpus).wrapping_sub(1) as u16);
        self.unsynced
    }

    /// Has every vCPU concerned seen all that was written (GICD_CTLR.RWP is clear)?
    pub(crate) fn settled(&self) -> bool {
        self.unsynced.is_empty() && self.blocks.iter().all(|block| block.recall == 0)
    }

    /// The vCPU that SPI `i` of block `b` goes to when it becomes pending.
    pub(crate) fn target(&self, b: usize, i: usize) -> u8 {
        let route = self.routes[b][i];
        if route & Self::ANY != 0 {
            if self.online.is_empty() { NOBODY } else { self.online.0.trailing_zeros() as u8 }
        } else if route < u32::from(self.vcpus) {
            route as u8
        } else {
            NOBODY
        }
    }

    /// The vCPU that has to see to SPI `i` of block `b` as it stands.
    pub(crate) fn owner(&self, b: usize, i: usize) -> u8 {
        let block = &self.blocks[b];
        if (block.resident | block.active) >> i & 1 != 0 { self.home[b][i] } else { self.target(b, i) }
    }

    /// SPI `i` of block `b` is resident in, or active for, vCPU `vcpu` from now on.
    pub(crate) fn set_home(&mut self, b: usize, i: usize, vcpu: u8) {
        self.home[b][i] = vcpu;
    }
}
