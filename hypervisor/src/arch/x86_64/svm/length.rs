//! Length of the instruction that exited. Processors without next-RIP saving do not tell it: the instruction is fetched
//! and decoded.

use stile_svm::Field;
use stile_x86_decode::{Code, Intercepted, Kind};

use super::extension;
use super::state;
use crate::arch::x86_64::handler::complete::refetch;
use crate::arch::x86_64::vcpu::loaded::WholeCpu;
use crate::arch::x86_64::vm::guest_memory::Ram;

/// Makes the next RIP known if the loaded vCPU's instruction is one of `kinds`. Returns false if it is not in memory any
/// more: the processor executes what is there now.
pub fn find(cpu: &mut WholeCpu, kinds: &[Kind]) -> bool {
    extension::features().next_rip || decode(cpu, kinds).is_some()
}

/// Decodes the loaded vCPU's instruction, which is one of `kinds`, and makes the next RIP known.
pub fn decode(cpu: &mut WholeCpu, kinds: &[Kind]) -> Option<Intercepted> {
    let context = cpu.context();
    let rip = state::read(Field::GUEST_RIP);
    let memory = Ram(cpu.vcpu().vm());
    let linear = context.size().linear(rip, || state::read(Field::GUEST_CS_BASE));
    let code = Code { memory: &memory, context: &context, linear };
    match code.intercepted() {
        Ok(found) if kinds.contains(&found.kind) => {
            state::write(Field::NEXT_RIP, context.size().advance(rip, found.length));
            Some(found)
        }
        _ => {
            refetch();
            None
        }
    }
}
