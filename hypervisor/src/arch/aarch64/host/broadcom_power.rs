//! Power management of Broadcom's BCM2835 to BCM2711 (binding `brcm,bcm2835-pm-wdt`): turns off a Raspberry Pi, whose
//! firmware has no PSCI. After a reset by the watchdog the boot firmware reads from RSTS which partition to start.

use super::mmio::Mmio;
use crate::once::Once;

const RSTC: usize = 0x1c;
const RSTS: usize = 0x20;
const WDOG: usize = 0x24;
/// Writes without it have no effect.
const PASSWORD: u32 = 0x5a << 24;
/// RSTC: what the watchdog does, and a reset of the whole SoC.
const RSTC_ACTION: u32 = 0b11 << 4;
const RSTC_FULL_RESET: u32 = 0b10 << 4;
/// RSTS: the even bits up to 10 are the partition's number. 63 asks the boot firmware to halt.
const RSTS_HALT: u32 = 0x555;
/// A moment, in the watchdog's ticks of 15 microseconds.
const SOON: u32 = 10;

static REGISTERS: Once<Mmio> = Once::new();

/// Sets the registers.
pub fn setup(registers: Mmio) {
    REGISTERS.set(registers);
}

/// Turns the machine off within a moment, if it has such power management.
pub fn off() {
    let Some(registers) = REGISTERS.try_get() else { return };
    registers.write32(RSTS, PASSWORD | registers.read32(RSTS) & 0xff_ffff | RSTS_HALT);
    registers.write32(WDOG, PASSWORD | SOON);
    registers.write32(RSTC, PASSWORD | registers.read32(RSTC) & 0xff_ffff & !RSTC_ACTION | RSTC_FULL_RESET);
}
