//! PCI functions owned by VMs; docs/devices.md describes assignment. The back end has their DMA and messages
//! ([`FunctionPart`](crate::arch::contract::FunctionPart)).

pub mod failure;
mod function;

use heapless::Vec;
use stile_board::MAX_FUNCTIONS;
use stile_lock::TicketLock;
use stile_paging::table::Error;
use stile_pci::{BARS, Effect, Place, Space, place};

use crate::arch::Arch;
use crate::arch::contract::{Counter, FunctionPart, SecondStage};
pub use function::{Addresses, Function};

/// Functions of a VM, as devices 1 and following of its bus.
pub type Functions<P> = Vec<Function<P>, MAX_FUNCTIONS>;

/// Functions of a VM, which its vCPUs share.
pub struct List<P: FunctionPart>(TicketLock<Functions<P>>);

impl<P: FunctionPart> List<P> {
    /// A list of these functions, in reset state. Their decoding and bus mastering are off.
    pub fn new(functions: Functions<P>) -> Self {
        List(TicketLock::new(functions))
    }

    /// Calls `with` for a function, if it is there.
    pub fn with<R>(&self, index: usize, with: impl FnOnce(&mut Function<P>) -> R) -> Option<R> {
        self.0.lock().get_mut(index).map(with)
    }

    /// Resets the guest's view. The VM is off.
    pub fn reset(&self) {
        self.0.lock().iter_mut().for_each(Function::reset);
    }

    /// Time at which the functions can be used again after [`List::stop`], in ticks of the counter.
    pub fn ready_at(&self) -> u64 {
        self.0.lock().iter().map(Function::ready_at).max().unwrap_or(0)
    }

    /// Starts the functions; `connect` lets each access the VM's memory. All of the memory is mapped, none of the vCPUs runs, and one is
    /// loaded on this CPU.
    pub fn start(&self, memory: &impl SecondStage, mut connect: impl FnMut(&mut Function<P>)) {
        for function in self.0.lock().iter_mut() {
            function.unmap_all(memory);
            function.restore();
            if !P::are_stopped() {
                connect(function);
            }
        }
    }

    /// Stops the functions and their transactions in flight; `block` takes the access to memory from each. The VM's vCPUs are off.
    pub fn stop(&self, mut block: impl FnMut(&mut Function<P>)) {
        for function in self.0.lock().iter_mut() {
            if Arch::now() < function.ready_at() {
                // It is in reset and was not started since.
                continue;
            }
            function.silence();
            function.disconnect();
            block(function);
            function.reset_hardware();
        }
    }

    /// Reads configuration space, at an offset from the bridge's.
    pub fn read_config(&self, offset: u64, bytes: u64) -> u64 {
        let list = self.0.lock();
        match position(offset).and_then(|index| list.get(index)) {
            Some(function) => function.model.read(offset & 0xfff, bytes),
            None => u64::MAX,
        }
    }

    /// Writes configuration space.
    pub fn write_config(&self, memory: &impl SecondStage, offset: u64, bytes: u64, value: u64) {
        let mut list = self.0.lock();
        let Some((index, function)) = position(offset).and_then(|index| Some((index, list.get_mut(index)?))) else { return };
        match function.model.write(offset & 0xfff, bytes, value) {
            Effect::Nothing => {}
            Effect::Decoding => {
                place_bars(&mut list, memory);
                list[index].update_mastering();
            }
            Effect::Msix => function.update_msix(),
        }
    }

    /// Reads an unmapped page of a BAR, at a guest-physical address. Unclaimed addresses read as all ones.
    pub fn read_memory(&self, address: u64, bytes: u64) -> u64 {
        let list = self.0.lock();
        list.iter().find_map(|function| function.read_memory(address, bytes)).unwrap_or(u64::MAX)
    }

    /// Writes an unmapped page of a BAR.
    pub fn write_memory(&self, address: u64, bytes: u64, value: u64) {
        let mut list = self.0.lock();
        let _ = list.iter_mut().any(|function| function.write_memory(address, bytes, value));
    }
}

/// BARs of a VM's functions. BAR b of function f has number f * [`BARS`] + b.
struct Bars<'list, P: FunctionPart, M> {
    list: &'list [Function<P>],
    memory: &'list M,
}

impl<P: FunctionPart, M: SecondStage> Space for Bars<'_, P, M> {
    type Error = Error;

    fn map(&mut self, bar: usize, address: u64) -> Result<(), Error> {
        self.list[bar / BARS].map(self.memory, bar % BARS, address)
    }

    fn unmap(&mut self, bar: usize, address: u64) {
        self.list[bar / BARS].unmap(self.memory, bar % BARS, address);
    }
}

/// Maps the BARs of all functions where the guest wants them: one that moves may uncover another function's.
fn place_bars<P: FunctionPart>(list: &mut [Function<P>], memory: &impl SecondStage) {
    let mut places: Vec<Place, { MAX_FUNCTIONS * BARS }> = list.iter().flat_map(Function::places).collect();
    let mut failures: Vec<_, { MAX_FUNCTIONS * BARS }> = Vec::new();
    place(&mut places, &mut Bars { list, memory }, |bar, address, reason| {
        // Each BAR fails once at most.
        let _ = failures.push((bar, address, reason));
    });
    for (bar, place) in places.iter().enumerate() {
        list[bar / BARS].set_mapped(bar % BARS, place.mapped);
    }
    for (bar, address, reason) in failures {
        list[bar / BARS].log_unmapped(bar % BARS, address, reason);
    }
}

/// The function at an offset of configuration space: functions are function 0 of devices 1 and up.
fn position(offset: u64) -> Option<usize> {
    let id = (offset >> 12) as usize;
    (id & 7 == 0).then_some(id >> 3)?.checked_sub(1)
}
