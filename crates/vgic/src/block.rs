//! Thirty-two interrupts: what one 32-bit register of each kind describes.

use crate::BLOCK;
use crate::kick::Bits;
use crate::lr::ListRegister;

/// The group enables of GICD_CTLR, in their places there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct GroupEnables(pub u8);

impl GroupEnables {
    /// EnableGrp0 and EnableGrp1.
    pub const MASK: u8 = 0b11;

    /// A mask of all interrupts if the group is enabled.
    const fn mask(self, group1: bool) -> u32 {
        if self.0 >> group1 as u8 & 1 != 0 { u32::MAX } else { 0 }
    }
}

/// The interrupts INTID 32`b` to 32`b` + 31; bit (or index) `i` is INTID 32`b` + `i`.
///
/// While an interrupt is resident its list register holds its state, and software holds only what
/// has happened since: `pending` is then a new event to be merged, and `active` counts only with
/// `drop_active`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    /// GICD_ISENABLER.
    pub enabled: u32,
    /// GICD_IGROUPR.
    pub group1: u32,
    /// GICD_ICFGR: edge-triggered.
    pub edge: u32,
    /// The level of the input line. For a PPI with a physical interrupt behind it: that has fired and
    /// the guest has not acknowledged the virtual one yet.
    pub line: u32,
    /// The pending latch: an edge, an SGI, a write of ISPENDR.
    pub pending: u32,
    /// Active, and not in a list register.
    pub active: u32,
    /// Enabled, and so is its group at the distributor (derived).
    pub forward: u32,
    /// In a list register.
    pub resident: u32,
    /// Resident, and whoever holds it must look at it again.
    pub recall: u32,
    /// Resident, but a pending latch in the list register was cleared by a later write.
    pub drop_pending: u32,
    /// Resident, but `active` is the truth because it was written later.
    pub drop_active: u32,
    /// Resident, and the list register was pending by a latch when it was last written: that survives a
    /// fall of the line.
    pub latched: u32,
    /// Resident, and the list register was active when it was last looked at.
    pub shown_active: u32,
    /// Active because a register write made it so; the guest has not acknowledged it.
    pub written: u32,
    enables: GroupEnables,
    /// INTID, priority and group in the form of a list register.
    pub entry: [ListRegister; BLOCK],
    /// The same as they were when the guest acknowledged an interrupt that is active now. Its end
    /// of interrupt is matched against these.
    pub acknowledged: [ListRegister; BLOCK],
    /// The number of the list register of an interrupt that is resident.
    pub slot: [u8; BLOCK],
}

impl Block {
    /// The state after reset of the interrupts from `first` on; `edge` are edge-triggered. All are in group 1, as a board's firmware
    /// leaves them for the operating system that it starts: small guests never set a group.
    pub fn new(first: u32, edge: u32) -> Self {
        let mut entry = [ListRegister::INVALID; BLOCK];
        for (intid, entry) in (first..).zip(&mut entry) {
            *entry = ListRegister::of(intid).with_group1(true);
        }
        Self {
            enabled: 0,
            group1: u32::MAX,
            edge,
            line: 0,
            pending: 0,
            active: 0,
            forward: 0,
            resident: 0,
            recall: 0,
            drop_pending: 0,
            drop_active: 0,
            latched: 0,
            shown_active: 0,
            written: 0,
            enables: GroupEnables::default(),
            entry,
            acknowledged: entry,
            slot: [0; BLOCK],
        }
    }

    /// Pending by latch or line, what is in list registers left out.
    #[inline]
    pub fn asserted(&self) -> u32 {
        self.pending | self.line & !self.edge
    }

    /// Worth a list register, and not in one: to be delivered, or active (so that the guest's
    /// deactivation finds it).
    #[inline]
    pub fn wanted(&self) -> u32 {
        (self.asserted() & self.forward | self.active) & !self.resident
    }

    /// Takes over the group enables of GICD_CTLR.
    pub fn set_enables(&mut self, enables: GroupEnables) {
        self.enables = enables;
        self.update_forward();
        self.recall |= self.resident;
    }

    fn update_forward(&mut self) {
        let groups = self.group1 & self.enables.mask(true) | !self.group1 & self.enables.mask(false);
        self.forward = self.enabled & groups;
    }

    /// The pending bits as the guest may read them, list registers as they were last looked at.
    pub fn pending_view(&self) -> u32 {
        self.asserted() | self.resident & self.latched & !self.drop_pending
    }

    /// The active bits as the guest may read them, list registers as they were last looked at.
    pub fn active_view(&self) -> u32 {
        self.active | self.resident & self.shown_active & !self.drop_active
    }

    /// Sets whether the interrupts are in group 1.
    pub fn set_groups(&mut self, group1: u32) -> u32 {
        let changed = self.group1 ^ group1;
        self.group1 = group1;
        for i in Bits(changed) {
            self.entry[i] = self.entry[i].with_group1(group1 >> i & 1 != 0);
        }
        self.update_forward();
        changed
    }

    /// Enables interrupts. Like all the following, returns those that something changed for.
    pub fn enable(&mut self, bits: u32) -> u32 {
        let changed = bits & !self.enabled;
        self.enabled |= bits;
        self.update_forward();
        changed
    }

    /// Disables interrupts.
    pub fn disable(&mut self, bits: u32) -> u32 {
        let changed = bits & self.enabled;
        self.enabled &= !bits;
        self.update_forward();
        changed
    }

    /// Sets the pending latches.
    pub fn set_pending(&mut self, bits: u32) -> u32 {
        self.pending |= bits;
        bits
    }

    /// Clears the pending latches, those in list registers too.
    pub fn clear_pending(&mut self, bits: u32) -> u32 {
        self.pending &= !bits;
        self.drop_pending |= bits & self.resident;
        bits
    }

    /// Makes interrupts active that the guest did not acknowledge.
    pub fn set_active(&mut self, bits: u32) -> u32 {
        let new = bits & !self.active & !self.resident;
        for i in Bits(new) {
            self.acknowledged[i] = self.entry[i];
        }
        self.written |= new;
        self.active |= bits;
        self.drop_active |= bits & self.resident;
        bits
    }

    /// Makes interrupts inactive.
    pub fn clear_active(&mut self, bits: u32) -> u32 {
        self.active &= !bits;
        self.written &= !bits;
        self.drop_active |= bits & self.resident;
        bits
    }

    /// Sets which interrupts are edge-triggered, of those in `mask`.
    pub fn set_edge(&mut self, edge: u32, mask: u32) -> u32 {
        let changed = (self.edge ^ edge) & mask;
        self.edge ^= changed;
        changed
    }

    /// Sets the priority of interrupt `i`.
    pub fn set_priority(&mut self, i: usize, priority: u8) -> u32 {
        let entry = &mut self.entry[i % BLOCK];
        if entry.priority() == priority {
            return 0;
        }
        *entry = entry.with_priority(priority);
        1 << (i % BLOCK)
    }
}
