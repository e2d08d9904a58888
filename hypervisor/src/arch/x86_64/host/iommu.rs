//! AMD's IOMMUs (AMD I/O Virtualization Technology Specification, 48882): all requests and interrupts of functions are blocked,
//! except those of functions that are assigned.
//!
//! All IOMMUs share a device table with an entry for each routing ID of segment 0, so that a request without an owner is blocked
//! wherever it comes from.

use core::sync::atomic::{AtomicU64, Ordering, fence};

use heapless::Vec;
use stile_amd_iommu::register::{self, control, status};
use stile_amd_iommu::{CommandBuffer, CommandRegisters, DeviceEntry, ENTRIES, Event, EventLog, command};
use stile_firmware::ivrs::{Iommu, MOST_IOMMUS};
use stile_lock::TicketLock;
use stile_paging::PAGE_SIZE;
use stile_pci::{Address, ConfigSpace, capabilities, id};

use super::mmio::{Mmio, wait};
use super::{apic, board, pcie};
use crate::address_space;
use crate::console::log;
use crate::memory;

/// Number of routing IDs.
const DEVICES: usize = 1 << 16;
/// Number of events that are taken at once.
const EVENTS: usize = 64;

const SILENT: &str = "the IOMMU does not answer";

/// The device table.
type Devices = [[AtomicU64; 4]; DEVICES];

/// Memory that an IOMMU shares with Stile: commands, events, and the number of the last completed batch of commands.
#[repr(C, align(4096))]
struct Rings {
    commands: [[AtomicU64; 2]; ENTRIES],
    events: [[AtomicU64; 2]; ENTRIES],
    completed: AtomicU64,
}

/// Registers of the command buffer.
struct Commands(Mmio);

impl CommandRegisters for Commands {
    fn submit(&self, tail: u64) {
        // The commands, and the entries and tables that they refer to, must be in memory before the IOMMU reads them.
        fence(Ordering::SeqCst);
        self.0.write64(register::COMMAND_TAIL, tail);
    }

    fn is_running(&self) -> bool {
        self.0.read64(register::STATUS) & status::COMMANDS_RUN != 0
    }
}

/// An IOMMU.
struct Unit {
    /// Its own PCI function.
    function: Address,
    registers: Mmio,
    rings: &'static Rings,
    commands: CommandBuffer<'static>,
    events: EventLog<'static>,
}

/// The IOMMUs.
struct Iommus {
    devices: &'static Devices,
    units: Vec<Unit, MOST_IOMMUS>,
}

static IOMMUS: TicketLock<Option<Iommus>> = TicketLock::new(None);

/// Takes over the IOMMUs, once: from here on they block everything.
///
/// # Errors
/// A description of what is missing.
pub fn setup() -> Result<(), &'static str> {
    let mut iommus = IOMMUS.lock();
    if iommus.is_some() {
        return Ok(());
    }
    let board = board::get();
    let ivrs = &board.tables.ivrs;
    if ivrs.iommus.is_empty() {
        return Err(
            "the firmware's tables have no AMD IOMMU (IVRS), without which a function could access all memory (QEMU: -device amd-iommu)",
        );
    }
    if ivrs.iommus.iter().any(|iommu| iommu.segment != 0) {
        return Err("the firmware's tables have IOMMUs of several PCI segments (IVRS)");
    }
    if ivrs.iommus.iter().any(|iommu| !board.is_device(&(iommu.address..iommu.address + register::SIZE))) {
        return Err("the firmware's tables have an IOMMU's registers in memory (IVRS)");
    }
    // SAFETY: all-zero is valid: the structure consists of integers.
    let devices: &'static Devices = unsafe { memory::allocate::<Devices>()?.assume_init_ref() };
    devices.iter().for_each(|words| put(words, DeviceEntry::BLOCKED));
    // Only Stile programs these devices: their interrupts pass.
    let own = ivrs.special.iter().map(|special| special.id).chain(ivrs.iommus.iter().map(|iommu| iommu.id));
    own.for_each(|id| put(&devices[usize::from(id)], DeviceEntry::INTERRUPTS_ONLY));
    let mut units = Vec::new();
    for iommu in &ivrs.iommus {
        let mut unit = Unit::new(iommu)?;
        unit.start(devices, iommu.has_tunnel)?;
        if !unit.send_interrupts() {
            log!("the IOMMU has no interrupts: requests that it blocks are not reported");
        }
        let _ = units.push(unit);
    }
    *iommus = Some(Iommus { devices, units });
    Ok(())
}

/// Checks that the IOMMUs confine a function, and nothing else by its routing ID.
///
/// # Errors
/// A description of why the function can't be assigned.
pub fn check(function: Address) -> Result<(), &'static str> {
    if function.bus() != 0 {
        return Err("it is behind a bridge");
    }
    board::get().tables.ivrs.check(function.routing_id())
}

/// Sets the device-table entry of a function. On return no request or interrupt uses the former one, and none that did is in flight.
///
/// # Errors
/// The IOMMU fails, and may use the former one.
pub fn set_device(function: Address, entry: DeviceEntry) -> Result<(), &'static str> {
    let id = function.routing_id();
    with(Ok(()), |iommus| {
        let words = &iommus.devices[usize::from(id)];
        let former = DeviceEntry(words.each_ref().map(|word| word.load(Ordering::Relaxed)));
        let forget = [
            command::invalidate_device(id),
            command::invalidate_interrupts(id),
            command::invalidate_domain(former.domain()),
            command::invalidate_domain(entry.domain()),
        ];
        // The function is blocked while its other words change.
        words[2].store(DeviceEntry::BLOCKED.0[2], Ordering::Relaxed);
        words[0].store(DeviceEntry::BLOCKED.0[0], Ordering::Release);
        iommus.execute(&forget)?;
        put(words, entry);
        iommus.execute(&forget)
    })
}

/// Applies changes of a function's interrupt remapping table. On return no interrupt uses a former entry.
///
/// # Errors
/// The IOMMU fails, and may use a former one.
pub fn invalidate_interrupts(function: Address) -> Result<(), &'static str> {
    with(Ok(()), |iommus| iommus.execute(&[command::invalidate_interrupts(function.routing_id())]))
}

/// Takes logged events. If there may be more, an interrupt follows.
pub fn take_events() -> Vec<Event, EVENTS> {
    let mut events = Vec::new();
    with((), |iommus| iommus.units.iter_mut().for_each(|unit| unit.take_events(&mut events)));
    if events.is_full() {
        // An IOMMU interrupts again only for later events: the rest is left to another interrupt, after those of higher priority.
        apic::send_iommu();
    }
    events
}

/// Whether an IOMMU has blocked a request since the last call, whether it has logged it or not. QEMU (10.0) logs none.
pub fn has_blocked() -> bool {
    // Status: signaled target abort, cleared by writing it.
    const ABORTED: u32 = 1 << 27;
    with(false, |iommus| {
        let configs = iommus.units.iter().filter_map(Unit::config);
        let blocked = configs.filter_map(|mut config| {
            let value = config.read(stile_pci::register::COMMAND);
            (value & ABORTED != 0).then(|| config.write(stile_pci::register::COMMAND, value & 0xffff | ABORTED))
        });
        blocked.count() != 0
    })
}

/// Writes an entry of the device table: the word with the valid bits last.
fn put(words: &[AtomicU64; 4], DeviceEntry(entry): DeviceEntry) {
    for index in [1, 3, 2] {
        words[index].store(entry[index], Ordering::Relaxed);
    }
    words[0].store(entry[0], Ordering::Release);
}

/// Calls `work` with the IOMMUs; returns `otherwise` if there are none.
fn with<T>(otherwise: T, work: impl FnOnce(&mut Iommus) -> T) -> T {
    IOMMUS.lock().as_mut().map_or(otherwise, work)
}

impl Iommus {
    fn execute(&mut self, commands: &[[u64; 2]]) -> Result<(), &'static str> {
        self.units.iter_mut().try_for_each(|unit| unit.commands.execute(&Commands(unit.registers), commands))
    }
}

impl Unit {
    fn new(iommu: &Iommu) -> Result<Unit, &'static str> {
        let registers = Mmio::new(address_space::device(iommu.address..iommu.address + register::SIZE));
        // SAFETY: all-zero is valid: the structure consists of integers.
        let rings: &'static Rings = unsafe { memory::allocate::<Rings>()?.assume_init_ref() };
        let commands = CommandBuffer::new(&rings.commands, &rings.completed, address_space::to_physical(&rings.completed));
        Ok(Unit { function: Address::from_routing_id(iommu.id), registers, rings, commands, events: EventLog::new(&rings.events) })
    }

    /// Starts it. `has_tunnel`: it translates requests of a HyperTransport tunnel, too.
    fn start(&mut self, devices: &'static Devices, has_tunnel: bool) -> Result<(), &'static str> {
        const ALL: u64 = control::ENABLE | control::COMMANDS | control::EVENT_LOG | control::EVENT_INTERRUPT | control::COHERENT;
        let registers = self.registers;
        if registers.read64(register::FEATURES) & register::INVALIDATE_ALL == 0 {
            return Err("the IOMMU lacks INVALIDATE_IOMMU_ALL, which Stile needs");
        }
        registers.write64(register::CONTROL, 0);
        wait(SILENT, || registers.read64(register::STATUS) & (status::COMMANDS_RUN | status::EVENT_LOG_RUNS) == 0)?;
        registers.write64(register::EXCLUSION_BASE, 0);
        registers.write64(register::EXCLUSION_LIMIT, 0);
        let pages = size_of::<Devices>() as u64 / PAGE_SIZE;
        registers.write64(register::DEVICE_TABLE, register::device_table(address_space::to_physical(devices), pages));
        registers.write64(register::COMMAND_BUFFER, register::ring(address_space::to_physical(&self.rings.commands)));
        registers.write64(register::COMMAND_HEAD, 0);
        registers.write64(register::COMMAND_TAIL, 0);
        self.reset_events();
        // The tables must be in memory before the IOMMU reads them: the compiler may move stores beyond accesses of registers.
        fence(Ordering::SeqCst);
        registers.write64(register::CONTROL, ALL | if has_tunnel { control::TUNNEL } else { 0 });
        self.commands.execute(&Commands(registers), &[command::invalidate_all()])
    }

    /// Configuration space of its own function.
    fn config(&self) -> Option<pcie::Config> {
        pcie::bridge().filter(|_| self.function.bus() == 0).map(|bridge| bridge.config(self.function))
    }

    /// Sends its interrupts to this CPU. Returns false if it has none.
    fn send_interrupts(&self) -> bool {
        const ENABLE: u32 = 1 << 16;
        const SELECTED: u32 = 0b111 << 20;
        const WIDE: u32 = 1 << 23;
        let (Some(mut config), Some((address, data))) = (self.config(), apic::iommu_message()) else { return false };
        let Some(msi) = capabilities(&config).find(|capability| capability.id == id::MSI && capability.offset <= 0xf0) else {
            return false;
        };
        let at = msi.offset;
        config.write(at + 4, address);
        if msi.header & WIDE != 0 {
            config.write(at + 8, 0);
            config.write(at + 12, data);
        } else {
            config.write(at + 8, data);
        }
        // Multiple Message Enable 0: one message.
        config.write(at, msi.header & !SELECTED | ENABLE);
        let command = config.read(stile_pci::register::COMMAND) & 0xffff;
        config.write(stile_pci::register::COMMAND, command | stile_pci::register::BUS_MASTER);
        true
    }

    fn take_events(&mut self, events: &mut Vec<Event, EVENTS>) {
        // Events from here on interrupt again.
        self.registers.write64(register::STATUS, status::EVENT_INTERRUPT);
        while !events.is_full()
            && let Some(event) = self.events.take()
        {
            let _ = events.push(event);
        }
        self.registers.write64(register::EVENT_HEAD, self.events.head());
        if !events.is_full() && self.registers.read64(register::STATUS) & status::EVENT_OVERFLOW != 0 {
            self.restart_log();
        }
    }

    /// Lets the IOMMU log events again after an overflow ("Restarting the Event Log"). Events meanwhile are lost.
    fn restart_log(&mut self) {
        let registers = self.registers;
        let control = registers.read64(register::CONTROL);
        registers.write64(register::CONTROL, control & !control::EVENT_LOG);
        // An IOMMU that does not stop logging still confines functions, but its events are not reported any more.
        if wait(SILENT, || registers.read64(register::STATUS) & status::EVENT_LOG_RUNS == 0).is_ok() {
            self.reset_events();
            // The log must be empty before the IOMMU writes it.
            fence(Ordering::SeqCst);
            registers.write64(register::CONTROL, control);
        }
    }

    /// Empties the event log. The IOMMU does not write it.
    fn reset_events(&mut self) {
        let registers = self.registers;
        self.events.reset();
        registers.write64(register::STATUS, status::EVENT_OVERFLOW | status::EVENT_INTERRUPT);
        registers.write64(register::EVENT_LOG, register::ring(address_space::to_physical(&self.rings.events)));
        registers.write64(register::EVENT_HEAD, 0);
        registers.write64(register::EVENT_TAIL, 0);
    }
}
