//! The end of a trace: a CPU that records hears of it, and its ring lives until it has (`trace.rs`).

use std::cell::Cell;

use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use loom::thread;

use super::lock::TicketLock;
use super::{Watched, model};

/// A CPU's ring: each record is an access.
type Ring = Watched;

struct Counts;

struct Side {
    counts: Counts,
}

static SIDE: Side = Side { counts: Counts };

struct Trace;

impl Trace {
    fn place_of(&self, _: CpuId) -> Option<(*mut Ring, *mut Side)> {
        let ring: *const Ring = &*MEMORY;
        Some((ring.cast_mut(), (&raw const SIDE).cast_mut()))
    }
}

enum Kind {
    Begin,
    End,
}

#[derive(Default)]
struct Recorder(Cell<Option<&'static Ring>>);

impl Recorder {
    fn is_on(&self) -> bool {
        self.0.get().is_some()
    }

    fn begin(&self, ring: &'static Ring, _: &Counts) {
        self.0.set(Some(ring));
    }

    fn end(&self) {
        self.0.set(None);
    }

    fn put(&self, _: Kind) {
        self.0.get().expect("recording").add(1);
    }
}

struct Cpu {
    index: usize,
    recorder: Recorder,
}

impl Cpu {
    fn trace_exits(&self, _: bool) -> bool {
        false
    }
}

fn record_of(_: &Cpu, kind: Kind) -> Kind {
    kind
}

#[derive(Clone, Copy)]
struct CpuId(usize);

impl CpuId {
    const fn wrapping(number: usize) -> CpuId {
        CpuId(number)
    }
}

#[derive(Default)]
struct SharedSet(AtomicU64);

impl SharedSet {
    fn set(&self, cpu: CpuId, member: bool) {
        if member {
            self.0.fetch_or(1 << cpu.0, Ordering::SeqCst);
        } else {
            self.0.fetch_and(!(1 << cpu.0), Ordering::SeqCst);
        }
    }

    fn load(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

mod cpu {
    pub fn request_resched(_: super::CpuId) {}
}

struct Arch;

impl Arch {
    /// Its ring has no content.
    unsafe fn zero(_: *mut u8, _: usize) {}
}

loom::lazy_static! {
    static ref CLEAR: SharedSet = SharedSet::default();
    static ref WANTED: AtomicBool = AtomicBool::new(true);
    static ref RECORDING: SharedSet = SharedSet::default();
    static ref TRACE: TicketLock<Option<Trace>> = TicketLock::new(Some(Trace));
    /// Requests to reschedule.
    static ref REQUESTED: AtomicU64 = AtomicU64::new(0);
    static ref MEMORY: Ring = Watched::new(0);
}

fn request_pass(cpus: &u64) {
    REQUESTED.fetch_or(*cpus, Ordering::AcqRel);
}

include!(concat!(env!("OUT_DIR"), "/trace_stop.rs"));
include!(concat!(env!("OUT_DIR"), "/trace_pass.rs"));

/// As `fetch` with empty rings. Returns whether the trace ended.
fn fetch() -> bool {
    let mut trace = TRACE.lock();
    let ended = RECORDING.load() == 0 && !WANTED.load(Ordering::Acquire);
    if ended {
        *trace = None;
        MEMORY.add(1);
    }
    ended
}

#[test]
fn a_trace_ends_when_no_cpu_records() {
    model(3, || {
        let thread = thread::spawn(|| {
            // It was asked at the start of the trace.
            let cpu = Cpu { index: 1, recorder: Recorder::default() };
            pass(&cpu);
            if REQUESTED.swap(0, Ordering::AcqRel) != 0 {
                pass(&cpu);
            }
            cpu.recorder.is_on()
        });
        stop();
        let ended = fetch();
        let records = thread.join().unwrap();
        assert!(!(ended && records), "the ring of a CPU that records was freed");
        assert!(!records || REQUESTED.load(Ordering::Acquire) == 1 << 1, "a CPU records for ever");
        assert_eq!(RECORDING.load(), u64::from(records) << 1);
    });
}
