//! Failing creation of VMs.

use super::counts::{CREATED, count};
use super::guest;
use super::machine::Machine;
use crate::memory;
use crate::vm::{self, power, retire};

/// Each allocation of a VM's creation fails in turn: the VM is refused, nothing of it is left, and its number can be used again.
pub fn of_each_allocation(machine: &mut Machine) {
    let number = 1;
    machine.destroy(number);
    let before = memory::available();
    let config = stile_blob::Vm { vcpus: 8, ..machine.configuration[number].clone() };
    let mut failed = 0;
    loop {
        assert!(retire::claim(number), "the number of a VM that was refused is lost");
        memory::tests::fail_after(failed);
        let created = vm::create(number, &config, machine.files);
        if !memory::tests::fail_no_more() {
            guest::forget(number);
            power::start(created.unwrap());
            break;
        }
        assert!(created.is_err_and(|why| !why.is_empty()) && vm::get(number).is_none());
        retire::abandon(number);
        machine.run_until(|| !retire::is_any());
        assert_eq!(memory::available(), before, "memory is missing after allocation {failed} failed");
        failed += 1;
    }
    assert!(failed >= 2, "RAM, and Stile's own: {failed}");
    count(&CREATED, 1);
}
