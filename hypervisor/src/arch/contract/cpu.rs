//! A physical CPU.

use stile_ledger::{Row, RowId};
use stile_trace::Recorder;

use crate::arch::{Cpu, Local};
use crate::cpu::{Leave, Loaded};
use crate::vm::Vcpu;

/// A physical CPU: how others reach it, its timer, and the vCPU that it has loaded. Methods with `self` run on the CPU itself.
pub trait PhysicalCpu {
    /// Number of the CPU that asks, also while its block is borrowed. Constant from the moment that it has a block.
    fn this_index() -> usize;

    /// Completes stores before loads that follow: a caller of [`PhysicalCpu::kick`] looks whom to kick in
    /// between.
    fn complete_stores();

    /// Makes a CPU leave its guest or its wait, now or, if it is in Stile, at its next entry or wait. After [`PhysicalCpu::complete_stores`].
    fn kick(index: usize);

    /// Kicks a CPU, also where the guest has the CPU's interrupts to itself. Not for the exit path.
    fn regain(index: usize) {
        Self::kick(index);
    }

    /// Whether CPU `index` has no reference to a VM but to that of the vCPU that it has loaded, and gets none before it answers a kick. True while
    /// a guest has the CPU's interrupts to itself, so that it may never answer. False is always right.
    fn is_confined(_index: usize) -> bool {
        false
    }

    /// Enters the guest of the vCPU that is loaded, which was published. Called once on each CPU; exits come back by way of `exit.S`.
    fn enter(&mut self) -> !;

    /// Sets the CPU's timer, in ticks of the counter, or turns it off. A time that has passed rings at once. The handler of its interrupt leaves
    /// the vCPU for [`Leave::Timer`].
    fn set_deadline(&mut self, deadline: Option<u64>);

    /// Does what the interrupts ask for that ended a wait: called after [`Host::wait_for_interrupt`](super::Host), with no vCPU running.
    fn idle_interrupt(&mut self);

    /// Takes interrupts that are pending, while Stile works for the vCPU that is loaded and has not entered it.
    fn poll_interrupts(&mut self);

    /// Loads a vCPU's registers and interrupts; the CPU has none loaded, and the scheduler gave it this one. The block's `vcpu` and `rows` are set
    /// already. `switched`: another one was put for it just now, so that nothing of the CPU's state is known to be as the last `load` left it.
    fn load(&mut self, vcpu: &'static Vcpu, switched: bool);

    /// Saves the registers and interrupts of the vCPU that is loaded, so that another CPU can load it when the schedule is unlocked. If it `sleeps`,
    /// returns when its timers ring next: 0, if an interrupt is pending. The schedule is locked.
    fn put(&mut self, vcpu: Loaded<'static>, sleeps: bool) -> Option<u64>;

    /// Forgets the registers of the vCPU that is loaded, which is off now; interrupts that are pending stay where a later start finds them. The
    /// schedule is locked.
    fn power_down(&mut self, vcpu: Loaded<'static>);

    /// Forgets what it remembers of VMs of which it has no vCPU loaded: one of them is gone, and its memory and its number become others'.
    fn forget_vms(&self);

    /// Gives the loaded vCPU what waits for it. The vCPU is published: who adds an interrupt from now on kicks. False if it waits on, because
    /// nothing that ended its wait was for the guest; where a wait may end for nothing (Arm's WFI), always true.
    fn take_interrupts(&mut self) -> bool;

    /// Whether an interrupt is pending that would end the loaded vCPU's wait. The vCPU is not published.
    fn interrupt_pending(&mut self) -> bool;

    /// Chooses whether the loaded vCPU exits as it waits: it must, if others want this CPU. What of this the architecture can do without is left
    /// out.
    fn trap_waiting(&mut self, on: bool);

    /// Chooses the exit path for what is loaded: the one that records exits, or the ordinary one. Returns whether that changed. Not for the
    /// exit path.
    fn trace_exits(&self, on: bool) -> bool;

    /// Calls `each` for the interrupts that are pending for the loaded vCPU, as far as its exit path delivers them, and were not when its state
    /// was [`before`](Recorder::before); or for all of them. For a CPU that records.
    fn became_pending(&self, before: Option<u64>, each: impl FnMut(u32));

    /// The interrupt that the loaded vCPU sent to others by the exit being handled, of this row of the ledger: its number, and a bit for each
    /// vCPU. For a CPU that records.
    fn sent_ipi(&self, row: RowId) -> Option<(u16, u64)>;

    /// Starts to be usable: a CPU other than the first, on its own stack, with its block. Errors say, in words, why it can't be used.
    #[cfg(target_os = "none")]
    fn join(&mut self) -> Result<(), &'static str>;
}

/// The fields of a CPU's block that code outside of the back end uses. All-zero is a valid block, but for `local`.
#[allow(dead_code, reason = "it is compiled, not called: it checks the fields' types")]
pub fn fields(cpu: &mut Cpu) {
    /// Number of the CPU.
    fn index(_: &mut usize) {}
    /// Words that are read while the block is borrowed.
    fn local(_: &mut Option<&'static Local>) {}
    /// The vCPU that is loaded.
    fn vcpu(_: &mut Option<&'static Vcpu>) {}
    /// Why the vCPU is to be left; set before an outcome that leaves it.
    fn leave(_: &mut Leave) {}
    /// When the slice of the vCPU that runs ends, if the CPU is shared now; and what the timer is set to. In ticks.
    fn ticks(_: &mut Option<u64>) {}
    /// Argument of the last [`PhysicalCpu::trap_waiting`].
    fn trapped(_: &mut bool) {}
    /// The counter at the exit being handled; the exits that `exit.S` counted since the ledger was settled.
    fn counts(_: &mut u64) {}
    /// Where a trace's records go.
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
