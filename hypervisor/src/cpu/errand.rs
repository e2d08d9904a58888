//! Errands: work of Stile's that a vCPU does before it enters its guest ([`power::run_errand`]). The vCPU is
//! scheduled and charged for it as for guest time.

use stile_sched::{Locked, Switch};

use super::expiry;
use super::resched::take_resched;
use super::schedule::{SCHEDULE, id, slice_is_over};
use super::wake::wake_sleepers;
use crate::arch::contract::{Counter, PhysicalCpu};
use crate::arch::{Arch, Cpu};
use crate::vm::Vcpu;
use crate::vm::power::{self, Step};

/// Runs a piece of the loaded vCPU's errand, and takes the interrupts that became pending; then `apply` carries out
/// the scheduler's decision. Returns whether there is a vCPU to run. `load` loads the vCPU again after its reset.
#[cold]
pub fn run(
    cpu: &mut Cpu,
    load: impl FnOnce(&mut Cpu, &'static Vcpu),
    apply: impl FnOnce(&mut Cpu, Locked<'_>, Switch, u64) -> bool,
) -> bool {
    let vcpu = cpu.vcpu();
    let step = power::run_errand(vcpu.vm());
    if step == Step::Reset {
        // Its registers, of which this CPU has some, belong to the state that is reset.
        if let Some(loaded) = cpu.unload() {
            cpu.power_down(loaded);
            cpu.finish_put();
        }
        power::reset_first(vcpu.vm());
        load(cpu, vcpu);
    }
    if step == Step::Enter {
        // An unpublished vCPU gets no notifications; `run` takes pending requests after publication.
        SCHEDULE.lock(id(cpu)).cancel_deadline(vcpu.id);
        return true;
    }
    cpu.poll_interrupts();
    take_resched(cpu);
    let (me, now) = (id(cpu), Arch::now());
    expiry::due(cpu.index, now);
    let mut schedule = SCHEDULE.lock(me);
    let now = wake_sleepers(&mut schedule, cpu, now);
    let switch = match step {
        Step::Wait(until) => {
            schedule.set_deadline(me, vcpu.id, until);
            schedule.block(me, now)
        }
        Step::Off => schedule.off(me, now),
        Step::More | Step::Reset | Step::Enter if slice_is_over(cpu, now) => schedule.slice_end(me, now),
        Step::More | Step::Reset | Step::Enter => schedule.pick_next(me, now),
    };
    apply(cpu, schedule, switch, now)
}
