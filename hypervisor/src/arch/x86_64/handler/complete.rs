//! Completion of emulated instructions.

use stile_x86_decode::Outcome as Done;

use super::{TF, advance_to};
use crate::arch::x86_64::vcpu::inject;
use crate::arch::x86_64::virt::state::{self, Field};

/// Completes an instruction, which need not continue at `next`.
#[cold]
#[inline(never)]
pub fn finish(done: Done, next: u64) {
    match done {
        Done::Changed => refetch(),
        Done::Complete => _ = advance_to(next),
        Done::Jump(to) => {
            // This counts as a step with BTF as well.
            if advance_to(to) & TF != 0 {
                inject::pend_step();
            }
        }
        Done::Shadowed => {
            advance_to(next);
            inject::begin_shadow();
        }
        Done::Flags(flags) => {
            advance_to(next);
            state::write(Field::GUEST_RFLAGS, flags);
        }
        Done::Partial => inject::pause(),
    }
}

/// The instruction in memory cannot have caused this exit: the processor fetched it through a stale translation.
/// Invalidates that, and continues with the code in memory.
#[cold]
pub fn refetch() {
    state::invalidate_translations();
}
