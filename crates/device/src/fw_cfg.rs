//! QEMU's fw_cfg device: "QEMU Firmware Configuration (fw_cfg) Device" (QEMU's documentation, docs/specs/fw_cfg). A
//! 16-bit port selects an item, and the next port reads its bytes in sequence; numbers are little-endian. Only the
//! items that small kernels use exist: no files, no DMA.

#[cfg(test)]
mod tests;

/// Keys of items.
mod key {
    pub const SIGNATURE: u16 = 0x00;
    pub const INTERFACES: u16 = 0x01;
    pub const RAM_SIZE: u16 = 0x03;
    pub const CPUS: u16 = 0x05;
    pub const MAX_CPUS: u16 = 0x0f;
}

/// Feature bitmap: the port interface only.
const TRADITIONAL: u64 = 1;

/// The machine's properties.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    /// RAM in bytes.
    pub ram: u64,
    /// Virtual CPUs.
    pub cpus: u16,
}

/// The device.
#[derive(Clone, Debug)]
pub struct FwCfg {
    machine: Machine,
    key: u16,
    /// Bytes of the item read so far.
    at: u8,
}

impl FwCfg {
    /// The reset state.
    pub const fn new(machine: Machine) -> Self {
        Self { machine, key: key::SIGNATURE, at: 0 }
    }

    /// The guest writes the selector.
    pub const fn select(&mut self, key: u16) {
        self.key = key;
        self.at = 0;
    }

    /// Exports the state: the selector, and the number of bytes read.
    pub const fn save(&self) -> (u16, u8) {
        (self.key, self.at)
    }

    /// Imports a state.
    pub const fn restore(&mut self, (key, at): (u16, u8)) {
        (self.key, self.at) = (key, at);
    }

    /// The guest reads the data port: returns the item's next byte, and zeros behind its end.
    pub fn read(&mut self) -> u8 {
        let item = match self.key {
            key::SIGNATURE => u64::from_le_bytes(*b"QEMU\0\0\0\0"),
            key::INTERFACES => TRADITIONAL,
            key::RAM_SIZE => self.machine.ram,
            key::CPUS | key::MAX_CPUS => self.machine.cpus.into(),
            // Items that do not exist read as zero.
            _ => 0,
        };
        let byte = item.to_le_bytes().get(usize::from(self.at)).copied().unwrap_or(0);
        self.at = self.at.saturating_add(1);
        byte
    }
}
