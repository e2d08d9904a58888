//! The operator: pauses, resumes, resets, turns off and starts VMs at random.

use std::sync::atomic::{AtomicBool, Ordering};

use stile_wire::Answer;

use super::VCPUS;
use super::counts::{PAUSES, RESUMES, STARTS, count};
use super::guest::vms;
use super::random::random;
use crate::vm;
use crate::vm::power::{self, End};

/// Whether each VM is paused, as of the last [`note_states`].
static PAUSED: [AtomicBool; VCPUS.len()] = [const { AtomicBool::new(false) }; VCPUS.len()];

/// Whether a VM was paused before the current step.
pub fn is_paused(vm: usize) -> bool {
    PAUSED[vm].load(Ordering::Relaxed)
}

/// Notes which VMs are paused.
pub fn note_states() {
    for vm in vms() {
        PAUSED[vm.number].store(vm.power.is_held() && !vm.power.is_changing(), Ordering::Relaxed);
    }
}

/// Does something to some VM. VM 0 is never turned off, so that the machine stays on.
pub fn operate() {
    let Some(vm) = vm::get(random(VCPUS.len() as u64) as usize) else { return };
    match random(8) {
        0..3 => _ = pause(vm),
        3..6 => _ = resume(vm),
        6 if vm.number != 0 => _ = power::end_now(vm, if random(2) == 0 { End::Off } else { End::Restart }),
        7 => turn_on(vm),
        _ => return,
    }
    note_states();
}

/// Pauses a VM. Returns false if it was refused.
pub fn pause(vm: &'static vm::Vm) -> bool {
    let is_done = power::pause(vm) == Answer::Done;
    count(&PAUSES, is_done.into());
    is_done
}

/// Resumes a VM. Returns false if it was refused.
pub fn resume(vm: &'static vm::Vm) -> bool {
    let is_done = power::resume(vm) == Answer::Done;
    count(&RESUMES, is_done.into());
    is_done
}

/// Resumes all VMs that are paused.
pub fn resume_all() {
    for vm in vm::all() {
        resume(vm);
    }
}

/// Turns a VM on, if it is off.
pub fn turn_on(vm: &'static vm::Vm) {
    count(&STARTS, (power::turn_on(vm) == Answer::Done).into());
}
