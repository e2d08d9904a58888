//! A refusal before UEFI's boot services end stays on a machine's screen for a while: firmware clears it when Stile returns.

use anyhow::{Result, ensure};

use super::firmware_pc::{DISK, Firmware, Machine, Run, edk2};
use super::media::make_for_arm;

/// The test's name, and the test.
pub const TEST: (&str, Run) = ("firmware/early-refusal", stays);

/// Firmware's own message after a program has returned.
const RETURNED: &str = "failed to start";

/// EDK2 at EL1, with a screen. Virtual time advances by 1 ns per instruction: on a slow host, too, the checks happen while the message
/// stays.
fn stays() -> Result<()> {
    let dir = tempfile::tempdir()?;
    make_for_arm(dir.path(), &["-o", "stick.img"].map(AsRef::as_ref))?;
    let firmware = edk2()?;
    let arguments = ["-M", "virt,gic-version=3", "-bios", &firmware, "-device", "ramfb", "-icount", "shift=0,sleep=off"];
    let board = Firmware { program: "qemu-system-aarch64", files: None, arguments: &arguments, cpu: "max" };
    let mut machine = Machine::start(dir.path(), &board, DISK, &dir.path().join("stick.img"), &[])?;
    machine.wait_for("Stile needs EL2, and the firmware runs at EL1")?;
    for _ in 0..5 {
        ensure!(!machine.serial().contains(RETURNED), "the message does not stay:\n{}", machine.serial());
        machine.run_on()?;
    }
    Ok(())
}
