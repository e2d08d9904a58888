//! A pause that lasts as long as a client is connected.

use crate::control::server::ClientId;

/// A pause for a client.
#[derive(Debug)]
pub struct Hold {
    /// The client; `None` if it has disconnected.
    pub client: Option<ClientId>,
    /// The VM's name.
    pub vm: String,
    /// Line and tag of the request to pause, until Stile answers it.
    pub request: Option<(usize, u32)>,
    /// The pause has begun. Before, a VM may restart: its pause begins after the reset.
    pub has_begun: bool,
}
