//! The client's side of a link: a PCI function. Its BAR has the registers of the transport (`stile_virtio::pci`), its
//! messages become SPIs of the client's MSI frame.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

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
    /// Bit mask of vectors that have signalled while masked.
    pending: AtomicU32,
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
            pending: AtomicU32::new(0),
        })
    }

    /// Resets configuration space and the MSI-X table. The client's vCPUs are off.
    pub fn reset(&self) {
        let mut state = self.state.lock();
        state.model.reset();
        state.table = Table::new(VECTORS);
        self.pending.store(0, Ordering::Relaxed);
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

    /// Stores to configuration space. `send` sends the SPIs of messages that were pending.
    pub fn write_config(&self, offset: u64, bytes: u64, value: u64, send: impl Fn(u32)) {
        let mut state = self.state.lock();
        let _effect = state.model.write(offset, bytes, value);
        self.update(&state);
        drop(state);
        self.send_pending(send);
    }

    /// Loads from the MSI-X table or pending bits, at an offset of the BAR.
    pub fn read_msix(&self, offset: u64, bytes: u64) -> u64 {
        match offset {
            pci::MSIX_PENDING => self.pending.load(Ordering::Relaxed).into(),
            pci::MSIX_TABLE..pci::MSIX_PENDING => self.state.lock().table.read(offset - pci::MSIX_TABLE, bytes),
            _ => 0,
        }
    }

    /// Stores to the MSI-X table, as [`Function::write_config`].
    pub fn write_msix(&self, offset: u64, bytes: u64, value: u64, send: impl Fn(u32)) {
        let mut state = self.state.lock();
        if offset >= pci::MSIX_PENDING || state.table.write(offset - pci::MSIX_TABLE, bytes, value).is_none() {
            return;
        }
        self.update(&state);
        drop(state);
        self.send_pending(send);
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
        // Pairs with the fence in `hold`: a message that finds its vector masked is found by `send_pending`, or finds it unmasked.
        fence(Ordering::SeqCst);
    }

    /// Sends the messages of some vectors; those that are masked become pending.
    #[inline]
    pub fn signal(&self, vectors: u32, send: impl Fn(u32)) {
        let mut rest = vectors;
        while rest != 0 {
            let number = rest.trailing_zeros();
            rest &= rest - 1;
            match self.spis.get(number as usize).map_or(0, |spi| spi.load(Ordering::Relaxed)) {
                0 => self.hold(1 << number, &send),
                spi => send(spi),
            }
        }
    }

    #[cold]
    #[inline(never)]
    fn hold(&self, vector: u32, send: impl Fn(u32)) {
        self.pending.fetch_or(vector, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.send_pending(send);
    }

    /// Sends the messages that are pending and no longer masked.
    fn send_pending(&self, send: impl Fn(u32)) {
        let pending = self.pending.load(Ordering::Relaxed);
        for (number, spi) in self.spis.iter().enumerate().filter(|(number, _)| pending >> number & 1 != 0) {
            let spi = spi.load(Ordering::Relaxed);
            if spi != 0 && self.pending.fetch_and(!(1 << number), Ordering::Relaxed) >> number & 1 != 0 {
                send(spi);
            }
        }
    }
}
