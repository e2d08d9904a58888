//! The firmware's configuration, as a PC of QEMU's has it: "QEMU Firmware Configuration (fw_cfg) Device" (QEMU's documentation,
//! docs/specs/fw_cfg). A 16-bit port selects an item, the next port gives its bytes one after the other; numbers are little-endian. There are
//! the items that small kernels ask for, no files, and no DMA.

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

/// The interface of ports alone.
const TRADITIONAL: u64 = 1;

/// What the firmware knows of its machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    /// In bytes.
    pub ram: u64,
    /// Virtual CPUs.
    pub cpus: u16,
}

/// The device.
#[derive(Clone, Debug)]
pub struct FwCfg {
    machine: Machine,
    key: u16,
    /// How many bytes of the item were read.
    at: u8,
}

impl FwCfg {
    /// After reset.
    pub const fn new(machine: Machine) -> Self {
        Self { machine, key: key::SIGNATURE, at: 0 }
    }

    /// The guest writes the selector.
    pub const fn select(&mut self, key: u16) {
        self.key = key;
        self.at = 0;
    }

    /// The guest reads the data port: the item's next byte, and zeroes behind its end.
    pub fn read(&mut self) -> u8 {
        let item = match self.key {
            key::SIGNATURE => u64::from_le_bytes(*b"QEMU\0\0\0\0"),
            key::INTERFACES => TRADITIONAL,
            key::RAM_SIZE => self.machine.ram,
            key::CPUS | key::MAX_CPUS => self.machine.cpus.into(),
            // No files, and nothing else.
            _ => 0,
        };
        let byte = item.to_le_bytes().get(usize::from(self.at)).copied().unwrap_or(0);
        self.at = self.at.saturating_add(1);
        byte
    }
}
