//! Watchdog for reschedule requests: a CPU that does not take one is reported and barred, instead of hanging Stile
//! silently.
//!
//! The watch starts when an operator's command leaves a CPU with an untaken request, and ends when all are taken. It
//! checks once a second: a CPU that has a request at [`LOOKS`] consecutive checks is unresponsive. (A responsive CPU
//! has none at almost any moment.)

use core::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use stile_board::MAX_CPUS;
use stile_sched::CpuId;

use crate::arch::contract::{Counter, PhysicalCpu};
use crate::arch::{Arch, Cpu};
use crate::console::log;
use crate::cpu::{self, SCHEDULE};
use crate::device::alarm;
use crate::vm;

/// Consecutive checks, a second apart, at which each CPU had a request.
static LATE: [AtomicU8; MAX_CPUS] = [const { AtomicU8::new(0) }; MAX_CPUS];
static WATCHING: AtomicBool = AtomicBool::new(false);

/// Number of consecutive checks after which a CPU is unresponsive.
const LOOKS: u8 = 5;

/// Registers the watch's alarm handler.
pub fn setup() {
    alarm::WATCH.set(look);
}

/// Called after an operator's command: starts the watch if a CPU has an untaken request.
pub fn begin() {
    let online = SCHEDULE.online();
    if online.iter().any(cpu::is_requested) && !WATCHING.swap(true, Ordering::AcqRel) {
        look_in_a_second(Arch::now());
    }
}

/// Whether a CPU is unresponsive.
#[cfg(test)]
pub fn is_lost(cpu: CpuId) -> bool {
    LATE[cpu.index()].load(Ordering::Relaxed) == LOOKS
}

fn look_in_a_second(now: u64) {
    alarm::set_watch(now + Arch::frequency());
}

fn look(now: u64) {
    let online = SCHEDULE.online();
    let mut goes_on = false;
    for cpu in online.iter() {
        let late = &LATE[cpu.index()];
        let before = late.load(Ordering::Relaxed);
        if cpu::is_requested(cpu) {
            goes_on = true;
            let looks = before.saturating_add(1).min(LOOKS);
            late.store(looks, Ordering::Relaxed);
            if before < LOOKS && looks == LOOKS {
                lose(cpu, now);
            }
        } else {
            late.store(0, Ordering::Relaxed);
            if before == LOOKS {
                SCHEDULE.unbar(cpu);
                log!("CPU {} answers again", cpu.index());
            }
        }
    }
    match goes_on {
        true => look_in_a_second(now),
        false => WATCHING.store(false, Ordering::Release),
    }
}

/// Reports and bars an unresponsive CPU.
fn lose(cpu: CpuId, now: u64) {
    let (current, kicks) = (SCHEDULE.current(cpu), SCHEDULE.bar(cpu, now));
    kicks.iter().for_each(cpu::request_resched);
    if let Some(hook) = cpu::RESCHED_HOOK.try_get() {
        // A request for a sample that waits for this CPU is answered from its last copy in memory.
        hook(None);
    }
    let index = cpu.index();
    let vcpu = current.and_then(|vcpu| Some((vm::get(vcpu.vm().into())?.name, vcpu.vcpu())));
    let place = if Cpu::is_confined(index) { "its guest keeps the CPU's interrupts from Stile" } else { "in Stile, or in its guest" };
    match vcpu {
        Some((name, vcpu)) => log!("CPU {index} has not answered for {LOOKS} s: it runs vCPU {vcpu} of {name}, {place}"),
        None => log!("CPU {index} has not answered for {LOOKS} s: it runs no vCPU"),
    }
}
