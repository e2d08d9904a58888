//! Exit entry points in `exit.S` (HOST_RIP): plain and recording ones, with and without mitigations.

use crate::arch::x86_64::host::speculation;
use crate::arch::x86_64::vmx::vmcs::{self, Field};

unsafe extern "C" {
    fn vm_exit();
    fn vm_exit_l2();
    fn vm_exit_gate();
    fn vm_exit_mitigated();
    fn vm_exit_l2_mitigated();
    fn traced_vm_exit();
    fn traced_vm_exit_l2();
    fn traced_vm_exit_gate();
    fn traced_vm_exit_mitigated();
    fn traced_vm_exit_l2_mitigated();
}

/// Exit entry points (HOST_RIP).
pub fn entry_point() -> u64 {
    if speculation::is_needed_at_exits() { vm_exit_mitigated as *const () as u64 } else { vm_exit as *const () as u64 }
}

/// Exit entry point for L2.
pub fn entry_point_of_l2() -> u64 {
    if speculation::is_needed_at_exits() { vm_exit_l2_mitigated as *const () as u64 } else { vm_exit_l2 as *const () as u64 }
}

/// Exit entry points, with those of recording CPUs.
fn entry_points() -> [(u64, u64); 5] {
    let address = |function: unsafe extern "C" fn()| function as *const () as u64;
    [
        (address(vm_exit), address(traced_vm_exit)),
        (address(vm_exit_l2), address(traced_vm_exit_l2)),
        (address(vm_exit_gate), address(traced_vm_exit_gate)),
        (address(vm_exit_mitigated), address(traced_vm_exit_mitigated)),
        (address(vm_exit_l2_mitigated), address(traced_vm_exit_l2_mitigated)),
    ]
}

/// Starts or stops recording of the current VMCS's exits. Returns whether that changed.
pub fn trace(on: bool) -> bool {
    exchange(entry_points(), on)
}

/// Selects whether exits of the current VMCS may be in the gate view. None is, on a CPU that needs mitigations.
pub fn gate(on: bool) {
    let address = |function: unsafe extern "C" fn()| function as *const () as u64;
    exchange([(address(vm_exit), address(vm_exit_gate)), (address(traced_vm_exit), address(traced_vm_exit_gate))], on);
}

/// Replaces the current VMCS's entry point by the second of its pair, or the first. Returns whether that changed.
fn exchange<const PAIRS: usize>(pairs: [(u64, u64); PAIRS], on: bool) -> bool {
    let current = vmcs::read(Field::HOST_RIP);
    let other = pairs.into_iter().find_map(|(first, second)| {
        let (from, to) = if on { (first, second) } else { (second, first) };
        (current == from).then_some(to)
    });
    if let Some(entry) = other {
        vmcs::write(Field::HOST_RIP, entry);
    }
    other.is_some()
}
