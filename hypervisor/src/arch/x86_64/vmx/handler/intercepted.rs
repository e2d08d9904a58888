//! Intercepted exceptions: debug exceptions and alignment checks, whose delivery can raise the next one in an endless
//! loop during which the processor takes no interrupt (CVE-2015-5307, CVE-2015-8104). Each exits, after which Stile
//! checks for interrupts.

use stile_ledger::x86_64::{self as rows, reason};

use crate::arch::x86_64::handler::exception::{debug, resume_or_leave};
use crate::arch::x86_64::host::cpu::Cpu;
use crate::arch::x86_64::interrupts::delivery;
use crate::arch::x86_64::vcpu::inject::{self, NMI, TYPE, vector};
use crate::arch::x86_64::vmx::state::{self, Field};
use crate::cpu::Outcome;

const HARDWARE_EXCEPTION: u64 = 3 << 8;
/// INT1.
const PRIVILEGED_SOFTWARE_EXCEPTION: u64 = 5 << 8;

/// Handles an intercepted exception or an NMI.
pub fn exit(cpu: &mut Cpu) -> Outcome {
    let event = state::read(Field::EXIT_INTERRUPTION);
    if event & TYPE == NMI {
        // A spurious NMI.
        return Outcome::again(reason::NMI.other());
    }
    inject::block_nmis_if_iret(event);
    let interrupted = inject::was_delivering().then(|| state::read(Field::VECTORING));
    side_effects(event);
    inject::event(event, state::read(Field::EXIT_INTERRUPTION_CODE));
    // A benign exception replaces the event being delivered.
    if let Some(event) = interrupted {
        delivery::put_back(cpu, event);
    }
    let row = if event as u8 == vector::ALIGNMENT { rows::EXCEPTION_ALIGNMENT } else { rows::EXCEPTION_DEBUG };
    resume_or_leave(cpu, row)
}

/// Whether an intercepted exception has the side effects of a debug exception ([`debug`]): INT1 has its vector, but no cause.
pub fn is_debug(event: u64) -> bool {
    event & (TYPE | 0xff) == HARDWARE_EXCEPTION | u64::from(vector::DEBUG)
}

/// Side effects of an intercepted exception that is about to be injected.
pub fn side_effects(event: u64) {
    if is_debug(event) {
        debug(state::read(Field::EXIT_QUALIFICATION));
    } else if event & TYPE == PRIVILEGED_SOFTWARE_EXCEPTION {
        // It has been executed: the shadow before it has ended. Entry with a shadow and TF would need a pending step.
        inject::end_shadow();
    }
}
