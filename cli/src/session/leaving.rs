//! VMs that are destroyed: their ledgers, which go with them, are read before.

use crate::control::server::ClientId;

/// The session among the sampler's clients for this; others are counted from 0.
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
