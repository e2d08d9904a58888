//! A CPU's block, and what a CPU does.

use std::cell::Cell;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use stile_ledger::{Row, RowId};
use stile_sched::VcpuId;
use stile_trace::Recorder;

use super::Arch;
use super::vcpu::RESET;
use crate::arch::contract::{Counter, Kind, PhysicalCpu};
use crate::cpu::{self, Leave, Loaded, Pace};
use crate::vm;

/// A CPU's block.
pub struct Cpu {
    pub index: usize,
    pub local: Option<&'static Local>,
    pub vcpu: Option<&'static vm::Vcpu>,
    pub leave: Leave,
    pub slice_end: Option<u64>,
    pub deadline: Option<u64>,
    pub pace: Pace,
    pub woken: Option<(VcpuId, u64)>,
    pub waiting_trapped: bool,
    pub since: u64,
    /// Register of the loaded vCPU.
    pub register: u64,
    pub rows: *mut Row,
    pub taken: u64,
    pub recorder: Recorder,
    /// Recording is on.
    pub traced: Cell<bool>,
}

/// The CPUs are alike.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identity;

/// Words behind a CPU's block: unused.
pub struct Local;

impl Local {
    pub const fn new(_index: usize) -> Local {
        Local
    }
}

impl Cpu {
    pub fn new(index: usize) -> Cpu {
        Cpu {
            index,
            local: None,
            vcpu: None,
            leave: Leave::Resched,
            slice_end: None,
            deadline: None,
            pace: Pace::new(),
            woken: None,
            waiting_trapped: false,
            since: 0,
            register: 0,
            rows: std::ptr::null_mut(),
            taken: 0,
            recorder: Recorder::new(),
            traced: Cell::new(false),
        }
    }

    /// Counts an exit, as the vectors would.
    pub fn exit(&mut self) {
        self.taken += 1;
        self.since = Arch::now();
    }
}

/// CPUs with an untaken kick.
static KICKED: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// Bit mask of [confined](PhysicalCpu::is_confined) CPUs.
pub static CONFINED: AtomicU64 = AtomicU64::new(0);

impl PhysicalCpu for Cpu {
    fn this_index() -> usize {
        0
    }

    fn kind(&self) -> Kind {
        Kind { capacity: 0, identity: Identity }
    }

    fn complete_stores() {}

    fn kick(index: usize) {
        KICKED.lock().unwrap().push(index);
    }

    fn is_confined(index: usize) -> bool {
        CONFINED.load(Ordering::Relaxed) >> index & 1 != 0
    }

    fn enter(&mut self) -> ! {
        unreachable!("the fake architecture has no guests to enter")
    }

    fn set_deadline(&mut self, _deadline: Option<u64>) {}

    fn idle_interrupt(&mut self) {
        KICKED.lock().unwrap().retain(|&index| index != self.index);
        cpu::take_resched(self);
    }

    fn poll_interrupts(&mut self) {
        RESET.store(0, Ordering::Relaxed);
    }

    fn load(&mut self, vcpu: &'static vm::Vcpu, _switched: bool) {
        let before = vcpu.arch.loaded.lock().unwrap().replace(self.index);
        assert_eq!(before, None, "loaded on two CPUs");
        self.register = vcpu.arch.saved.load(Ordering::Relaxed);
    }

    fn put(&mut self, vcpu: Loaded<'static>, sleeps: bool) -> Option<u64> {
        let saved = &vcpu.vcpu().arch.saved;
        self.power_down(vcpu);
        saved.store(self.register, Ordering::Relaxed);
        // Some guests have set a timer.
        (sleeps && (self.register >> 8).is_multiple_of(4)).then(|| Arch::now() + 200_000)
    }

    fn power_down(&mut self, vcpu: Loaded<'static>) {
        let before = vcpu.vcpu().arch.loaded.lock().unwrap().take();
        assert_eq!(before, Some(self.index), "put where it was not loaded");
    }

    fn forget_vms(&self) {}

    /// Some spurious wake-ups do not end the wait.
    fn take_interrupts(&mut self) -> bool {
        static WAKES: AtomicU64 = AtomicU64::new(0);
        self.vcpu().arch.pending.swap(false, Ordering::Relaxed) || !WAKES.fetch_add(1, Ordering::Relaxed).is_multiple_of(7)
    }

    fn interrupt_pending(&mut self) -> bool {
        self.vcpu().arch.pending.load(Ordering::Relaxed)
    }

    fn trap_waiting(&mut self, _on: bool) {}

    fn trace_exits(&self, on: bool) -> bool {
        self.traced.replace(on) != on
    }

    fn timer_expiry(&mut self) -> Option<u64> {
        Some(Arch::now() + 1)
    }

    /// Its number is the row's.
    fn sent_ipi(&self, row: RowId) -> Option<(u16, [u64; stile_board::VCPU_WORDS])> {
        (row.raw() == 7).then_some((7, core::array::from_fn(|word| u64::from(word == 0))))
    }

    fn became_pending(&self, before: Option<u64>, mut each: impl FnMut(u32)) {
        if before != Some(0) {
            each(5);
        }
    }
}
