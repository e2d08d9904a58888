//! Interrupt numbers (INTIDs) of the guest board.

/// The first private peripheral interrupt.
pub const PPI_BASE: u32 = 16;
/// The first shared peripheral interrupt.
pub const SPI_BASE: u32 = 32;
/// Number of the distributor's INTIDs: SGIs, PPIs and SPIs together.
pub const COUNT: u32 = 64;

/// The first of the SPIs that messages of PCI functions become, in VMs that have any.
pub const MSI_BASE: u32 = COUNT;
/// Number of SPIs for messages.
pub const MSI_COUNT: u32 = 64;

/// The first LPI, in VMs that have PCI functions.
pub const LPI_BASE: u32 = 8192;
/// Number of LPIs: Linux takes 32 for each function.
pub const LPI_COUNT: u32 = 32 * crate::MAX_FUNCTIONS as u32;

/// GIC maintenance interrupt, for guests that have an EL2.
pub const GIC_MAINTENANCE: u32 = 25;
/// EL2 physical timer, for guests that have an EL2.
pub const TIMER_EL2_PHYSICAL: u32 = 26;
/// EL1 virtual timer.
pub const TIMER_EL1_VIRTUAL: u32 = 27;
/// EL2 virtual timer, for guests that have an EL2 with FEAT_VHE.
pub const TIMER_EL2_VIRTUAL: u32 = 28;
/// EL1 physical timer of the Secure state: in the device tree, never raised.
pub const TIMER_SECURE: u32 = 29;
/// EL1 physical timer.
pub const TIMER_EL1_PHYSICAL: u32 = 30;

/// PL011 UART, level-sensitive.
pub const PL011: u32 = SPI_BASE + 1;
/// The first of the SPIs of the devices that a VM serves, edge-triggered; [`crate::MAX_SERVED`] of them.
pub const SERVER: u32 = SPI_BASE + 24;

/// PL031 real-time clock, level-sensitive.
pub const PL031: u32 = SPI_BASE + 2;
