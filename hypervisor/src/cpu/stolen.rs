//! Publication of stolen time to guests ([`Stolen`](crate::vm::Stolen)).

use stile_sched::Locked;

use super::schedule::SCHEDULE;
use crate::arch::Arch;
use crate::arch::contract::{Counter, VcpuPart};
use crate::vm::Vcpu;

/// Enables stolen time for the guest of a vCPU that runs here. It starts at 0.
pub fn begin(vcpu: &Vcpu) {
    let waited = SCHEDULE.times(vcpu.id, Arch::now()).waited;
    vcpu.stolen.begin(waited);
    vcpu.arch.show_stolen_time(vcpu.vm(), 0);
}

/// Publishes the stolen time of a vCPU that is about to run here or was just left. Called at the end of a slice,
/// which is when vCPUs lose the CPU involuntarily.
pub fn publish(schedule: &Locked<'_>, vcpu: &Vcpu, now: u64) {
    let waited = schedule.times(vcpu.id, now).waited;
    if let Some(ticks) = vcpu.stolen.of(waited) {
        vcpu.arch.show_stolen_time(vcpu.vm(), nanoseconds(ticks));
    }
}

fn nanoseconds(ticks: u64) -> u64 {
    (u128::from(ticks) * 1_000_000_000 / u128::from(Arch::frequency().max(1))) as u64
}
