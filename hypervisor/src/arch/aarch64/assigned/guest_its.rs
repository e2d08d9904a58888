//! The ITS of a VM with functions (crate `stile-its`), its redistributors' LPI registers, and what they act on.

use stile_its::Command;
use stile_its::guest::{Backing, GuestIts, Written};
use stile_vgic::Kick;

use super::Functions;
use crate::arch::aarch64::interrupts::delivery;
use crate::vm::Vm;

/// The parts of a VM that its ITS changes. Each change takes the lock of the distributor, or of the functions, and releases
/// it.
struct Parts {
    vm: &'static Vm,
    functions: &'static Functions,
    /// vCPUs to synchronize after the changes.
    kick: Kick,
}

impl Backing for Parts {
    fn command(&self, gpa: u64) -> Option<Command> {
        let mut command = [0; 4];
        for (word, gpa) in command.iter_mut().zip((gpa..).step_by(8)) {
            *word = self.vm.load(gpa)?;
        }
        Some(command)
    }

    fn configuration(&self, gpa: u64) -> Option<u8> {
        Some((self.vm.load(gpa & !7)? >> (8 * (gpa & 7))) as u8)
    }

    fn route(&mut self, lpi: u32, vcpu: Option<usize>) {
        match &self.functions.injection {
            Some(injection) => injection.route(lpi, vcpu),
            None => self.kick |= self.vm.arch.distributor.lock().route_lpi(lpi, vcpu),
        }
    }

    fn configure(&mut self, lpi: u32, configuration: u8) {
        match &self.functions.injection {
            Some(injection) => injection.configure(lpi, configuration),
            None => self.kick |= self.vm.arch.distributor.lock().configure_lpi(lpi, configuration),
        }
    }

    fn set_pending(&mut self, lpi: u32) {
        match &self.functions.injection {
            Some(injection) => injection.set_pending(lpi),
            None => self.kick |= self.vm.arch.distributor.lock().pulse(lpi),
        }
    }

    fn clear_pending(&mut self, lpi: u32) {
        match &self.functions.injection {
            Some(injection) => injection.clear_pending(lpi),
            None => self.kick |= self.vm.arch.distributor.lock().clear_lpi(lpi),
        }
    }

    fn translate(&mut self, function: usize, event: usize, lpi: Option<u32>) {
        let translate = || {
            self.functions.list.with(function, |function| {
                function.part.translate(event, lpi);
                function.redirect(event as u32);
            });
        };
        let Some(injection) = &self.functions.injection else { return translate() };
        // Vectors are masked while their event is not mapped.
        if lpi.is_none() {
            translate();
        }
        injection.translate(function, event, lpi);
        if lpi.is_some() {
            translate();
        }
    }
}

impl Functions {
    /// Reads a register of the ITS.
    pub fn read_its(&self, offset: u64, bytes: u64) -> u64 {
        self.its.lock().read(offset, bytes)
    }

    /// Writes a register of the ITS of a VM that owns these functions, and does some of what is due: commands, or a change of
    /// GITS_CTLR.Enabled. Returns whether there is more: the guest shall execute the store again.
    pub fn write_its(&'static self, vm: &'static Vm, offset: u64, bytes: u64, value: u64) -> bool {
        self.change(vm, |its, parts| its.write(offset, bytes, value) == Written::Commands && its.run(parts))
    }

    /// Returns the bits that LPIs add to a register of a vCPU's redistributor.
    pub fn read_redistributor(&self, vcpu: usize, offset: u64, bytes: u64) -> u64 {
        self.its.lock().read_redistributor(vcpu, offset, bytes)
    }

    /// Writes the bits of a vCPU's redistributor register that concern LPIs. Returns whether there are more LPIs to route: the
    /// guest shall execute the store again.
    pub fn write_redistributor(&'static self, vm: &'static Vm, vcpu: usize, offset: u64, bytes: u64, value: u64) -> bool {
        self.change(vm, |its, parts| its.write_redistributor(vcpu, offset, bytes, value, parts))
    }

    /// Changes the ITS, and then delivers the interrupts that this made deliverable.
    fn change<T>(&'static self, vm: &'static Vm, change: impl FnOnce(&mut GuestIts, &mut Parts) -> T) -> T {
        let mut parts = Parts { vm, functions: self, kick: Kick::NONE };
        // The guard is dropped before the delivery.
        let result = change(&mut self.its.lock(), &mut parts);
        delivery::deliver(vm, parts.kick);
        result
    }
}
