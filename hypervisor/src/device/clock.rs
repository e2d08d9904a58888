//! A VM's real-time clock: the architecture's model behind a lock, with its alarm.

use stile_sched::lock::TicketLock;

use super::alarm;
use super::bus::Device;
use super::line::Line;
use crate::arch::contract::Platform;
use crate::arch::models::Clock as Model;
use crate::arch::{Arch, Cpu};
use crate::vm::Vm;
use crate::vm::power::End;
use crate::wall_clock;

/// The clock.
pub struct Clock {
    /// Its VM's number, which is that of the alarm.
    vm: usize,
    model: TicketLock<Model>,
}

fn model() -> Model {
    Model::new(wall_clock::seconds() as u32, wall_clock::seconds())
}

impl Clock {
    /// The clock of VM `vm` after reset.
    pub fn new(vm: usize) -> Clock {
        Clock { vm, model: TicketLock::new(model()) }
    }

    /// Resets it.
    pub fn reset(&self) {
        *self.model.lock() = model();
        alarm::set(self.vm, None);
    }

    /// The time of its alarm may have come.
    pub fn expire(&self, vm: &Vm) {
        let mut model = self.model.lock();
        if let Some(level) = model.expire(wall_clock::seconds()) {
            Arch::set_line(vm, Line::Clock, level);
        }
        alarm::set(self.vm, model.deadline());
    }
}

impl Device for Clock {
    fn read(&self, _cpu: &mut Cpu, offset: u64, _bytes: u64) -> u64 {
        self.model.lock().read(offset as u32, wall_clock::seconds()).into()
    }

    fn write(&self, cpu: &mut Cpu, offset: u64, _bytes: u64, value: u64) -> Option<End> {
        let mut model = self.model.lock();
        if let Some(level) = model.write(offset as u32, value as u32, wall_clock::seconds()) {
            Arch::set_line(cpu.vcpu().vm(), Line::Clock, level);
        }
        alarm::set(self.vm, model.deadline());
        None
    }
}
