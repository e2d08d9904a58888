//! The end of a trace: a CPU that records hears of it, and its ring lives until it has (`trace.rs`).

use std::cell::Cell;

use loom::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering, fence};
use loom::thread;

use super::lock::TicketLock;
use super::{Watched, model};

const MAX_CPUS: usize = 2;

/// A CPU's ring: each record is an access.
type Ring = Watched;

struct Counts;

static COUNTS: [Counts; MAX_CPUS] = [Counts, Counts];

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

struct CpuId;

impl CpuId {
    fn new(_: usize) -> Option<CpuId> {
        Some(CpuId)
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
    static ref CLEAR: AtomicU64 = AtomicU64::new(0);
    static ref WANTED: AtomicBool = AtomicBool::new(true);
    static ref RECORDING: AtomicU64 = AtomicU64::new(0);
    static ref RINGS: [AtomicPtr<Ring>; MAX_CPUS] = core::array::from_fn(|_| AtomicPtr::new(core::ptr::null_mut()));
    static ref TRACE: TicketLock<()> = TicketLock::new(());
    /// Requests to reschedule.
    static ref REQUESTED: AtomicU64 = AtomicU64::new(0);
    static ref MEMORY: Ring = Watched::new(0);
}

fn request_pass(cpus: u64) {
    REQUESTED.fetch_or(cpus, Ordering::AcqRel);
}

include!(concat!(env!("OUT_DIR"), "/trace_stop.rs"));
include!(concat!(env!("OUT_DIR"), "/trace_pass.rs"));

/// As `fetch` with empty rings. Returns whether the trace ended.
fn fetch() -> bool {
    let _trace = TRACE.lock();
    let ended = RECORDING.load(Ordering::Acquire) == 0 && !WANTED.load(Ordering::Acquire);
    if ended {
        RINGS[1].store(core::ptr::null_mut(), Ordering::Release);
        MEMORY.add(1);
    }
    ended
}

#[test]
fn a_trace_ends_when_no_cpu_records() {
    model(3, || {
        let ring: *const Ring = &*MEMORY;
        RINGS[1].store(ring.cast_mut(), Ordering::Release);
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
        assert_eq!(RECORDING.load(Ordering::Acquire), u64::from(records) << 1);
    });
}
