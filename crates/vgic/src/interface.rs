//! The virtual CPU interface, live or saved, as accessed by the engine.

use crate::config::Config;
use crate::lr::{ListRegister, MAX_LIST_REGISTERS};
use crate::shortcuts::Shortcuts;

/// Maintenance enables of ICH_HCR_EL2 requested by the engine.
///
/// All are clear except on list-register overflow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Maintenance(pub u32);

impl Maintenance {
    /// LRENPIE: a deactivation found no list register (EOIcount is not zero).
    pub const LRENPIE: u32 = 1 << 2;
    /// No list register is pending.
    pub const NPIE: u32 = 1 << 3;
    /// The guest enabled group 0.
    pub const VGRP0EIE: u32 = 1 << 4;
    /// The guest disabled group 0.
    pub const VGRP0DIE: u32 = 1 << 5;
    /// The guest enabled group 1.
    pub const VGRP1EIE: u32 = 1 << 6;
    /// The guest disabled group 1.
    pub const VGRP1DIE: u32 = 1 << 7;
    /// Trap writes of ICC_DIR_EL1. If ICH_VTR_EL2.TDS says that this bit is not implemented, set
    /// ICH_HCR_EL2.TC instead.
    pub const TDIR: u32 = 1 << 14;
}

/// ICH_VMCR_EL2: the guest's view of ICC_PMR, ICC_BPR, ICC_CTLR and ICC_IGRPEN.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Vmcr(pub u64);

impl Vmcr {
    /// Virtual group 0 enable (ICC_IGRPEN0_EL1).
    pub const VENG0: u64 = 1 << 0;
    /// Virtual group 1 enable (ICC_IGRPEN1_EL1).
    pub const VENG1: u64 = 1 << 1;
    /// Group 0 is signalled as FIQ: RAO where system registers are the only interface. With a GICv2 the guest decides
    /// (GICC_CTLR.FIQEn).
    pub const VFIQEN: u64 = 1 << 3;
    /// ICC_BPR0 applies to both groups (ICC_CTLR.CBPR).
    pub const VCBPR: u64 = 1 << 4;
    /// Writes of EOIR drop the priority only (ICC_CTLR.EOImode).
    pub const VEOIM: u64 = 1 << 9;

    /// The reset value with `preemption_bits` (5 to 7, ICH_VTR_EL2.PREbits + 1): groups disabled, all
    /// priorities masked, minimum binary points.
    pub const fn reset(preemption_bits: u8) -> Self {
        let bpr0 = 7u8.saturating_sub(preemption_bits) as u64;
        Self(Self::VFIQEN | bpr0 << 21 | (bpr0 + 1) << 18)
    }

    /// Whether the group is enabled at the CPU interface.
    pub const fn group_enabled(self, group1: bool) -> bool {
        self.0 & (if group1 { Self::VENG1 } else { Self::VENG0 }) != 0
    }

    /// The priority mask: interrupts are signalled if their priority is higher (a lower number).
    pub const fn priority_mask(self) -> u8 {
        (self.0 >> 24) as u8
    }

    /// Whether EOImode is 1 (separate priority drop and deactivation).
    pub const fn eoi_split(self) -> bool {
        self.0 & Self::VEOIM != 0
    }

    /// Whether group 0's binary point is that of both groups (ICC_CTLR.CBPR).
    pub const fn common_binary_point(self) -> bool {
        self.0 & Self::VCBPR != 0
    }

    /// ICC_BPR1, or ICC_BPR0.
    pub const fn binary_point(self, group1: bool) -> u64 {
        self.0 >> (if group1 { 18 } else { 21 }) & 7
    }

    /// Replaces ICC_BPR1.
    pub const fn with_binary_point1(self, value: u64) -> Self {
        Self(self.0 & !(7 << 18) | (value & 7) << 18)
    }

    /// Replaces the priority mask (ICC_PMR).
    pub const fn with_priority_mask(self, mask: u8) -> Self {
        Self(self.0 & !(0xff << 24) | (mask as u64) << 24)
    }

    /// Replaces ICC_CTLR.CBPR and EOImode.
    pub const fn with_control(self, common_binary_point: bool, eoi_split: bool) -> Self {
        let chosen = if common_binary_point { Self::VCBPR } else { 0 } | if eoi_split { Self::VEOIM } else { 0 };
        Self(self.0 & !(Self::VCBPR | Self::VEOIM) | chosen)
    }

    /// Replaces the enable of group 1 (ICC_IGRPEN1_EL1).
    pub const fn with_group1(self, enabled: bool) -> Self {
        Self(self.0 & !Self::VENG1 | if enabled { Self::VENG1 } else { 0 })
    }

    /// The priority bits that count for preemption, according to the group's binary point.
    pub const fn group_priority_mask(self, group1: bool) -> u8 {
        let field = if group1 && self.0 & Self::VCBPR == 0 {
            // Group 1's binary point is one greater for the same split.
            ((self.0 >> 18) & 7).saturating_sub(1)
        } else {
            (self.0 >> 21) & 7
        };
        (0xff00u32 << field >> 7 & 0xff) as u8
    }

    /// Whether the virtual CPU interface would signal an interrupt of this priority and group to the PE, with
    /// `running` as running priority (0xff when idle).
    ///
    /// Implements the architecture's `CanSignalVirtualInterrupt` without PSTATE: the wake-up condition of
    /// WFI.
    pub const fn signals(self, priority: u8, group1: bool, running: u8) -> bool {
        let mask = self.group_priority_mask(group1);
        self.group_enabled(group1) && priority < self.priority_mask() && (running == 0xff || (priority & mask) < (running & mask))
    }
}

/// A virtual CPU interface: implemented by the hypervisor over ICH_*_EL2 for the vCPU loaded on this physical
/// CPU, and by [`CpuInterface`] for one that is not loaded.
///
/// `n` is always below [`Config::list_registers`](crate::Config::list_registers), and so below 16.
pub trait ListRegisters {
    /// Reads ICH_LR`n`_EL2.
    fn read(&self, n: usize) -> ListRegister;

    /// Writes ICH_LR`n`_EL2.
    fn write(&mut self, n: usize, value: ListRegister);

    /// Reads ICH_LR`n`_EL2, applies `f`, and writes the result. An implementation that dispatches on the
    /// register number may do so once for both accesses.
    #[inline(always)]
    fn update(&mut self, n: usize, f: impl Fn(ListRegister) -> ListRegister) {
        self.write(n, f(self.read(n)));
    }

    /// The shortcuts of the vCPU loaded on these list registers, which the engine keeps up to date. `None` if
    /// it is not loaded.
    #[inline(always)]
    fn shortcuts(&self) -> Option<&Shortcuts> {
        None
    }

    /// ICH_ELRSR_EL2 as the engine uses it: bit `n` is set if list register `n` is invalid. Bits above the
    /// last list register are ignored. A register with EOI maintenance asserted (its bit in ICH_EISR_EL2 is
    /// set) counts as invalid too, unlike in the hardware's ELRSR: the hypervisor returns ELRSR | EISR.
    fn invalid(&self) -> u16;

    /// Sets exactly these enables in ICH_HCR_EL2 and clears the others of [`Maintenance`]. Called only on a
    /// change.
    fn set_maintenance(&mut self, enables: Maintenance);

    /// Reads ICH_HCR_EL2.EOIcount and sets it to zero.
    fn take_eoi_count(&mut self) -> u32;

    /// Reads ICH_VMCR_EL2.
    fn vmcr(&self) -> Vmcr;

    /// The running priority: the highest bit set in ICH_AP0Rn_EL2 and ICH_AP1Rn_EL2, or 0xff. See
    /// [`running_priority`].
    fn running_priority(&self) -> u8;

    /// Whether the line of the physical interrupt that backs this PPI is high (for a timer: enabled, not
    /// masked, condition met). `None` if unknown, as for a vCPU that is not loaded.
    fn physical_line(&self, intid: u32) -> Option<bool>;

    /// Deactivates the physical interrupt that backs this PPI, because the guest's deactivation did not reach
    /// it. A no-op for a vCPU that is not loaded.
    fn deactivate_physical(&mut self, intid: u32);
}

/// The running priority according to `ap0r` and `ap1r` (ICH_AP0Rn and ICH_AP1Rn) with `preemption_bits` (5 to
/// 7). 0xff if no bit is set.
pub fn running_priority(ap0r: &[u32; 4], ap1r: &[u32; 4], preemption_bits: u8) -> u8 {
    for (n, (a, b)) in ap0r.iter().zip(ap1r).enumerate() {
        let bits = a | b;
        if bits != 0 {
            let level = n as u32 * 32 + bits.trailing_zeros();
            return (level << (8 - u32::from(preemption_bits.clamp(5, 7)))) as u8;
        }
    }
    0xff
}

/// Records in `apr` (ICH_AP0Rn or ICH_AP1Rn) that `priority` is active: the reverse of [`running_priority`].
pub fn record_active_priority(apr: &mut [u32; 4], priority: u8, preemption_bits: u8) {
    let level = usize::from(priority >> (8 - preemption_bits.clamp(5, 7)));
    apr[level / 32] |= 1 << (level % 32);
}

/// The saved CPU interface of a vCPU that is not loaded: raw register values.
///
/// The hypervisor saves and restores `vmcr`, `ap0r` and `ap1r`;
/// [`Redistributor::unload`](crate::Redistributor::unload) and [`load`](crate::Redistributor::load) move the
/// list registers and maintenance enables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuInterface {
    /// ICH_VMCR_EL2.
    pub vmcr: Vmcr,
    /// ICH_AP0Rn_EL2; the number implemented depends on the preemption bits.
    pub ap0r: [u32; 4],
    /// ICH_AP1Rn_EL2.
    pub ap1r: [u32; 4],
    pub(crate) lr: [ListRegister; MAX_LIST_REGISTERS],
    pub(crate) eoi_count: u32,
    pub(crate) preemption_bits: u8,
}

impl CpuInterface {
    /// The reset state.
    pub(crate) const fn new(config: &Config) -> Self {
        let Config { preemption_bits, common_binary_point, gicv2, .. } = *config;
        let fixed = if common_binary_point { Vmcr::VCBPR } else { 0 };
        let clear = if gicv2 { Vmcr::VFIQEN } else { 0 };
        Self {
            vmcr: Vmcr((Vmcr::reset(preemption_bits).0 | fixed) & !clear),
            ap0r: [0; 4],
            ap1r: [0; 4],
            lr: [ListRegister::INVALID; MAX_LIST_REGISTERS],
            eoi_count: 0,
            preemption_bits,
        }
    }
}

impl ListRegisters for CpuInterface {
    fn read(&self, n: usize) -> ListRegister {
        self.lr[n % MAX_LIST_REGISTERS]
    }

    fn write(&mut self, n: usize, value: ListRegister) {
        self.lr[n % MAX_LIST_REGISTERS] = value;
    }

    fn invalid(&self) -> u16 {
        let bit = |(n, lr): (usize, &ListRegister)| u16::from(lr.invalid()) << n;
        self.lr.iter().enumerate().map(bit).sum()
    }

    // Stored in the redistributor, and applied at load.
    fn set_maintenance(&mut self, _: Maintenance) {}

    fn take_eoi_count(&mut self) -> u32 {
        core::mem::take(&mut self.eoi_count)
    }

    fn vmcr(&self) -> Vmcr {
        self.vmcr
    }

    fn running_priority(&self) -> u8 {
        running_priority(&self.ap0r, &self.ap1r, self.preemption_bits)
    }

    fn physical_line(&self, _: u32) -> Option<bool> {
        None
    }

    fn deactivate_physical(&mut self, _: u32) {}
}
