//! Serves virtio devices of other VMs: the server's side of docs/served-devices.md, for Linux.
//!
//! The module `modules/stile-served` has a file for each device, with its registers, its interrupt and the window on
//! its client's RAM ([`Device`]). A [`Server`] speaks the registers' protocol and has a [`Backend`] use the buffers in
//! the queues: a [`Disk`], [`Entropy`], a [`Balloon`], a console's [`Log`], a [`Network`] card that is a
//! [`Port`] of a bridge ([`Tap`]), the sockets of a [`Vsock`], or another program ([`VhostUser`]), which is [`confined`].
//! [`supervisor`] runs a process for each device, which serves it in a [`sandbox`]. The client of a device that can't be served gets
//! errors ([`FailedDisk`], [`FailedFolder`], [`Unplugged`]).
//!
//! Clients are hostile. The crates `virtio-queue` and `vm-memory` check addresses, lengths and indexes; what they
//! refuse ends in DEVICE_NEEDS_RESET, what a disk can't do in VIRTIO_BLK_S_IOERR, and a frame that no honest driver
//! sends, or in another client's name ([`Identity`]), in nothing.

mod arguments;
mod balloon;
pub mod confined;
mod device;
mod disk;
mod entropy;
mod folder;
mod frame;
mod identity;
mod jail;
mod log;
pub mod memory_limit;
mod mounting;
mod network;
mod private;
mod protocol;
mod relay;
pub mod sandbox;
mod server;
mod session;
pub mod supervisor;
mod tap;
mod vhost_user;
pub mod vsock;

pub use arguments::{DeviceArgument, Format, parse};
pub use balloon::{Balloon, PAGE as BALLOON_PAGE};
pub use device::{Device, Page};
pub use disk::{DISK, Disk, FailedDisk, QUEUE_SIZE, SECTOR};
pub use entropy::Entropy;
pub use folder::{FOLDER, FOLDER_QUEUES, FailedFolder};
pub use frame::{HEADER, Mac};
pub use identity::Identity;
pub use log::{LIMIT as LOG_LIMIT, Log};
pub use network::{Network, Port, Unplugged};
pub use server::{Backend, Progress, Registers, Server, Sources};
pub use tap::Tap;
pub use vhost_user::{Kind, VhostUser};
pub use vsock::Vsock;
