//! PCI functions owned by VMs; docs/devices.md describes assignment.
//!
//! The VM's second stage translates a function's DMA ([`dma`]), its BARs are mapped into the second stage, and its
//! messages become LPIs of the VM ([`interrupts`], [`injection`], [`guest_its`]). Configuration space and MSI-X tables are models (crate
//! `stile-pci`). DMA faults are logged ([`faults`]).

mod dma;
mod failure;
pub mod faults;
mod guest_its;
pub mod injection;
pub mod interrupts;
mod part;

use core::sync::atomic::Ordering;

use heapless::Vec;
use stile_board::MAX_ASSIGNED;
use stile_its::guest::GuestIts;
use stile_lock::TicketLock;
use stile_paging::table::{PageTable, Stage2};
use stile_pci::{Address, BARS, Bar, Immovable, Kept, Window};

use super::host::board::Board;
use super::host::pcie::{Config, HostBridge};
use super::host::{board, gic, its, mmu, smmu};
use crate::arch::Cpu;
use crate::arch::contract::{PhysicalCpu, SecondStage};
use crate::assigned::{self, Addresses, Function, List};
use crate::console::log;
use crate::vm;
use injection::Injection;
use part::Part;

/// State of all functions, set up for the first one.
struct Shared {
    /// Host addresses that are free for BARs, if these are moved.
    window: Window,
    /// StreamIDs and DeviceIDs of functions.
    ids: Vec<(u32, u32), MAX_ASSIGNED>,
    /// Size of the SMMU's output addresses.
    output_size: u8,
    /// Number of assigned functions of all VMs.
    assigned: u32,
}

/// Room for the addresses of all else, also of BARs of functions that stay on.
const USED: usize = 96;

/// Host addresses of BARs that stay where firmware put them, and of all else. Locked after `SHARED`, which is built on the stack.
static KEPT: TicketLock<Kept<{ MAX_ASSIGNED * BARS + USED }>> = TicketLock::new(Kept::new());

static SHARED: TicketLock<Option<Shared>> = TicketLock::new(None);

/// Maximum number of functions of all VMs: each has its LPIs.
const MOST: u32 = MAX_ASSIGNED as u32;

/// The functions of a VM.
pub struct Functions {
    /// The VM's number.
    vm: usize,
    dma: dma::Dma,
    /// Their configuration space, BARs and vectors.
    pub list: List<Part>,
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
        let mut list = assigned::Functions::new();
        for &id in ids {
            let address = Address::from_routing_id(id);
            let function = take(vm, address, injection.is_some()).map_err(|reason| {
                log!("{name}: function {address} can't be assigned: {reason}");
                "a PCI function can't be assigned"
            })?;
            function.report_interrupts(name);
            if let Some(injection) = &injection {
                injection.set_device(list.len(), function.part.device);
            }
            list.push(function).map_err(|_| "too many PCI functions")?;
        }
        Ok(Functions { vm, dma, list: List::new(list), injection, its })
    }

    /// Resets the guest's view. The VM is off.
    pub fn reset(&self) {
        self.its.lock().reset();
        if let Some(injection) = &self.injection {
            injection.reset();
        }
        self.list.reset();
    }

    /// Direct injection of the functions' messages, if the GIC has it.
    pub fn injection(&self) -> Option<&Injection> {
        self.injection.as_ref()
    }

    /// Starts the functions. All of the VM's memory is mapped, none of its vCPUs runs, and one is loaded on this CPU.
    pub fn start(&self, memory: &impl SecondStage) {
        if let Some(vm) = vm::get(self.vm).filter(|_| self.injection.is_some()) {
            // Before any of them is published.
            vm.vcpus.iter().for_each(|vcpu| vcpu.arch.special.store(true, Ordering::Relaxed));
        }
        self.list.start(memory, |function| {
            // Requests to release held LPIs were dropped with the VM's previous life.
            interrupts::release(self.vm, Cpu::this_index());
            faults::own(function.part.stream, self.vm, function.address());
            failure::check(smmu::set_stream(function.part.stream, self.dma.vmid(), self.dma.entry()));
        });
    }

    /// Stops the functions and their transactions in flight. The VM's vCPUs are off.
    pub fn stop(&self) {
        self.list.stop(|function| {
            failure::check(smmu::set_stream(function.part.stream, self.dma.vmid(), stile_smmu::StreamEntry::ABORT));
        });
    }
}

/// Sets up the hardware for the first function. Returns the size of the SMMU's output addresses.
fn setup() -> Result<u8, &'static str> {
    let mut shared = SHARED.lock();
    if let Some(shared) = shared.as_ref() {
        return Ok(shared.output_size);
    }
    let board = board::get();
    let bridge = board.pci.as_ref().ok_or("the device tree (or the ACPI table MCFG) has no PCI host bridge with ECAM and bus 0")?;
    let device = board.smmu.as_ref().ok_or(
        "the device tree (or the ACPI table IORT) has no SMMUv3, without which a function could access all memory (QEMU: -M virt,iommu=smmuv3)",
    )?;
    let its = board
        .its
        .as_ref()
        .ok_or("the device tree (or the ACPI table MADT) has no ITS, to which functions send interrupts (QEMU: -M virt,gic-version=3)")?;
    if !bridge.is_coherent {
        return Err("their DMA is not cache-coherent (dma-coherent in the device tree, or coherency in the ACPI table IORT)");
    }
    if bridge.keeps_bars {
        keep_bars(board, bridge)?;
    }
    bridge.check(&board.ram)?;
    // Firmware may have left functions on that still write to memory. BARs that are moved may be placed at a screen's addresses.
    let screen = board.frame_buffer.as_ref().filter(|_| bridge.keeps_bars);
    bridge.silence(&screen.map_or(0..0, |screen| screen.address..screen.address + screen.len()));
    if bridge.keeps_bars {
        bridge.reserve_decoded(&mut KEPT.lock()).map_err(|_| "functions that stay on have too many BARs")?;
    }
    let output_size = smmu::setup(&device.registers, device.is_coherent, &board.ram)?;
    if let Some(intid) = device.intid {
        super::interrupts::set_smmu(intid);
        gic::enable_edge_spi(intid, board.cpus.first().copied().unwrap_or(0));
    }
    its::setup(its, &board.ram)?;
    super::interrupts::delivery::RELEASE.set(interrupts::release);
    *shared = Some(Shared { window: Window::new(bridge.window()), ids: Vec::new(), output_size, assigned: 0 });
    Ok(output_size)
}

/// Prepares for BARs that stay where firmware put them.
fn keep_bars(board: &Board, bridge: &HostBridge) -> Result<(), &'static str> {
    let mut kept = KEPT.lock();
    let mut result = Ok(());
    board.visit_used(|span| result = result.and_then(|()| kept.reserve(span.clone())));
    result.map_err(|_| "the board has too many devices")?;
    if bridge.is_memory_unknown() {
        log!("PCI: BARs stay where firmware put them; as it does not report the host bridge's memory, each is tried");
    }
    for memory in bridge.memory() {
        log!("PCI: BARs stay where firmware put them, in {:#x} to {:#x}", memory.start, memory.end - 1);
    }
    Ok(())
}

fn take(vm: usize, address: Address, injected: bool) -> Result<Function<Part>, &'static str> {
    let mut shared = SHARED.lock();
    let shared = shared.as_mut().ok_or("PCI is not set up")?;
    let number = shared.assigned;
    if number == MOST {
        return Err("the VMs of the machine have as many functions as Stile supports");
    }
    let bridge = board::get().pci.as_ref().ok_or("there is no host bridge")?;
    if address.bus() != 0 {
        return Err("only functions on bus 0 can be assigned");
    }
    let device = bridge.device(address).ok_or("its messages do not go to the ITS (msi-map in the device tree, or the ACPI table IORT)")?;
    let stream =
        bridge.stream(address).ok_or("its requests do not go through the SMMU (iommu-map in the device tree, or the ACPI table IORT)")?;
    if (stream as usize) >= smmu::STREAMS {
        return Err("its StreamID is beyond the streams that Stile supports: 0 to 255");
    }
    if shared.ids.iter().any(|&(other, messages)| other == stream || messages == device) {
        return Err("it has the StreamID or the DeviceID of another function, which a VM owns");
    }
    let first_lpi = interrupts::first_lpi(vm, number, device);
    let part = |vectors: usize| Part::new(stream, (device, first_lpi, injected), vectors);
    let config = bridge.config(address);
    let function = Function::new(address, config, part, |bars| place_bars(bridge, &config, bars, &mut shared.window))?;
    shared.assigned += 1;
    // There is room for all functions.
    let _ = shared.ids.push((stream, device));
    Ok(function)
}

/// Takes addresses for a function's BARs.
fn place_bars(bridge: &HostBridge, config: &Config, bars: &[Option<Bar>; BARS], window: &mut Window) -> Result<Addresses, &'static str> {
    let mut addresses = Addresses { cpu: [0; BARS], pci: [0; BARS] };
    for (index, bar) in bars.iter().enumerate() {
        let Some(bar) = bar else { continue };
        (addresses.cpu[index], addresses.pci[index]) = if bridge.keeps_bars {
            let pci = bar.address(config, index);
            let to_cpu = |address, size| bridge.to_cpu(address, size).filter(|&cpu| cpu + size <= mmu::reach());
            let address = KEPT.lock().take(pci, *bar, to_cpu).map_err(Immovable::reason)?;
            if bridge.is_memory_unknown() && !{ *config }.answers_at(index, *bar, address) {
                return Err("its registers are not at the addresses of its BARs");
            }
            (address, pci)
        } else {
            let address = window.take(bar.mapped_size()).ok_or("the host bridge has no room for its BARs")?;
            (address, bridge.to_pci(address))
        };
    }
    Ok(addresses)
}
