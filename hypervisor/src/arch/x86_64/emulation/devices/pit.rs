//! The 8254, with gate and output of its third counter at the speaker's port. The VM's first vCPU keeps its time.

use stile_device::pit::{self, Pit};
use stile_lock::{TicketGuard, TicketLock};
use stile_snapshot::pc::Pit as Saved;

use super::{set_line, ticks};
use crate::arch::x86_64::host::cpu::Cpu;
use crate::arch::x86_64::host::timer;
use crate::arch::x86_64::interrupts::events;
use crate::device::bus::Device;
use crate::vm::Vm;
use crate::vm::power::End;

/// The first port.
pub const BASE: u16 = 0x40;
/// The ports: three counters, control, and the speaker's.
pub const PORTS: [u16; 5] = [0x40, 0x41, 0x42, 0x43, 0x61];
const SPEAKER: u64 = 0x61 - BASE as u64;

/// The 8254.
pub struct Timer(TicketLock<Pit>);

impl Timer {
    /// Returns the 8254 in its reset state.
    pub fn new() -> Timer {
        Timer(TicketLock::new(Pit::new()))
    }

    /// Resets the 8254.
    pub fn reset(&self) {
        *self.0.lock() = Pit::new();
    }

    /// Exports the state at a time in ticks of the counter.
    pub fn save(&self, at: u64) -> Saved {
        self.0.lock().save(ticks::count_at(at, pit::FREQUENCY))
    }

    /// Imports a state at a time in ticks of the counter.
    pub fn restore(&self, from: &Saved, at: u64, vm: &Vm) {
        let mut pit = self.0.lock();
        pit.restore(from, ticks::count_at(at, pit::FREQUENCY));
        Timer::set_deadline(&pit, vm, 0);
    }

    /// Updates the deadline of the first vCPU, if it has changed. Stays locked until it is set, so that a stale deadline
    /// does not replace one that another vCPU sets.
    fn watch(pit: TicketGuard<'_, Pit>, vm: &'static Vm) {
        let changed = Timer::set_deadline(&pit, vm, 0);
        drop(pit);
        if changed && let Some(first) = vm.vcpus.first() {
            events::watch(first);
        }
    }

    /// Sets the deadline of the first vCPU, `least` at the earliest. Returns whether it changed.
    fn set_deadline(pit: &Pit, vm: &Vm, least: u64) -> bool {
        let deadline = pit.deadline().map(|at| ticks::tsc_at(at, pit::FREQUENCY).max(least));
        vm.vcpus.first().is_some_and(|first| first.arch.watch.set(deadline))
    }

    /// Checks for an expiry at the deadline that [`Timer::watch`] set.
    pub fn expire(&self, vm: &'static Vm) {
        let mut pit = self.0.lock();
        let rose = pit.expire(ticks::count_now(pit::FREQUENCY));
        Timer::set_deadline(&pit, vm, timer::now() + timer::LEAST_PERIOD);
        drop(pit);
        if rose {
            // The output was low for a tick, and stays high until the counter expires again.
            set_line(vm, 0, false);
            set_line(vm, 0, true);
        }
    }
}

impl Device for Timer {
    fn read(&self, _cpu: &mut Cpu, offset: u64, _bytes: u64) -> u64 {
        let now = ticks::count_now(pit::FREQUENCY);
        let mut pit = self.0.lock();
        let value = if offset == SPEAKER { pit.read_speaker(now) } else { pit.read(offset as u16, now) };
        value.into()
    }

    fn write(&self, cpu: &mut Cpu, offset: u64, _bytes: u64, value: u64) -> Option<End> {
        let now = ticks::count_now(pit::FREQUENCY);
        if offset == SPEAKER {
            self.0.lock().write_speaker(value as u8, now);
        } else {
            let mut pit = self.0.lock();
            pit.write(offset as u16, value as u8, now);
            Timer::watch(pit, cpu.vcpu().vm());
        }
        None
    }
}
