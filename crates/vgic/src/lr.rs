//! One list register: the layout of ICH_LRn_EL2.

/// Architectural maximum of list registers (ICH_VTR_EL2.ListRegs is five bits wide, but only ICH_LR0_EL2 to
/// ICH_LR15_EL2 are defined).
pub const MAX_LIST_REGISTERS: usize = 16;

/// A value of ICH_LRn_EL2 ("ICH_LRn_EL2, Interrupt Controller List Registers").
///
/// A guest never writes one, so the fields hold this crate's values; the virtual CPU interface changes only
/// the state bits.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct ListRegister(pub u64);

impl ListRegister {
    /// State bit: the interrupt is pending.
    pub const PENDING: u64 = 1 << 62;
    /// State bit: the interrupt is active.
    pub const ACTIVE: u64 = 1 << 63;
    /// Backed by a physical interrupt: deactivation reaches the physical GIC.
    pub const HW: u64 = 1 << 61;
    /// The virtual interrupt belongs to group 1.
    pub const GROUP1: u64 = 1 << 60;
    /// EOI maintenance interrupt when the register becomes invalid (only with `HW` clear).
    pub const EOI: u64 = 1 << 41;

    const PRIORITY_SHIFT: u32 = 48;
    const PINTID_SHIFT: u32 = 32;
    const STATE: u64 = Self::PENDING | Self::ACTIVE;
    /// The order of delivery: priority and group.
    const RANK: u64 = Self::GROUP1 | 0xff << Self::PRIORITY_SHIFT;
    const VINTID: u64 = 0xffff_ffff;

    /// An invalid register, which holds no interrupt.
    pub const INVALID: Self = Self(0);

    /// The entry of an interrupt without state bits: its INTID, group 0, the highest priority.
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

    /// Replaces the priority.
    pub const fn with_priority(self, priority: u8) -> Self {
        Self(self.0 & !(0xff << Self::PRIORITY_SHIFT) | (priority as u64) << Self::PRIORITY_SHIFT)
    }

    /// Whether the interrupt is in group 1.
    pub const fn group1(self) -> bool {
        self.0 & Self::GROUP1 != 0
    }

    /// Replaces the group.
    pub const fn with_group1(self, group1: bool) -> Self {
        let rest = self.0 & !Self::GROUP1;
        Self(if group1 { rest | Self::GROUP1 } else { rest })
    }

    /// Whether it is pending (or pending and active).
    pub const fn pending(self) -> bool {
        self.0 & Self::PENDING != 0
    }

    /// Whether it is active (or pending and active).
    pub const fn active(self) -> bool {
        self.0 & Self::ACTIVE != 0
    }

    /// Whether it holds this interrupt.
    pub(crate) const fn holds(self, intid: u32) -> bool {
        !self.invalid() && self.intid() == intid
    }

    /// Whether it holds no interrupt.
    pub const fn invalid(self) -> bool {
        self.0 & Self::STATE == 0
    }

    /// Whether it is backed by a physical interrupt.
    pub const fn hw(self) -> bool {
        self.0 & Self::HW != 0
    }

    /// Whether it requests EOI maintenance.
    pub const fn eoi(self) -> bool {
        self.0 & Self::EOI != 0
    }

    /// Whether it asserts a maintenance interrupt (its bit of ICH_EISR_EL2 is set).
    pub const fn eoi_asserted(self) -> bool {
        self.0 & (Self::STATE | Self::HW | Self::EOI) == Self::EOI
    }

    /// Links it to a physical interrupt.
    pub const fn with_hw(self, physical: u32) -> Self {
        Self(self.0 | Self::HW | (physical as u64 & 0x1fff) << Self::PINTID_SHIFT)
    }

    /// The physical INTID of a register that has [`HW`](Self::HW) set.
    pub const fn physical_intid(self) -> u32 {
        (self.0 >> Self::PINTID_SHIFT) as u32 & 0x1fff
    }

    /// Sets additional bits.
    pub const fn with(self, bits: u64) -> Self {
        Self(self.0 | bits)
    }

    /// Whether both have the same priority and group.
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
