//! Traces: each CPU records its exits and entries in a ring, which the operator drains.
//!
//! A recording CPU uses other vectors ([`PhysicalCpu::trace_exits`]): an exit path that records each exit, and calls
//! the functions of this module when the scheduler runs, an interrupt becomes pending, or one is sent. The ordinary
//! path contains none of it. A CPU switches vectors when it takes a reschedule request.

use core::fmt;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

use stile_ledger::RowId;
use stile_lock::TicketLock;
use stile_sched::{CpuId, CpuSet, VcpuId};
use stile_trace::{Counts, Kind, NO_VCPU, Record, Ring, id_of};
use stile_wire::{Event, Records};

use crate::arch::contract::{Counter, Host, PhysicalCpu};
use crate::arch::{Arch, Cpu};
use crate::cpu::{self, Outcome, SCHEDULE};
use crate::vm::Vcpu;
use crate::{console, memory, report, vm};

/// CPUs that record: the first ones, a bit each in the operator's messages.
const CPUS: usize = u64::BITS as usize;

/// The operator requested a trace: CPUs record, or will.
static WANTED: AtomicBool = AtomicBool::new(false);
/// Rings of the CPUs during a trace.
static RINGS: [AtomicPtr<Ring>; CPUS] = [const { AtomicPtr::new(core::ptr::null_mut()) }; CPUS];
/// Bit mask of CPUs whose rings are clear: each CPU clears its own before it records.
static CLEAR: AtomicU64 = AtomicU64::new(0);
/// Bit mask of recording CPUs.
static RECORDING: AtomicU64 = AtomicU64::new(0);
static COUNTS: [Counts; CPUS] = [const { Counts::new() }; CPUS];

/// State of the operator's side.
static TRACE: TicketLock<Option<Trace>> = TicketLock::new(None);

/// The rings, and the progress of their transmission.
struct Trace {
    /// Tag of the command that started the trace.
    tag: u32,
    memory: Range<u64>,
    cpus: u64,
    sides: [Side; CPUS],
    /// The CPU whose ring is drained next.
    turn: usize,
}

#[derive(Clone, Copy)]
struct Side {
    /// Next slot to read.
    position: usize,
    /// Number of records sent.
    sent: u32,
}

// The exit path writes the vCPU's number as it is laid out in memory.
const _: () = assert!(size_of::<VcpuId>() == 2 && stile_board::MAX_VCPUS == 256);

/// Makes CPUs check for a trace when they take a reschedule request.
pub fn setup() {
    cpu::TRACE_HOOK.set(pass);
}

/// Starts a trace for the operator.
pub fn start(tag: u32) {
    match try_start(tag) {
        Ok(cpus) => {
            console::event(&Event::TraceStarted { tag, hz: Arch::frequency(), now: Arch::now(), cpus });
            request_pass(cpus);
        }
        Err(why) => console::refuse(tag, format_args!("{why}")),
    }
}

/// Reason for refusing a trace.
enum Refusal {
    Traced,
    Ablates,
    NoMemory(u64),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Traced => f.write_str("the machine is being traced already"),
            Refusal::Ablates => f.write_str("a VM of the machine has `ablate`, which needs the vectors that a trace replaces"),
            Refusal::NoMemory(size) => write!(f, "no {} KiB of memory are free for the records", size >> 10),
        }
    }
}

fn try_start(tag: u32) -> Result<u64, Refusal> {
    let mut trace = TRACE.lock();
    if let Some(trace) = trace.as_ref() {
        // A retry: the first answer was lost.
        return if trace.tag == tag { Ok(trace.cpus) } else { Err(Refusal::Traced) };
    }
    if vm::all().any(|vm: &vm::Vm| vm.techniques.ablate.is_some()) {
        return Err(Refusal::Ablates);
    }
    let online = SCHEDULE.online().and(&CpuSet::first_few(CPUS));
    let size = (online.len() * size_of::<Ring>()) as u64;
    let memory = memory::take_aligned(size, align_of::<Ring>() as u64).ok_or(Refusal::NoMemory(size))?;
    CLEAR.store(0, Ordering::Relaxed);
    let mut cpus = 0;
    for (number, cpu) in online.iter().map(|cpu| cpu.index()).enumerate() {
        let ring = Arch::physical(memory.start + (number * size_of::<Ring>()) as u64).cast::<Ring>();
        COUNTS[cpu].reset();
        RINGS[cpu].store(ring, Ordering::Release);
        cpus |= 1 << cpu;
    }
    *trace = Some(Trace { tag, memory, cpus, sides: [Side { position: 0, sent: 0 }; CPUS], turn: 0 });
    cpu::AT_RESCHED.fetch_add(1, Ordering::AcqRel);
    WANTED.store(true, Ordering::Release);
    Ok(cpus)
}

/// Requests a reschedule of `cpus`, so that they check for the trace.
fn request_pass(cpus: u64) {
    let online = SCHEDULE.online();
    online.and(&CpuSet::from_bits(cpus)).iter().for_each(cpu::request_resched);
}

/// Stops recording for the operator. Remaining records stay in the rings until they are fetched.
pub fn stop() {
    // Sequentially consistent, as in `pass`: either this CPU sees the other one's bit, or the other one sees that
    // `WANTED` is clear.
    if WANTED.swap(false, Ordering::SeqCst) {
        request_pass(RECORDING.load(Ordering::SeqCst));
    }
}

/// Called when this CPU takes a reschedule request: starts or stops recording.
fn pass(cpu: &Cpu) {
    let index = cpu.index;
    let Some(bit) = 1_u64.checked_shl(index as u32) else { return };
    if !WANTED.load(Ordering::Acquire) {
        if cpu.recorder.is_on() {
            cpu.recorder.put(record_of(cpu, Kind::End));
            cpu.recorder.end();
            cpu.trace_exits(false);
            RECORDING.fetch_and(!bit, Ordering::AcqRel);
        }
        return;
    }
    if !cpu.recorder.is_on() {
        // With the lock held the trace cannot end before this CPU's bit is set.
        let trace = TRACE.lock();
        let at = RINGS[index].load(Ordering::Acquire);
        if at.is_null() {
            return;
        }
        RECORDING.fetch_or(bit, Ordering::SeqCst);
        drop(trace);
        if !WANTED.load(Ordering::SeqCst) {
            // `stop` ran since, and may have kicked only the CPUs that recorded before.
            RECORDING.fetch_and(!bit, Ordering::AcqRel);
            return;
        }
        // SAFETY: the ring is memory of the trace, which ends only when no CPU records; `fetch` checks that with the trace
        // locked. Nothing refers to it until its bit is set.
        unsafe { Arch::zero(at.cast(), size_of::<Ring>()) };
        CLEAR.fetch_or(bit, Ordering::Release);
        let Some(ring) = ring_of(index) else { return };
        cpu.recorder.begin(ring, &COUNTS[index]);
        cpu.recorder.put(record_of(cpu, Kind::Begin));
    }
    // If another vCPU is loaded before the next exit, this runs once more and sets its vectors.
    if cpu.trace_exits(true)
        && let Some(me) = CpuId::new(cpu.index)
    {
        cpu::request_resched(me);
    }
}

/// The ring of a CPU, once it is clear. The caller has the trace locked, or records on that CPU.
fn ring_of(cpu: usize) -> Option<&'static Ring> {
    if CLEAR.load(Ordering::Acquire) >> cpu & 1 == 0 {
        return None;
    }
    // SAFETY: a ring lives as long as the trace, which ends with the trace locked and only when no CPU records. All
    // accesses to a clear ring are atomic.
    unsafe { RINGS[cpu].load(Ordering::Acquire).as_ref() }
}

/// Creates a record with the current time.
fn record_of(cpu: &Cpu, kind: Kind) -> Record {
    Record { ticks: Arch::now(), vcpu: number(cpu.vcpu), kind }
}

fn number(vcpu: Option<&Vcpu>) -> u16 {
    vcpu.map_or(NO_VCPU, |vcpu| id_of(vcpu.id.vm(), vcpu.id.vcpu()))
}

/// Records an exit that takes the slow path. Called by the recording vectors before the scheduler runs.
#[cfg_attr(target_os = "none", unsafe(no_mangle))]
#[cfg_attr(not(target_os = "none"), allow(dead_code))]
pub extern "C" fn trace_leave(cpu: &Cpu, outcome: Outcome) -> Outcome {
    let row = outcome.row();
    let took = Arch::now().wrapping_sub(cpu.since) as u32;
    trace_ipi(cpu, row.raw().into());
    cpu.recorder.take(cpu.taken);
    let vcpu = number(cpu.vcpu);
    cpu.recorder.left.set(vcpu);
    cpu.recorder.put(Record { ticks: cpu.since, vcpu, kind: Kind::Leave { row: row.raw(), took, why: cpu.leave as u8 } });
    outcome
}

/// Records the entry of the vCPU that the scheduler selected.
#[cfg_attr(target_os = "none", unsafe(no_mangle))]
#[cfg_attr(not(target_os = "none"), allow(dead_code))]
pub extern "C" fn trace_enter(cpu: &Cpu) {
    let on = cpu.recorder.is_on();
    // Vectors depend on the loaded vCPU.
    cpu.trace_exits(on);
    if !on {
        return;
    }
    let vcpu = number(cpu.vcpu);
    let before = if cpu.recorder.left.get() == vcpu { Some(cpu.recorder.before.get()) } else { None };
    inject(cpu, before);
    cpu.recorder.put(Record { ticks: Arch::now(), vcpu, kind: Kind::Enter });
}

/// Records the interrupts that became pending during the exit that is about to end.
#[cfg_attr(target_os = "none", unsafe(no_mangle))]
#[cfg_attr(not(target_os = "none"), allow(dead_code))]
extern "C" fn trace_injections(cpu: &Cpu) {
    inject(cpu, Some(cpu.recorder.before.get()));
}

fn inject(cpu: &Cpu, before: Option<u64>) {
    let (ticks, vcpu) = (Arch::now(), number(cpu.vcpu));
    cpu.became_pending(before, |intid| cpu.recorder.put(Record { ticks, vcpu, kind: Kind::Inject { intid } }));
}

/// Records the interrupt, if any, that the exit of row `row` sent to other vCPUs.
#[cfg_attr(target_os = "none", unsafe(no_mangle))]
#[cfg_attr(not(target_os = "none"), allow(dead_code))]
extern "C" fn trace_ipi(cpu: &Cpu, row: u64) {
    if let Some((intid, targets)) = cpu.sent_ipi(RowId::masked(row as usize)) {
        let parts = targets.into_iter().flat_map(|word| [word as u32, (word >> 32) as u32]);
        for (first, targets) in (0..=u8::MAX).step_by(32).zip(parts).filter(|(_, targets)| *targets != 0) {
            cpu.recorder.put(Record { ticks: cpu.since, vcpu: number(cpu.vcpu), kind: Kind::Ipi { intid, first, targets } });
        }
    }
}

/// Sends a piece of the records, or discards those of one ring, and reports whether there are more. Frees the memory
/// once the trace has ended and the rings are empty.
pub fn fetch(discard: bool) {
    let mut trace = TRACE.lock();
    let Some(current) = trace.as_mut() else {
        drop(trace);
        return console::event(&Event::TraceFetched { more: false, ended: true });
    };
    // Read before the rings: a CPU whose bit is clear has written its last record.
    let recording = RECORDING.load(Ordering::Acquire) != 0 || WANTED.load(Ordering::Acquire);
    // While a CPU records, only that CPU updates its counts.
    let discarded = discard && !recording && current.discard();
    let piece = if discarded { None } else { current.piece() };
    let more = discarded || piece.is_some();
    let ended = !more && !recording;
    let cpus = current.cpus;
    if ended {
        bits(cpus).for_each(|cpu| RINGS[cpu].store(core::ptr::null_mut(), Ordering::Release));
        memory::free(current.memory.clone());
        *trace = None;
        cpu::AT_RESCHED.fetch_sub(1, Ordering::AcqRel);
    }
    // The serial line may be slow.
    drop(trace);
    if let Some(piece) = &piece {
        console::event(piece);
    }
    if ended {
        bits(cpus).map(counts_of).for_each(|event| console::event(&event));
    }
    console::event(&Event::TraceFetched { more, ended });
}

/// Reports the meaning of a row to the operator.
pub fn report_row(vm: u8, vcpu: u8, number: u16) {
    let of = vm::get(usize::from(vm)).and_then(|vm| vm.vcpus.get(usize::from(vcpu)).copied());
    let row = of.zip(RowId::from_raw(number)).and_then(|(vcpu, id)| report::row_of_number(vcpu, id));
    console::event(&Event::TraceRow { vm, vcpu, number, row });
}

fn bits(set: u64) -> impl Iterator<Item = usize> {
    (0..CPUS).filter(move |cpu| set >> cpu & 1 != 0)
}

fn counts_of(cpu: usize) -> Event {
    let of = &COUNTS[cpu % CPUS];
    let [taken, exits, others] = [&of.taken, &of.exits, &of.others].map(|count| count.load(Ordering::Relaxed));
    Event::TraceCpu { cpu: cpu as u8, taken, exits, others }
}

impl Trace {
    /// Returns a piece of the next ring that is not empty.
    fn piece(&mut self) -> Option<Event> {
        for _ in 0..CPUS {
            let cpu = self.turn;
            self.turn = (cpu + 1) % CPUS;
            if self.cpus >> cpu & 1 != 0
                && let Some(piece) = self.piece_of(cpu)
            {
                return Some(piece);
            }
        }
        None
    }

    /// Discards all records of the next ring that is not empty; a ring's size bounds them. Returns false if all are
    /// empty.
    fn discard(&mut self) -> bool {
        for cpu in bits(self.cpus) {
            let Some(ring) = ring_of(cpu) else { continue };
            let side = &mut self.sides[cpu];
            let mut any = false;
            while let Some(words) = ring.0[side.position].take() {
                side.position = stile_trace::next(side.position);
                any = true;
                COUNTS[cpu].count(Record::decode(words));
            }
            if any {
                return true;
            }
        }
        false
    }

    fn piece_of(&mut self, cpu: usize) -> Option<Event> {
        let ring = ring_of(cpu)?;
        let side = &mut self.sides[cpu];
        let mut bytes = heapless::Vec::<u8, { Records::MOST }>::new();
        let first = side.sent;
        while bytes.len() + 16 <= Records::MOST
            && let Some(words) = ring.0[side.position].take()
        {
            side.position = stile_trace::next(side.position);
            side.sent = side.sent.wrapping_add(1);
            bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        }
        (!bytes.is_empty()).then(|| Event::TraceRecords { cpu: cpu as u8, first, records: Records::new(&bytes) })
    }
}
