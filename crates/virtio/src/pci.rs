//! The client's side of a transport: a PCI function (Virtio 1.2, section 4.1), whose messages are its only interrupts.
//!
//! [`configuration_space`] describes it. The registers of its BAR, except for the MSI-X structures, are
//! [`Transport::pci_read`] and [`Transport::pci_write`]. Each has its natural width; other accesses have no effect.

use crate::features::half;
use crate::transport::{Effect, Transport};
use crate::{CONFIG_SIZE, NO_VECTOR, QUEUES, VECTORS, client, server};

/// Size of the only BAR, in bytes: BAR 0, of 32 bits.
pub const SIZE: u64 = 0x1000;
/// Offset of the common configuration.
pub const COMMON: u64 = 0;
/// Offset of the ISR status, which is cleared by loads. Nothing needs it: there are no interrupts but messages.
pub const ISR: u64 = 0x40;
/// Offset of the register that kicks a queue by its number, the same for all queues.
pub const NOTIFY: u64 = 0x80;
/// Offset of the device's configuration space.
pub const CONFIG: u64 = 0x100;
/// Offset of the MSI-X table.
pub const MSIX_TABLE: u64 = 0x800;
/// Offset of the MSI-X pending bits.
pub const MSIX_PENDING: u64 = 0xc00;

/// Offsets in the common configuration (Virtio 1.2, section 4.1.4.3).
pub mod common {
    /// device_feature_select, 32 bits.
    pub const DEVICE_FEATURE_SELECT: u64 = 0x00;
    /// device_feature, 32 bits.
    pub const DEVICE_FEATURE: u64 = 0x04;
    /// driver_feature_select, 32 bits.
    pub const DRIVER_FEATURE_SELECT: u64 = 0x08;
    /// driver_feature, 32 bits.
    pub const DRIVER_FEATURE: u64 = 0x0c;
    /// config_msix_vector, 16 bits.
    pub const CONFIG_VECTOR: u64 = 0x10;
    /// num_queues, 16 bits.
    pub const NUM_QUEUES: u64 = 0x12;
    /// device_status, 8 bits.
    pub const DEVICE_STATUS: u64 = 0x14;
    /// config_generation, 8 bits.
    pub const CONFIG_GENERATION: u64 = 0x15;
    /// queue_select, 16 bits.
    pub const QUEUE_SELECT: u64 = 0x16;
    /// queue_size, 16 bits: the maximum until the driver chooses.
    pub const QUEUE_SIZE: u64 = 0x18;
    /// queue_msix_vector, 16 bits.
    pub const QUEUE_VECTOR: u64 = 0x1a;
    /// queue_enable, 16 bits.
    pub const QUEUE_ENABLE: u64 = 0x1c;
    /// queue_notify_off, 16 bits: 0.
    pub const QUEUE_NOTIFY_OFF: u64 = 0x1e;
    /// queue_desc, two halves of 32 bits.
    pub const QUEUE_DESC: u64 = 0x20;
    /// queue_driver, two halves of 32 bits.
    pub const QUEUE_DRIVER: u64 = 0x28;
    /// queue_device, two halves of 32 bits.
    pub const QUEUE_DEVICE: u64 = 0x30;
    /// Size of the structure.
    pub const SIZE: u64 = 0x38;
}

/// The configuration space of the function for a device of this type: the words of a type 0 header and its capabilities, as after a
/// reset.
pub const fn configuration_space(device: u32) -> [u32; 64] {
    const VENDOR: u32 = 0x1af4;
    const HAS_CAPABILITIES: u32 = 1 << 20;
    const MSIX: u32 = 0x11;
    /// ID and length of a vendor-specific capability; `next`: the offset of the next one.
    const fn vendor(next: u32, length: u32, of: u32) -> u32 {
        0x09 | next << 8 | length << 16 | of << 24
    }
    let mut words = [0; 64];
    let id = VENDOR | (0x1040 + device) << 16;
    words[0] = id;
    // Status.
    words[1] = HAS_CAPABILITIES;
    // Revision 1, no class.
    words[2] = 0xff00_0001;
    // Subsystem.
    words[11] = id;
    // The first capability.
    words[13] = 0x40;
    let capabilities = [
        (0x40, [MSIX | 0x50 << 8 | (VECTORS as u32 - 1) << 16, MSIX_TABLE as u32, MSIX_PENDING as u32, 0]),
        // Type, BAR 0, offset, length.
        (0x50, [vendor(0x60, 16, 1), 0, COMMON as u32, common::SIZE as u32]),
        // With a multiplier of 0 behind it.
        (0x60, [vendor(0x74, 20, 2), 0, NOTIFY as u32, 4]),
        (0x74, [vendor(0x84, 16, 3), 0, ISR as u32, 1]),
        (0x84, [vendor(0, 16, 4), 0, CONFIG as u32, CONFIG_SIZE as u32]),
    ];
    let mut n = 0;
    while n < capabilities.len() {
        let (at, capability) = capabilities[n];
        let mut word = 0;
        while word < capability.len() {
            words[at / 4 + word] = capability[word];
            word += 1;
        }
        n += 1;
    }
    words
}

/// Width in bytes of the register of the common configuration at an offset; 0 if none starts there.
const fn width(offset: u64) -> u64 {
    match offset {
        common::CONFIG_VECTOR
        | common::NUM_QUEUES
        | common::QUEUE_SELECT
        | common::QUEUE_SIZE
        | common::QUEUE_VECTOR
        | common::QUEUE_ENABLE
        | common::QUEUE_NOTIFY_OFF => 2,
        common::DEVICE_STATUS | common::CONFIG_GENERATION => 1,
        _ if offset < common::SIZE && offset.is_multiple_of(4) => 4,
        _ => 0,
    }
}

/// Width in bytes of a register at an offset whose loads may wait for the server; 1 in the device's configuration space. Loads of these
/// have no effect.
pub const fn width_of_waiting(offset: u64) -> Option<u64> {
    match offset {
        CONFIG.. if offset < CONFIG + CONFIG_SIZE as u64 => Some(1),
        _ => match width(offset) {
            0 => None,
            bytes => Some(bytes),
        },
    }
}

impl Transport {
    /// Loads `bytes` bytes of the BAR for the client. Returns `None` if the load must wait for the server.
    pub fn pci_read(&mut self, offset: u64, bytes: u64) -> Option<u32> {
        const CONFIG_END: u64 = CONFIG + CONFIG_SIZE as u64;
        match offset {
            ISR => return Some(core::mem::take(&mut self.interrupts)),
            CONFIG..CONFIG_END => return self.read(client::CONFIG + (offset - CONFIG), bytes),
            _ if bytes != width(offset) => return Some(0),
            _ => {}
        }
        let queue = self.queues.get(self.client_queue as usize).copied().unwrap_or_default();
        let halves = |value: u64, base: u64| half(value, ((offset - base) / 4) as u32);
        Some(match offset {
            common::DEVICE_FEATURE => return self.read(client::DEVICE_FEATURES, 4),
            common::DEVICE_STATUS => return self.read(client::STATUS, 4),
            common::QUEUE_ENABLE => return self.read(client::QUEUE_READY, 4),
            common::CONFIG_GENERATION => self.read(client::CONFIG_GENERATION, 4)? & 0xff,
            common::QUEUE_SIZE if queue.size == 0 => return self.read(client::QUEUE_SIZE_MAX, 4),
            common::QUEUE_SIZE => queue.size.into(),
            common::DEVICE_FEATURE_SELECT => self.features.offered_select,
            common::DRIVER_FEATURE_SELECT => self.features.accepted_select,
            common::DRIVER_FEATURE => half(self.features.accepted, self.features.accepted_select),
            common::NUM_QUEUES => QUEUES as u32,
            common::QUEUE_SELECT => self.client_queue,
            common::CONFIG_VECTOR => self.vectors[QUEUES].into(),
            common::QUEUE_VECTOR => self.vectors[..QUEUES].get(self.client_queue as usize).copied().unwrap_or(NO_VECTOR).into(),
            common::QUEUE_DESC..common::QUEUE_DRIVER => halves(queue.descriptors, common::QUEUE_DESC),
            common::QUEUE_DRIVER..common::QUEUE_DEVICE => halves(queue.driver, common::QUEUE_DRIVER),
            common::QUEUE_DEVICE..common::SIZE => halves(queue.device, common::QUEUE_DEVICE),
            _ => 0,
        })
    }

    /// Loads as [`Transport::pci_read`], but never waits: a server that is absent counts as there, with the registers that it left, and a
    /// reset that is not acknowledged shows DEVICE_NEEDS_RESET. For a server that goes offline between the check whether a load waits and
    /// the load.
    pub fn pci_read_at_once(&mut self, offset: u64, bytes: u64) -> u32 {
        let online = core::mem::replace(&mut self.online, true);
        let value = self.pci_read(offset, bytes);
        self.online = online;
        let unacknowledged = if offset == common::DEVICE_STATUS { self.status | crate::status::NEEDS_RESET } else { 0 };
        value.unwrap_or(unacknowledged)
    }

    /// Stores to the BAR for the client.
    #[inline]
    pub fn pci_write(&mut self, offset: u64, bytes: u64, value: u32) -> Effect {
        // Drivers may store words to it, too, whose upper half is reserved (Virtio 1.2, section 4.1.5.2).
        if offset == NOTIFY {
            return self.kick(value & 0xffff);
        }
        if bytes != width(offset) {
            return Effect::Nothing;
        }
        let register = match offset {
            common::DEVICE_FEATURE_SELECT => client::DEVICE_FEATURES_SEL,
            common::DRIVER_FEATURE_SELECT => client::DRIVER_FEATURES_SEL,
            common::DRIVER_FEATURE => client::DRIVER_FEATURES,
            common::DEVICE_STATUS => client::STATUS,
            common::QUEUE_SELECT => client::QUEUE_SEL,
            common::QUEUE_SIZE => client::QUEUE_SIZE,
            common::QUEUE_ENABLE => {
                self.choose_maximum();
                client::QUEUE_READY
            }
            common::QUEUE_DESC..common::QUEUE_DRIVER => client::QUEUE_DESC + (offset - common::QUEUE_DESC),
            common::QUEUE_DRIVER..common::QUEUE_DEVICE => client::QUEUE_DRIVER + (offset - common::QUEUE_DRIVER),
            common::QUEUE_DEVICE..common::SIZE => client::QUEUE_DEVICE + (offset - common::QUEUE_DEVICE),
            common::CONFIG_VECTOR => {
                self.vectors[QUEUES] = valid(value);
                return Effect::Nothing;
            }
            common::QUEUE_VECTOR => {
                if let Some(vector) = self.vectors[..QUEUES].get_mut(self.client_queue as usize) {
                    *vector = valid(value);
                }
                return Effect::Nothing;
            }
            _ => return Effect::Nothing,
        };
        self.write(register, 4, value)
    }

    /// The size of a queue that the driver enables without having chosen one is the maximum.
    fn choose_maximum(&mut self) {
        let is_running = self.is_running();
        if let Some(queue) = self.queues.get_mut(self.client_queue as usize)
            && !is_running
            && queue.size == 0
        {
            queue.size = queue.maximum;
        }
    }

    /// The MSI-X vectors of [`Effect::SignalClient`], a bit each.
    #[inline]
    pub fn vectors(&self, causes: u32) -> u32 {
        let (mut rest, mut vectors) = (causes & (server::QUEUES_MASK | server::CONFIG_CHANGED), 0);
        while rest != 0 {
            // The bit above those of queues is CONFIG_CHANGED.
            let vector = self.vectors[(rest.trailing_zeros() as usize).min(QUEUES)];
            vectors |= 1u32.checked_shl(vector.into()).unwrap_or(0);
            rest &= rest - 1;
        }
        vectors
    }
}

/// A vector that the driver chooses; [`NO_VECTOR`] if the function has no such one, as the driver reads.
const fn valid(value: u32) -> u16 {
    if value < VECTORS as u32 { value as u16 } else { NO_VECTOR }
}
