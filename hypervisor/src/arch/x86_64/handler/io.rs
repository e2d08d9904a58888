//! IN and OUT.

use stile_board::pc::port;
use stile_device::keyboard;
use stile_ledger::RowId;
use stile_ledger::x86_64 as rows;

use super::{entry, mmio, skip_instruction};
use crate::arch::x86_64::emulation::sleep;
use crate::arch::x86_64::exit::Outcome;
use crate::arch::x86_64::host::cpu::{Cpu, gpr};
use crate::arch::x86_64::host::vmcs::{self, Field};
use crate::arch::x86_64::interrupts::delivery;
use crate::vm::power::End;

/// The exit qualification of I/O instructions (the manual, "Exit Qualification for I/O Instructions").
#[derive(Clone, Copy)]
struct Access(u64);

impl Access {
    fn port(self) -> u16 {
        (self.0 >> 16) as u16
    }

    /// In bytes.
    fn size(self) -> u64 {
        (self.0 & 0b111) + 1
    }

    fn is_in(self) -> bool {
        self.0 >> 3 & 1 != 0
    }

    fn is_string(self) -> bool {
        self.0 >> 4 & 1 != 0
    }

    /// The bits that are moved.
    fn mask(self) -> u64 {
        u64::MAX >> (64 - 8 * self.size().min(4))
    }

    fn row(self, cpu: &Cpu) -> RowId {
        match self.port().checked_sub(port::COM1) {
            Some(offset @ 0..8) => rows::com1(offset, !self.is_in()),
            _ => cpu.vcpu().with_ledger(|ledger| ledger.row_for(rows::reason::IO, rows::key::port(self.port(), !self.is_in()))),
        }
    }
}

/// A string instruction reached for a port, and for no address.
pub const NO_ADDRESS: u64 = u64::MAX;

/// A read of the serial port's line status, which guests poll for each byte, by IN AL, DX; other accesses go on to [`any`].
#[unsafe(no_mangle)]
extern "C" fn handle_io(cpu: &mut Cpu) -> Outcome {
    const STATUS: u64 = (port::COM1_STATUS as u64) << 16 | 1 << 3;
    let access = Access(vmcs::read(Field::EXIT_QUALIFICATION));
    if access.0 != STATUS {
        return any(cpu, access);
    }
    let flags = cpu.vcpu().vm().devices.uart_flags();
    let rax = &mut cpu.frame.registers[gpr::RAX];
    *rax = *rax & !0xff | u64::from(flags as u8);
    skip_instruction();
    Outcome::again(rows::com1(port::COM1_STATUS - port::COM1, false))
}

#[inline(never)]
fn any(cpu: &mut Cpu, access: Access) -> Outcome {
    let row = access.row(cpu);
    if access.is_string() {
        // All registers that it may name are among those that the stub saves.
        return mmio::emulate(cpu, row, NO_ADDRESS);
    }
    skip_instruction();
    if access.is_in() {
        let value = read(cpu, access.port(), access.size()) & access.mask();
        let rax = &mut cpu.frame.registers[gpr::RAX];
        // A write to EAX clears the upper half; narrower ones leave the rest.
        *rax = if access.size() == 4 { value } else { *rax & !access.mask() | value };
        return Outcome::again(row);
    }
    let value = cpu.frame.registers[gpr::RAX] & access.mask();
    match write(cpu, access.port(), access.size(), value) {
        None => written(cpu, row),
        Some(how) => cpu.end_vm(row, how),
    }
}

/// A port was written: interrupts may wait.
#[inline(never)]
fn written(cpu: &mut Cpu, row: RowId) -> Outcome {
    delivery::pull(cpu);
    Outcome::again(row)
}

/// What a port says; where there is nothing, all ones.
pub fn read(cpu: &mut Cpu, port: u16, size: u64) -> u64 {
    let vm = cpu.vcpu().vm();
    match port {
        // Polled for each byte.
        port::COM1_STATUS if size == 1 => vm.devices.uart_flags().into(),
        port::COM1..port::COM1_END if size == 1 => vm.devices.uart_read((port - port::COM1).into(), vm).into(),
        port::CLOCK..port::CLOCK_END if size == 1 => vm.devices.clock_read((port - port::CLOCK).into()).into(),
        _ => vm.arch.ports.read(vm, port, size),
    }
}

/// Writes to a port, after which interrupts may wait. Returns how the VM ends, if it does.
pub fn write(cpu: &mut Cpu, port: u16, size: u64, value: u64) -> Option<End> {
    const SYSTEM_RESET: u64 = 1 << 2;
    /// SLP_TYP and SLP_EN.
    const SLEEP: u64 = 0b11_1100;
    const SLEEP_OFF: u64 = (stile_board::pc::SLEEP_TYPE_OFF as u64) << 2 | 1 << 5;
    /// Values of PM1a control's SLP_TYP that turn the machine off: what the tables tell, and 0, as on QEMU.
    const OFF_TYPES: u8 = 1 << stile_board::pc::SLEEP_TYPE_OFF | 1 << 0;
    const S3: u64 = port::SLP_EN as u64 | (stile_board::pc::SLEEP_TYPE_S3 as u64) << 10;
    /// SLP_TYP and SLP_EN of PM1a control.
    const PM1A_SLEEP: u64 = 0xf << 10;
    let vm = cpu.vcpu().vm();
    match port {
        port::CLOCK..port::CLOCK_END if size == 1 => vm.devices.clock_write((port - port::CLOCK).into(), value as u32, vm),
        port::COM1..port::COM1_END if size == 1 => vm.devices.uart_write((port - port::COM1).into(), value as u32, vm),
        port::SLEEP_CONTROL if size == 1 && value & SLEEP == SLEEP_OFF => return Some(End::Off),
        port::PM1A_CONTROL if value & u64::from(port::SLP_EN) != 0 && OFF_TYPES >> (value >> 10 & 0b111) & 1 != 0 => return Some(End::Off),
        port::PM1A_CONTROL if value & PM1A_SLEEP == S3 => sleep::sleep(cpu.vcpu()),
        port::TEST_ENTRY if size == 1 => entry::fail(value),
        port::DEBUG_EXIT => return Some(End::Exit(value as u32)),
        port::RESET if value & SYSTEM_RESET != 0 => return Some(End::Reset),
        port if size == 1 && keyboard::PORTS.contains(&port) => {
            return vm.arch.ports.write_keyboard(port, value as u8).then_some(End::Reset);
        }
        _ => vm.arch.ports.write(vm, port, size, value),
    }
    None
}
