//! Power management of Broadcom's BCM2835 to BCM2711 (binding `brcm,bcm2835-pm-wdt`): turns off a Raspberry Pi, whose
//! firmware has no PSCI. After a reset by the watchdog the boot firmware reads from RSTS which partition to start.

use super::mmio::Mmio;
use crate::once::Once;

const RSTC: usize = 0x1c;
const RSTS: usize = 0x20;
const WDOG: usize = 0x24;
/// Size of the registers in bytes, up to the last one used.
pub const SIZE: u64 = 0x28;
/// Writes without it have no effect.
const PASSWORD: u32 = 0x5a << 24;
/// RSTC: the field of the action when the watchdog expires, and its value for a reset of the whole SoC.
const RSTC_ACTION: u32 = 0b11 << 4;
const RSTC_FULL_RESET: u32 = 0b10 << 4;
/// RSTS: the even bits up to 10 are the partition's number. 63 asks the boot firmware to halt.
const RSTS_HALT: u32 = 0x555;
/// WDOG: time until the watchdog expires, in ticks of 2^-16 s (15 microseconds).
const TICKS: u32 = 10;

static REGISTERS: Once<Mmio> = Once::new();

/// Sets the registers, once during boot.
pub fn setup(registers: Mmio) {
    REGISTERS.set(registers);
}

/// Starts to turn the machine off, if it has such power management. Returns: the reset comes 150 microseconds later.
pub fn off() {
    let Some(registers) = REGISTERS.try_get() else { return };
    registers.write32(RSTS, PASSWORD | registers.read32(RSTS) & 0xff_ffff | RSTS_HALT);
    registers.write32(WDOG, PASSWORD | TICKS);
    registers.write32(RSTC, PASSWORD | registers.read32(RSTC) & 0xff_ffff & !RSTC_ACTION | RSTC_FULL_RESET);
}
