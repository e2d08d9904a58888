//! The I/O APIC on the memory bus.

use stile_apic::IoApic;
use stile_lock::TicketLock;

use crate::arch::x86_64::host::cpu::Cpu;
use crate::arch::x86_64::interrupts::delivery;
use crate::device::bus::Device;
use crate::vm::power::End;

impl Device for TicketLock<IoApic> {
    fn read(&self, _cpu: &mut Cpu, offset: u64, _bytes: u64) -> u64 {
        self.lock().read(offset as u32).into()
    }

    fn write(&self, cpu: &mut Cpu, offset: u64, _bytes: u64, value: u64) -> Option<End> {
        self.lock().write(offset as u32, value as u32);
        delivery::send_from_io_apic(cpu.vcpu().vm(), Some(cpu));
        None
    }
}
