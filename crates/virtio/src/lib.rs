//! A virtio transport, with the driver in one VM (the client) and the device in another (the server).
//!
//! [`Transport`] has two register files. The client's is that of a PCI function ([`pci`]), whose registers are translated
//! to those of Virtio 1.2, section 4.2.2, MMIO version 2 ([`client`]). By the other one ([`server`]) the server offers
//! features, learns where the queues are, and signals completions; a page ([`EventPage`]) tells it of events. Queues themselves are in the client's memory, which
//! neither side's registers access.
//!
//! Both sides are untrusted: any access has a defined effect, which is bounded and confined to this transport.
//!
//! # Deviations from Virtio 1.2 that drivers can observe
//! - While no server is [online](server::CONTROL_ONLINE), and from a reset until the server has acknowledged it, loads
//!   of the device's status, features, queues' maxima and configuration do not complete: the driver waits. A device whose
//!   server does not come can be [given up](Transport::give_up): it offers no VERSION_1, and refuses FEATURES_OK.
//! - Loads of the status [end](Transport::end_status_wait) during a long wait, with DEVICE_NEEDS_RESET set: the reset has not ended. That
//!   bit is also set, and cleared again, while a server [leaves requests unanswered](Transport::set_unanswered).
//! - Once DRIVER_OK is set, writes to the configuration of queues are ignored until a reset.
//! - Configuration space can only be read.
//! - The function has no VIRTIO_PCI_CAP_PCI_CFG (section 4.1.4.9.1): its BAR is accessed as memory only.
#![no_std]
#![forbid(unsafe_code)]

pub mod client;
mod events;
mod features;
pub mod pci;
mod queue;
mod requests;
pub mod server;
mod transport;
mod waits;

pub use events::{Event, EventPage};
pub use queue::Queue;
pub use requests::{Owed, Requests};
pub use transport::{Effect, Transport};
pub use waits::Awaited;

/// Number of queues of a transport.
pub const QUEUES: usize = 8;

/// Number of MSI-X vectors: for each queue, and for changes of the configuration.
pub const VECTORS: usize = QUEUES + 1;

/// The driver has chosen no vector.
pub const NO_VECTOR: u16 = 0xffff;

/// Maximum number of descriptors of a queue (Virtio 1.2, section 2.7).
pub const MAX_QUEUE_SIZE: u16 = 32768;

/// Size of the device's configuration space, in bytes.
pub const CONFIG_SIZE: usize = 256;

/// Returns the name of a device type (Virtio 1.2, section 5), for messages.
pub const fn device_name(device: u32) -> &'static str {
    match device {
        1 => "net",
        2 => "block",
        3 => "console",
        4 => "rng",
        5 => "balloon",
        19 => "vsock",
        26 => "fs",
        _ => "virtio",
    }
}

/// Bits of the device status (Virtio 1.2, section 2.1).
pub mod status {
    /// ACKNOWLEDGE: the driver has noticed the device.
    pub const ACKNOWLEDGE: u32 = 1;
    /// DRIVER: the driver knows how to drive the device.
    pub const DRIVER: u32 = 2;
    /// DRIVER_OK: the driver is ready; queues are in use.
    pub const DRIVER_OK: u32 = 4;
    /// FEATURES_OK: features are negotiated.
    pub const FEATURES_OK: u32 = 8;
    /// DEVICE_NEEDS_RESET: the device can't continue. Set by the server.
    pub const NEEDS_RESET: u32 = 0x40;
    /// FAILED: the driver has given up.
    pub const FAILED: u32 = 0x80;
}
