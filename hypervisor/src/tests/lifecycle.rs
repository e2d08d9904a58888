//! Creation, reset and destruction of VMs while others run.

use std::ptr::with_exposed_provenance;

use stile_blob::OnReset;
use stile_sched::CpuId;
use stile_wire::{Answer, Event, VmState};

use super::counts::{DESTROYED, count, line_length, messages};
use super::machine::Machine;
use super::random::random;
use super::{CPUS, CYCLES, MANY_VCPUS, RESETS, STEPS_WITHOUT_VMS, VCPUS, operator};
use crate::arch::Arch;
use crate::arch::contract::Host;
use crate::vm::power::{self, End};
use crate::vm::{self, retire};
use crate::{cpu, memory};

/// Whether memory that was freed is zero.
fn is_clear(start: *const u8, size: usize) -> bool {
    // SAFETY: callers pass a part of the fake memory, which is initialized and never freed; no thread writes there meanwhile.
    memory::tests::is_clear(unsafe { std::slice::from_raw_parts(start, size) })
}

/// VMs are destroyed and created while others run: all memory is returned and cleared, and no state of a VM reaches the next one with its
/// number.
pub fn vms_come_and_go(machine: &mut Machine) {
    operator::resume_all();
    let all = vm::all().map(vm::Vm::memory).sum::<u64>() + memory::available();
    for cycle in 0..CYCLES {
        let number = 1 + random(VCPUS.len() as u64 - 1) as usize;
        if let Some(vm) = vm::get(number) {
            destroy_and_check(machine, vm);
        }
        let others = vm::all().map(vm::Vm::memory).sum::<u64>();
        assert_eq!(memory::available() + others, all, "memory is missing after {cycle} cycles");
        let mut config = machine.configuration[number].clone();
        config.memory = (1 + random(4)) * (2 << 20);
        config.vcpus = if cycle % 16 == 0 { MANY_VCPUS } else { 1 + random(8) as u16 };
        if random(8) == 0 {
            fail_to_create(machine, number, &config);
            assert_eq!(memory::available() + others, all, "a VM that can't be created leaves something behind");
        }
        let vm = machine.create(number, &config);
        assert!(!retire::claim(number));
        let times = vm.vcpus.iter().map(|vcpu| cpu::SCHEDULE.times(vcpu.id, u64::MAX));
        assert!(times.eq(vm.vcpus.iter().map(|_| stile_sched::Times::default())), "a new VM has not run");
        power::start(vm);
        for _ in 0..random(200) {
            machine.step();
        }
    }
}

/// Destroys a VM, of which nothing is left in memory.
fn destroy_and_check(machine: &mut Machine, vm: &'static vm::Vm) {
    let number = vm.number;
    operator::turn_on(vm);
    assert_eq!(power::destroy(vm), Answer::WrongState, "it is on");
    power::end_now(vm, End::Off);
    machine.run_until(|| power::destroy(vm) == Answer::Done);
    for command in [power::destroy, power::turn_on, power::pause, |vm| power::end_now(vm, End::Off), |vm| power::end_now(vm, End::Restart)]
    {
        assert_eq!(command(vm), Answer::WrongState, "it is being destroyed");
    }
    if random(4) == 0 {
        machine.lose_cpu();
    }
    let ram: Vec<u64> = vm.arch.mapped.lock().unwrap().values().copied().collect();
    // Not a pointer made from `vm`, which ends with the VM (Tree Borrows).
    let place = std::ptr::from_ref(vm).addr();
    machine.run_until(|| vm::get(number).is_none() && !retire::is_any());
    machine.regain_cpu();
    count(&DESTROYED, 1);
    assert!(ram.iter().all(|&block| is_clear(Arch::physical(block), 2 << 20)), "RAM is returned with the guest's data");
    assert!(is_clear(with_exposed_provenance(place), size_of::<vm::Vm>()), "memory is returned with Stile's data");
}

/// Creates VMs for which there is too little memory, or no CPU.
fn fail_to_create(machine: &mut Machine, number: usize, config: &stile_blob::Vm<'static>) {
    let too_large = stile_blob::Vm { memory: 1 << 30, ..config.clone() };
    let nowhere = stile_blob::Vm { cpus: CpuId::wrapping(CPUS).into(), ..config.clone() };
    assert!(retire::claim(number));
    assert!([too_large, nowhere].iter().all(|config| vm::create(number, config, machine.files).is_err()));
    retire::abandon(number);
    machine.run_until(|| !retire::is_any());
}

/// The operator resets a VM that a reset by its guest turns off, while its guest resets it: it is restarted.
pub fn operators_reset_precedes_guests(machine: &mut Machine) {
    let number = 1;
    machine.destroy(number);
    let config = stile_blob::Vm { on_reset: OnReset::Stop, vcpus: 4, ..machine.configuration[number].clone() };
    let vm = machine.create(number, &config);
    power::start(vm);
    for _ in 0..RESETS {
        operator::turn_on(vm);
        machine.run_until_runs(number);
        let from = line_length();
        power::end_now(vm, End::Restart);
        power::end(vm, if random(2) == 0 { End::Reset } else { End::Off });
        let mut fate = None;
        machine.run_until(|| {
            let states = messages(from).into_iter().filter_map(|event| match event {
                Event::Vm { vm, state } if usize::from(vm) == number && state != VmState::Started => Some(state),
                _ => None,
            });
            fate = states.fold(fate, |_, state| Some(state));
            fate.is_some()
        });
        assert!(matches!(fate, Some(VmState::Restarted(_))), "{fate:?}");
        for _ in 0..random(50) {
            machine.step();
        }
    }
}

/// VMs that were created but not started keep the machine on while all others end.
pub fn new_vms_keep_the_machine_on(machine: &mut Machine) {
    operator::resume_all();
    for number in 1..VCPUS.len() {
        machine.destroy(number);
    }
    for number in 1..VCPUS.len() {
        machine.create(number, &machine.configuration[number]);
    }
    power::end(vm::get(0).unwrap(), End::Off);
    for _ in 0..STEPS_WITHOUT_VMS {
        machine.step();
    }
    vm::all().filter(|vm| vm.number != 0).for_each(power::start);
}
