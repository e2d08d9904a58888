//! The client's side of a link: a PCI function. Its BAR has the registers of the transport (`stile_virtio::pci`), its
//! messages become signals to the client (`ServedPart::message`).

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use stile_lock::TicketLock;
use stile_pci::{BARS, Bar, ConfigSpace, Table, VirtualFunction, register};
use stile_virtio::{VECTORS, pci};

use crate::arch::Vm;
use crate::arch::contract::ServedPart;

/// Published address of the BAR while it is not decoded: no access matches it.
const NOWHERE: u64 = u64::MAX;

/// Configuration space in its reset state; read-only.
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
    /// Guest-physical address of the BAR in the client, or [`NOWHERE`].
    bar: AtomicU64,
    /// Signal of each vector; 0 while the vector is masked, or its message is none of the client's.
    signals: [AtomicU32; VECTORS],
}

struct State {
    model: VirtualFunction,
    table: Table,
}

impl Function {
    /// Creates the function of a virtio device with this device ID.
    ///
    /// # Errors
    /// The model refuses the configuration space. It never does: [`pci::configuration_space`] is valid for every device ID.
    pub fn new(device: u32) -> Result<Self, &'static str> {
        let mut bars = [None; BARS];
        bars[0] = Some(Bar { size: pci::SIZE, wide: false, prefetchable: false });
        let model = VirtualFunction::new(&Image(pci::configuration_space(device)), bars).map_err(|refusal| refusal.reason())?;
        Ok(Self {
            state: TicketLock::new(State { model, table: Table::new(VECTORS) }),
            bar: AtomicU64::new(NOWHERE),
            signals: [const { AtomicU32::new(0) }; VECTORS],
        })
    }

    /// Resets configuration space and the MSI-X table. The client's vCPUs are off.
    pub fn reset(&self) {
        let mut state = self.state.lock();
        state.model.reset();
        state.table = Table::new(VECTORS);
        self.update(&state);
    }

    /// Returns the guest-physical address of the BAR in the client; all ones while it is not decoded.
    #[inline]
    pub fn bar(&self) -> u64 {
        self.bar.load(Ordering::Relaxed)
    }

    /// Handles a load of `bytes` bytes from configuration space.
    pub fn read_config(&self, offset: u64, bytes: u64) -> u64 {
        self.state.lock().model.read(offset, bytes)
    }

    /// Handles a store of `bytes` bytes to configuration space. May unmask vectors: the caller then
    /// sends pending messages.
    pub fn write_config(&self, offset: u64, bytes: u64, value: u64) {
        let mut state = self.state.lock();
        let _effect = state.model.write(offset, bytes, value);
        self.update(&state);
    }

    /// Handles a load from the MSI-X table. `offset` is that in the BAR, at least [`pci::MSIX_TABLE`].
    pub fn read_table(&self, offset: u64, bytes: u64) -> u64 {
        self.state.lock().table.read(offset - pci::MSIX_TABLE, bytes)
    }

    /// Handles a store to the MSI-X table. `offset` is that in the BAR, at least [`pci::MSIX_TABLE`]. May unmask vectors: the
    /// caller then sends pending messages.
    pub fn write_table(&self, offset: u64, bytes: u64, value: u64) {
        let mut state = self.state.lock();
        if state.table.write(offset - pci::MSIX_TABLE, bytes, value).is_some() {
            self.update(&state);
        }
    }

    /// Publishes the BAR's address and the vectors' signals.
    fn update(&self, state: &State) {
        let bar = state.model.address(0).filter(|_| state.model.decodes_memory());
        self.bar.store(bar.unwrap_or(NOWHERE), Ordering::Relaxed);
        // Compared as a whole: the function mask must be clear. A message is a write by the function, a bus master.
        let is_enabled = state.model.msix_control() == register::MSIX_ENABLE && state.model.masters_bus();
        for (number, signal) in self.signals.iter().enumerate() {
            let vector = state.table.vector(number).filter(|vector| is_enabled && !vector.masked);
            let message = vector.map_or(0, |vector| Vm::message(vector.address, vector.data));
            signal.store(message, Ordering::Relaxed);
        }
    }

    /// Returns the set of vectors that are not masked (bit *n*: vector *n*), and the signal of each vector.
    pub fn unmasked(&self) -> (u32, [u32; VECTORS]) {
        let signals = self.signals.each_ref().map(|signal| signal.load(Ordering::Relaxed));
        ((0..VECTORS).filter(|&number| signals[number] != 0).fold(0, |vectors, number| vectors | 1 << number), signals)
    }

    /// Sends the messages of a set of vectors by `post`, which returns whether it could post the signal. Returns the set of vectors
    /// whose messages were not sent: masked ones, and those that `post` refused.
    #[inline]
    pub fn signal(&self, vectors: u32, post: impl Fn(u32) -> bool) -> u32 {
        let (mut rest, mut left) = (vectors, 0);
        while rest != 0 {
            let number = rest.trailing_zeros();
            rest &= rest - 1;
            let signal = self.signals.get(number as usize).map_or(0, |signal| signal.load(Ordering::Relaxed));
            if signal == 0 || !post(signal) {
                left |= 1 << number;
            }
        }
        left
    }
}
