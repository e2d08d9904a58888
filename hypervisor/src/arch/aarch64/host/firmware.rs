//! Calls to firmware: PSCI (Arm DEN 0022) through the conduit in the device tree.

use smccc::{Hvc, Smc, psci};

use super::board::Conduit;
use crate::once::Once;

static CONDUIT: Once<Conduit> = Once::new();

/// Sets the conduit.
pub fn setup(conduit: Conduit) {
    CONDUIT.set(conduit);
}

/// Whether the conduit is SMC, as required at EL2: HVC would trap to EL2 itself.
pub fn is_called_by_smc() -> bool {
    matches!(CONDUIT.try_get(), Some(Conduit::Smc))
}

/// Starts a CPU at a physical address, with an argument in x0.
///
/// # Errors
/// A description, if firmware refuses.
pub fn cpu_on(mpidr: u64, entry: u64, argument: u64) -> Result<(), psci::error::Error> {
    match CONDUIT.get() {
        Conduit::Smc => psci::cpu_on::<Smc>(mpidr, entry, argument),
        Conduit::Hvc => psci::cpu_on::<Hvc>(mpidr, entry, argument),
    }
}

/// Powers the machine off.
pub fn power_off() -> ! {
    let _ = match CONDUIT.try_get() {
        Some(Conduit::Smc) => psci::system_off::<Smc>(),
        Some(Conduit::Hvc) => psci::system_off::<Hvc>(),
        None => Ok(()),
    };
    loop {
        super::wait_for_interrupt();
    }
}
