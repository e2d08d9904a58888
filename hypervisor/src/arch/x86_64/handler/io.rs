//! IN and OUT.

use stile_board::pc::port;
use stile_ledger::RowId;
use stile_ledger::x86_64 as rows;

use super::{mmio, skip_instruction};
use crate::arch::x86_64::emulation::ports;
use crate::arch::x86_64::host::cpu::{Cpu, gpr};
use crate::arch::x86_64::interrupts::delivery;
use crate::arch::x86_64::vcpu::loaded::WholeCpu;
use crate::arch::x86_64::virt::state::{self, Field};
use crate::cpu::Outcome;

/// The exit qualification of I/O instructions (the manual, "Exit Qualification for I/O Instructions").
#[derive(Clone, Copy)]
struct Access(u64);

impl Access {
    fn port(self) -> u16 {
        (self.0 >> 16) as u16
    }

    /// Size in bytes.
    fn size(self) -> u64 {
        (self.0 & 0b111) + 1
    }

    fn is_in(self) -> bool {
        self.0 >> 3 & 1 != 0
    }

    fn is_string(self) -> bool {
        self.0 >> 4 & 1 != 0
    }

    /// Mask of the transferred bits.
    fn mask(self) -> u64 {
        u64::MAX >> (64 - 8 * self.size().min(4))
    }

    fn row(self, cpu: &mut Cpu) -> RowId {
        row(cpu, self.port(), !self.is_in())
    }
}

/// Returns the ledger's row of an access.
#[inline(always)]
pub fn row(cpu: &mut Cpu, port: u16, write: bool) -> RowId {
    match port.checked_sub(port::COM1) {
        Some(offset @ 0..8) => rows::com1(offset, write),
        _ => cpu.loaded().ledger().frequent_row_for(rows::reason::IO, rows::key::port(port, write)),
    }
}

/// Fast path of the serial port's line status, which guests poll for each byte by IN AL, DX; other accesses go to
/// [`any`].
#[unsafe(no_mangle)]
pub extern "C" fn handle_io(cpu: &mut WholeCpu) -> Outcome {
    const STATUS: u64 = (port::COM1_STATUS as u64) << 16 | 1 << 3;
    let access = Access(state::read(Field::EXIT_QUALIFICATION));
    if access.0 != STATUS {
        return any(cpu, access);
    }
    let flags = cpu.vcpu().vm().devices.uart.flags();
    let rax = &mut cpu.frame.registers[gpr::RAX];
    *rax = *rax & !0xff | u64::from(flags as u8);
    skip_instruction();
    Outcome::again(rows::com1(port::COM1_STATUS - port::COM1, false))
}

#[inline(never)]
fn any(cpu: &mut WholeCpu, access: Access) -> Outcome {
    let row = access.row(cpu);
    if access.is_string() {
        // The stub saves all registers that it may name.
        return mmio::emulate(cpu, row, mmio::NO_ADDRESS);
    }
    skip_instruction();
    if access.is_in() {
        let value = ports::read(cpu, access.port(), access.size());
        let rax = &mut cpu.frame.registers[gpr::RAX];
        *rax = match access.size() {
            1 => *rax & !0xff | value & 0xff,
            2 => *rax & !0xffff | value & 0xffff,
            // Writing EAX clears the upper half.
            _ => value & 0xffff_ffff,
        };
        return Outcome::again(row);
    }
    let value = cpu.frame.registers[gpr::RAX] & access.mask();
    match ports::write(cpu, access.port(), access.size(), value) {
        None => written(cpu, row),
        Some(how) => cpu.end_vm(row, how),
    }
}

/// A port write may have made interrupts pending.
#[inline(never)]
fn written(cpu: &mut Cpu, row: RowId) -> Outcome {
    delivery::pull(cpu);
    Outcome::again(row)
}
