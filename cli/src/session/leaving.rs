//! VMs that a client destroys: their ledgers are freed with them, so that a sample is taken before.

use crate::control::server::ClientId;

/// Identifies the session itself as the sampler's client for these samples; identifiers of real clients count from 0.
pub const KEEPER: ClientId = ClientId::MAX - 1;

/// A VM that a client wants to be destroyed.
#[derive(Debug)]
pub struct Leaving {
    /// The client.
    pub client: ClientId,
    /// The VM's name.
    pub name: String,
    /// Its number.
    pub vm: u8,
    /// A sample that began after the VM was off is being gathered.
    pub is_sampled: bool,
}
