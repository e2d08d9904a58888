//! Machines of as many CPUs as there may be: how many others a CPU looks at.

use std::boxed::Box;

use super::looks_during;
use crate::{CPUS, CpuId, CpuSet, Scheduler, VcpuId};

/// A machine whose CPUs run these vCPUs of VMs 0 and 1, which may use all of them and are busy.
fn busy(cpus: usize, vcpus: usize) -> Box<Scheduler> {
    let scheduler = Box::new(Scheduler::new());
    CpuId::all().take(cpus).for_each(|cpu| scheduler.cpu_online(cpu));
    (0..2).for_each(|vm| scheduler.set_share(vm, 100, None));
    for vcpu in (0..vcpus).filter_map(|number| VcpuId::new((number % 2) as u8, (number / 2) as u8)) {
        scheduler.configure(vcpu, CpuSet::ALL).expect("it is off");
        let placement = scheduler.start(vcpu, 0).expect("it has CPUs");
        let _ = scheduler.pick_next(placement.cpu, 0);
    }
    scheduler
}

#[test]
fn a_cpu_that_becomes_idle_looks_only_at_cpus_for_which_vcpus_wait() {
    let scheduler = busy(CPUS, CPUS / 2);
    let cpu = CpuId::all().find(|&cpu| scheduler.current(cpu).is_some()).expect("some run");
    let (switch, looks) = looks_during(|| scheduler.block(cpu, 10));
    assert_eq!((switch.next, looks), (None, 0));
}

#[test]
fn a_cpu_steals_from_one_of_the_next_few() {
    let scheduler = busy(CPUS / 2, CPUS);
    let mut cpus = CpuId::all().take(CPUS / 2);
    assert!(cpus.all(|cpu| scheduler.contended(cpu)));
    let own = CpuId::wrapping(200);
    assert!(scheduler.block(own, 10).next.is_some_and(|next| scheduler.home(next.vcpu) == own));
    let (switch, looks) = looks_during(|| scheduler.block(own, 11));
    assert!(switch.next.is_some(), "it found no work among {looks} CPUs");
    // Each is looked at twice if it is the best so far.
    assert!(looks <= 2 * 63, "{looks}");
}
