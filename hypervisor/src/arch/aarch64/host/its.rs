//! The physical ITS, which translates devices' messages to LPIs (Arm GIC Architecture Specification, IHI 0069,
//! chapters Locality-specific Peripheral Interrupts and the ITS). Each CPU has a collection; only events given to
//! [`map`] are mapped.

use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use stile_board::{MAX_ASSIGNED, MAX_CPUS};
use stile_its::{COMMAND_SIZE, Command, CommandQueue, MappedEvent, Misplaced, QueueRegisters, Routing, TableKind, Typer};
use stile_lock::TicketLock;
use stile_pci::MAX_VECTORS;

use super::mmio::{Mmio, wait};
use super::sysreg::dsb_ish;
use super::{gic, mmu};

use crate::address_space::{self, Span};
use crate::memory;

/// First LPI.
pub const FIRST_LPI: u32 = 8192;
/// Number of LPIs: those of all functions.
pub const LPIS: usize = MAX_ASSIGNED * MAX_VECTORS;
/// Number of LPIs that redistributors read the configuration of: those of [`INTID_BITS`].
const CONFIGURED: usize = (1 << INTID_BITS) - FIRST_LPI as usize;
const _: () = assert!(LPIS <= CONFIGURED);
/// Width of an INTID.
const INTID_BITS: u8 = 14;
/// Width of an EventID.
const EVENT_BITS: u8 = 5;

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
struct Page([AtomicU64; PAGE_64K / 8]);

/// LPI configuration table: a byte per LPI, zero if disabled.
#[repr(C, align(4096))]
struct Configuration([AtomicU8; CONFIGURED]);

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
}

/// The ITS, once it is set up, and what its events target.
struct State {
    its: Option<Its>,
    /// Not in [`Its`], which is built on the stack.
    routing: Routing<LPIS, MAX_CPUS>,
}

static STATE: TicketLock<State> = TicketLock::new(State { its: None, routing: Routing::new() });

fn page() -> Result<&'static Page, &'static str> {
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
        Misplaced::Shareability => "the ITS does not see the CPUs' caches",
        Misplaced::Other => "the ITS takes no table where Stile has it",
    }
}

/// Takes over the ITS, and enables LPIs on every online CPU.
///
/// # Errors
/// A description of what cannot be used.
pub fn setup(registers: &Span) -> Result<(), &'static str> {
    let registers = Mmio::new(address_space::device(registers.clone()));
    registers.write32(GITS_CTLR, registers.read32(GITS_CTLR) & !ENABLE);
    wait("the ITS does not answer", || registers.read32(GITS_CTLR) & QUIESCENT != 0)?;
    let typer = Typer(registers.read64(GITS_TYPER));
    // SAFETY: all-zero is valid: the structure consists of integers.
    let configuration: &'static Configuration = unsafe { memory::allocate::<Configuration>()?.assume_init_ref() };
    let queue = page()?;
    let commands = CommandQueue::new(&queue.0[..COMMANDS * COMMAND_SIZE / 8]);
    let mut its = Its { registers: Queue(registers), queue: commands, configuration, typer, devices: u64::MAX };
    for n in 0..8 {
        let register = GITS_BASER + 8 * n;
        let (kind, entry) = stile_its::table_of(registers.read64(register));
        match kind {
            TableKind::Other => continue,
            TableKind::Devices => its.devices = PAGE_64K as u64 / entry,
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
    state.its = Some(its);
    Ok(())
}

/// Maps a device's events to LPIs from `first` on (at most 32), targeting this CPU.
///
/// # Errors
/// A description, if there is no room for the device.
pub fn map(device: u32, first: u32, events: u32, cpu: usize) -> Result<(), &'static str> {
    let mut state = STATE.lock();
    let State { its, routing } = &mut *state;
    let its = its.as_mut().ok_or("there is no ITS")?;
    if u64::from(device) >= its.devices || its.typer.device_bits() < 32 && device >> its.typer.device_bits() != 0 {
        return Err("the ITS has no room for its number");
    }
    if events > 1 << EVENT_BITS || its.typer.entry_size() << EVENT_BITS > 4096 {
        return Err("its interrupts are more than the ITS has room for");
    }
    let table = memory::allocate_pages(4096)?;
    its.execute(&[stile_its::map_device(device, EVENT_BITS, table), routing.sync(cpu)])?;
    for event in 0..events {
        let intid = first + event;
        let lpi = (intid - FIRST_LPI) as usize;
        its.configuration.0[lpi].store(stile_its::enabled(PRIORITY), Ordering::Relaxed);
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
    if let Some(configuration) = its.configuration.0.get(event.lpi) {
        configuration.store(value, Ordering::Relaxed);
    }
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
