//! PCI functions owned by VMs; docs/devices.md describes assignment.
//!
//! The IOMMU translates a function's DMA by tables of the VM's RAM ([`dma`]) and its messages by a table of host vectors ([`remapping`],
//! [`messages`]). BARs are mapped into the second stage. DMA faults are logged ([`faults`]).

mod dma;
mod failure;
pub mod faults;
pub mod messages;
mod part;
mod remapping;

use stile_board::MAX_ASSIGNED;
use stile_lock::TicketLock;
use stile_paging::PAGE_SIZE;
use stile_paging::frames::Piece;
use stile_pci::{Address, BARS, Bar, ConfigSpace};

use super::host::cpu::this_index;
use super::host::{board, iommu, mmu, pcie};
use super::interrupts::events;
use super::vm::invalidations::Invalidations;
use crate::address_space::Span;
use crate::arch::contract::SecondStage;
use crate::arena::Arena;
use crate::assigned::{self, Addresses, Function, List};
use crate::console::log;
use crate::vm;
use part::Part;

/// State of all functions, set up for the first one.
struct Shared {
    /// Number of assigned functions of all VMs, and of the host vectors that they have.
    assigned: usize,
    vectors: usize,
    /// Physical addresses of their BARs.
    bars: heapless::Vec<Span, { MAX_ASSIGNED * BARS }>,
}

static SHARED: TicketLock<Shared> = TicketLock::new(Shared { assigned: 0, vectors: 0, bars: heapless::Vec::new() });

/// The functions of a VM.
pub struct Functions {
    /// The VM's number.
    vm: usize,
    dma: dma::Dma,
    /// Their configuration space, BARs and vectors.
    pub list: List<Part>,
    /// CPUs whose TLBs may have translations of BARs that have moved.
    pub invalidations: Invalidations,
}

impl Functions {
    /// Takes over functions for VM `vm` with this RAM and second stage, in reset state. Their decoding and bus mastering are off.
    ///
    /// # Errors
    /// A description of why a function, named in the log, cannot be assigned.
    pub fn new(
        vm: usize,
        name: &str,
        ids: &[u16],
        ram: &[Piece],
        second_stage: u64,
        arena: &'static Arena,
    ) -> Result<Functions, &'static str> {
        if let (0, Some(bridge)) = (SHARED.lock().assigned, pcie::bridge()) {
            // Firmware may have left functions active: decoding and bus mastering of all are turned off. BARs keep their addresses.
            // An IOMMU blocks nothing during its setup, even if firmware had turned it on: so functions are stopped first.
            bridge.silence();
        }
        iommu::setup().inspect_err(|reason| log!("{name}: PCI functions can't be assigned: {reason}"))?;
        if events::RELEASE.try_get().is_none() {
            events::RELEASE.set(messages::release);
        }
        let dma = dma::Dma::new(vm, ram, arena)?;
        let mut list = assigned::Functions::new();
        for &id in ids {
            let address = Address::from_routing_id(id);
            let function = take(vm, address, arena).map_err(|reason| {
                log!("{name}: function {address} can't be assigned: {reason}");
                "a PCI function can't be assigned"
            })?;
            function.report_interrupts(name);
            list.push(function).map_err(|_| "too many PCI functions")?;
        }
        Ok(Functions { vm, dma, list: List::new(list), invalidations: Invalidations::new(second_stage) })
    }

    /// Starts the functions. All of the VM's memory is mapped, none of its vCPUs runs, and one is loaded on this CPU.
    pub fn start(&self, memory: &impl SecondStage) {
        if let Some(vm) = vm::get(self.vm) {
            // Requests to release held vectors were dropped with the VM's previous life.
            messages::release(vm, this_index());
        }
        self.list.start(memory, |function| {
            faults::own(function.address(), self.vm);
            self.dma.connect(function.part.messages);
        });
    }

    /// Stops the functions and their transactions in flight. The VM's vCPUs are off.
    pub fn stop(&self) {
        self.list.stop(|function| dma::disconnect(function.address()));
    }
}

fn take(vm: usize, address: Address, arena: &'static Arena) -> Result<Function<Part>, &'static str> {
    let mut shared = SHARED.lock();
    if shared.assigned == MAX_ASSIGNED {
        return Err("the VMs of the machine have as many functions as Stile supports");
    }
    iommu::check(address)?;
    let config = pcie::bridge().ok_or("the ACPI tables have no PCI configuration space (MCFG)")?.config(address);
    let mut vectors = shared.vectors;
    let part = |count: usize| {
        let part = Part::new(vm, address, vectors, count, arena);
        vectors += count;
        part
    };
    let function = Function::new(address, config, part, |bars| place_bars(&config, bars, &mut shared))?;
    (shared.vectors, shared.assigned) = (vectors, shared.assigned + 1);
    Ok(function)
}

/// Keeps the addresses that firmware gave to a function's BARs.
fn place_bars(config: &impl ConfigSpace, bars: &[Option<Bar>; BARS], shared: &mut Shared) -> Result<Addresses, &'static str> {
    let mut addresses = [0; BARS];
    for (index, bar) in bars.iter().enumerate() {
        let Some(bar) = bar else { continue };
        let start = bar.address(config, index);
        let end = start.checked_add(bar.mapped_size()).filter(|_| start != 0 && start.is_multiple_of(PAGE_SIZE));
        let span = start..end.ok_or("firmware has given its BARs no addresses, or some that are not whole pages")?;
        if !board::get().is_device(&span) {
            return Err("firmware has given its BARs addresses in memory");
        }
        // The guest would program the local APICs or the IOMMU: of firmware, and of a function that lies, nothing is taken on trust.
        if board::get().tables.has_chipset(&span) {
            return Err("firmware has given its BARs addresses of the chipset's registers");
        }
        if span.end > mmu::pa_range().limit() {
            return Err("firmware has given its BARs addresses beyond those of the processor");
        }
        if shared.bars.iter().any(|other| other.start < span.end && span.start < other.end) {
            return Err("firmware has given its BARs addresses of another function's");
        }
        shared.bars.push(span).map_err(|_| "too many BARs")?;
        addresses[index] = start;
    }
    Ok(Addresses { cpu: addresses, pci: addresses })
}
