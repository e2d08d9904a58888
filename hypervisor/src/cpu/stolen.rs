//! Tells guests their stolen time ([`Stolen`](crate::vm::Stolen)).

use super::schedule::{SCHEDULE, Schedule};
use crate::arch::Arch;
use crate::arch::contract::{Counter, VcpuPart};
use crate::vm::Vcpu;

/// The guest of the vCPU, which runs here, asks for its stolen time: it is 0 now, and kept up from here on.
#[cfg_attr(not(target_os = "none"), allow(dead_code))]
pub fn begin(vcpu: &Vcpu) {
    let waited = SCHEDULE.lock().scheduler.times(vcpu.id, Arch::now()).waited;
    vcpu.stolen.begin(waited);
    vcpu.arch.show_stolen_time(vcpu.vm(), 0);
}

/// Tells the guest of a vCPU, which runs here next or has just been left, its stolen time. At the end of a slice: that is when others take a CPU
/// from who wants it.
pub fn publish(schedule: &Schedule, vcpu: &Vcpu, now: u64) {
    let waited = schedule.scheduler.times(vcpu.id, now).waited;
    if let Some(ticks) = vcpu.stolen.of(waited) {
        vcpu.arch.show_stolen_time(vcpu.vm(), nanoseconds(ticks));
    }
}

fn nanoseconds(ticks: u64) -> u64 {
    (u128::from(ticks) * 1_000_000_000 / u128::from(Arch::frequency().max(1))) as u64
}
