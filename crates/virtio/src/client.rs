//! Offsets of the client's registers (Virtio 1.2, section 4.2.2), each of four bytes.

/// MagicValue: [`MAGIC`].
pub const MAGIC_VALUE: u64 = 0x00;
/// Version: [`VERSION_2`].
pub const VERSION: u64 = 0x04;
/// DeviceID: type of the device.
pub const DEVICE_ID: u64 = 0x08;
/// VendorID: [`VENDOR`].
pub const VENDOR_ID: u64 = 0x0c;
/// DeviceFeatures.
pub const DEVICE_FEATURES: u64 = 0x10;
/// DeviceFeaturesSel.
pub const DEVICE_FEATURES_SEL: u64 = 0x14;
/// DriverFeatures.
pub const DRIVER_FEATURES: u64 = 0x20;
/// DriverFeaturesSel.
pub const DRIVER_FEATURES_SEL: u64 = 0x24;
/// QueueSel.
pub const QUEUE_SEL: u64 = 0x30;
/// QueueSizeMax.
pub const QUEUE_SIZE_MAX: u64 = 0x34;
/// QueueSize.
pub const QUEUE_SIZE: u64 = 0x38;
/// QueueReady.
pub const QUEUE_READY: u64 = 0x44;
/// QueueNotify.
pub const QUEUE_NOTIFY: u64 = 0x50;
/// InterruptStatus.
pub const INTERRUPT_STATUS: u64 = 0x60;
/// InterruptACK.
pub const INTERRUPT_ACK: u64 = 0x64;
/// Status.
pub const STATUS: u64 = 0x70;
/// QueueDescLow; QueueDescHigh follows.
pub const QUEUE_DESC: u64 = 0x80;
/// QueueDriverLow; QueueDriverHigh follows.
pub const QUEUE_DRIVER: u64 = 0x90;
/// QueueDeviceLow; QueueDeviceHigh follows.
pub const QUEUE_DEVICE: u64 = 0xa0;
/// SHMLenLow; SHMLenHigh, SHMBaseLow and SHMBaseHigh follow. All ones: there is no shared memory.
pub const SHM_LEN: u64 = 0xb0;
/// SHMBaseHigh.
pub const SHM_BASE_HIGH: u64 = 0xbc;
/// ConfigGeneration.
pub const CONFIG_GENERATION: u64 = 0xfc;
/// Config: first byte of the device's configuration space.
pub const CONFIG: u64 = 0x100;

/// Value of MagicValue: "virt".
pub const MAGIC: u32 = 0x7472_6976;
/// Value of Version.
pub const VERSION_2: u32 = 2;
/// Value of VendorID: "STIL".
pub const VENDOR: u32 = 0x4c49_5453;

/// InterruptStatus: the device has used a buffer.
pub const USED_BUFFER: u32 = 1;
/// InterruptStatus: the configuration has changed.
pub const CONFIG_CHANGE: u32 = 2;

/// Size of the register file, in bytes.
pub const SIZE: u64 = CONFIG + crate::CONFIG_SIZE as u64;
