//! Calls to the firmware: PSCI (Arm DEN 0022) by the conduit that the device tree names.

use smccc::{Hvc, Smc, psci};

use super::board::Conduit;
use crate::once::Once;

static CONDUIT: Once<Conduit> = Once::new();

/// Remembers how firmware is called.
pub fn setup(conduit: Conduit) {
    CONDUIT.set(conduit);
}

/// Whether firmware is called by SMC, as a hypervisor at EL2 must: an HVC would come back to itself.
pub fn is_called_by_smc() -> bool {
    matches!(CONDUIT.try_get(), Some(Conduit::Smc))
}

/// Starts a CPU at a physical address with an argument in x0.
///
/// # Errors
/// In words, if firmware refuses.
pub fn cpu_on(mpidr: u64, entry: u64, argument: u64) -> Result<(), psci::error::Error> {
    match CONDUIT.get() {
        Conduit::Smc => psci::cpu_on::<Smc>(mpidr, entry, argument),
        Conduit::Hvc => psci::cpu_on::<Hvc>(mpidr, entry, argument),
    }
}

/// Turns the machine off.
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
