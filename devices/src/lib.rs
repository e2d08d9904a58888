//! Serves virtio devices of other VMs: the server's side of docs/served-devices.md, for Linux.
//!
//! The module `modules/stile-served` has a file for each device, with its registers, its interrupt and the window on
//! its client's RAM ([`Device`]). A [`Server`] speaks the registers' protocol and takes requests from the queue, which a
//! [`Disk`] answers. [`supervisor`] runs a process for each device.
//!
//! Clients are hostile. The crates `virtio-queue` and `vm-memory` check addresses, lengths and indexes; what they
//! refuse ends in DEVICE_NEEDS_RESET, and what a disk can't do in VIRTIO_BLK_S_IOERR.

mod arguments;
mod device;
mod disk;
mod server;
pub mod supervisor;

pub use arguments::{DeviceArgument, parse};
pub use device::{Device, Page};
pub use disk::{Disk, QUEUE_SIZE, SECTOR};
pub use server::{Registers, Server};
