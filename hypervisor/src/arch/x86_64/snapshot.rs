//! Contract of snapshots: there are none yet.

use crate::arch::contract::Snapshots;
use crate::arch::x86_64::Arch;
use crate::vm::Vm;

const OBSTACLE: &str = "VMs on x86-64 can't be saved yet: stop it instead";

impl Snapshots for Arch {
    fn obstacle(_vm: &Vm) -> Option<&'static str> {
        Some(OBSTACLE)
    }

    fn parts(_vm: &Vm) -> usize {
        0
    }

    fn save(_vm: &'static Vm, _part: usize, _since: u64, _to: &mut [u8]) -> Option<usize> {
        None
    }

    fn restore(_vm: &'static Vm, _part: usize, _since: u64, _from: &[u8]) -> Result<(), &'static str> {
        Err(OBSTACLE)
    }

    fn complete(_vm: &'static Vm) {}

    fn is_on(_vm: &Vm, vcpu: usize) -> bool {
        vcpu == 0
    }
}
