//! Groups of fields, by which changes are tracked.

/// Fields that are checked together: a VM entry checks again only those groups that changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Group {
    /// Pin-based and processor-based controls, and the bitmaps' and other addresses that they enable.
    Execution,
    /// VM-exit controls, and the counts and addresses of MSR areas.
    Exit,
    /// VM-entry controls, and the count and address of the MSR area.
    Entry,
    /// The event to inject.
    Event,
    /// Masks, shadows and targets of control registers.
    Masks,
    /// The TPR threshold.
    Threshold,
    /// Host state.
    Host,
    /// Guest control registers, debug registers and MSRs.
    Registers,
    /// Guest segment registers.
    Segments,
    /// Guest GDTR and IDTR.
    Tables,
    /// Guest RIP and RSP: L1 changes them most often.
    Pointers,
    /// Guest RFLAGS.
    Flags,
    /// Guest activity, interruptibility, pending debug exceptions.
    Activity,
    /// The VMCS link pointer.
    Link,
    /// Guest PDPTEs.
    Pdptes,
    /// Guest state that is not checked.
    Unchecked,
    /// VM-exit information.
    Information,
}

impl Group {
    /// The set of this group alone.
    pub const fn alone(self) -> Groups {
        Groups(1 << self as u8)
    }
}

/// A set of [`Group`]s.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Groups(pub u32);

impl Groups {
    /// No group.
    pub const NONE: Self = Self(0);
    /// All groups.
    pub const ALL: Self = Self(u32::MAX);

    /// The groups that are not in `others`.
    pub const fn without(self, others: Self) -> Self {
        Self(self.0 & !others.0)
    }

    /// The set of these groups.
    pub const fn of(groups: &[Group]) -> Self {
        let mut all = 0;
        let mut at = 0;
        while at < groups.len() {
            all |= 1 << groups[at] as u8;
            at += 1;
        }
        Self(all)
    }

    /// Whether the sets have a group in common.
    #[inline(always)]
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// The groups of both sets.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}
