//! The physical ITS, which translates devices' messages to LPIs (Arm GIC Architecture Specification, IHI 0069,
//! chapters Locality-specific Peripheral Interrupts and the ITS). Each CPU has a collection; only events given to
//! [`map`] are mapped, and with GICv4 those that VMs' own ITSs translate.

use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use stile_board::{MAX_ASSIGNED, MAX_CPUS};
use stile_its::{COMMAND_SIZE, Command, CommandQueue, MappedEvent, Misplaced, QueueRegisters, Routing, TableKind, Typer};
use stile_lock::TicketLock;
use stile_pci::MAX_VECTORS;

use super::mmio::{Mmio, wait};
use super::sysreg::dsb_ish;
use super::{gic, mmu, probe, vpe};

use crate::address_space::{self, Span};
use crate::memory;

/// First LPI.
pub const FIRST_LPI: u32 = 8192;
/// Number of LPIs: those of all functions.
pub const LPIS: usize = MAX_ASSIGNED * MAX_VECTORS;
/// Number of vPEs of all VMs, each with a doorbell: an LPI.
pub const VPES: usize = 1 << DOORBELL_BITS;
/// Doorbell of the first vPE.
pub const FIRST_DOORBELL: u32 = FIRST_LPI + LPIS as u32;
/// Number of LPIs that redistributors read the configuration of: those of [`INTID_BITS`].
const CONFIGURED: usize = (1 << INTID_BITS) - FIRST_LPI as usize;
const _: () = assert!(LPIS + VPES <= CONFIGURED);
/// Width of an INTID.
pub const INTID_BITS: u8 = 14;
/// Width of an EventID.
const EVENT_BITS: u8 = 5;
/// Width of the EventIDs that stand for doorbells.
const DOORBELL_BITS: u8 = 10;

/// Priority of LPIs: guests can cause them.
const PRIORITY: u8 = 0x80;

const GITS_CTLR: usize = 0x0;
const GITS_TYPER: usize = 0x8;
const GITS_CBASER: usize = 0x80;
const GITS_CWRITER: usize = 0x88;
const GITS_CREADR: usize = 0x90;
const GITS_BASER: usize = 0x100;
/// Page of GITS_TRANSLATER, and the register's offset in it.
pub const TRANSLATER_PAGE: u64 = 0x1_0000;
const GICR_CTLR: usize = 0x0;
const GICR_TYPER: usize = 0x8;
const GICR_PROPBASER: usize = 0x70;
const GICR_PENDBASER: usize = 0x78;
/// GICR_CTLR.EnableLPIs, GITS_CTLR.Enabled.
const ENABLE: u32 = 1;
/// GITS_CTLR.Quiescent.
const QUIESCENT: u32 = 1 << 31;

const PAGE_64K: usize = 0x1_0000;
/// Number of commands in the queue of 4 KiB.
const COMMANDS: usize = 4096 / COMMAND_SIZE;

/// A 64 KiB page that the ITS or a redistributor accesses.
#[repr(C, align(65536))]
pub struct Page([AtomicU64; PAGE_64K / 8]);

/// LPI configuration table: a byte per LPI, zero if disabled.
#[repr(C, align(4096))]
pub struct Configuration([AtomicU8; CONFIGURED]);

impl Configuration {
    /// An empty table.
    ///
    /// # Errors
    /// No memory is left.
    pub fn allocate() -> Result<&'static Configuration, &'static str> {
        // SAFETY: all-zero is valid: the structure consists of integers.
        Ok(unsafe { memory::allocate::<Configuration>()?.assume_init_ref() })
    }

    /// Sets the byte of an LPI, counted from the first one.
    pub fn set(&self, lpi: usize, value: u8) {
        if let Some(place) = self.0.get(lpi) {
            place.store(value, Ordering::Relaxed);
        }
    }
}

/// Registers of the command queue.
struct Queue(Mmio);

impl QueueRegisters for Queue {
    fn writer(&self) -> u32 {
        self.0.read32(GITS_CWRITER)
    }

    fn submit(&self, writer: u32) {
        dsb_ish();
        self.0.write32(GITS_CWRITER, writer);
    }

    fn reader(&self) -> u32 {
        self.0.read32(GITS_CREADR)
    }
}

struct Its {
    registers: Queue,
    queue: CommandQueue<'static>,
    configuration: &'static Configuration,
    typer: Typer,
    /// Number of DeviceIDs in the device table.
    devices: u64,
    /// Number of vPEs in the vPE table: 0 without GICv4.
    vpes: usize,
}

/// The ITS, once it is set up, and what its events target.
struct State {
    its: Option<Its>,
    /// Not in [`Its`], which is built on the stack.
    routing: Routing<{ LPIS + VPES }, MAX_CPUS>,
}

static STATE: TicketLock<State> = TicketLock::new(State { its: None, routing: Routing::new() });

/// An empty table.
///
/// # Errors
/// No memory is left.
pub fn page() -> Result<&'static Page, &'static str> {
    // SAFETY: all-zero is valid: the structure consists of integers.
    Ok(unsafe { memory::allocate::<Page>()?.assume_init_ref() })
}

/// Gives the ITS a table, in a page size that it supports.
fn place(registers: &Mmio, register: usize, table: u64) -> Result<(), &'static str> {
    let mut result = Ok(());
    for size in stile_its::PAGE_SIZES {
        let value = stile_its::place_table(table, size);
        registers.write64(register, value);
        result = stile_its::check_place(value, registers.read64(register));
        if result != Err(Misplaced::PageSize) {
            break;
        }
    }
    result.map_err(refusal)
}

fn refusal(reason: Misplaced) -> &'static str {
    match reason {
        Misplaced::PageSize => "the ITS takes tables in pages of no known size",
        Misplaced::Shareability => "the ITS is not cache-coherent",
        Misplaced::Other => "the ITS takes no table where Stile has it",
    }
}

/// Takes over the ITS, and enables LPIs on every online CPU. `ram` is the board's.
///
/// # Errors
/// A description of what cannot be used.
pub fn setup(registers: &Span, ram: &[Span]) -> Result<(), &'static str> {
    let registers = probe::claim_gic("ITS", registers, ram, 2 * PAGE_64K as u64)?;
    registers.write32(GITS_CTLR, registers.read32(GITS_CTLR) & !ENABLE);
    wait("the ITS does not answer", || registers.read32(GITS_CTLR) & QUIESCENT != 0)?;
    let typer = Typer(registers.read64(GITS_TYPER));
    let configuration = Configuration::allocate()?;
    let queue = page()?;
    let commands = CommandQueue::new(&queue.0[..COMMANDS * COMMAND_SIZE / 8]);
    let mut its = Its { registers: Queue(registers), queue: commands, configuration, typer, devices: u64::MAX, vpes: 0 };
    for n in 0..8 {
        let register = GITS_BASER + 8 * n;
        let (kind, entry) = stile_its::table_of(registers.read64(register));
        match kind {
            TableKind::Other => continue,
            TableKind::Devices => its.devices = PAGE_64K as u64 / entry,
            TableKind::Vpes => its.vpes = PAGE_64K / entry as usize,
            TableKind::Collections => {}
        }
        place(&registers, register, address_space::to_physical(page()?))?;
    }
    let queue = stile_its::place_queue(address_space::to_physical(queue));
    registers.write64(GITS_CBASER, queue);
    stile_its::check_place(queue, registers.read64(GITS_CBASER)).map_err(refusal)?;
    registers.write64(GITS_CWRITER, 0);
    registers.write32(GITS_CTLR, ENABLE);
    let mut state = STATE.lock();
    for (cpu, redistributor) in gic::redistributors() {
        let target = its.enable_lpis(cpu, &redistributor)?;
        state.routing.set_target(cpu, target);
    }
    if !typer.is_virtual() || !gic::redistributors().all(|(_, redistributor)| vpe::can_be_on(&redistributor)) {
        its.vpes = 0;
    }
    if its.vpes != 0 {
        its.map_doorbells(&state.routing)?;
    }
    state.its = Some(its);
    Ok(())
}

/// Number of vPEs that can be [mapped](map_vpe): 0 without GICv4.
pub fn vpes() -> usize {
    STATE.lock().its.as_ref().map_or(0, |its| its.vpes.min(VPES))
}

/// Maps a vPE to this CPU, and its doorbell. Its events are mapped by [`execute`].
///
/// # Errors
/// The ITS fails.
pub fn map_vpe(number: u16, table: u64, cpu: usize) -> Result<(), &'static str> {
    let mut state = STATE.lock();
    let State { its: Some(its), routing } = &mut *state else { return Ok(()) };
    let doorbell = its.doorbell(number);
    its.configuration.set(doorbell.lpi, stile_its::enabled(PRIORITY));
    its.execute(&routing.map(doorbell, FIRST_LPI + doorbell.lpi as u32, cpu))?;
    its.execute(&[stile_its::map_vpe(number, routing.target(cpu), table, INTID_BITS), stile_its::virtual_sync(number)])
}

/// Moves a vPE, which is resident nowhere, and its doorbell to another CPU.
///
/// # Errors
/// The ITS fails.
pub fn move_vpe(number: u16, cpu: usize) -> Result<(), &'static str> {
    let mut state = STATE.lock();
    let State { its: Some(its), routing } = &mut *state else { return Ok(()) };
    its.execute(&[stile_its::move_vpe(number, routing.target(cpu)), stile_its::virtual_sync(number)])?;
    its.execute(&routing.move_to(its.doorbell(number), cpu))
}

/// Makes a vPE's doorbell pending.
///
/// # Errors
/// The ITS fails.
pub fn ring(number: u16) -> Result<(), &'static str> {
    let mut state = STATE.lock();
    let State { its: Some(its), .. } = &mut *state else { return Ok(()) };
    let MappedEvent { device, event, .. } = its.doorbell(number);
    its.execute(&[stile_its::set_pending(device, event)])
}

/// Enables or disables a vPE's doorbell.
///
/// # Errors
/// The ITS fails.
pub fn enable_doorbell(number: u16, on: bool) -> Result<(), &'static str> {
    let doorbell = match &STATE.lock().its {
        Some(its) => its.doorbell(number),
        None => return Ok(()),
    };
    enable(doorbell, on)
}

/// Executes commands for the events of VMs' functions.
///
/// # Errors
/// The ITS fails.
pub fn execute(commands: &[Command]) -> Result<(), &'static str> {
    let mut state = STATE.lock();
    state.its.as_mut().map_or(Ok(()), |its| its.execute(commands))
}

/// Maps a device's events to LPIs from `first` on (at most 32), targeting this CPU. `first` is `None` if the events are
/// mapped later, to vPEs.
///
/// # Errors
/// A description, if there is no room for the device.
pub fn map(device: u32, first: Option<u32>, events: u32, cpu: usize) -> Result<(), &'static str> {
    let mut state = STATE.lock();
    let State { its, routing } = &mut *state;
    let its = its.as_mut().ok_or("there is no ITS")?;
    if u64::from(device) >= its.devices.min(its.proxy()) || its.typer.device_bits() < 32 && device >> its.typer.device_bits() != 0 {
        return Err("the ITS has no room for its number");
    }
    if events > 1 << EVENT_BITS || its.typer.entry_size() << EVENT_BITS > 4096 {
        return Err("its interrupts are more than the ITS has room for");
    }
    let table = memory::allocate_pages(4096)?;
    its.execute(&[stile_its::map_device(device, EVENT_BITS, table), routing.sync(cpu)])?;
    let Some(first) = first else { return Ok(()) };
    for event in 0..events {
        let intid = first + event;
        let lpi = (intid - FIRST_LPI) as usize;
        its.configuration.set(lpi, stile_its::enabled(PRIORITY));
        its.execute(&routing.map(MappedEvent { device, event, lpi }, intid, cpu))?;
    }
    Ok(())
}

/// Enables or disables the LPI of an event, whatever CPU it targets by now. While disabled it can become pending.
///
/// # Errors
/// The ITS fails.
pub fn enable(event: MappedEvent, on: bool) -> Result<(), &'static str> {
    let mut state = STATE.lock();
    let State { its: Some(its), routing } = &mut *state else { return Ok(()) };
    let value = if on { stile_its::enabled(PRIORITY) } else { stile_its::disabled(PRIORITY) };
    its.configuration.set(event.lpi, value);
    its.execute(&routing.invalidate(event))
}

/// Moves an event to another CPU.
///
/// # Errors
/// The ITS fails.
pub fn move_to(event: MappedEvent, cpu: usize) -> Result<(), &'static str> {
    let mut state = STATE.lock();
    let State { its: Some(its), routing } = &mut *state else { return Ok(()) };
    its.execute(&routing.move_to(event, cpu))
}

impl Its {
    /// DeviceID whose events stand for doorbells, so that commands can name them: the last one, which no device has.
    fn proxy(&self) -> u64 {
        (self.devices - 1).min((1 << self.typer.device_bits()) - 1)
    }

    /// The event that stands for a vPE's doorbell.
    fn doorbell(&self, vpe: u16) -> MappedEvent {
        MappedEvent { device: self.proxy() as u32, event: vpe.into(), lpi: LPIS + usize::from(vpe) }
    }

    /// Maps the device that stands for doorbells.
    fn map_doorbells(&mut self, routing: &Routing<{ LPIS + VPES }, MAX_CPUS>) -> Result<(), &'static str> {
        if self.typer.entry_size() << DOORBELL_BITS > PAGE_64K as u64 || self.devices == u64::MAX {
            self.vpes = 0;
            return Ok(());
        }
        let table = address_space::to_physical(page()?);
        self.execute(&[stile_its::map_device(self.proxy() as u32, DOORBELL_BITS, table), routing.sync(0)])
    }

    /// Enables a CPU's LPIs, maps its collection, and returns the command operand for its redistributor.
    fn enable_lpis(&mut self, cpu: usize, redistributor: &Mmio) -> Result<u64, &'static str> {
        if redistributor.read32(GICR_CTLR) & ENABLE != 0 {
            return Err("firmware left LPIs on, with tables that Stile does not know");
        }
        redistributor.write64(GICR_PROPBASER, stile_its::place_configuration(address_space::to_physical(self.configuration), INTID_BITS));
        redistributor.write64(GICR_PENDBASER, stile_its::place_pending(address_space::to_physical(page()?)));
        redistributor.write32(GICR_CTLR, ENABLE);
        dsb_ish();
        let processor = (redistributor.read32(GICR_TYPER) >> 8) as u16;
        let target = self.typer.target(redistributor.base() as u64 - mmu::DEVICES, processor);
        self.execute(&[stile_its::map_collection(cpu as u16, target), stile_its::sync(target)])?;
        Ok(target)
    }

    fn execute(&mut self, commands: &[Command]) -> Result<(), &'static str> {
        self.queue.execute(&self.registers, commands)
    }
}
