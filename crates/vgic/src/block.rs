//! A block of thirty-two interrupts: the scope of one 32-bit register of each kind.

use crate::BLOCK;
use crate::kick::Bits;
use crate::lr::ListRegister;

/// The group enables, at their bit positions in GICD_CTLR.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct GroupEnables(pub u8);

impl GroupEnables {
    /// EnableGrp0 and EnableGrp1.
    pub const MASK: u8 = 0b11;

    /// All ones if the group is enabled, else 0.
    const fn mask(self, group1: bool) -> u32 {
        if self.0 >> group1 as u8 & 1 != 0 { u32::MAX } else { 0 }
    }
}

/// The interrupts INTID 32`b` to 32`b` + 31; bit (or index) `i` is INTID 32`b` + `i`.
///
/// While an interrupt is resident its list register holds its state, and software holds only later changes:
/// `pending` is then a new event to be merged, and `active` is valid only with `drop_active`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    /// GICD_ISENABLER.
    pub enabled: u32,
    /// GICD_IGROUPR.
    pub group1: u32,
    /// GICD_ICFGR: edge-triggered.
    pub edge: u32,
    /// The input line level. For a PPI backed by a physical interrupt: it has fired and the guest has not
    /// acknowledged the virtual one yet.
    pub line: u32,
    /// The pending latch: an edge, an SGI, a write of ISPENDR.
    pub pending: u32,
    /// Active, and not resident.
    pub active: u32,
    /// Enabled, with its group enabled at the distributor (derived).
    pub forward: u32,
    /// In a list register.
    pub resident: u32,
    /// Resident, and recalled: the holder must reevaluate it.
    pub recall: u32,
    /// Resident, but a later write cleared the pending latch of the list register.
    pub drop_pending: u32,
    /// Resident, but `active` was written later and overrides the list register.
    pub drop_active: u32,
    /// Resident, and pending by a latch when the list register was last written: stays pending when the line
    /// falls.
    pub latched: u32,
    /// Resident, and an SPI that has had a shortcut since: its list register may have become pending by that.
    pub by_shortcut: u32,
    /// Resident, and active when the list register was last read.
    pub shown_active: u32,
    /// Made active by a register write, not acknowledged by the guest.
    pub written: u32,
    enables: GroupEnables,
    /// INTID, priority and group in list-register format.
    pub entry: [ListRegister; BLOCK],
    /// The entries of active interrupts as acknowledged by the guest, against which its end of interrupt is
    /// matched.
    pub acknowledged: [ListRegister; BLOCK],
    /// The list register of each resident interrupt.
    pub slot: [u8; BLOCK],
}

impl Block {
    /// The reset state of the interrupts from `first` on; `edge` are edge-triggered. All are in group 1, as
    /// firmware leaves them for an operating system: small guests never write a group register.
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
            by_shortcut: 0,
            shown_active: 0,
            written: 0,
            enables: GroupEnables::default(),
            entry,
            acknowledged: entry,
            slot: [0; BLOCK],
        }
    }

    /// Pending by latch or line, except for state in list registers.
    #[inline]
    pub fn asserted(&self) -> u32 {
        self.pending | self.line & !self.edge
    }

    /// Not resident, but needs a list register: deliverable, or active (so that the guest's deactivation
    /// finds it).
    #[inline]
    pub fn wanted(&self) -> u32 {
        (self.asserted() & self.forward | self.active) & !self.resident
    }

    /// Applies the group enables of GICD_CTLR.
    pub fn set_enables(&mut self, enables: GroupEnables) {
        self.enables = enables;
        self.update_forward();
        self.recall |= self.resident;
    }

    fn update_forward(&mut self) {
        let groups = self.group1 & self.enables.mask(true) | !self.group1 & self.enables.mask(false);
        self.forward = self.enabled & groups;
    }

    /// The pending bits as read by the guest, with list registers as last read.
    pub fn pending_view(&self) -> u32 {
        self.asserted() | self.resident & self.latched & !self.drop_pending
    }

    /// The active bits as read by the guest, with list registers as last read.
    pub fn active_view(&self) -> u32 {
        self.active | self.resident & self.shown_active & !self.drop_active
    }

    /// Sets the group of all interrupts of the block.
    pub fn set_groups(&mut self, group1: u32) -> u32 {
        let changed = self.group1 ^ group1;
        self.group1 = group1;
        for i in Bits(changed) {
            self.entry[i] = self.entry[i].with_group1(group1 >> i & 1 != 0);
        }
        self.update_forward();
        changed
    }

    /// Enables interrupts. Like the functions below, returns the interrupts that changed.
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

    /// Clears the pending latches, including those in list registers.
    pub fn clear_pending(&mut self, bits: u32) -> u32 {
        self.pending &= !bits;
        self.drop_pending |= bits & self.resident;
        bits
    }

    /// Makes interrupts active without an acknowledgement.
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

    /// Sets the trigger mode of the interrupts in `mask`.
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
