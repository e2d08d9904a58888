//! One list register: the layout of ICH_LRn_EL2.

/// A value of ICH_LRn_EL2 ("ICH_LRn_EL2, Interrupt Controller List Registers").
///
/// A guest never writes one itself, so the fields hold what this crate put there;
/// only the state bits are changed by the virtual CPU interface.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct ListRegister(pub u64);

impl ListRegister {
    /// State bit: the interrupt is pending.
    pub const PENDING: u64 = 1 << 62;
    /// State bit: the interrupt is active.
    pub const ACTIVE: u64 = 1 << 63;
    /// The virtual interrupt stands for a physical one: deactivation reaches the physical GIC.
    pub const HW: u64 = 1 << 61;
    /// The virtual interrupt belongs to group 1.
    pub const GROUP1: u64 = 1 << 60;
    /// Ask for a maintenance interrupt when the register becomes invalid (only with `HW` clear).
    pub const EOI: u64 = 1 << 41;

    const PRIORITY_SHIFT: u32 = 48;
    const PINTID_SHIFT: u32 = 32;
    const STATE: u64 = Self::PENDING | Self::ACTIVE;
    /// What decides the order of delivery: the priority and the group.
    const RANK: u64 = Self::GROUP1 | 0xff << Self::PRIORITY_SHIFT;
    const VINTID: u64 = 0xffff_ffff;

    /// An invalid register, which holds no interrupt.
    pub const INVALID: Self = Self(0);

    /// The state-less register of an interrupt: its INTID, group 0, the highest priority.
    pub const fn of(intid: u32) -> Self {
        Self(intid as u64)
    }

    /// The INTID that the guest sees.
    pub const fn intid(self) -> u32 {
        (self.0 & Self::VINTID) as u32
    }

    /// The priority, 0 being the highest.
    pub const fn priority(self) -> u8 {
        (self.0 >> Self::PRIORITY_SHIFT) as u8
    }

    /// The same register with another priority.
    pub const fn with_priority(self, priority: u8) -> Self {
        Self(self.0 & !(0xff << Self::PRIORITY_SHIFT) | (priority as u64) << Self::PRIORITY_SHIFT)
    }

    /// Is the interrupt in group 1?
    pub const fn group1(self) -> bool {
        self.0 & Self::GROUP1 != 0
    }

    /// The same register in group 1, or in group 0.
    pub const fn with_group1(self, group1: bool) -> Self {
        let rest = self.0 & !Self::GROUP1;
        Self(if group1 { rest | Self::GROUP1 } else { rest })
    }

    /// Is it pending (or pending and active)?
    pub const fn pending(self) -> bool {
        self.0 & Self::PENDING != 0
    }

    /// Is it active (or pending and active)?
    pub const fn active(self) -> bool {
        self.0 & Self::ACTIVE != 0
    }

    /// Does it hold this interrupt?
    pub(crate) const fn holds(self, intid: u32) -> bool {
        !self.invalid() && self.intid() == intid
    }

    /// Does it hold no interrupt?
    pub const fn invalid(self) -> bool {
        self.0 & Self::STATE == 0
    }

    /// Does it stand for a physical interrupt?
    pub const fn hw(self) -> bool {
        self.0 & Self::HW != 0
    }

    /// Will it ask for maintenance when it becomes invalid?
    pub const fn eoi(self) -> bool {
        self.0 & Self::EOI != 0
    }

    /// Does it keep a maintenance interrupt asserted now (its bit of ICH_EISR_EL2)?
    pub const fn eoi_asserted(self) -> bool {
        self.0 & (Self::STATE | Self::HW | Self::EOI) == Self::EOI
    }

    /// The same register standing for a physical interrupt.
    pub const fn with_hw(self, physical: u32) -> Self {
        Self(self.0 | Self::HW | (physical as u64 & 0x1fff) << Self::PINTID_SHIFT)
    }

    /// The physical INTID of a register that has [`HW`](Self::HW) set.
    pub const fn physical_intid(self) -> u32 {
        (self.0 >> Self::PINTID_SHIFT) as u32 & 0x1fff
    }

    /// The same register with more bits set.
    pub const fn with(self, bits: u64) -> Self {
        Self(self.0 | bits)
    }

    /// Do both have the same priority and group?
    pub const fn same_rank(self, other: Self) -> bool {
        (self.0 ^ other.0) & Self::RANK == 0
    }

    /// The INTID, priority and group alone.
    pub const fn entry(self) -> Self {
        Self(self.0 & (Self::RANK | Self::VINTID))
    }
}

impl core::fmt::Debug for ListRegister {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("ListRegister")
            .field("intid", &self.intid())
            .field("pending", &self.pending())
            .field("active", &self.active())
            .field("priority", &self.priority())
            .field("group1", &self.group1())
            .field("hw", &self.hw())
            .field("eoi", &self.eoi())
            .finish()
    }
}
