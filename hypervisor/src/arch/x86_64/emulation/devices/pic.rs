//! The 8259s, whose output is pin LINT0 of the first vCPU, and the interrupt lines of a PC's devices.

use core::sync::atomic::{AtomicBool, Ordering};

use stile_board::pc;
use stile_device::pic::Pic;
use stile_lock::TicketLock;
use stile_snapshot::pc::Pic as Saved;

use crate::arch::x86_64::host::cpu::Cpu;
use crate::arch::x86_64::interrupts::delivery;
use crate::device::bus::Device;
use crate::vm::Vm;
use crate::vm::power::End;

/// Ports of both 8259s, and of the edge/level control registers. Offsets are port numbers.
pub const PORTS: [u16; 6] = [0x20, 0x21, 0xa0, 0xa1, 0x4d0, 0x4d1];

/// Both 8259s.
pub struct Pics {
    model: TicketLock<Pic>,
    /// The output's level at the last check.
    was_high: AtomicBool,
}

impl Pics {
    /// Returns the 8259s in their reset state.
    pub fn new() -> Pics {
        Pics { model: TicketLock::new(Pic::new()), was_high: AtomicBool::new(false) }
    }

    /// Resets the 8259s.
    pub fn reset(&self) {
        *self.model.lock() = Pic::new();
        self.was_high.store(false, Ordering::Relaxed);
    }

    /// Exports the state.
    pub fn save(&self) -> [Saved; 2] {
        self.model.lock().save()
    }

    /// Imports a state. An interrupt that is requested was signalled before.
    pub fn restore(&self, from: &[Saved; 2]) {
        let mut pic = self.model.lock();
        pic.restore(from);
        self.was_high.store(pic.output(), Ordering::Relaxed);
    }

    /// Sets a line. The caller then calls [`delivery::external`].
    fn set_line(&self, line: u8, high: bool) {
        self.model.lock().set_line(line, high);
    }

    /// Whether an interrupt is requested now and was not at the previous call.
    pub fn interrupt_request(&self) -> (bool, bool) {
        let pic = self.model.lock();
        let high = pic.output();
        let was_high = self.was_high.swap(high, Ordering::Relaxed);
        (high, high && !was_high)
    }

    /// Whether an interrupt is requested.
    pub fn interrupts(&self) -> bool {
        self.model.lock().output()
    }

    /// Acknowledges the interrupt and returns its vector.
    pub fn acknowledge(&self) -> u8 {
        let mut pic = self.model.lock();
        let vector = pic.acknowledge();
        self.was_high.store(pic.output(), Ordering::Relaxed);
        vector
    }
}

impl Device for Pics {
    fn read(&self, _cpu: &mut Cpu, offset: u64, _bytes: u64) -> u64 {
        self.model.lock().read(offset as u16).into()
    }

    fn write(&self, cpu: &mut Cpu, offset: u64, _bytes: u64, value: u64) -> Option<End> {
        self.model.lock().write(offset as u16, value as u8);
        delivery::external(cpu.vcpu().vm());
        None
    }
}

/// Sets an interrupt line by its ISA number: it is connected to the 8259s and the I/O APIC, where the timer has
/// another input.
pub fn set_line(vm: &'static Vm, line: u8, high: bool) {
    let input = if line == 0 { pc::TIMER_INPUT } else { line.into() };
    vm.arch.io_apic.lock().set_line(input as usize, high);
    delivery::send_from_io_apic(vm, None);
    vm.arch.devices.pic.set_line(line, high);
    delivery::external(vm);
}
