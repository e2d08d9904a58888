//! XSETBV.

use stile_ledger::x86_64::reason;

use super::skip_instruction;
use crate::arch::x86_64::host::cpu::{Cpu, gpr};
use crate::arch::x86_64::vcpu::{extended, inject};
use crate::arch::x86_64::virt::state::{self, Field};
use crate::cpu::Outcome;

/// Sets the guest's state components (the manual, "XSETBV—Set Extended Control Register").
pub fn set(cpu: &mut Cpu) -> Outcome {
    let registers = &cpu.frame.registers;
    let value = registers[gpr::RDX] << 32 | registers[gpr::RAX] & 0xffff_ffff;
    let user = state::read(Field::GUEST_SS_RIGHTS) >> 5 & 0b11 != 0;
    if registers[gpr::RCX] as u32 == 0 && !user && is_xcr0(value) {
        cpu.loaded().context().extended.xcr0 = value;
        // SAFETY: the guest executed XSETBV, so that XSAVE is supported; the value was checked.
        unsafe { extended::write_xcr0(value) };
        skip_instruction();
    } else {
        inject::general_protection();
    }
    Outcome::again(reason::XSETBV.other())
}

/// x87 is mandatory, AVX requires SSE, and the AVX-512 components come together, and require AVX.
fn is_xcr0(value: u64) -> bool {
    const AVX: u64 = 0b100;
    const AVX_512: u64 = 0b1110_0000;
    let together = |bits: u64, needs: u64| value & bits == 0 || value & (bits | needs) == bits | needs;
    value & !extended::supported() == 0 && value & 1 != 0 && together(AVX, 0b10) && together(AVX_512, AVX | 0b10)
}
