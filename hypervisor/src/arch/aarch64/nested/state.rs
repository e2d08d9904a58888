//! Additional state of a vCPU with an EL2.

use stile_nested_arm::vgic::OnProcessor;
use stile_nested_arm::vncr::Page;

use super::controls::Base;
use super::lazy_traps::LazyTraps;
use super::mode::Mode;
use super::nv_mode::NvMode;
pub use super::regime::Regime;
use super::registers::{OWN_REGISTERS, Own, SWITCHED};
use super::shadows::Current;
use super::write_trap::WriteTrap;

/// Additional state of a vCPU with an EL2.
#[repr(C, align(4096))]
pub struct Nested {
    /// The VNCR_EL2 page; without FEAT_NV2 used by Stile only, for the same registers.
    pub page: Page,
    /// Redirection mode of virtual EL2's accesses.
    pub nv_mode: NvMode,
    /// Regime whose registers are in the CPU, or would be if the vCPU were loaded.
    pub regime: Regime,
    /// State that depends on HCR_EL2.E2H.
    pub(super) mode: Mode,
    /// Virtual EL2's EL1 registers, while the CPU has its guest's.
    pub(super) el2: [u64; SWITCHED],
    /// Registers of virtual EL2 that trap and have no other home.
    pub(super) own: [u64; OWN_REGISTERS],
    /// L2's list registers, while they are loaded.
    pub(super) lists: Option<OnProcessor>,
    /// Bit mask of EL1's timers whose physical interrupt is active for the guest's timer.
    pub(super) held: u32,
    /// The line of a timer of the guest may be high, so that it must be sampled.
    pub(super) timers_raised: bool,
    /// Bit mask of those active for virtual EL2's timers, since the guest runs.
    pub(super) el2_active: u32,
    /// The physical interrupts of EL1's timers have the active state of the guest's timers, not of virtual EL2's.
    pub(super) active_is_guests: bool,
    /// Trap controls common to all vCPUs.
    pub(super) base: Base,
    /// Lazily switched trap controls of L1's guest.
    pub(super) lazy_traps: LazyTraps,
    /// Trap of virtual EL2's writes of MDSCR_EL1.
    pub(super) debug: WriteTrap,
    /// State that a guest entry resets.
    pub(super) until_guest: UntilGuest,
    /// Line of L1's maintenance interrupt, as last sampled.
    pub(super) asserts_maintenance: bool,
    /// WFI and WFE trap for the scheduler, regardless of L1's request.
    pub(super) waiting_traps: bool,
    /// L1's own VMPIDR_EL2.
    pub(super) mpidr: u64,
    /// The guest's shadow second stage.
    pub(super) shadow: Option<Current>,
}

/// State that a guest entry resets.
#[derive(Clone, Copy)]
pub struct UntilGuest {
    /// No guest has run since reset, and HCR_EL2.E2H has kept its reset value: the page has no guest state.
    pub may_adopt: bool,
    /// No guest has run since a write of MDSCR_EL1 trapped.
    pub wrote_mdscr: bool,
}

impl UntilGuest {
    /// The state after a guest entry.
    pub const NOTHING: Self = Self { may_adopt: false, wrote_mdscr: false };
}

impl Nested {
    /// HPFAR_EL2 of L1.
    pub fn set_hpfar(&mut self, value: u64) {
        self.own[Own::Hpfar as usize] = value;
    }
}
