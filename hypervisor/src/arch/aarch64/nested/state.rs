//! State of a vCPU with an EL2 beyond other vCPUs'.

use stile_nested::vgic::OnProcessor;
use stile_nested::vncr::Page;

use super::controls::Base;
use super::lazy_traps::LazyTraps;
use super::mode::Mode;
use super::nv_mode::NvMode;
pub use super::regime::Regime;
use super::registers::{OWN_REGISTERS, Own, SWITCHED};
use super::shadows::Current;
use super::write_trap::WriteTrap;

/// State of a vCPU with an EL2 beyond other vCPUs'.
#[repr(C, align(4096))]
pub struct Nested {
    /// Memory of VNCR_EL2; without FEAT_NV2 Stile's own, for the same registers.
    pub page: Page,
    /// How accesses of virtual EL2's get there.
    pub nv_mode: NvMode,
    /// Whose registers are on the CPU, or would be if the vCPU were loaded.
    pub regime: Regime,
    /// State that depends on HCR_EL2.E2H.
    pub(super) mode: Mode,
    /// EL1's registers of virtual EL2, while those of its guest are on the CPU.
    pub(super) el2: [u64; SWITCHED],
    /// Registers of virtual EL2 that trap and live nowhere else.
    pub(super) own: [u64; OWN_REGISTERS],
    /// L2's list registers, while they are on the CPU.
    pub(super) lists: Option<OnProcessor>,
    /// EL1's timers, by the bit of their physical interrupt, whose interrupt is active for the guest's timer...
    pub(super) held: u32,
    /// ...and the line of one of them may be high, or is to be looked at...
    pub(super) timers_raised: bool,
    /// ...and for virtual EL2's, since the guest runs.
    pub(super) el2_active: u32,
    /// The physical interrupts of EL1's timers are active as the guest's need it, not as virtual EL2's do.
    pub(super) active_is_guests: bool,
    /// Trap controls as any vCPU has them.
    pub(super) base: Base,
    /// Those of L1's controls for its guest that seldom change.
    pub(super) lazy_traps: LazyTraps,
    /// Virtual EL2's writes of MDSCR_EL1.
    pub(super) debug: WriteTrap,
    /// State that a run of a guest resets.
    pub(super) until_guest: UntilGuest,
    /// The line of L1's maintenance interrupt, as it was seen last.
    pub(super) asserts_maintenance: bool,
    /// Stile wants WFI and WFE to trap, whatever L1 wants.
    pub(super) waiting_traps: bool,
    /// VMPIDR_EL2 of L1 itself.
    pub(super) mpidr: u64,
    /// The second stage that the guest has.
    pub(super) shadow: Option<Current>,
}

/// State that a run of a guest resets.
#[derive(Clone, Copy)]
pub struct UntilGuest {
    /// Since the reset no guest has run, and HCR_EL2.E2H was found as it was then: the page has nothing of a guest's.
    pub may_adopt: bool,
    /// No guest has run since a write of MDSCR_EL1 trapped.
    pub wrote_mdscr: bool,
}

impl UntilGuest {
    /// A guest runs.
    pub const NOTHING: Self = Self { may_adopt: false, wrote_mdscr: false };
}

impl Nested {
    /// HPFAR_EL2 of L1.
    pub fn set_hpfar(&mut self, value: u64) {
        self.own[Own::Hpfar as usize] = value;
    }
}
