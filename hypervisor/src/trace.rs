//! Traces: each CPU records its exits and entries in a ring, which the operator drains.
//!
//! A recording CPU uses other vectors ([`PhysicalCpu::trace_exits`]): an exit path that records each exit, and calls
//! the functions of this module when the scheduler runs, an interrupt becomes pending, or one is sent. The ordinary
//! path contains none of it. A CPU switches vectors when it takes a reschedule request.

use core::fmt;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use stile_board::{CPU_WORDS, CpuId, CpuSet};
use stile_ledger::RowId;
use stile_lock::TicketLock;
use stile_paging::PAGE_SIZE;
use stile_sched::VcpuId;
use stile_trace::{Counts, Kind, NO_VCPU, Record, Ring, TICKS_MASK, id_of};
use stile_wire::{Event, Records};

use crate::arch::contract::{Counter, Host, PhysicalCpu};
use crate::arch::{Arch, Cpu};
use crate::cpu::{self, Leave, Outcome, SCHEDULE};
use crate::vm::Vcpu;
use crate::{console, memory, report, vm};

/// The operator requested a trace: CPUs record, or will.
static WANTED: AtomicBool = AtomicBool::new(false);
/// CPUs whose rings are clear: each CPU clears its own before it records.
static CLEAR: SharedSet = SharedSet::new();
/// Recording CPUs.
static RECORDING: SharedSet = SharedSet::new();

/// State of the operator's side.
static TRACE: TicketLock<Option<Trace>> = TicketLock::new(None);

/// A set of CPUs to which each adds itself.
struct SharedSet([AtomicU64; CPU_WORDS]);

impl SharedSet {
    const fn new() -> SharedSet {
        SharedSet([const { AtomicU64::new(0) }; CPU_WORDS])
    }

    /// Adds or removes a CPU.
    fn set(&self, cpu: CpuId, member: bool) {
        let (word, bit) = (&self.0[cpu.index() / 64], 1 << (cpu.index() % 64));
        if member {
            word.fetch_or(bit, Ordering::SeqCst);
        } else {
            word.fetch_and(!bit, Ordering::SeqCst);
        }
    }

    fn load(&self) -> CpuSet {
        CpuSet::from_words(self.0.each_ref().map(|word| word.load(Ordering::SeqCst)))
    }

    fn contains(&self, cpu: CpuId) -> bool {
        self.0[cpu.index() / 64].load(Ordering::SeqCst) >> (cpu.index() % 64) & 1 != 0
    }

    fn clear(&self) {
        self.0.iter().for_each(|word| word.store(0, Ordering::SeqCst));
    }
}

/// The rings, and the progress of their transmission.
struct Trace {
    /// Tag of the command that started the trace.
    tag: u32,
    /// A ring for each CPU, in their order, and behind them a [`Side`] for each.
    memory: Range<u64>,
    cpus: CpuSet,
    /// The CPU whose ring was drained last.
    turn: CpuId,
    /// Number of CPUs whose counts were sent.
    reported: usize,
}

/// Counts of a CPU, and the progress of its ring's transmission, which is the operator's side's.
#[derive(Debug, Default)]
struct Side {
    counts: Counts,
    /// Next slot to read.
    position: AtomicU32,
    /// Number of records sent.
    sent: AtomicU32,
}

/// Bytes of the memory of a trace of this many CPUs.
pub const fn size(cpus: usize) -> u64 {
    (cpus * size_of::<Ring>()) as u64 + ((cpus * size_of::<Side>()) as u64).next_multiple_of(PAGE_SIZE)
}

// The exit path writes the vCPU's number as it is laid out in memory.
const _: () = assert!(size_of::<VcpuId>() == 2 && stile_board::MAX_VCPUS == 256);

/// Makes CPUs check for a trace when they take a reschedule request.
pub fn setup() {
    cpu::TRACE_HOOK.set(taken);
}

/// Starts a trace for the operator.
pub fn start(tag: u32) {
    match try_start(tag) {
        Ok(cpus) => {
            console::event(&Event::TraceStarted { tag, hz: Arch::frequency(), now: Arch::now(), cpus: *cpus.words() });
            request_pass(&cpus);
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

fn try_start(tag: u32) -> Result<CpuSet, Refusal> {
    let mut trace = TRACE.lock();
    if let Some(trace) = trace.as_ref() {
        // A retry: the first answer was lost.
        return if trace.tag == tag { Ok(trace.cpus) } else { Err(Refusal::Traced) };
    }
    if vm::all().any(|vm: &vm::Vm| vm.techniques.ablate.is_some()) {
        return Err(Refusal::Ablates);
    }
    let cpus = SCHEDULE.online();
    let size = size(cpus.len());
    let memory = memory::take_aligned(size, align_of::<Ring>() as u64).ok_or(Refusal::NoMemory(size))?;
    let started = Trace { tag, memory, cpus, turn: CpuId::BOOT, reported: 0 };
    CLEAR.clear();
    let sides = started.side_at(0);
    // SAFETY: the memory was just allocated, so that nothing refers to it.
    unsafe { Arch::zero(sides.cast(), cpus.len() * size_of::<Side>()) };
    *trace = Some(started);
    cpu::AT_RESCHED.fetch_add(1, Ordering::AcqRel);
    WANTED.store(true, Ordering::Release);
    Ok(cpus)
}

/// Requests a reschedule of `cpus`, so that they check for the trace.
fn request_pass(cpus: &CpuSet) {
    cpus.iter().for_each(cpu::request_resched);
}

/// Stops recording for the operator. Remaining records stay in the rings until they are fetched.
pub fn stop() {
    // Sequentially consistent, as in `pass`: either this CPU sees the other one's bit, or the other one sees that
    // `WANTED` is clear.
    if WANTED.swap(false, Ordering::SeqCst) {
        request_pass(&RECORDING.load());
    }
}

/// Called when this CPU takes a reschedule request, with its sender.
fn taken(cpu: &Cpu, sender: Option<CpuId>) {
    if let Some(from) = sender.filter(|sender| sender.index() != cpu.index) {
        // A CPU that does not record writes nothing.
        cpu.recorder.put(record_of(cpu, Kind::Kick { from: from.index() as u16 }));
    }
    pass(cpu);
}

/// Starts or stops recording on this CPU.
fn pass(cpu: &Cpu) {
    let me = CpuId::wrapping(cpu.index);
    if !WANTED.load(Ordering::Acquire) {
        if cpu.recorder.is_on() {
            cpu.recorder.put(record_of(cpu, Kind::End));
            cpu.recorder.end();
            cpu.trace_exits(false);
            RECORDING.set(me, false);
        }
        return;
    }
    if !cpu.recorder.is_on() {
        // With the lock held the trace cannot end before this CPU's bit is set.
        let trace = TRACE.lock();
        let Some((ring, side)) = trace.as_ref().and_then(|trace| trace.place_of(me)) else { return };
        RECORDING.set(me, true);
        drop(trace);
        if !WANTED.load(Ordering::SeqCst) {
            // `stop` ran since, and may have kicked only the CPUs that recorded before.
            RECORDING.set(me, false);
            return;
        }
        // SAFETY: the ring is memory of the trace, which ends only when no CPU records; `fetch` checks that with the trace
        // locked. Nothing refers to it until its bit is set.
        unsafe { Arch::zero(ring.cast(), size_of::<Ring>()) };
        CLEAR.set(me, true);
        // SAFETY: as above; from now on all accesses are atomic. `try_start` has cleared the side.
        let (ring, side) = unsafe { (&*ring, &*side) };
        cpu.recorder.begin(ring, &side.counts);
        cpu.recorder.put(record_of(cpu, Kind::Begin));
    }
    // If another vCPU is loaded before the next exit, this runs once more and sets its vectors.
    if cpu.trace_exits(true) {
        cpu::request_resched(me);
    }
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
pub extern "C" fn trace_leave(cpu: &mut Cpu, outcome: Outcome) -> Outcome {
    let row = outcome.row();
    let took = Arch::now().wrapping_sub(cpu.since) as u32;
    trace_ipi(cpu, row.raw().into());
    cpu.recorder.take(cpu.taken);
    let vcpu = number(cpu.vcpu);
    cpu.recorder.left.set(vcpu);
    if cpu.leave == Leave::Wait
        && let Some(at) = cpu.timer_expiry()
        // Later ones look like earlier ones.
        && at.wrapping_sub(cpu.since) < TICKS_MASK / 2
    {
        cpu.recorder.put(Record { ticks: at, vcpu, kind: Kind::Timer });
    }
    cpu.recorder.put(Record { ticks: cpu.since, vcpu, kind: Kind::Leave { row: row.raw(), took, why: cpu.leave as u8 } });
    outcome
}

/// Records the entry of the vCPU that the scheduler selected.
#[cfg_attr(target_os = "none", unsafe(no_mangle))]
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
extern "C" fn trace_injections(cpu: &Cpu) {
    inject(cpu, Some(cpu.recorder.before.get()));
}

fn inject(cpu: &Cpu, before: Option<u64>) {
    let (ticks, vcpu) = (Arch::now(), number(cpu.vcpu));
    cpu.became_pending(before, |intid| cpu.recorder.put(Record { ticks, vcpu, kind: Kind::Inject { intid } }));
}

/// Records the interrupt, if any, that the exit of row `row` sent to other vCPUs.
#[cfg_attr(target_os = "none", unsafe(no_mangle))]
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
    let recording = !RECORDING.load().is_empty() || WANTED.load(Ordering::Acquire);
    // While a CPU records, only that CPU updates its counts.
    let discarded = discard && !recording && current.discard();
    let piece = if discarded { None } else { current.piece() };
    let counts = if recording || discarded || piece.is_some() { heapless::Vec::new() } else { current.counts() };
    let more = discarded || piece.is_some() || !counts.is_empty();
    let ended = !more && !recording;
    if ended {
        memory::free(current.memory.clone());
        *trace = None;
        cpu::AT_RESCHED.fetch_sub(1, Ordering::AcqRel);
    }
    // The serial line may be slow.
    drop(trace);
    if let Some(piece) = &piece {
        console::event(piece);
    }
    for (cpu, [taken, exits, others]) in counts {
        console::event(&Event::TraceCpu { cpu, taken, exits, others });
    }
    console::event(&Event::TraceFetched { more, ended });
}

/// Reports the meaning of a row to the operator.
pub fn report_row(vm: u8, vcpu: u8, number: u16) {
    let of = vm::get(usize::from(vm)).and_then(|vm| vm.vcpus.get(usize::from(vcpu)).copied());
    let row = of.zip(RowId::from_raw(number)).and_then(|(vcpu, id)| report::row_of_number(vcpu, id));
    console::event(&Event::TraceRow { vm, vcpu, number, row });
}

/// Number of CPUs whose counts one fetch sends.
const COUNTS: usize = 16;

impl Trace {
    fn side_at(&self, number: usize) -> *mut Side {
        let rings = self.cpus.len() * size_of::<Ring>();
        Arch::physical(self.memory.start + rings as u64).cast::<Side>().wrapping_add(number)
    }

    /// The memory of a CPU, if it has any.
    fn place_of(&self, cpu: CpuId) -> Option<(*mut Ring, *mut Side)> {
        let number = self.cpus.rank(cpu)?;
        let ring = Arch::physical(self.memory.start + (number * size_of::<Ring>()) as u64).cast::<Ring>();
        Some((ring, self.side_at(number)))
    }

    fn side(&self, cpu: CpuId) -> Option<&Side> {
        // SAFETY: the memory is that of the trace, which lives as long as this value, and `try_start` has cleared its sides. All
        // accesses are atomic.
        unsafe { self.place_of(cpu)?.1.as_ref() }
    }

    /// The ring of a CPU, once it is clear.
    fn ring(&self, cpu: CpuId) -> Option<&Ring> {
        if !CLEAR.contains(cpu) {
            return None;
        }
        // SAFETY: as in `side`; the CPU has cleared its ring.
        unsafe { self.place_of(cpu)?.0.as_ref() }
    }

    /// Returns a piece of the next ring that is not empty.
    fn piece(&mut self) -> Option<Event> {
        let (cpu, piece) = self.cpus.iter_after(self.turn).find_map(|cpu| Some((cpu, self.piece_of(cpu)?)))?;
        self.turn = cpu;
        Some(piece)
    }

    /// Discards all records of the next ring that is not empty; a ring's size bounds them. Returns false if all are
    /// empty.
    fn discard(&self) -> bool {
        for cpu in self.cpus.iter() {
            let (Some(ring), Some(side)) = (self.ring(cpu), self.side(cpu)) else { continue };
            let mut any = false;
            while let Some(words) = side.take(ring) {
                any = true;
                side.counts.count(Record::decode(words));
            }
            if any {
                return true;
            }
        }
        false
    }

    fn piece_of(&self, cpu: CpuId) -> Option<Event> {
        let (ring, side) = (self.ring(cpu)?, self.side(cpu)?);
        let mut bytes = heapless::Vec::<u8, { Records::MOST }>::new();
        let first = side.sent.load(Ordering::Relaxed);
        while bytes.len() + 16 <= Records::MOST
            && let Some(words) = side.take(ring)
        {
            bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        }
        side.sent.store(first.wrapping_add((bytes.len() / 16) as u32), Ordering::Relaxed);
        (!bytes.is_empty()).then(|| Event::TraceRecords { cpu: cpu.index() as u16, first, records: Records::new(&bytes) })
    }

    /// The counts of some CPUs that were not sent yet; of none at the end.
    fn counts(&mut self) -> heapless::Vec<(u16, [u64; 3]), COUNTS> {
        let mut counts = heapless::Vec::new();
        for cpu in self.cpus.iter().skip(self.reported).take(COUNTS) {
            let Some(Side { counts: of, .. }) = self.side(cpu) else { continue };
            let numbers = [&of.taken, &of.exits, &of.others].map(|count| count.load(Ordering::Relaxed));
            let _ = counts.push((cpu.index() as u16, numbers));
        }
        self.reported += counts.len();
        counts
    }
}

impl Side {
    /// Takes the next record, if there is one.
    fn take(&self, ring: &Ring) -> Option<[u64; 2]> {
        let position = self.position.load(Ordering::Relaxed) as usize;
        let words = ring.0.get(position)?.take()?;
        self.position.store(stile_trace::next(position) as u32, Ordering::Relaxed);
        Some(words)
    }
}
