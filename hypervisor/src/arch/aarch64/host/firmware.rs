//! Calls to firmware: PSCI (Arm DEN 0022) through the conduit in the device tree.

use core::fmt::{self, Display};

use smccc::{Hvc, Smc, psci};

use super::board::Conduit;
use super::broadcom_power;
use crate::once::Once;

static CONDUIT: Once<Conduit> = Once::new();

/// Sets the conduit, once during boot. Without one there is no PSCI.
pub fn setup(conduit: Conduit) {
    CONDUIT.set(conduit);
}

/// Whether the conduit is SMC, as required at EL2: HVC would trap to EL2 itself.
pub fn is_called_by_smc() -> bool {
    matches!(CONDUIT.try_get(), Some(Conduit::Smc))
}

/// Reason for which a CPU does not start.
pub enum Obstacle {
    /// PSCI's CPU_ON returned this error.
    Firmware(psci::error::Error),
    /// The board's description prevents it.
    Board(&'static str),
}

impl Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Obstacle::Firmware(error) => error.fmt(f),
            Obstacle::Board(why) => f.write_str(why),
        }
    }
}

/// Starts the CPU with affinity `mpidr` at the physical address `entry`, with x0 = 0 (CPU_ON).
///
/// # Errors
/// There is no PSCI, or it refuses.
pub fn cpu_on(mpidr: u64, entry: u64) -> Result<(), Obstacle> {
    match CONDUIT.try_get() {
        Some(Conduit::Smc) => psci::cpu_on::<Smc>(mpidr, entry, 0),
        Some(Conduit::Hvc) => psci::cpu_on::<Hvc>(mpidr, entry, 0),
        None => return Err(Obstacle::Board("the device tree has neither PSCI nor the CPU's spin table")),
    }
    .map_err(Obstacle::Firmware)
}

/// Powers the machine off. If that fails, this CPU waits for ever.
pub fn power_off() -> ! {
    let _ = match CONDUIT.try_get() {
        Some(Conduit::Smc) => psci::system_off::<Smc>(),
        Some(Conduit::Hvc) => psci::system_off::<Hvc>(),
        None => {
            broadcom_power::off();
            Ok(())
        }
    };
    loop {
        super::wait_for_interrupt();
    }
}
