//! Direct interrupts: a loaded vCPU whose SGIs and timers are the physical redistributor's own, so that the guest acknowledges and
//! ends them without a list register and without an exit.
//!
//! While they are, they count as resident ([`Block`](crate::block::Block)): hardware holds their state, software only later changes.
//! No list register is used, and nothing but [`Redistributor::leave_direct`] may synchronize the vCPU.
//!
//! | state | model to hardware | hardware to model |
//! | --- | --- | --- |
//! | SGI pending | GICR_ISPENDR0 | GICR_ISPENDR0; a later write of the guest to ICPENDR wins |
//! | SGI active, or any priority active | not: stays in list registers | active, with the priority that it was acknowledged with |
//! | SGI pending and active | not | both |
//! | timer pending: its line is high | deactivated physically: the line makes it pending | nothing: it fires, and exits |
//! | timer pending: by a write to GICR_ISPENDR0 | not: with the line high, hardware would not tell such a latch from the line | |
//! | timer active | not | active, linked to the physical interrupt, which stays active |
//! | enable, group enable, priority | programmed at each entry | the model's own: the guest writes them by trapped accesses |
//! | reserved SGI | never in hardware | pending in the model alone |
//! | emulated PPI, SPI | not: direct interrupts end until they are over | |

use crate::distributor::Distributor;
use crate::interface::ListRegisters;
use crate::kick::{Bits, Kick};
use crate::lr::ListRegister;
use crate::redistributor::Redistributor;
use crate::{BLOCK, SGIS};

/// The running priority of a CPU interface without an active interrupt.
const IDLE: u8 = 0xff;

/// The state to program the physical redistributor with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Direct {
    /// The interrupts that are the guest's: SGIs but reserved ones, and PPIs backed by a physical interrupt.
    pub all: u32,
    /// Interrupts to enable; the others of `all` must be disabled.
    pub enabled: u32,
    /// SGIs to make pending. Others may be pending already, sent by a vCPU that found this one direct.
    pub pending: u32,
    /// Physical interrupts to make inactive.
    pub deactivate: u32,
    /// The priority of each of `all`.
    pub priorities: [u8; BLOCK],
}

/// The state found in the physical redistributor, with all of [`Direct::all`] disabled there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// Pending SGIs, which it has made not pending. A timer is pending by its line alone.
    pub pending: u32,
    /// Active interrupts. It has made the SGIs among them inactive; the timers stay active.
    pub active: u32,
}

impl Redistributor {
    /// Whether this vCPU's SGIs and timers are in hardware.
    #[inline]
    pub fn is_direct(&self) -> bool {
        self.direct
    }

    /// Moves the SGIs and timers of this vCPU, which is loaded here, into hardware. `None` if that can't represent the state, or an
    /// interrupt of another kind is pending or active: then nothing has changed but that list registers were freed. `reserved`: SGIs that
    /// the hypervisor uses itself. Also returns other vCPUs to kick.
    pub fn enter_direct<L: ListRegisters>(&mut self, distributor: &mut Distributor, lrs: &mut L, reserved: u32) -> (Option<Direct>, Kick) {
        let me = usize::from(self.config.vcpu);
        let unsettled = self.overflows() || self.unpublished || distributor.unsynced.contains(me) || distributor.unpublished.contains(me);
        if self.direct || unsettled || self.block.recall != 0 || lrs.running_priority() != IDLE {
            return (None, Kick::NONE);
        }
        let kick = self.reclaim(distributor, lrs).without(me);
        if !self.fits_hardware(distributor, lrs, reserved) {
            return (None, kick);
        }
        for n in Bits(self.slots.used.into()) {
            let lr = lrs.read(n);
            self.slots.fold(&mut self.block, n, lr, lrs);
            lrs.write(n, ListRegister::INVALID);
        }
        let all = (((1 << SGIS) - 1) & !reserved) | self.slots.hw_ppis;
        let block = &mut self.block;
        let direct = Direct {
            all,
            enabled: block.forward & all,
            pending: block.pending & all,
            deactivate: core::mem::take(&mut self.slots.held),
            priorities: block.entry.map(ListRegister::priority),
        };
        block.pending &= !all;
        block.line &= !self.slots.hw_ppis;
        block.written &= !all;
        block.resident |= all;
        // Interrupts acknowledged from now on have these priorities, even if the guest writes others before their end.
        block.acknowledged = block.entry;
        self.direct = true;
        (Some(direct), kick)
    }

    /// The priority with which the guest acknowledges, or has acknowledged, one of the interrupts that are in hardware.
    pub fn acknowledged_priority(&self, intid: u32) -> u8 {
        self.block.acknowledged[intid as usize % BLOCK].priority()
    }

    /// Whether an SGI to this vCPU may be one that another vCPU can't send by the physical ICC_SGI1R_EL1 or
    /// ICC_SGI0R_EL1: it is enabled, and one of the hypervisor's own (`reserved`), or of group 0, which no physical SGI
    /// is.
    pub fn needs_trapped_sgis(&self, reserved: u32) -> bool {
        self.block.enabled & ((1 << SGIS) - 1) & (reserved | !self.block.group1) != 0
    }

    /// Whether all that is pending is an SGI or timer of group 1, no timer by a latch, and nothing is active.
    fn fits_hardware<L: ListRegisters>(&self, distributor: &Distributor, lrs: &L, reserved: u32) -> bool {
        let block = &self.block;
        let all = ((1 << SGIS) - 1) | self.slots.hw_ppis;
        let mut lists = Bits(self.slots.used.into()).map(|n| lrs.read(n));
        let in_lists = lists.try_fold(0, |bits, lr| (lr.intid() < BLOCK as u32 && !lr.active()).then(|| bits | 1 << lr.intid()));
        let Some(in_lists) = in_lists else { return false };
        // Pending interrupts that are disabled can wait in the model.
        let pending = in_lists | block.wanted();
        let latches = block.pending | block.resident & block.latched;
        latches & self.slots.hw_ppis == 0
            && block.active == 0
            && block.group1 & all == all
            && pending & (reserved | !all) == 0
            && !self.waiting_spis(distributor)
    }

    /// Undoes [`enter_direct`](Self::enter_direct). Must be followed by [`sync`](Self::sync).
    pub fn leave_direct<L: ListRegisters>(&mut self, observed: Observed, lrs: &L) {
        self.direct = false;
        let block = &mut self.block;
        let timers = self.slots.hw_ppis;
        for i in Bits(block.resident) {
            let bit = 1 << i;
            let mut lr = block.acknowledged[i];
            if observed.active & bit != 0 {
                lr = lr.with(ListRegister::ACTIVE);
            }
            if timers & bit != 0 {
                self.slots.held |= observed.active & bit;
                lr = self.slots.linked(lr, i);
            } else if observed.pending & bit != 0 {
                lr = lr.with(ListRegister::PENDING);
            }
            // It is in none; no list register is in use.
            self.slots.fold(block, 0, lr, lrs);
        }
    }
}
