//! The board's SMMUv3 (Arm System Memory Management Unit Architecture Specification, IHI 0070): all streams abort
//! except those that are assigned a VM's second stage.

use core::sync::atomic::{AtomicU64, Ordering};

use heapless::Vec;
use stile_lock::TicketLock;
use stile_smmu::{CommandQueue, Event, Queue, QueueRegisters, StreamEntry, command};

use super::mmio::{Mmio, wait};
use super::probe;
use super::sysreg::dsb_ish;
use crate::address_space::{self, Span};
use crate::memory;

const IDR0: usize = 0x0;
const IDR1: usize = 0x4;
const IDR5: usize = 0x14;
const CR0: usize = 0x20;
const CR0ACK: usize = 0x24;
const CR1: usize = 0x28;
const CR2: usize = 0x2c;
const GBPA: usize = 0x44;
const IRQ_CTRL: usize = 0x50;
const IRQ_CTRLACK: usize = 0x54;
const STRTAB_BASE: usize = 0x80;
const STRTAB_BASE_CFG: usize = 0x88;
const CMDQ_BASE: usize = 0x90;
const CMDQ_PROD: usize = 0x98;
const CMDQ_CONS: usize = 0x9c;
const EVENTQ_BASE: usize = 0xa0;
const EVENTQ_IRQ_CFG0: usize = 0xb0;
/// Offsets in the second page of registers.
const EVENTQ_PROD: usize = 0x1_00a8;
const EVENTQ_CONS: usize = 0x1_00ac;

/// Size of both pages.
const SIZE: u64 = 0x2_0000;

const IDR0_S2P: u32 = 1 << 0;
const IDR0_COHACC: u32 = 1 << 4;
const IDR5_GRAN4K: u32 = 1 << 4;
const CR0_SMMUEN: u32 = 1 << 0;
const CR0_EVENTQEN: u32 = 1 << 2;
const CR0_CMDQEN: u32 = 1 << 3;
/// Attributes of tables and queues: inner shareable, write-back.
const CR1_CACHED: u32 = 0b11 << 10 | 0b01 << 8 | 0b01 << 6 | 0b11 << 4 | 0b01 << 2 | 0b01;
/// Broadcast TLB maintenance is ignored, because VMIDs of the SMMU are not those of the CPUs. CR2.RECINVSID is clear:
/// streams beyond the table abort without an event, since nothing could stop them.
const CR2_PTM: u32 = 1 << 2;
const GBPA_UPDATE: u32 = 1 << 31;
const GBPA_ABORT: u32 = 1 << 20;
const IRQ_EVENTQ: u32 = 1 << 2;
/// Allocation hint of a base address register.
const ALLOCATE: u64 = 1 << 62;
/// Overflow flag of the event queue's indexes.
const OVERFLOW: u32 = 1 << 31;

/// Streams of the table: those of bus 0, as an exponent of two.
const LOG2_STREAMS: u32 = 8;
/// Number of streams.
pub const STREAMS: usize = 1 << LOG2_STREAMS;
/// Sizes of the command and event queues.
const QUEUE: Queue = Queue { log2: 6 };
const ENTRIES: usize = 1 << QUEUE.log2;

/// Tables and queues. Zeroed stream-table entries are invalid: the streams abort.
#[repr(C, align(16384))]
struct Tables {
    streams: [[AtomicU64; 8]; STREAMS],
    events: [[AtomicU64; 4]; ENTRIES],
    commands: [[AtomicU64; 2]; ENTRIES],
}

const SILENT: &str = "the SMMU does not answer";

/// Registers of the command queue.
struct Commands(Mmio);

impl QueueRegisters for Commands {
    fn producer(&self) -> u32 {
        self.0.read32(CMDQ_PROD)
    }

    fn submit(&self, producer: u32) {
        // The commands, and the entries and tables that they refer to, must be in memory before the SMMU reads them.
        dsb_ish();
        self.0.write32(CMDQ_PROD, producer);
    }

    fn consumer(&self) -> u32 {
        self.0.read32(CMDQ_CONS)
    }
}

struct Smmu {
    registers: Mmio,
    tables: &'static Tables,
    queue: CommandQueue<'static>,
}

static SMMU: TicketLock<Option<Smmu>> = TicketLock::new(None);

/// Takes over the SMMU: all streams abort from here on. `is_coherent`: it is cache-coherent, even if IDR0 does not say so. `ram` is the
/// board's. Returns IDR5.OAS, the size of its output addresses.
///
/// # Errors
/// A description of what it lacks.
pub fn setup(registers: &Span, is_coherent: bool, ram: &[Span]) -> Result<u8, &'static str> {
    let registers = probe::claim("SMMU", &(registers.start..registers.start + SIZE), ram, SIZE, IDR0)?;
    let (idr0, idr5) = (registers.read32(IDR0), registers.read32(IDR5));
    if idr0 & IDR0_S2P == 0 {
        return Err("the SMMU has no second stage (QEMU: -global arm-smmuv3.stage=nested)");
    }
    if idr0 & IDR0_COHACC == 0 && !is_coherent {
        return Err("the SMMU is not cache-coherent");
    }
    if idr5 & IDR5_GRAN4K == 0 || registers.read32(IDR1) & 0x3f < LOG2_STREAMS {
        return Err("the SMMU has no 4 KiB pages, or too few streams");
    }
    // SAFETY: all-zero is valid: the structure consists of integers.
    let tables: &'static Tables = unsafe { memory::allocate::<Tables>()?.assume_init_ref() };
    let mut smmu = Smmu { registers, tables, queue: CommandQueue::new(&tables.commands, QUEUE) };
    smmu.start()?;
    *SMMU.lock() = Some(smmu);
    Ok(idr5 as u8 & 7)
}

/// Sets a stream-table entry. On return no transaction uses the former one, and none that did is in flight.
///
/// # Errors
/// The SMMU fails, and may use the former one.
pub fn set_stream(stream: u32, vmid: u16, entry: StreamEntry) -> Result<(), &'static str> {
    with(Ok(()), |smmu| {
        let Some(words) = smmu.tables.streams.get(stream as usize) else { return Ok(()) };
        let forget = [command::invalidate_stream(stream), command::invalidate_vmid(vmid)];
        // The stream aborts while its other words change.
        words[0].store(StreamEntry::ABORT.0[0], Ordering::Relaxed);
        smmu.execute(&forget)?;
        for (word, value) in words.iter().zip(entry.0).skip(1) {
            word.store(value, Ordering::Relaxed);
        }
        dsb_ish();
        words[0].store(entry.0[0], Ordering::Relaxed);
        smmu.execute(&forget)
    })
}

/// Takes recorded events, at most as many as the queue holds.
pub fn take_events() -> Vec<Event, ENTRIES> {
    let mut events = Vec::new();
    with((), |smmu| {
        let mut consumer = smmu.registers.read32(EVENTQ_CONS);
        while !events.is_full() {
            let producer = smmu.registers.read32(EVENTQ_PROD);
            if QUEUE.is_empty(producer, consumer) {
                // Acknowledges an overflow.
                smmu.registers.write32(EVENTQ_CONS, consumer & !OVERFLOW | producer & OVERFLOW);
                break;
            }
            dsb_ish();
            let record = &smmu.tables.events[QUEUE.slot(consumer)];
            let _ = events.push(Event::decode(core::array::from_fn(|word| record[word].load(Ordering::Relaxed))));
            consumer = QUEUE.next(consumer);
            smmu.registers.write32(EVENTQ_CONS, consumer | producer & OVERFLOW);
        }
    });
    events
}

/// Calls `work` with the SMMU; returns `otherwise` if there is none.
fn with<T>(otherwise: T, work: impl FnOnce(&mut Smmu) -> T) -> T {
    SMMU.lock().as_mut().map_or(otherwise, work)
}

impl Smmu {
    fn start(&mut self) -> Result<(), &'static str> {
        let registers = self.registers;
        registers.write32(GBPA, GBPA_UPDATE | GBPA_ABORT);
        wait(SILENT, || registers.read32(GBPA) & GBPA_UPDATE == 0)?;
        self.set_cr0(0)?;
        registers.write32(IRQ_CTRL, 0);
        wait(SILENT, || registers.read32(IRQ_CTRLACK) == 0)?;
        registers.write32(CR1, CR1_CACHED);
        registers.write32(CR2, CR2_PTM);
        registers.write64(STRTAB_BASE, address_space::to_physical(&self.tables.streams) | ALLOCATE);
        registers.write32(STRTAB_BASE_CFG, LOG2_STREAMS);
        registers.write64(CMDQ_BASE, address_space::to_physical(&self.tables.commands) | ALLOCATE | u64::from(QUEUE.log2));
        registers.write32(CMDQ_PROD, 0);
        registers.write32(CMDQ_CONS, 0);
        registers.write64(EVENTQ_BASE, address_space::to_physical(&self.tables.events) | ALLOCATE | u64::from(QUEUE.log2));
        registers.write32(EVENTQ_PROD, 0);
        registers.write32(EVENTQ_CONS, 0);
        self.set_cr0(CR0_CMDQEN)?;
        self.execute(&[command::invalidate_all_streams(), command::invalidate_all_translations()])?;
        self.set_cr0(CR0_CMDQEN | CR0_EVENTQEN)?;
        // A wired interrupt, no message.
        registers.write64(EVENTQ_IRQ_CFG0, 0);
        registers.write32(IRQ_CTRL, IRQ_EVENTQ);
        wait(SILENT, || registers.read32(IRQ_CTRLACK) == IRQ_EVENTQ)?;
        self.set_cr0(CR0_CMDQEN | CR0_EVENTQEN | CR0_SMMUEN)
    }

    fn set_cr0(&self, value: u32) -> Result<(), &'static str> {
        self.registers.write32(CR0, value);
        wait(SILENT, || self.registers.read32(CR0ACK) == value)
    }

    fn execute(&mut self, commands: &[[u64; 2]]) -> Result<(), &'static str> {
        self.queue.execute(&Commands(self.registers), commands)
    }
}
