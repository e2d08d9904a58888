//! The configuration space of a function as its VM sees it.

use crate::ConfigSpace;
use crate::bar::{BARS, Bar, register};
use crate::capability::{capabilities, id};
use crate::msix::Msix;
use crate::register::{
    BUS_MASTER, CAPABILITIES, CLASS, COMMAND, HAS_CAPABILITIES, HEADER, ID, INTERRUPT, INTX_DISABLE, MEMORY, MSIX_ENABLE, MSIX_MASK_ALL,
    PARITY, SERR, SUBSYSTEM,
};

/// Registers below the extended configuration space.
const REGISTERS: usize = 64;

/// Virtio's vendor ID, and the type of its capability that is a window to BARs: it would bypass the model.
const VIRTIO: u32 = 0x1af4;
const VIRTIO_WINDOW: u32 = 5;

/// Function-level reset, in the device capabilities of PCI Express.
pub(crate) const FLR: u32 = 1 << 28;

/// Reason for which a function can't be assigned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The address has no function.
    Absent,
    /// It is a bridge: its header is not of type 0.
    Bridge,
    /// Its MSI-X capability names an invalid memory BAR, or a range outside of it.
    Msix,
}

impl Refusal {
    /// The reason, as a clause.
    pub const fn reason(self) -> &'static str {
        match self {
            Refusal::Absent => "there is no such function on this machine",
            Refusal::Bridge => "it is a bridge, which can't be assigned",
            Refusal::Msix => "its MSI-X table is outside of its BARs",
        }
    }
}

/// The effect of a write that the hypervisor must carry out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// None.
    Nothing,
    /// Command or a BAR: what is decoded, and bus mastering.
    Decoding,
    /// MSI-X enable and mask.
    Msix,
}

/// A function as its VM sees it.
#[derive(Clone, Debug)]
pub struct VirtualFunction {
    registers: [u32; REGISTERS],
    writable: [u32; REGISTERS],
    bars: [Option<Bar>; BARS],
    msix: Option<Msix>,
}

impl VirtualFunction {
    /// The model of the function with this configuration space and these BARs
    /// ([`probe_bars`](crate::probe_bars)), after reset.
    ///
    /// # Errors
    /// It can't be assigned.
    pub fn new(space: &impl ConfigSpace, bars: [Option<Bar>; BARS]) -> Result<VirtualFunction, Refusal> {
        let device = space.read(ID);
        if device & 0xffff == 0xffff {
            return Err(Refusal::Absent);
        }
        if space.read(HEADER) >> 16 & 0x7f != 0 {
            return Err(Refusal::Bridge);
        }
        let mut function = VirtualFunction { registers: [0; REGISTERS], writable: [0; REGISTERS], bars, msix: None };
        for register in [ID, CLASS, SUBSYSTEM] {
            function.put(register, space.read(register), 0);
        }
        function.put(COMMAND, 0, MEMORY | BUS_MASTER | PARITY | SERR | INTX_DISABLE);
        // A single function; BIST and the latency timer are absent.
        function.put(HEADER, 0, 0xff);
        function.put(INTERRUPT, 0, 0xff);
        for (index, bar) in bars.iter().enumerate() {
            let Some(bar) = bar else { continue };
            let mask = !(bar.mapped_size() - 1);
            function.put(register(index), bar.flags(), mask as u32);
            if bar.wide {
                function.put(register(index + 1), 0, (mask >> 32) as u32);
            }
        }
        function.copy_capabilities(space, device & 0xffff)?;
        Ok(function)
    }

    /// Copies the capabilities that a guest may see, linked with each other.
    fn copy_capabilities(&mut self, space: &impl ConfigSpace, vendor: u32) -> Result<(), Refusal> {
        let mut last = None;
        for capability in capabilities(space) {
            let virtio_window = vendor == VIRTIO && capability.header >> 24 == VIRTIO_WINDOW;
            let length = match capability.id {
                id::MSIX => 12,
                id::VENDOR if !virtio_window => (capability.header >> 16) as usize & 0xff,
                // Version 1 ends with the link's registers.
                id::EXPRESS if capability.header >> 16 & 0xf == 1 => 0x14,
                id::EXPRESS => 0x3c,
                _ => continue,
            };
            let at = usize::from(capability.offset);
            for offset in (at..(at + length).min(4 * REGISTERS)).step_by(4) {
                self.put(offset as u8, space.read(offset as u8), 0);
            }
            self.registers[at / 4] &= !0xff00;
            match capability.id {
                id::MSIX => {
                    let msix = Msix::new(space, capability).ok_or(Refusal::Msix)?;
                    let bar = self.bars[msix.bar].ok_or(Refusal::Msix)?;
                    if msix.offset + u64::from(msix.physical_vectors) * 16 > bar.size {
                        return Err(Refusal::Msix);
                    }
                    let vectors = msix.vectors() as u32 - 1;
                    let header = self.registers[at / 4] & 0xffff | vectors << 16;
                    self.put(capability.offset, header, MSIX_ENABLE | MSIX_MASK_ALL);
                    self.msix = Some(msix);
                }
                // The guest can't reset the function: that takes BARs and vectors with it.
                id::EXPRESS if at + 4 < 4 * REGISTERS => self.registers[at / 4 + 1] &= !FLR,
                _ => {}
            }
            match last {
                None => {
                    self.put(CAPABILITIES, capability.offset.into(), 0);
                    self.registers[usize::from(COMMAND) / 4] |= HAS_CAPABILITIES;
                }
                Some(last) => self.registers[last] |= u32::from(capability.offset) << 8,
            }
            last = Some(at / 4);
        }
        Ok(())
    }

    fn put(&mut self, register: u8, value: u32, writable: u32) {
        let index = usize::from(register) / 4;
        (self.registers[index], self.writable[index]) = (value, writable);
    }

    fn register(&self, register: u8) -> u32 {
        self.registers[usize::from(register) / 4]
    }

    /// Resets what the guest can write.
    pub fn reset(&mut self) {
        for (register, writable) in self.registers.iter_mut().zip(self.writable) {
            *register &= !writable;
        }
    }

    /// Reads `bytes` bytes (1, 2 or 4) at an offset below 4096. An access that crosses a register reads as all
    /// ones, extended configuration space as zero.
    pub fn read(&self, offset: u64, bytes: u64) -> u64 {
        if offset % 4 + bytes > 4 {
            return u64::MAX;
        }
        let register = usize::try_from(offset / 4).ok().and_then(|index| self.registers.get(index));
        u64::from(register.copied().unwrap_or(0)) >> (offset % 4 * 8)
    }

    /// Writes, as [`VirtualFunction::read`]. An access that crosses a register is ignored.
    pub fn write(&mut self, offset: u64, bytes: u64, value: u64) -> Effect {
        if offset % 4 + bytes > 4 {
            return Effect::Nothing;
        }
        let index = usize::try_from(offset / 4).unwrap_or(REGISTERS);
        let (Some(register), Some(writable)) = (self.registers.get_mut(index), self.writable.get(index)) else { return Effect::Nothing };
        let shift = offset % 4 * 8;
        let lanes = ((1u64 << (8 * bytes)) - 1) << shift;
        let writable = writable & lanes as u32;
        let new = *register & !writable | (value << shift) as u32 & writable;
        if core::mem::replace(register, new) == new {
            return Effect::Nothing;
        }
        let offset = (index * 4) as u8;
        if offset == COMMAND || (register_range()).contains(&offset) {
            Effect::Decoding
        } else if self.msix.is_some_and(|msix| msix.capability == offset) {
            Effect::Msix
        } else {
            Effect::Nothing
        }
    }

    /// Whether the guest has memory decoding on.
    pub fn decodes_memory(&self) -> bool {
        self.register(COMMAND) & MEMORY != 0
    }

    /// Whether the guest has bus mastering on.
    pub fn masters_bus(&self) -> bool {
        self.register(COMMAND) & BUS_MASTER != 0
    }

    /// The enable and mask bits of MSI-X, as in the capability's first register.
    pub fn msix_control(&self) -> u32 {
        self.msix.map_or(0, |msix| self.register(msix.capability) & (MSIX_ENABLE | MSIX_MASK_ALL))
    }

    /// Its BARs.
    pub const fn bars(&self) -> &[Option<Bar>; BARS] {
        &self.bars
    }

    /// Its MSI-X structures.
    pub const fn msix(&self) -> Option<Msix> {
        self.msix
    }

    /// The current guest-physical address of BAR `index`, decoded or not: a multiple of a page and of its size.
    pub fn address(&self, index: usize) -> Option<u64> {
        let bar = (*self.bars.get(index)?)?;
        let low = u64::from(self.register(register(index)) & !0xf);
        let high = if bar.wide { u64::from(self.register(register(index + 1))) } else { 0 };
        Some(high << 32 | low)
    }

    /// The size of BAR `index` in bytes. [`find`](Self::find) also finds accesses beyond it, up to the end of the page.
    pub fn size(&self, index: usize) -> Option<u64> {
        Some((*self.bars.get(index)?)?.size)
    }

    /// The BAR that answers an access of `bytes` bytes at a guest-physical address, and the offset in it.
    pub fn find(&self, address: u64, bytes: u64) -> Option<(usize, u64)> {
        if !self.decodes_memory() {
            return None;
        }
        (0..BARS).find_map(|index| {
            let size = self.bars[index]?.mapped_size();
            let offset = address.checked_sub(self.address(index)?)?;
            (offset < size && bytes <= size - offset).then_some((index, offset))
        })
    }
}

const fn register_range() -> core::ops::Range<u8> {
    register(0)..register(BARS)
}

#[cfg(test)]
impl VirtualFunction {
    /// All registers, for comparison.
    pub(crate) fn registers_for_tests(&self) -> [u32; REGISTERS] {
        self.registers
    }
}
