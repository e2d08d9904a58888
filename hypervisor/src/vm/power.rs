//! How VMs start and end.
//!
//! A VM ends when all its vCPUs are off. Whoever ends it asks the scheduler to stop each of them; the CPU that lets go of the last one
//! does what follows: a restart, or nothing more.

use core::sync::atomic::{AtomicBool, Ordering};

use stile_blob::OnReset;
use stile_sched::lock::TicketLock;
use stile_wire::{Crash, Event, VmState};

use super::Vm;
use crate::console::{self, log};
use crate::cpu::{self, SCHEDULE};
use crate::{arch, report, vm};

/// How a VM ends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Its guest, or the operator, turned it off.
    Off,
    /// Its guest ended it, and says how it went: 0 is well. (Not every machine has a way to say so.)
    #[allow(dead_code)]
    Exit(u32),
    /// Its guest reset it.
    Reset,
    /// It can't go on.
    Crash(Crash),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Off,
    On,
    Ending(End),
    /// It is being reset; and how it was asked to end meanwhile.
    Starting(Option<End>),
}

/// A VM's power.
pub struct Power {
    state: TicketLock<State>,
    /// A copy of "it is ending", to be asked without the lock.
    ending: AtomicBool,
    /// It did not end by its own power-off.
    failed: AtomicBool,
}

impl Power {
    /// Off.
    pub fn new() -> Power {
        Power { state: TicketLock::new(State::Off), ending: AtomicBool::new(false), failed: AtomicBool::new(false) }
    }

    /// Whether [`settle`] has something to do.
    pub fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Acquire)
    }

    /// Does something that must not happen while the VM ends or starts anew, unless it does. (Not every architecture has such a thing.)
    #[allow(dead_code)]
    pub fn if_on(&self, act: impl FnOnce()) {
        let state = self.state.lock();
        if *state == State::On {
            act();
        }
    }
}

/// Starts a VM that is off.
pub fn start(vm: &'static Vm) {
    vm.load();
    vm.devices.reset();
    vm.arch.reset();
    for vcpu in &vm.vcpus {
        vcpu.arch.reset();
    }
    let asked = match core::mem::replace(&mut *vm.power.state.lock(), State::On) {
        State::Starting(asked) => asked,
        _ => None,
    };
    if let Some(first) = vm.vcpus.first() {
        first.arch.set_start(&vm.start);
        cpu::start(first);
    }
    if let Some(asked) = asked {
        end(vm, asked);
    }
}

/// Ends a VM. Returns at once; if the caller runs one of its vCPUs, that must be left next.
pub fn end(vm: &'static Vm, end: End) {
    {
        let mut state = vm.power.state.lock();
        match *state {
            State::On => *state = State::Ending(end),
            State::Starting(None) => {
                *state = State::Starting(Some(end));
                return;
            }
            _ => return,
        }
        vm.power.ending.store(true, Ordering::Release);
    }
    for vcpu in &vm.vcpus {
        let now = arch::timer::now();
        let running = SCHEDULE.lock().scheduler.stop(vcpu.id, now);
        if let Some(running) = running {
            cpu::call(running);
        }
    }
    settle(vm);
}

/// If the last vCPU of an ending VM is off, does what comes next.
pub fn settle(vm: &'static Vm) {
    let end = {
        let mut state = vm.power.state.lock();
        let State::Ending(end) = *state else { return };
        if !SCHEDULE.lock().scheduler.all_off(vm.number as u8) {
            return;
        }
        vm.power.ending.store(false, Ordering::Release);
        let again = end == End::Reset && vm.on_reset == OnReset::Restart;
        if !again {
            // The memory that only a running VM needs goes back, before anyone finds the VM off.
            vm.arch.reset();
        }
        *state = if again { State::Starting(None) } else { State::Off };
        end
    };
    let number = vm.number as u8;
    match end {
        End::Reset => {
            console::event(&Event::Vm { vm: number, state: VmState::Reset });
            if vm.on_reset == OnReset::Restart {
                start(vm);
                return;
            }
        }
        End::Off => console::event(&Event::Vm { vm: number, state: VmState::PoweredOff }),
        End::Exit(status) => console::event(&Event::Vm { vm: number, state: VmState::Exited(status) }),
        End::Crash(crash) => {
            log!(
                "{}: vCPU {} can't go on: {:?} at pc {:#x}, syndrome {:#x}, address {:#x}",
                vm.name,
                crash.vcpu,
                crash.reason,
                crash.pc,
                crash.syndrome,
                crash.address
            );
            console::event(&Event::Vm { vm: number, state: VmState::Crashed(crash) });
        }
    }
    if !matches!(end, End::Off | End::Exit(0)) {
        vm.power.failed.store(true, Ordering::Relaxed);
    }
    if vm::all().all(|vm| *vm.power.state.lock() == State::Off) {
        shut_down();
    }
}

/// The last VM has ended: so does Stile.
fn shut_down() {
    static ONCE: AtomicBool = AtomicBool::new(false);
    if ONCE.swap(true, Ordering::Relaxed) {
        return;
    }
    console::flush();
    report::send_if_wanted();
    let failed = vm::all().any(|vm| vm.power.failed.load(Ordering::Relaxed));
    console::event(&Event::End { status: u8::from(failed) });
    console::flush();
    arch::power_off()
}
