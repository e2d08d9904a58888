//! Virtual SErrors of L1 itself. One that is pending while L2 runs is L1's, if L1 routes SErrors to its EL2.

use stile_ledger::aarch64::reason;
use stile_nested_arm::inject::Kind;
use stile_nested_arm::serror::{SYNDROME, VSE};

use super::state::{Nested, Regime};
use super::{exception, traps as own_traps};
use crate::arch::aarch64::host::cpu::Cpu;
use crate::arch::aarch64::vcpu::loaded::WholeCpu;
use crate::arch::aarch64::vcpu::{serror, traps};
use crate::cpu::Outcome;

/// Handles a physical SError that was taken from a guest. It is this vCPU's: errors of earlier vCPUs were attributed
/// when those were put ([`serror::put`]).
#[unsafe(no_mangle)]
extern "C" fn handle_serror(whole: &mut WholeCpu, esr: u64) -> Outcome {
    if serror::needs_virtual_serror(esr) {
        let (cpu, nested) = whole.split();
        match nested {
            Some(nested) => inject(cpu, nested),
            None => traps::inject_serror(),
        }
    }
    Outcome::again(reason::SERROR.other())
}

impl Nested {
    /// Whether a virtual SError of L1's own is pending, or was before the CPU took it.
    #[inline(always)]
    pub fn has_own_serror(&self) -> bool {
        self.base.hcr & VSE != 0
    }

    /// Makes a virtual SError of L1's own pending. The CPU's HCR_EL2 has its bit already.
    #[cold]
    pub fn set_own_serror(&mut self) {
        self.base.hcr |= VSE;
    }
}

#[cold]
fn inject(cpu: &mut Cpu, nested: &mut Nested) {
    own_traps::note_serror(nested);
    traps::inject_serror();
    nested.set_own_serror();
    if nested.regime == Regime::Guest {
        take(cpu, nested);
    }
}

/// Exits from L2 to L1 for its pending SError, if L1 routes those to its EL2. Otherwise L2 takes it.
#[cold]
pub fn take(cpu: &mut Cpu, nested: &mut Nested) {
    if nested.serrors().ends_l2() {
        nested.base.hcr &= !VSE;
        exception::take(cpu, nested, Kind::SError, Some(SYNDROME), None);
    }
}
