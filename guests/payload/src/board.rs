//! The memory map and interrupt numbers that the guests expect.
//!
//! Defined independently of Stile's own crate: a test that shares constants can't find them wrong.

/// Start of RAM.
pub const RAM: u64 = 0x4000_0000;
/// GICv3 distributor, 64 KiB.
pub const GICD: u64 = 0x0800_0000;
/// GICv2 CPU interface, 8 KiB.
pub const GICC: u64 = 0x0801_0000;
/// GICv3 redistributors, 128 KiB per CPU, contiguous.
pub const GICR: u64 = 0x080A_0000;
/// Distance between two CPUs' redistributors in bytes.
pub const GICR_STRIDE: u64 = 0x2_0000;
/// PL011 UART.
pub const UART: u64 = 0x0900_0000;
/// PL031 clock.
pub const RTC: u64 = 0x0901_0000;
/// Interrupt of the PL011: SPI 1, level.
pub const UART_INTID: u32 = 33;
/// Interrupt of the PL031: SPI 2, level.
pub const RTC_INTID: u32 = 34;
/// EL1 virtual timer: PPI 11.
pub const VIRTUAL_TIMER_INTID: u32 = 27;
/// EL1 physical timer: PPI 14.
pub const PHYSICAL_TIMER_INTID: u32 = 30;
/// EL2 physical timer: PPI 10.
pub const EL2_PHYSICAL_TIMER_INTID: u32 = 26;
/// EL2 virtual timer: PPI 12.
pub const EL2_VIRTUAL_TIMER_INTID: u32 = 28;
/// The GIC's maintenance interrupt: PPI 9.
pub const MAINTENANCE_INTID: u32 = 25;
/// Maximum number of CPUs that a guest uses.
pub const MAX_CPUS: usize = 16;
