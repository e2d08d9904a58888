//! Work of Stile's that a vCPU does before it enters its guest ([`power::run_errand`]): the vCPU is scheduled, and charged for its time, as if it
//! ran the guest.

use stile_sched::Switch;
use stile_sched::lock::TicketGuard;

use super::resched::take_resched;
use super::ring;
use super::schedule::{SCHEDULE, Schedule, id, slice_is_over};
use super::wake::wake_sleepers;
use crate::arch::contract::{Counter, PhysicalCpu};
use crate::arch::{Arch, Cpu};
use crate::vm::power::{self, Step};

/// What the scheduler decided after a piece of an errand, and when.
pub struct Decided {
    pub schedule: TicketGuard<'static, Schedule>,
    pub switch: Switch,
    /// In ticks of the counter.
    pub now: u64,
}

/// Does a piece of the loaded vCPU's errand, and takes the interrupts that came meanwhile. `None`: that was all, and the vCPU runs.
#[cold]
pub fn run(cpu: &mut Cpu) -> Option<Decided> {
    let vcpu = cpu.vcpu();
    let step = power::run_errand(vcpu.vm());
    if step == Step::Enter {
        // It is notified of nothing before it is published: what is pending is taken there.
        SCHEDULE.lock().sleepers.cancel(vcpu.id);
        return None;
    }
    cpu.poll_interrupts();
    take_resched(cpu);
    let (me, now) = (id(cpu), Arch::now());
    ring::due(cpu.index, now);
    let mut schedule = SCHEDULE.lock();
    wake_sleepers(&mut schedule, me, now);
    let switch = match step {
        Step::Wait(until) => {
            schedule.sleepers.set(me, vcpu.id, until);
            schedule.scheduler.block(me, now)
        }
        Step::Off => schedule.scheduler.off(me, now),
        Step::More | Step::Enter if slice_is_over(cpu, now) => schedule.scheduler.slice_end(me, now),
        Step::More | Step::Enter => schedule.scheduler.pick_next(me, now),
    };
    Some(Decided { schedule, switch, now })
}
