//! A PC's devices in snapshots, except those of test programs.

use stile_board::pc;
use stile_snapshot::x86_64::Machine;

use super::{Devices, set_line};
use crate::vm::Vm;

impl Devices {
    /// Exports the state at a time in ticks of the counter to a record with the devices that all machines have.
    pub fn save(&self, at: u64, to: &mut Machine<'_>) {
        to.acpi_timer = self.power.timer(at);
        to.pics = self.pic.save();
        to.pit = self.pit.save(at);
        to.keyboard = self.keyboard.0.lock().save();
        to.screen = self.screen.0.lock().save();
        to.power = self.power.model.lock().save();
        to.fw_cfg = self.fw_cfg.0.lock().save();
    }

    /// Advances ACPI's timer by ticks of the counter.
    pub fn advance(&self, ticks: u64) {
        self.power.advance_timer(ticks);
    }

    /// Imports it, untrusted input. Lines are set by [`restore_lines`].
    pub fn restore(&self, vm: &Vm, from: &Machine<'_>, at: u64) {
        self.power.set_timer(from.acpi_timer, at);
        self.pic.restore(&from.pics);
        self.pit.restore(&from.pit, at, vm);
        self.keyboard.0.lock().restore(&from.keyboard);
        self.screen.0.lock().restore(&from.screen);
        let _ = self.power.model.lock().restore(&from.power);
        self.fw_cfg.0.lock().restore(from.fw_cfg);
    }
}

/// Sets the lines of devices to the levels that follow from their state.
pub fn restore_lines(vm: &'static Vm) {
    let uart = vm.devices.uart.inspect(|model, _| model.irq());
    set_line(vm, pc::COM1_INPUT as u8, uart);
    let mut power = vm.arch.devices.power.model.lock();
    let saved = power.save();
    set_line(vm, pc::ACPI_INPUT as u8, power.restore(&saved));
}
