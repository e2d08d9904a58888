//! Byte offsets of the local APIC's registers in its page and in the virtual-APIC page ("Local APIC Register
//! Address Map"). A register's x2APIC MSR is [`MSR_BASE`] plus a sixteenth of its offset.

/// The first MSR of the x2APIC.
pub const MSR_BASE: u32 = 0x800;

/// Local APIC ID.
pub const ID: u32 = 0x020;
/// Version.
pub const VERSION: u32 = 0x030;
/// Task priority.
pub const TPR: u32 = 0x080;
/// Arbitration priority.
pub const APR: u32 = 0x090;
/// Processor priority.
pub const PPR: u32 = 0x0a0;
/// End of interrupt.
pub const EOI: u32 = 0x0b0;
/// Remote read.
pub const RRD: u32 = 0x0c0;
/// Logical destination.
pub const LDR: u32 = 0x0d0;
/// Destination format.
pub const DFR: u32 = 0x0e0;
/// Spurious-interrupt vector.
pub const SVR: u32 = 0x0f0;
/// In service, the first of eight.
pub const ISR: u32 = 0x100;
/// Trigger mode, the first of eight.
pub const TMR: u32 = 0x180;
/// Interrupt request, the first of eight.
pub const IRR: u32 = 0x200;
/// Error status.
pub const ESR: u32 = 0x280;
/// Local vector of corrected machine checks.
pub const LVT_CMCI: u32 = 0x2f0;
/// Interrupt command, low half; in x2APIC mode all of it.
pub const ICR: u32 = 0x300;
/// Interrupt command, high half.
pub const ICR_HIGH: u32 = 0x310;
/// Local vector of the timer.
pub const LVT_TIMER: u32 = 0x320;
/// Local vector of the thermal sensor.
pub const LVT_THERMAL: u32 = 0x330;
/// Local vector of performance counters.
pub const LVT_PERFORMANCE: u32 = 0x340;
/// Local vector of pin LINT0.
pub const LVT_LINT0: u32 = 0x350;
/// Local vector of pin LINT1.
pub const LVT_LINT1: u32 = 0x360;
/// Local vector of errors.
pub const LVT_ERROR: u32 = 0x370;
/// Timer's initial count.
pub const INITIAL_COUNT: u32 = 0x380;
/// Timer's current count.
pub const CURRENT_COUNT: u32 = 0x390;
/// Timer's divide configuration.
pub const DIVIDE: u32 = 0x3e0;
/// Self-IPI, x2APIC only.
pub const SELF_IPI: u32 = 0x3f0;
