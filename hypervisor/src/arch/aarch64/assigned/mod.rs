//! PCI functions owned by VMs; docs/devices.md describes assignment.
//!
//! The VM's second stage translates a function's DMA ([`dma`]), its BARs are mapped into the second stage, and its
//! messages become LPIs of the VM ([`interrupts`], [`injection`], [`guest_its`]). Configuration space and MSI-X tables are models (crate
//! `stile-pci`). DMA faults are logged ([`faults`]).

mod dma;
mod failure;
pub mod faults;
mod function;
mod guest_its;
pub mod injection;
pub mod interrupts;

use core::sync::atomic::Ordering;

use heapless::Vec;
use stile_board::{MAX_ASSIGNED, MAX_FUNCTIONS, map};
use stile_its::guest::GuestIts;
use stile_lock::TicketLock;
use stile_paging::table::{Error, PageTable, Stage2};
use stile_pci::{Address, BARS, Effect, Place, Space, Window, place};

use super::host::{board, gic, its, smmu, timer};
use crate::arch::Cpu;
use crate::arch::contract::PhysicalCpu;
use crate::console::log;
use crate::vm;
use function::Function;
pub use function::SecondStage;
use injection::Injection;

/// State of all functions, set up for the first one.
struct Shared {
    /// Host addresses that are free for BARs.
    window: Window,
    /// Size of the SMMU's output addresses.
    output_size: u8,
    /// Number of assigned functions of all VMs.
    assigned: u32,
}

static SHARED: TicketLock<Option<Shared>> = TicketLock::new(None);

/// Maximum number of functions of all VMs: each has its LPIs.
const MOST: u32 = MAX_ASSIGNED as u32;

/// The functions of a VM.
pub struct Functions {
    /// The VM's number.
    vm: usize,
    dma: dma::Dma,
    list: TicketLock<Vec<Function, MAX_FUNCTIONS>>,
    /// Injection of its messages without exits, if the GIC has it.
    injection: Option<Injection>,
    /// Locked before `list` and the distributor.
    its: &'static TicketLock<GuestIts>,
}

impl Functions {
    /// Takes over functions for VM `vm` with this second stage and ITS, in reset state. Their decoding and bus mastering are off.
    /// `injected`: number of its vCPUs, if its virtual interface takes its interrupts, so that messages may be injected directly.
    ///
    /// # Errors
    /// A description of why a function, named in the log, cannot be assigned.
    pub fn new(
        vm: usize,
        name: &str,
        ids: &[u16],
        table: &PageTable<Stage2>,
        its: &'static TicketLock<GuestIts>,
        injected: Option<u16>,
    ) -> Result<Functions, &'static str> {
        let output_size = setup().inspect_err(|reason| log!("{name}: PCI functions can't be assigned: {reason}"))?;
        let dma = dma::Dma::new(vm, table, output_size)?;
        let injection = match injected {
            Some(vcpus) => Injection::new(vm, vcpus, Cpu::this_index())?,
            None => None,
        };
        if injection.is_some() {
            log!("{name}: the GIC injects messages of its PCI functions without exits");
        }
        let mut list = Vec::new();
        for &id in ids {
            let address = Address::from_routing_id(id);
            let function = take(vm, address, injection.is_some()).map_err(|reason| {
                log!("{name}: function {address} can't be assigned: {reason}");
                "a PCI function can't be assigned"
            })?;
            if let Some(injection) = &injection {
                injection.set_device(list.len(), function.device());
            }
            list.push(function).map_err(|_| "too many PCI functions")?;
        }
        Ok(Functions { vm, dma, list: TicketLock::new(list), injection, its })
    }

    /// Resets the guest's view. The VM is off.
    pub fn reset(&self) {
        self.its.lock().reset();
        if let Some(injection) = &self.injection {
            injection.reset();
        }
        self.list.lock().iter_mut().for_each(Function::reset);
    }

    /// Direct injection of the functions' messages, if the GIC has it.
    pub fn injection(&self) -> Option<&Injection> {
        self.injection.as_ref()
    }

    /// Time at which the functions can be used again after [`Functions::stop`], in ticks of the counter.
    pub fn ready_at(&self) -> u64 {
        self.list.lock().iter().map(Function::ready_at).max().unwrap_or(0)
    }

    /// Starts the functions. All of the VM's memory is mapped, none of its vCPUs runs, and one is loaded on this CPU.
    pub fn start(&self, memory: &impl SecondStage) {
        if let Some(vm) = vm::get(self.vm).filter(|_| self.injection.is_some()) {
            // Before any of them is published.
            vm.vcpus.iter().for_each(|vcpu| vcpu.arch.special.store(true, Ordering::Relaxed));
        }
        for function in self.list.lock().iter_mut() {
            function.unmap_all(memory);
            function.restore();
            if failure::are_stopped() {
                continue;
            }
            // Requests to release held LPIs were dropped with the VM's previous life.
            interrupts::release(self.vm, Cpu::this_index());
            faults::own(function.stream(), self.vm, function.address());
            failure::check(smmu::set_stream(function.stream(), self.dma.vmid(), self.dma.entry()));
        }
    }

    /// Stops the functions and their transactions in flight. The VM's vCPUs are off.
    pub fn stop(&self) {
        for function in self.list.lock().iter_mut() {
            if timer::now() < function.ready_at() {
                // It is in reset and was not started since.
                continue;
            }
            function.silence();
            function.disconnect();
            failure::check(smmu::set_stream(function.stream(), self.dma.vmid(), stile_smmu::StreamEntry::ABORT));
            function.reset_hardware();
        }
    }

    /// Reads configuration space, at an offset from the bridge's.
    pub fn read_config(&self, offset: u64, bytes: u64) -> u64 {
        let list = self.list.lock();
        match position(offset).and_then(|index| list.get(index)) {
            Some(function) => function.model.read(offset & 0xfff, bytes),
            None => u64::MAX,
        }
    }

    /// Writes configuration space.
    pub fn write_config(&self, memory: &impl SecondStage, offset: u64, bytes: u64, value: u64) {
        let mut list = self.list.lock();
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

    /// Reads an unmapped page of a BAR, at an offset from the window's start. Unclaimed addresses read as all ones.
    pub fn read_memory(&self, offset: u64, bytes: u64) -> u64 {
        let list = self.list.lock();
        let address = map::PCI_WINDOW_BASE + offset;
        list.iter().find_map(|function| function.read_memory(address, bytes)).unwrap_or(u64::MAX)
    }

    /// Writes an unmapped page of a BAR.
    pub fn write_memory(&self, offset: u64, bytes: u64, value: u64) {
        let mut list = self.list.lock();
        let address = map::PCI_WINDOW_BASE + offset;
        let _ = list.iter_mut().any(|function| function.write_memory(address, bytes, value));
    }
}

/// BARs of a VM's functions, by number: of each function [`BARS`].
struct Bars<'list, M> {
    list: &'list [Function],
    memory: &'list M,
}

impl<M: SecondStage> Space for Bars<'_, M> {
    type Error = Error;

    fn map(&mut self, bar: usize, address: u64) -> Result<(), Error> {
        self.list[bar / BARS].map(self.memory, bar % BARS, address)
    }

    fn unmap(&mut self, bar: usize, address: u64) {
        self.list[bar / BARS].unmap(self.memory, bar % BARS, address);
    }
}

/// Maps the BARs of all functions where the guest wants them: one that moves may uncover another function's.
fn place_bars(list: &mut [Function], memory: &impl SecondStage) {
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

/// Sets up the hardware for the first function. Returns the size of the SMMU's output addresses.
fn setup() -> Result<u8, &'static str> {
    let mut shared = SHARED.lock();
    if let Some(shared) = shared.as_ref() {
        return Ok(shared.output_size);
    }
    let board = board::get();
    let bridge = board.pci.as_ref().ok_or("the device tree has no PCI host bridge with ECAM")?;
    let device = board
        .smmu
        .as_ref()
        .ok_or("the device tree has no SMMUv3, without which a function could access all memory (QEMU: -M virt,iommu=smmuv3)")?;
    let its = board.its.as_ref().ok_or("the device tree has no ITS, to which functions send interrupts (QEMU: -M virt,gic-version=3)")?;
    let output_size = smmu::setup(&device.registers)?;
    if let Some(intid) = device.intid {
        super::interrupts::set_smmu(intid);
        gic::enable_edge_spi(intid, board.cpus.first().copied().unwrap_or(0));
    }
    its::setup(its)?;
    super::interrupts::delivery::RELEASE.set(interrupts::release);
    bridge.silence();
    *shared = Some(Shared { window: Window::new(bridge.window.clone()), output_size, assigned: 0 });
    Ok(output_size)
}

fn take(vm: usize, address: Address, injected: bool) -> Result<Function, &'static str> {
    let mut shared = SHARED.lock();
    let shared = shared.as_mut().ok_or("PCI is not set up")?;
    let number = shared.assigned;
    if number == MOST {
        return Err("the VMs of the machine have as many functions as Stile supports");
    }
    let bridge = board::get().pci.as_ref().ok_or("there is no host bridge")?;
    let device = bridge.device(address).ok_or("its messages do not go to the ITS (msi-map in the device tree)")?;
    let first_lpi = interrupts::first_lpi(vm, number, device);
    let function = Function::new(bridge, address, (device, first_lpi, injected), &mut shared.window)?;
    shared.assigned += 1;
    Ok(function)
}
