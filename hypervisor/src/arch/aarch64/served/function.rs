//! The client's side of a link: a PCI function. Its BAR has the registers of the transport (`stile_virtio::pci`), its
//! messages become SPIs of the client's MSI frame.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use stile_board::{intid, map};
use stile_lock::TicketLock;
use stile_pci::{BARS, Bar, ConfigSpace, Table, VirtualFunction, register};
use stile_virtio::{VECTORS, pci};

/// Address of a BAR that is not decoded.
const NOWHERE: u64 = u64::MAX;

/// Configuration space as after a reset.
struct Image([u32; 64]);

impl ConfigSpace for Image {
    fn read(&self, register: u8) -> u32 {
        self.0[usize::from(register) / 4]
    }

    fn write(&mut self, _register: u8, _value: u32) {}
}

/// A function of a client's host bridge for served devices.
pub struct Function {
    state: TicketLock<State>,
    /// Address of the BAR.
    bar: AtomicU64,
    /// For each vector its SPI; 0 while it is masked or has none.
    spis: [AtomicU32; VECTORS],
}

struct State {
    model: VirtualFunction,
    table: Table,
}

impl Function {
    /// The function of a virtio device of this type.
    ///
    /// # Errors
    /// None: the model of configuration space accepts its own.
    pub fn new(device: u32) -> Result<Self, &'static str> {
        let mut bars = [None; BARS];
        bars[0] = Some(Bar { size: pci::SIZE, wide: false, prefetchable: false });
        let model = VirtualFunction::new(&Image(pci::configuration_space(device)), bars).map_err(|refusal| refusal.reason())?;
        Ok(Self {
            state: TicketLock::new(State { model, table: Table::new(VECTORS) }),
            bar: AtomicU64::new(NOWHERE),
            spis: [const { AtomicU32::new(0) }; VECTORS],
        })
    }

    /// Resets configuration space and the MSI-X table. The client's vCPUs are off.
    pub fn reset(&self) {
        let mut state = self.state.lock();
        state.model.reset();
        state.table = Table::new(VECTORS);
        self.update(&state);
    }

    /// Client-physical address of its BAR, all ones if that is not decoded.
    #[inline]
    pub fn bar(&self) -> u64 {
        self.bar.load(Ordering::Relaxed)
    }

    /// Loads from configuration space.
    pub fn read_config(&self, offset: u64, bytes: u64) -> u64 {
        self.state.lock().model.read(offset, bytes)
    }

    /// Stores to configuration space. May unmask vectors.
    pub fn write_config(&self, offset: u64, bytes: u64, value: u64) {
        let mut state = self.state.lock();
        let _effect = state.model.write(offset, bytes, value);
        self.update(&state);
    }

    /// Loads from the MSI-X table, at an offset of the BAR.
    pub fn read_table(&self, offset: u64, bytes: u64) -> u64 {
        self.state.lock().table.read(offset - pci::MSIX_TABLE, bytes)
    }

    /// Stores to the MSI-X table. May unmask vectors.
    pub fn write_table(&self, offset: u64, bytes: u64, value: u64) {
        let mut state = self.state.lock();
        if state.table.write(offset - pci::MSIX_TABLE, bytes, value).is_some() {
            self.update(&state);
        }
    }

    /// Publishes the BAR's address and the vectors' SPIs.
    fn update(&self, state: &State) {
        const MESSAGES: core::ops::Range<u32> = intid::MSI_BASE..intid::MSI_BASE + intid::MSI_COUNT;
        let bar = state.model.address(0).filter(|_| state.model.decodes_memory());
        self.bar.store(bar.unwrap_or(NOWHERE), Ordering::Relaxed);
        let is_enabled = state.model.msix_control() == register::MSIX_ENABLE && state.model.masters_bus();
        for (number, spi) in self.spis.iter().enumerate() {
            let vector = state.table.vector(number).filter(|vector| is_enabled && !vector.masked);
            let vector = vector.filter(|vector| vector.address == map::MSI_FRAME_BASE + map::MSI_DOORBELL);
            let data = vector.map(|vector| vector.data).filter(|data| MESSAGES.contains(data));
            spi.store(data.unwrap_or(0), Ordering::Relaxed);
        }
    }

    /// Messages of vectors that are not masked: vectors, a bit each, and their SPIs.
    pub fn unmasked(&self) -> (u32, [u32; VECTORS]) {
        let spis = self.spis.each_ref().map(|spi| spi.load(Ordering::Relaxed));
        ((0..VECTORS).filter(|&number| spis[number] != 0).fold(0, |vectors, number| vectors | 1 << number), spis)
    }

    /// Sends the messages of some vectors by `post`, which returns whether it could. Returns the other vectors, and those
    /// that are masked.
    #[inline]
    pub fn signal(&self, vectors: u32, post: impl Fn(u32) -> bool) -> u32 {
        let (mut rest, mut left) = (vectors, 0);
        while rest != 0 {
            let number = rest.trailing_zeros();
            rest &= rest - 1;
            let spi = self.spis.get(number as usize).map_or(0, |spi| spi.load(Ordering::Relaxed));
            if spi == 0 || !post(spi) {
                left |= 1 << number;
            }
        }
        left
    }
}
