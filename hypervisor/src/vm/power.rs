//! Power control: start, end, pause and destruction of VMs.
//!
//! A VM has ended when all its vCPUs are off. The CPU that ends it asks the scheduler to stop each of them; the CPU
//! that releases the last one restarts the VM or reports its end ([`settle`]).
//!
//! A pause parks the vCPUs; the CPU that puts the last one completes it. While a VM is paused, no CPU has any of its
//! registers, so that its time can be stopped ([`Platform::hold_time`]); its interrupts become pending as for
//! sleeping vCPUs. A pause of a VM that is being reset begins once the reset is complete, before the guest runs, and a
//! reset during a pause that is not complete does not end it: so a guest that resets itself in a loop can be paused.
//!
//! A reset is an errand of the VM's first vCPU, run in bounded pieces ([`run_errand`]), scheduled and charged as guest
//! time. The CPU that starts the VM resets only that vCPU.

use core::sync::atomic::{AtomicU32, Ordering};

use stile_blob::OnReset;
use stile_wire::{Answer, Event, VmState};

pub use super::end::End;
use super::power_state::{ENDING, PAUSING, State};
use super::{Vcpu, Vm, retire, shut_down};
use crate::arch::Arch;
use crate::arch::contract::{Counter, Platform, Snapshots, VcpuPart, VmPart};
use crate::console::{self, log_of};
use crate::cpu::{self, SCHEDULE};
use crate::device::alarm;
use crate::wall_clock;

/// Continuation after a piece of an errand.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Run another piece.
    More,
    /// Call [`reset_first`] with the vCPU unloaded, then run another piece.
    Reset,
    /// Wait until this time, in ticks of the counter.
    Wait(u64),
    /// The errand is complete: enter the guest.
    Enter,
    /// The vCPU is off permanently.
    Off,
}

/// Minimum interval between starts of a VM, in milliseconds: a reset costs the operator's line and other CPUs more
/// than the VM is charged for.
const RESTART_INTERVAL_MS: u64 = 10;

/// Interval of checks whether others still access the memory of a VM that is being reset, in milliseconds.
const QUIET_INTERVAL_MS: u64 = 1;

/// Number of vCPUs that a piece of an errand resets. A reset writes some pages of each.
const RESET_AT_ONCE: usize = 8;

/// Starts a VM that was just created, or that is off and being reset.
pub fn start(vm: &'static Vm) {
    let asked = {
        // A concurrent `end` either comes before this, or finds the vCPU on.
        let mut state = vm.power.state.lock();
        start_first(vm);
        match core::mem::replace(&mut *state, State::On) {
            State::Starting(asked) => asked,
            _ => None,
        }
    };
    if let Some(asked) = asked {
        end_by(vm, asked, true);
    }
}

/// Runs a bounded piece of the VM's errand. Its first vCPU is loaded on this CPU.
pub fn run_errand(vm: &'static Vm) -> Step {
    let power = &vm.power;
    let next = power.next_reset.load(Ordering::Relaxed);
    if next == 0 {
        return Step::Reset;
    }
    if next < vm.vcpus.len() {
        let end = vm.vcpus.len().min(next + RESET_AT_ONCE);
        vm.vcpus[next..end].iter().for_each(|vcpu| reset_vcpu(vcpu));
        power.next_reset.store(end, Ordering::Relaxed);
        return Step::More;
    }
    if matches!(*power.state.lock(), State::Destroying(_)) {
        return if vm.clear_ram() { Step::Off } else { Step::More };
    }
    if !power.reload.load(Ordering::Relaxed) {
        return end_errand(vm);
    }
    if !vm.arch.is_quiet() {
        return Step::Wait(Arch::now() + QUIET_INTERVAL_MS * Arch::frequency() / 1000);
    }
    if !vm.is_filling() && !vm.drain_files() {
        return Step::More;
    }
    // Functions need all of RAM mapped: the SMMU does not retry faults.
    if vm.has_functions && !vm.fill_ram() {
        return Step::More;
    }
    let now = Arch::now();
    let earliest = power.started.load(Ordering::Relaxed) + RESTART_INTERVAL_MS * Arch::frequency() / 1000;
    let earliest = if vm.has_functions { earliest.max(vm.arch.functions_ready_at()) } else { earliest };
    if now < earliest {
        return Step::Wait(earliest);
    }
    if vm.has_functions {
        vm.arch.start_functions();
    }
    power.started.store(now, Ordering::Relaxed);
    end_errand(vm)
}

/// Ends a VM's errand: its guest runs, unless a pause was requested meanwhile.
fn end_errand(vm: &'static Vm) -> Step {
    let mut state = vm.power.state.lock();
    vm.power.errand.store(false, Ordering::Relaxed);
    if *state == State::On && vm.power.pause_next.swap(false, Ordering::Relaxed) {
        park(vm, &mut state);
        // The CPU that runs the errand asks the scheduler, which stops the vCPU.
        return Step::More;
    }
    Step::Enter
}

/// Ends a VM for its guest. Returns immediately; if the caller runs one of its vCPUs, it must leave that next. The first
/// of several ends counts, but a reset by the guest is overridden.
pub fn end(vm: &'static Vm, end: End) {
    end_by(vm, end, false);
}

/// Ends a VM for its guest or for the operator, who can turn off a VM whose guest resets it in a loop, and whose reset
/// stays one, whatever the guest does meanwhile.
fn end_by(vm: &'static Vm, end: End, operator: bool) {
    let overrides = |asked: End| match asked {
        End::Reset => end != End::Reset,
        End::Restart => operator && end != End::Restart,
        _ => false,
    };
    {
        let mut state = vm.power.state.lock();
        match &mut *state {
            State::On | State::Pausing | State::Reporting | State::Paused(_) | State::Restoring(_) => {
                let is_pausing = *state == State::Pausing;
                vm.power.pause_next.fetch_or(is_pausing, Ordering::Relaxed);
                *state = State::Ending(end);
            }
            State::Starting(asked) if asked.is_none_or(overrides) => {
                *asked = Some(end);
                return;
            }
            State::Ending(asked) if overrides(*asked) => {
                *asked = end;
                return;
            }
            _ => return,
        }
        vm.power.change.store(ENDING, Ordering::Release);
        vm.power.held.store(false, Ordering::Release);
    }
    for vcpu in &vm.vcpus {
        let now = Arch::now();
        let running = SCHEDULE.stop(vcpu.id, now);
        if let Some(running) = running {
            cpu::request_resched(running);
        }
    }
    settle(vm);
}

/// Turns on a VM that is off, for the operator.
pub fn turn_on(vm: &'static Vm) -> Answer {
    {
        let mut state = vm.power.state.lock();
        if *state != State::Off {
            return Answer::WrongState;
        }
        // RAM is initialized as after a reset. The exit status depends on the VM's next end only.
        vm.power.reload.store(true, Ordering::Relaxed);
        vm.power.failed.store(false, Ordering::Relaxed);
        *state = State::Starting(None);
    }
    console::event(&Event::Vm { vm: vm.number as u8, state: VmState::Started });
    start(vm);
    Answer::Done
}

/// Turns a VM off immediately, or resets it, for the operator.
pub fn end_now(vm: &'static Vm, how: End) -> Answer {
    if matches!(*vm.power.state.lock(), State::Off | State::Ended | State::Destroying(_) | State::Gone) {
        return Answer::WrongState;
    }
    end_by(vm, how, true);
    Answer::Done
}

/// Pauses a VM that is on, or is being reset. The CPU that puts its last vCPU reports completion ([`settle`]).
pub fn pause(vm: &'static Vm) -> Answer {
    {
        let mut state = vm.power.state.lock();
        match *state {
            State::On if !vm.power.has_errand() => park(vm, &mut state),
            // A VM that ends instead is reported as off.
            State::On | State::Starting(_) | State::Ending(End::Reset | End::Restart) => {
                let is_asked = vm.power.pause_next.swap(true, Ordering::Relaxed);
                return if is_asked { Answer::WrongState } else { Answer::Done };
            }
            _ => return Answer::WrongState,
        }
    }
    settle(vm);
    Answer::Done
}

/// Parks the vCPUs of a VM that is on, and whose state is locked.
fn park(vm: &'static Vm, state: &mut State) {
    *state = State::Pausing;
    // Set before the vCPUs are parked, each under its CPU's lock: a CPU that starts a vCPU under that lock
    // either comes first, or sees this.
    vm.power.held.store(true, Ordering::Release);
    vm.power.change.store(PAUSING, Ordering::Release);
    for vcpu in &vm.vcpus {
        let now = Arch::now();
        let held_by = SCHEDULE.park(vcpu.id, now);
        if let Some(cpu) = held_by {
            cpu::request_resched(cpu);
        }
    }
}

/// Ends a pause. All parked vCPUs become ready, which may be a spurious wake-up.
pub fn resume(vm: &'static Vm) -> Answer {
    let since = {
        let mut state = vm.power.state.lock();
        let State::Paused(since) = *state else { return Answer::WrongState };
        *state = State::Reporting;
        since
    };
    console::event(&Event::Vm { vm: vm.number as u8, state: VmState::Resumed });
    let mut state = vm.power.state.lock();
    // An `end` may have come in between.
    if *state == State::Reporting {
        if !vm.power.clocks_run.swap(false, Ordering::Relaxed) {
            Arch::hold_time(vm, Arch::now().saturating_sub(since));
        }
        *state = State::On;
        vm.power.held.store(false, Ordering::Release);
        for vcpu in &vm.vcpus {
            let now = Arch::now();
            let placement = SCHEDULE.unpark(vcpu.id, now);
            if let Some(placement) = placement.filter(|placement| placement.kick) {
                cpu::request_resched(placement.cpu);
            }
        }
    }
    Answer::Done
}

/// Destroys a VM that is off, for the operator. Its first vCPU clears the memory as an errand; the CPU that releases
/// it then retires the VM ([`settle`]).
pub fn destroy(vm: &'static Vm) -> Answer {
    if vm.has_functions {
        return Answer::HasFunctions;
    }
    if vm.has_links {
        return Answer::HasLinks;
    }
    {
        let mut state = vm.power.state.lock();
        if *state != State::Off {
            return Answer::WrongState;
        }
        *state = State::Destroying(false);
    }
    let mut state = vm.power.state.lock();
    start_first(vm);
    *state = State::Destroying(true);
    Answer::Done
}

/// Starts the first vCPU of a VM that is off. Its errand resets the VM.
fn start_first(vm: &'static Vm) {
    vm.power.next_reset.store(0, Ordering::Relaxed);
    vm.power.errand.store(true, Ordering::Relaxed);
    if let Some(first) = vm.vcpus.first() {
        // It is loaded before the errand: it must refer to nothing of its previous life.
        reset_vcpu(first);
        first.arch.set_start(&vm.start);
        cpu::start(first);
    }
}

/// Makes a VM that was just created [for a snapshot](super::begin) ready for it: its first start is a [`resume`].
pub fn begin_restore(vm: &'static Vm) {
    reset_first(vm);
    let asked = {
        let mut state = vm.power.state.lock();
        vm.power.held.store(true, Ordering::Release);
        // It is paused once it is restored.
        vm.power.pause_next.store(false, Ordering::Relaxed);
        match core::mem::replace(&mut *state, State::Restoring(Arch::now())) {
            State::Starting(asked) => asked,
            _ => None,
        }
    };
    if let Some(asked) = asked {
        end(vm, asked);
    }
}

/// Completes the restoration of a snapshot: the VM is paused from here on. `advance`: its clocks have advanced since the
/// snapshot, as the time of day has.
pub fn end_restore(vm: &'static Vm, advance: bool) -> Answer {
    let since = {
        let mut state = vm.power.state.lock();
        let State::Restoring(begun) = *state else { return Answer::WrongState };
        if advance {
            advance_time(vm, begun);
        }
        Arch::complete(vm);
        for (index, vcpu) in vm.vcpus.iter().enumerate().filter(|&(index, _)| Arch::is_on(vm, index)) {
            debug_assert_eq!(usize::from(vcpu.id.vcpu()), index);
            // Held, so that it is parked.
            cpu::start(vcpu);
        }
        *state = State::Reporting;
        begun
    };
    report_pause(vm, since);
    Answer::Done
}

/// Advances the clocks of a VM that is being restored, which continue from `begun` on, to the time of day. A time of day
/// before that of the snapshot advances nothing.
fn advance_time(vm: &'static Vm, begun: u64) {
    let passed = wall_clock::nanoseconds_at(begun).saturating_sub(vm.power.saved_at.load(Ordering::Relaxed));
    Arch::advance(vm, wall_clock::ticks_in(passed));
    // Also until the VM is resumed.
    vm.power.clocks_run.store(true, Ordering::Relaxed);
}

/// Reports that a VM, in [`State::Reporting`], is paused since this time.
fn report_pause(vm: &'static Vm, since: u64) {
    console::event(&Event::Vm { vm: vm.number as u8, state: VmState::Paused });
    let mut state = vm.power.state.lock();
    if *state == State::Reporting {
        *state = State::Paused(since);
    }
}

/// Resets all state of a VM but RAM and its other vCPUs. Its first vCPU runs its errand on this CPU, which has none of
/// its registers.
pub fn reset_first(vm: &'static Vm) {
    if vm.power.tear_down.swap(false, Ordering::Relaxed) {
        vm.arch.tear_down();
    }
    vm.power.forget_snapshot();
    vm.devices.reset();
    alarm::set(vm.number, None);
    vm.rewind_fill();
    vm.rewind_drain();
    vm.arch.reset(vm.number);
    if let Some(first) = vm.vcpus.first() {
        reset_vcpu(first);
        first.arch.set_start(&vm.start);
    }
    vm.power.next_reset.store(1, Ordering::Relaxed);
}

/// Resets the registers and the stolen time of a vCPU that is loaded on no CPU.
pub fn reset_vcpu(vcpu: &Vcpu) {
    vcpu.arch.reset();
    vcpu.stolen.reset();
}

/// Advances a VM that is ending, being paused or being destroyed, once its last vCPU is off or put.
pub fn settle(vm: &'static Vm) {
    let (end, restarts) = {
        let mut state = vm.power.state.lock();
        let end = match *state {
            State::Ending(end) => end,
            State::Destroying(true) if SCHEDULE.all_off(vm.number as u8) => {
                *state = State::Gone;
                drop(state);
                return retire::begin(vm);
            }
            State::Pausing if SCHEDULE.all_put(vm.number as u8) => {
                vm.power.change.store(0, Ordering::Release);
                *state = State::Reporting;
                let since = Arch::now();
                drop(state);
                return report_pause(vm, since);
            }
            _ => return,
        };
        if !SCHEDULE.all_off(vm.number as u8) {
            return;
        }
        vm.power.change.store(0, Ordering::Release);
        let count = |resets: &AtomicU32, is_one: bool| {
            let all = resets.load(Ordering::Relaxed).saturating_add(is_one.into());
            resets.store(all, Ordering::Relaxed);
            all
        };
        let resets = count(&vm.power.resets, end.is_reset());
        let own = count(&vm.power.own_resets, end == End::Reset);
        let most = match vm.on_reset {
            OnReset::Restart => u32::MAX,
            OnReset::RestartAtMost(most) => most,
            OnReset::Stop => 0,
        };
        let restarts = (end == End::Restart || end == End::Reset && own <= most).then_some(resets);
        vm.power.reload.store(restarts.is_some(), Ordering::Relaxed);
        vm.power.tear_down.store(restarts.is_some(), Ordering::Relaxed);
        if restarts.is_none() {
            vm.power.pause_next.store(false, Ordering::Relaxed);
            // Frees memory that only a running VM needs, before the VM is reported as off.
            vm.arch.tear_down();
        }
        *state = if restarts.is_some() { State::Starting(None) } else { State::Ended };
        (end, restarts)
    };
    if restarts.is_none() {
        vm.arch.ended();
    }
    let number = vm.number as u8;
    match end {
        End::Reset | End::Restart => {
            if let Some(resets) = restarts {
                console::event(&Event::Vm { vm: number, state: VmState::Restarted(resets) });
                start(vm);
                return;
            }
            console::event(&Event::Vm { vm: number, state: VmState::Reset });
        }
        End::Off => console::event(&Event::Vm { vm: number, state: VmState::PoweredOff }),
        End::Exit(status) => console::event(&Event::Vm { vm: number, state: VmState::Exited(status) }),
        End::Crash(crash) => {
            log_of!(
                vm,
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
    *vm.power.state.lock() = State::Off;
    shut_down::if_all_off();
}
