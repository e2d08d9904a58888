//! Direct IPIs: absent.

use stile_apic::GeneralProtection;

use crate::arch::x86_64::host::cpu::Cpu;
use crate::cpu::Loaded;
use crate::vm::Vcpu;

/// The VM does not have the register.
pub fn control(_cpu: &Cpu) -> Option<u64> {
    None
}

/// As [`control`].
pub fn set_control(_cpu: &mut Cpu, _value: u64) -> Option<Result<(), GeneralProtection>> {
    None
}

/// As [`control`].
pub fn command(_cpu: &mut Cpu, _value: u64) -> Option<Result<(), GeneralProtection>> {
    None
}

/// Nothing to disable.
pub fn end(_cpu: &mut Cpu) {}

/// Nothing to close.
pub fn close(_cpu: &mut Cpu, _vcpu: &Vcpu) {}

/// No slot was closed.
pub fn kick_siblings(_cpu: &mut Cpu) {}

/// HLT always exits.
pub fn trap_halts(_trapped: bool, _loaded: Loaded<'_>) {}

/// Nothing to load.
pub fn load(_cpu: &mut Cpu, _vcpu: &Vcpu) {}

/// Nothing is outstanding.
pub fn put(_cpu: &mut Cpu, _loaded: Loaded<'_>) -> bool {
    false
}

/// No guest sends wake-ups.
pub fn wake_beside(_cpu: &mut Cpu) {}

/// As [`wake_beside`].
pub fn wake_from_idle(_cpu: &Cpu) {}

/// No guest sends this vector.
pub fn end_spurious() {}
