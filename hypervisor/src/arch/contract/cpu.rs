//! A physical CPU.

use core::sync::atomic::{AtomicUsize, Ordering};

use stile_board::CpuId;
use stile_ledger::{Row, RowId};
use stile_trace::Recorder;

use crate::arch::{Cpu, Identity, Local};
use crate::cpu::{Leave, Loaded};
use crate::vm::Vcpu;

/// Properties in which a board's CPUs may differ.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Kind {
    /// Performance, in a unit of the board's own; 0 if unknown.
    pub capacity: u32,
    /// Features and identification that guests see.
    pub identity: Identity,
}

/// A physical CPU: kicks from other CPUs, its timer, and its loaded vCPU. Methods with `self` run on the CPU itself.
pub trait PhysicalCpu {
    /// Number of the calling CPU, also while its block is borrowed. Constant once it has a block.
    fn this_index() -> usize;

    /// The CPU's kind. Called once, before the CPU comes online.
    fn kind(&self) -> Kind;

    /// Stores a value other than 0, by which [`PhysicalCpu::of_mark`] finds this CPU, with release ordering; then does
    /// [`PhysicalCpu::complete_stores`]. Takes no more instructions than with a constant.
    fn mark(place: &AtomicUsize) {
        place.store(1, Ordering::Release);
        Self::complete_stores();
    }

    /// The CPU that stored a mark, for traces; `None` if the mark does not tell.
    fn of_mark(_mark: usize) -> Option<CpuId> {
        None
    }

    /// Orders earlier stores before later loads. A caller of [`PhysicalCpu::kick`] determines the target in between.
    fn complete_stores();

    /// Makes a CPU leave its guest or its wait; if it is in Stile, at its next entry or wait. To be called after
    /// [`PhysicalCpu::complete_stores`].
    fn kick(index: usize);

    /// Kicks a CPU, even if its guest has direct interrupts. Not for the exit path.
    fn regain(index: usize) {
        Self::kick(index);
    }

    /// Whether CPU `index` holds no reference to a VM except that of its loaded vCPU, and obtains none before it
    /// responds to a kick. True while a guest has direct interrupts, so that the CPU may never respond. False is
    /// always allowed.
    fn is_confined(_index: usize) -> bool {
        false
    }

    /// Enters the guest of the loaded vCPU, which is published. Called once per CPU; exits return through `exit.S`.
    fn enter(&mut self) -> !;

    /// Sets the CPU's timer, in ticks of the counter, or disables it. A past time expires immediately. The handler of
    /// its interrupt leaves the vCPU for [`Leave::Timer`].
    fn set_deadline(&mut self, deadline: Option<u64>);

    /// Handles interrupts that ended a wait: called after [`Host::wait_for_interrupt`](super::Host), with no vCPU
    /// running.
    fn idle_interrupt(&mut self);

    /// Takes pending interrupts while Stile works for the loaded vCPU without having entered it.
    fn poll_interrupts(&mut self);

    /// Loads a vCPU's registers and interrupt state. The scheduler gave it to the CPU, which has none loaded. The
    /// block's `vcpu` and `rows` are already set. `switched`: another vCPU was put for it just now, so that the CPU's
    /// state may differ from that after the last `load`.
    fn load(&mut self, vcpu: &'static Vcpu, switched: bool);

    /// [`PhysicalCpu::load`] of a vCPU whose VM had another one loaded, which was put for it just now.
    #[inline(always)]
    fn load_beside(&mut self, vcpu: &'static Vcpu) {
        self.load(vcpu, true);
    }

    /// Saves the registers and interrupt state of the loaded vCPU, so that another CPU can load it once the schedule
    /// is unlocked. If it `sleeps`, returns the next expiry of its timers: 0 if an interrupt is pending. The schedule
    /// is locked.
    fn put(&mut self, vcpu: Loaded<'static>, sleeps: bool) -> Option<u64>;

    /// Drops the registers of the loaded vCPU, which is off, except what a later start keeps; pending interrupts are
    /// kept. The schedule is locked.
    fn power_down(&mut self, vcpu: Loaded<'static>);

    /// Does what remains of a [`put`](Self::put) or [`power_down`](Self::power_down), with the schedule unlocked.
    #[inline(always)]
    fn finish_put(&mut self) {}

    /// Drops state of VMs of which no vCPU is loaded: one of them is being retired, and its memory and number will be
    /// reused.
    fn forget_vms(&self);

    /// Delivers pending events to the loaded vCPU, which is published: a CPU that adds an interrupt from now on
    /// kicks. Returns false if the vCPU keeps waiting because its wake-up was spurious; always true where a wait may
    /// wake spuriously (Arm's WFI).
    fn take_interrupts(&mut self) -> bool;

    /// Whether a pending interrupt would end the loaded vCPU's wait. The vCPU is not published.
    fn interrupt_pending(&mut self) -> bool;

    /// Selects whether waiting instructions of the loaded vCPU exit, which they must while others want this CPU.
    /// Instructions that always exit are unaffected.
    fn trap_waiting(&mut self, on: bool);

    /// Selects the recording or the ordinary exit path for the loaded vCPU. Returns whether that changed. Not for the
    /// exit path.
    fn trace_exits(&self, on: bool) -> bool;

    /// Time at which the loaded vCPU's timer will interrupt it, as far as a load or put need not know better: for the trace of a vCPU
    /// that waits. For a recording CPU.
    fn timer_expiry(&mut self) -> Option<u64>;

    /// Calls `each` for interrupts that are pending for the loaded vCPU, as far as its exit path delivers them, and
    /// were not pending in the state [`before`](Recorder::before), if given. For a recording CPU.
    fn became_pending(&self, before: Option<u64>, each: impl FnMut(u32));

    /// The interrupt, if any, that the exit being handled, of this row of the ledger, sent to other vCPUs: its
    /// number, and the set of targets. For a recording CPU.
    fn sent_ipi(&self, row: RowId) -> Option<(u16, [u64; stile_board::VCPU_WORDS])>;

    /// Initializes a secondary CPU, on its own stack, with its block. The error describes why it cannot be used.
    #[cfg(target_os = "none")]
    fn join(&mut self) -> Result<(), &'static str>;
}

/// Fields of a CPU's block that code outside the back end uses. All-zero is a valid block, except for `local`.
#[allow(dead_code, reason = "it is compiled, not called: it checks the fields' types")]
pub fn fields(cpu: &mut Cpu) {
    /// CPU number.
    fn index(_: &mut usize) {}
    /// Words that are accessed while the block is borrowed.
    fn local(_: &mut Option<&'static Local>) {}
    /// The loaded vCPU.
    fn vcpu(_: &mut Option<&'static Vcpu>) {}
    /// Reason for leaving the vCPU; set before an outcome that leaves it.
    fn leave(_: &mut Leave) {}
    /// End of the running vCPU's slice, if the CPU is shared; and the timer's setting. In ticks.
    fn ticks(_: &mut Option<u64>) {}
    /// Argument of the last [`PhysicalCpu::trap_waiting`].
    fn trapped(_: &mut bool) {}
    /// Counter at the exit being handled; exits that `exit.S` counted since the ledger was settled.
    fn counts(_: &mut u64) {}
    /// Recorder of a trace.
    fn recorder(_: &mut Recorder) {}
    /// Rows of the loaded vCPU's ledger, which `exit.S` writes to.
    fn rows(_: &mut *mut Row) {}
    index(&mut cpu.index);
    local(&mut cpu.local);
    vcpu(&mut cpu.vcpu);
    leave(&mut cpu.leave);
    ticks(&mut cpu.slice_end);
    ticks(&mut cpu.deadline);
    trapped(&mut cpu.waiting_trapped);
    counts(&mut cpu.since);
    counts(&mut cpu.taken);
    rows(&mut cpu.rows);
    recorder(&mut cpu.recorder);
}
