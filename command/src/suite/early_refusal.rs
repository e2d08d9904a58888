//! A refusal before UEFI's boot services end stays on a machine's screen for a while: firmware clears it when Stile returns.

use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::firmware_pc::{DISK, Firmware, Machine, Run, edk2};
use super::media::make_for_arm;
use super::screen;

/// The test's name, and the test.
pub const TEST: (&str, Run) = ("firmware/early-refusal", stays);

/// Firmware's own message after a program has returned.
const RETURNED: &str = "failed to start";

/// The least number of seconds that the message stays: 15, less two looks at the clock.
const LEAST: u32 = 10;

/// Reads the counter of seconds of QEMU's Arm board (PL031, RTCDR).
const CLOCK: &str = "xp /1wx 0x9010000";

/// EDK2 at EL1, with a screen. Time is virtual, 1 ns per instruction, so that a slow host does not change it. The last clock value before
/// firmware's own message counts: afterwards firmware sleeps, and virtual time leaps to its next timer.
fn stays() -> Result<()> {
    let dir = tempfile::tempdir()?;
    make_for_arm(dir.path(), &["-o", "stick.img"].map(AsRef::as_ref))?;
    let firmware = edk2()?;
    let time = ["-icount", "shift=0,sleep=off", "-rtc", "clock=vm"];
    let arguments = [&["-M", "virt,gic-version=3", "-bios", &firmware, "-device", "ramfb"], &time[..]].concat();
    let board = Firmware { program: "qemu-system-aarch64", files: None, arguments: &arguments, cpu: "max" };
    let mut machine = Machine::start(dir.path(), &board, DISK, &dir.path().join("stick.img"), &[])?;
    machine.wait_for("Stile needs EL2, and the firmware runs at EL1")?;
    let (start, mut stayed) = (seconds(dir.path())?, 0);
    loop {
        let now = seconds(dir.path())?;
        if machine.serial().contains(RETURNED) {
            break;
        }
        stayed = now - start;
        machine.run_on()?;
    }
    ensure!(stayed >= LEAST, "the message stays for {stayed} s:\n{}", machine.serial());
    Ok(())
}

/// Seconds of the machine's clock.
fn seconds(dir: &Path) -> Result<u32> {
    let answer = screen::ask(dir, CLOCK)?;
    let value = answer.trim().rsplit_once("0x").and_then(|(_, value)| u32::from_str_radix(value, 16).ok());
    value.with_context(|| format!("no time: {answer}"))
}
