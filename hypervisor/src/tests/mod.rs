//! A machine of the fake back end: VMs are created and destroyed, and vCPUs sleep, wake, move and power themselves off, at random.

mod configuration;
mod counts;
mod failures;
mod figures;
mod guest;
mod ledgers;
mod lifecycle;
mod line;
mod lost_cpu;
mod machine;
mod operator;
mod random;
mod snapshots;
mod tracing;
mod uploads;

use std::panic::catch_unwind;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};

use stile_blob::Blob;

use crate::arch::{Cpu, fake};
use crate::vm::power::{self, End};
use crate::{arena, cpu, memory, report, sample, trace, upload, vm, watch};

/// Physical CPUs of the machine.
const CPUS: usize = 3;
/// vCPUs of each VM of the configuration.
const VCPUS: [u16; 3] = [4, 2, 1];

// Under Miri, which needs a thousand times as long, all sizes are smaller.
/// Steps of the machine with the VMs of the configuration.
const STEPS: usize = if cfg!(miri) { 150 } else { 60_000 };
/// VMs that are created and destroyed.
const CYCLES: usize = if cfg!(miri) { 3 } else { 1_000 };
/// vCPUs of the largest of them.
const MANY_VCPUS: u16 = if cfg!(miri) { 16 } else { stile_board::MAX_VCPUS as u16 };
/// Traces that the operator records.
const TRACES: u32 = if cfg!(miri) { 1 } else { 12 };
/// Steps of the machine during a trace.
const TRACE_STEPS: usize = if cfg!(miri) { 300 } else { 4_000 };
/// Resets by the operator and the guest at once.
const RESETS: usize = if cfg!(miri) { 2 } else { 20 };
/// Steps of the machine while none of its VMs is on.
const STEPS_WITHOUT_VMS: usize = if cfg!(miri) { 100 } else { 2_000 };
/// Messages that exceed the buffer of a line that accepts none.
const MANY_MESSAGES: u32 = if cfg!(miri) { 300 } else { 1_000 };

#[test]
fn vms_live_and_end() {
    let _turn = take_line();
    let mut machine = boot();
    for step in 0..STEPS {
        machine.step();
        if step % 16 == 0 {
            operator::operate();
        }
        if step % 512 == 0 {
            ledgers::an_idle_cpu_answers(&mut machine);
        }
    }
    tracing::traces_come_and_go(&mut machine);
    ledgers::are_sent_in_pieces(&mut machine);
    lifecycle::vms_come_and_go(&mut machine);
    lost_cpu::is_found(&mut machine);
    lifecycle::operators_reset_precedes_guests(&mut machine);
    failures::of_each_allocation(&mut machine);
    uploads::leave_nothing_behind(&mut machine);
    snapshots::become_other_vms(&mut machine);
    lifecycle::new_vms_keep_the_machine_on(&mut machine);
    let vcpus = vm::all().map(|vm| vm.vcpus.len()).sum();
    // The last VM ends immediately if it is paused.
    let all_off = catch_unwind(|| vm::all().for_each(|vm| power::end(vm, End::Off)));
    if all_off.is_ok() {
        while machine.step_to_end() {}
    }
    for woken in [&guest::WOKEN_BESIDE, &guest::WOKEN_LATER] {
        assert!(woken.load(Ordering::Relaxed) > STEPS as u64 / 600, "{woken:?}");
    }
    counts::check_messages(vcpus);
}

/// Boots the machine in the order of `main`, and starts the VMs of the configuration.
fn boot() -> machine::Machine {
    let cpus: Vec<Cpu> = (0..CPUS).map(Cpu::new).collect();
    memory::setup(std::iter::once(&(0x1000..fake::MEMORY as u64)), &[], None);
    cpus.iter().for_each(|cpu| cpu::online(cpu).unwrap());
    let blob = Blob::parse(configuration::blob()).unwrap();
    cpu::setup(blob.settings.slice_us);
    let (configuration, files) = (blob.vms.clone().collect(), blob.files());
    arena::check_that_all_comes_back();
    vm::create_all(blob, &configuration::changes()).unwrap();
    sample::setup().unwrap();
    memory::tests::fail_after(0);
    assert!(report::setup(true).is_err() && memory::tests::fail_no_more());
    report::setup(true).unwrap();
    vm::all().for_each(power::start);
    watch::setup();
    upload::setup();
    trace::setup();
    machine::setup();
    machine::Machine::new(cpus, configuration, files)
}

/// Makes tests take turns: there is one machine, with one line.
fn take_line() -> MutexGuard<'static, ()> {
    static MACHINE: Mutex<()> = Mutex::new(());
    let turn = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    fake::LINE.lock().unwrap().clear();
    turn
}
