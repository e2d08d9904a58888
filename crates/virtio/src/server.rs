//! Offsets of the server's registers, each of four bytes. Stile's own interface; docs/served-devices.md describes it.

/// [`MAGIC`]. Read-only.
pub const MAGIC_VALUE: u64 = 0x00;
/// [`VERSION_3`]. Read-only.
pub const VERSION: u64 = 0x04;
/// Type of the device, by the client's configuration. Read-only.
pub const DEVICE_ID: u64 = 0x08;
/// Lower half of the window's first address, at which the server finds the client's RAM; the upper half follows.
/// Read-only, as the next two.
pub const WINDOW_BASE: u64 = 0x10;
/// Size of the window in bytes, two halves.
pub const WINDOW_SIZE: u64 = 0x18;
/// Client-physical address of the window's first byte, two halves.
pub const CLIENT_BASE: u64 = 0x20;
/// [`CONTROL_ONLINE`].
pub const CONTROL: u64 = 0x28;
/// The client's device status, [`STATE_RESET`] and [`STATE_OFF`]. Read-only.
pub const STATE: u64 = 0x2c;
/// Any write acknowledges the client's reset: the server accesses the queues no more.
pub const RESET_DONE: u64 = 0x30;
/// Interrupts the client for the [queues](QUEUES_MASK) whose buffers were used, and for [`CONFIG_CHANGED`].
pub const INTERRUPT: u64 = 0x34;
/// Half of the features that [`DEVICE_FEATURES`] accesses.
pub const DEVICE_FEATURES_SEL: u64 = 0x38;
/// Offered features. Written while offline.
pub const DEVICE_FEATURES: u64 = 0x3c;
/// Accepted features, two halves. Read-only.
pub const DRIVER_FEATURES: u64 = 0x40;
/// Any write sets DEVICE_NEEDS_RESET, if the driver is running.
pub const NEEDS_RESET: u64 = 0x48;
/// Number of the queue that the next registers access.
pub const QUEUE_SEL: u64 = 0x50;
/// Maximum size of the queue. Written while offline.
pub const QUEUE_SIZE_MAX: u64 = 0x54;
/// Size of the queue. Read-only, as the rest.
pub const QUEUE_SIZE: u64 = 0x58;
/// 1 if the queue is enabled.
pub const QUEUE_READY: u64 = 0x5c;
/// Address of the descriptors, two halves.
pub const QUEUE_DESC: u64 = 0x60;
/// Address of the driver area, two halves.
pub const QUEUE_DRIVER: u64 = 0x68;
/// Address of the device area, two halves.
pub const QUEUE_DEVICE: u64 = 0x70;
/// Any write makes the configuration space that was written visible to the client.
pub const CONFIG_COMMIT: u64 = 0x84;
/// Of a balloon: begins a life of the client's driver, whose pages are all its own.
pub const BALLOON_BEGIN: u64 = 0x88;
/// Of a balloon: gives the client's page of this number back to Stile; [`BALLOON_ANSWER`] has the result.
pub const BALLOON_GIVE: u64 = 0x8c;
/// Of a balloon: takes the client's page of this number back; [`BALLOON_ANSWER`] has the result.
pub const BALLOON_TAKE: u64 = 0x90;
/// Of a balloon: the result of the last of these, [`DONE`], [`AGAIN`], [`REFUSED`] or [`NO_MEMORY`]. Read-only.
pub const BALLOON_ANSWER: u64 = 0x94;
/// Of a balloon: number of blocks of the client's RAM, of 2 MiB each, whose memory is Stile's. Read-only.
pub const BALLOON_BLOCKS: u64 = 0x98;
/// First word of configuration space. Written while offline, or before a [`CONFIG_COMMIT`].
pub const CONFIG: u64 = 0x100;

/// [`BALLOON_ANSWER`]: it is done.
pub const DONE: u32 = 0;
/// [`BALLOON_ANSWER`]: it is too early; the server repeats the store.
pub const AGAIN: u32 = 1;
/// [`BALLOON_ANSWER`]: the page is not in the client's RAM, or the device is no balloon.
pub const REFUSED: u32 = 2;
/// [`BALLOON_ANSWER`]: no memory is free.
pub const NO_MEMORY: u32 = 3;

/// Value of [`MAGIC_VALUE`]: "StSv".
pub const MAGIC: u32 = 0x7653_7453;
/// Value of [`VERSION`].
pub const VERSION_3: u32 = 3;
/// [`CONTROL`]: the server serves the device.
pub const CONTROL_ONLINE: u32 = 1;
/// [`STATE`]: the client was reset, and waits for [`RESET_DONE`].
pub const STATE_RESET: u32 = 1 << 31;
/// [`STATE`]: the client's VM is off.
pub const STATE_OFF: u32 = 1 << 30;
/// [`INTERRUPT`]: a bit for each queue.
pub const QUEUES_MASK: u32 = (1 << crate::QUEUES) - 1;
/// [`INTERRUPT`]: the configuration has changed.
pub const CONFIG_CHANGED: u32 = 1 << 31;

/// Size of the register file, in bytes.
pub const SIZE: u64 = 0x1000;
