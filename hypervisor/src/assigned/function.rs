//! An assigned function: its physical registers, and the model that its VM accesses.

use core::ops::Range;

use stile_paging::PAGE_SIZE;
use stile_paging::table::Error;
use stile_pci::{
    Address, BARS, Bar, ConfigSpace, MAX_VECTORS, Msix, Place, Reset, Table, Unmapped, VirtualFunction, find_reset, is_virtio, probe_bars,
    register, virtio_common,
};

use crate::address_space;
use crate::arch::Arch;
use crate::arch::contract::{Counter, FunctionPart, Layout, SecondStage};
use crate::console::log;

/// Initiate Function Level Reset, in the device control register (PCI Express Base Specification, 7.5.3.4).
const INITIATE_RESET: u32 = 1 << 15;
/// Duration of the reset, in milliseconds (PCI Express Base Specification, 6.6.2).
const RESET_MS: u64 = 100;
/// Size of the part of a virtio function's common configuration that every version has, in bytes (VIRTIO 1.2,
/// 4.1.4.3).
const VIRTIO_COMMON_SIZE: u64 = 0x38;

/// An assigned function.
pub struct Function<P: FunctionPart> {
    address: Address,
    config: P::Config,
    /// Model of configuration space.
    pub model: VirtualFunction,
    /// Model of the MSI-X table.
    table: Table,
    /// Host (CPU) addresses of its BARs, 0 for absent ones; and PCI addresses, for the BAR registers.
    bars: [u64; BARS],
    bars_pci: [u64; BARS],
    /// Guest-physical addresses at which BARs are mapped.
    mapped: [Option<u64>; BARS],
    /// A failed mapping was logged since the VM started.
    has_logged: bool,
    /// Its DMA and messages.
    pub part: P,
    /// Its reset method, if it has one.
    reset: Option<Reset>,
    /// Completion time of its reset, in ticks of the counter.
    ready_at: u64,
}

/// Addresses of a function's BARs, 0 for absent ones.
pub struct Addresses {
    /// Addresses at which CPUs access them.
    pub cpu: [u64; BARS],
    /// Addresses in its BAR registers.
    pub pci: [u64; BARS],
}

impl<P: FunctionPart> Function<P> {
    /// Takes over the function with this configuration space. `part` sets up DMA and messages for a number of vectors; `place` finds
    /// addresses for the BARs.
    ///
    /// # Errors
    /// A description of why it cannot be assigned.
    pub fn new(
        address: Address,
        mut config: P::Config,
        part: impl FnOnce(usize) -> Result<P, &'static str>,
        place: impl FnOnce(&[Option<Bar>; BARS]) -> Result<Addresses, &'static str>,
    ) -> Result<Self, &'static str> {
        let probed = probe_bars(&mut config);
        let model = VirtualFunction::new(&config, probed).map_err(|refusal| refusal.reason())?;
        let msix = model.msix();
        let vectors = msix.map_or(0, |msix| msix.vectors());
        let part = part(vectors)?;
        let Addresses { cpu: bars, pci: bars_pci } = place(&probed)?;
        let reset = find_reset(&config);
        let table = Table::new(vectors);
        let mut function =
            Self { address, config, model, table, bars, bars_pci, mapped: [None; BARS], has_logged: false, part, reset, ready_at: 0 };
        // Maps pages that Stile accesses for the guest, or to reset the function.
        if let Some(msix) = msix {
            let pages = msix.pages();
            let bar = function.bars[msix.bar];
            address_space::device(bar + pages.start..bar + pages.end);
        }
        function.restore();
        if let Some((bar, offset)) = virtio_common(&function.config) {
            let is_there = |bar: &Bar| offset % PAGE_SIZE + VIRTIO_COMMON_SIZE <= PAGE_SIZE && offset + VIRTIO_COMMON_SIZE <= bar.size;
            probed[bar].filter(is_there).ok_or("its registers are not in one page of a BAR")?;
            // The reset register of virtio functions is in one of these pages as well.
            let page = (function.bars[bar] + offset) & !(PAGE_SIZE - 1);
            address_space::device(page..page + PAGE_SIZE);
            if !function.translates(bar, offset) {
                return Err("its requests bypass the IOMMU (QEMU: iommu_platform=on)");
            }
        } else if is_virtio(&function.config) {
            return Err("it is a virtio function without the modern interface (QEMU: disable-legacy=on)");
        }
        function.trigger_reset();
        Ok(function)
    }

    /// Whether a virtio function, whose common configuration is at `offset` of a BAR, has its DMA translated by the IOMMU: the
    /// feature VIRTIO_F_ACCESS_PLATFORM (VIRTIO 1.2, 6), bit 33. Without it QEMU's functions bypass the IOMMU.
    fn translates(&self, bar: usize, offset: u64) -> bool {
        const DEVICE_FEATURE_SELECT: usize = 0;
        const DEVICE_FEATURE: usize = 4;
        let common = self.registers(bar) + offset as usize;
        P::write32(common + DEVICE_FEATURE_SELECT, 1);
        P::read32(common + DEVICE_FEATURE) & 1 << (33 - 32) != 0
    }

    /// Logs that the function's interrupts do not reach its VM, called `name`, if it has no MSI-X.
    pub fn report_interrupts(&self, name: &str) {
        if self.model.msix().is_none() {
            log!("{name}: function {} has no MSI-X: its interrupts do not reach the VM; only drivers that poll can use it", self.address);
        }
    }

    /// Host PCI address.
    pub fn address(&self) -> Address {
        self.address
    }

    /// Completion time of its reset, in ticks of the counter.
    pub fn ready_at(&self) -> u64 {
        self.ready_at
    }

    /// Resets the models of configuration space and of the MSI-X table, and disables the function's messages.
    pub fn reset(&mut self) {
        self.model.reset();
        self.table = Table::new(self.table.vectors());
        self.has_logged = false;
        self.part.reset(self.table.vectors());
    }

    /// Drops its messages, including those in flight, so that none becomes an interrupt of the VM. The function may be in reset.
    pub fn disconnect(&self) {
        self.part.disconnect(self.table.vectors());
    }

    /// Disables bus mastering, and messages with it.
    pub fn silence(&mut self) {
        self.config.write(register::COMMAND, register::MEMORY | register::INTX_DISABLE);
        if let Some(msix) = self.model.msix() {
            self.config.write(msix.capability, register::MSIX_MASK_ALL);
        }
    }

    /// Resets the function, which discards the last guest's state, if it has a reset method. Its bus mastering is off.
    pub fn reset_hardware(&mut self) {
        self.restore();
        self.trigger_reset();
    }

    fn trigger_reset(&mut self) {
        match self.reset {
            Some(Reset::Function(control)) => {
                let value = self.config.read(control) & 0xffff;
                self.config.write(control, value | INITIATE_RESET);
                self.ready_at = Arch::now() + RESET_MS * Arch::frequency() / 1000;
            }
            Some(Reset::Virtio { bar, offset }) => P::write(self.registers(bar) + offset as usize, 1, 0),
            None => {}
        }
    }

    /// Initializes its registers for the start of its VM: BARs assigned and decoded, bus mastering off, vectors
    /// masked.
    pub fn restore(&mut self) {
        self.config.write(register::COMMAND, register::INTX_DISABLE);
        for index in 0..BARS {
            let Some(bar) = self.model.bars()[index] else { continue };
            let register = register::BAR0 + 4 * index as u8;
            self.config.write(register, self.bars_pci[index] as u32);
            if bar.wide {
                self.config.write(register + 4, (self.bars_pci[index] >> 32) as u32);
            }
        }
        self.silence();
        let Some(msix) = self.model.msix() else { return };
        for vector in 0..self.table.vectors() {
            let entry = self.table_entry(msix, vector);
            let (address, data) = P::message(vector);
            // Vector control: masked. Then the message's address and data.
            P::write32(entry + 12, 1);
            P::write32(entry, address as u32);
            P::write32(entry + 4, (address >> 32) as u32);
            P::write32(entry + 8, data);
        }
    }

    /// Address of the registers in a BAR. Only pages mapped by [`Function::new`] may be accessed.
    fn registers(&self, bar: usize) -> usize {
        (Arch::DEVICES + self.bars[bar]) as usize
    }

    /// Address of the physical entry of a vector: address (8 bytes), data, vector control.
    fn table_entry(&self, msix: Msix, vector: usize) -> usize {
        self.registers(msix.bar) + msix.offset as usize + (vector % MAX_VECTORS) * 16
    }

    /// Places of its BARs. Absent ones are wanted nowhere.
    pub fn places(&self) -> [Place; BARS] {
        core::array::from_fn(|index| {
            let size = self.model.bars()[index].map_or(1, |bar| bar.mapped_size());
            Place { size, wanted: self.wanted(index), mapped: self.mapped[index] }
        })
    }

    /// Records where BAR `index` is mapped.
    pub fn set_mapped(&mut self, index: usize, address: Option<u64>) {
        self.mapped[index] = address;
    }

    /// Logs that BAR `index` is not mapped at an address. Once: a guest can move a BAR over another one repeatedly.
    pub fn log_unmapped(&mut self, index: usize, address: u64, reason: Unmapped<Error>) {
        if !self.has_logged {
            self.has_logged = true;
            log!("PCI function {}: BAR {index} is not mapped at {address:#x}: {reason:?}", self.address);
        }
    }

    /// Applies a guest's write to the command register: bus mastering.
    pub fn update_mastering(&mut self) {
        let mastering = if self.model.masters_bus() && self.may_master() { register::BUS_MASTER } else { 0 };
        self.config.write(register::COMMAND, register::MEMORY | register::INTX_DISABLE | mastering);
        if mastering != 0 {
            // The read completes the write. A failure or a cut-off on another CPU may have run between the condition
            // above and the write, and cleared the mastering too early.
            self.config.read(register::COMMAND);
            if !self.may_master() {
                self.config.write(register::COMMAND, register::MEMORY | register::INTX_DISABLE);
            }
        }
    }

    /// Whether the function may access memory: the IOMMU works, and the function is not cut off.
    fn may_master(&self) -> bool {
        !P::are_stopped() && !self.part.is_cut_off()
    }

    /// Guest-physical address of BAR `index`, if the guest has placed it within the window.
    fn wanted(&self, index: usize) -> Option<u64> {
        let size = self.model.bars()[index]?.mapped_size();
        let address = self.model.address(index).filter(|_| self.model.decodes_memory())?;
        (P::WINDOW.contains(&address) && size <= P::WINDOW.end - address).then_some(address)
    }

    /// Parts of a BAR that guests access without an exit: all pages except those of the MSI-X table.
    fn parts(&self, index: usize) -> [Range<u64>; 2] {
        let size = self.model.bars()[index].map_or(0, |bar| bar.mapped_size());
        match self.model.msix() {
            Some(msix) if msix.bar == index => {
                let pages = msix.pages();
                [0..pages.start.min(size), pages.end.min(size)..size]
            }
            _ => [0..size, size..size],
        }
    }

    /// Maps BAR `index`.
    ///
    /// # Errors
    /// Another BAR is mapped there, or there is no memory for tables: nothing is mapped then.
    pub fn map(&self, memory: &impl SecondStage, index: usize, address: u64) -> Result<(), Error> {
        let mut done = 0;
        for part in self.parts(index).into_iter().filter(|part| !part.is_empty()) {
            let (gpa, size) = (address + part.start, part.end - part.start);
            if let Err(error) = memory.map_device(gpa, self.bars[index] + part.start, size) {
                if done != 0 {
                    memory.unmap_device(address, done);
                }
                return Err(error);
            }
            done = part.end;
        }
        Ok(())
    }

    /// Unmaps BAR `index`, which [`Function::map`] mapped.
    pub fn unmap(&self, memory: &impl SecondStage, index: usize, address: u64) {
        for part in self.parts(index).into_iter().filter(|part| !part.is_empty()) {
            memory.unmap_device(address + part.start, part.end - part.start);
        }
    }

    /// Unmaps all BARs.
    pub fn unmap_all(&mut self, memory: &impl SecondStage) {
        for index in 0..BARS {
            if let Some(address) = self.mapped[index].take() {
                self.unmap(memory, index, address);
            }
        }
    }

    /// Applies a guest's write to the MSI-X control register.
    pub fn update_msix(&mut self) {
        if let Some(msix) = self.model.msix() {
            self.config.write(msix.capability, self.model.msix_control());
        }
    }

    /// Applies a change of a vector, or of the destination of its messages: directs them, and masks the physical vector if the virtual one
    /// is masked or leads nowhere.
    fn update_vector(&mut self, number: usize) {
        let Some(msix) = self.model.msix() else { return };
        let vector = self.table.vector(number);
        let directed = self.part.direct(number, vector);
        let entry = self.table_entry(msix, number);
        if let Some(data) = directed.data {
            P::write32(entry + 12, 1);
            P::write32(entry + 8, data);
        }
        let masked = !directed.arrives || vector.is_none_or(|vector| vector.masked);
        P::write32(entry + 12, masked.into());
    }

    /// Applies a change of the destination of messages with this data.
    pub fn redirect(&mut self, data: u32) {
        for number in 0..self.table.vectors() {
            if self.table.vector(number).is_some_and(|vector| vector.data == data) {
                self.update_vector(number);
            }
        }
    }

    /// Offset of an access within the BAR of the MSI-X table, if its page is not mapped.
    fn trapped(&self, address: u64, bytes: u64) -> Option<(Msix, u64)> {
        let (bar, offset) = self.model.find(address, bytes)?;
        let msix = self.model.msix().filter(|msix| msix.bar == bar)?;
        (msix.pages().contains(&offset) && offset.is_multiple_of(bytes)).then_some((msix, offset))
    }

    /// Whether the function decodes an access to the MSI-X table's BAR. A BAR may be smaller than the page that it has.
    fn decodes(&self, msix: Msix, offset: u64, bytes: u64) -> bool {
        self.model.size(msix.bar).is_some_and(|size| offset + bytes <= size)
    }

    /// Reads an unmapped page of a BAR. `None` if the address is not this function's.
    pub fn read_memory(&self, address: u64, bytes: u64) -> Option<u64> {
        let (msix, offset) = self.trapped(address, bytes)?;
        if msix.contains(offset) {
            return Some(self.table.read(offset - msix.offset, bytes));
        }
        if !self.decodes(msix, offset, bytes) {
            return Some(u64::MAX);
        }
        // The pending bits beside the table are read in whole words: some functions reject other sizes, and an
        // external abort would be taken by Stile.
        let word = |offset: u64| u64::from(P::read32(self.registers(msix.bar) + offset as usize));
        Some(match bytes {
            8 => word(offset) | word(offset + 4) << 32,
            _ => word(offset & !3) >> (8 * (offset & 3)),
        })
    }

    /// Writes an unmapped page of a BAR. Returns false if the address is not this function's.
    pub fn write_memory(&mut self, address: u64, bytes: u64, value: u64) -> bool {
        let Some((msix, offset)) = self.trapped(address, bytes) else { return false };
        if !msix.contains(offset) {
            // In whole words, as for reads. Narrower writes are ignored.
            if bytes >= 4 && self.decodes(msix, offset, bytes) {
                P::write(self.registers(msix.bar) + offset as usize, bytes, value);
            }
        } else if let Some(vector) = self.table.write(offset - msix.offset, bytes, value) {
            self.update_vector(vector);
        }
        true
    }
}
