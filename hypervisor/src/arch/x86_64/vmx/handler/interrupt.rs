//! Physical interrupts on the exit path of `mitigated.S`.

use crate::arch::x86_64::handler::handle_interrupt;
use crate::arch::x86_64::host::cpu::Cpu;
use crate::arch::x86_64::vmx::vmcs::{self, Field};
use crate::cpu::Outcome;

/// Handles an interrupt for the exit path of `mitigated.S`, which reads only the exit reason.
#[unsafe(no_mangle)]
extern "C" fn handle_interrupt_mitigated(cpu: &mut Cpu) -> Outcome {
    handle_interrupt(cpu, vmcs::read(Field::EXIT_INTERRUPTION) as u8)
}
