//! UART and clock on a VM's buses: their lines, and the clock's alarm.

use super::alarm;
use super::bus::Device;
use super::clock::Clock;
use super::line::Line;
use super::uart::Uart;
use crate::arch::contract::Platform;
use crate::arch::{Arch, Cpu};
use crate::vm::power::End;

impl Device for Uart {
    fn read(&self, cpu: &mut Cpu, offset: u64, _bytes: u64) -> u64 {
        let vm = cpu.vcpu().vm();
        Uart::read(self, offset as u32, |level| Arch::set_line(vm, Line::Uart, level)).into()
    }

    fn write(&self, cpu: &mut Cpu, offset: u64, _bytes: u64, value: u64) -> Option<End> {
        let vm = cpu.vcpu().vm();
        Uart::write(self, offset as u32, value as u32, |level| Arch::set_line(vm, Line::Uart, level));
        None
    }
}

impl Device for Clock {
    fn read(&self, _cpu: &mut Cpu, offset: u64, _bytes: u64) -> u64 {
        Clock::read(self, offset as u32).into()
    }

    fn write(&self, cpu: &mut Cpu, offset: u64, _bytes: u64, value: u64) -> Option<End> {
        let vm = cpu.vcpu().vm();
        let set_line = |level| Arch::set_line(vm, Line::Clock, level);
        Clock::write(self, offset as u32, value as u32, set_line, |at| alarm::set(vm.number, at));
        None
    }
}
