//! Handing a CPU over does what waking and blocking do.

use proptest::prelude::*;

use super::machine::Machine;
use super::random::{Op, apply, op, shape, shares};
use super::{cpu, vcpu};

/// Two machines with these shares: one hands CPUs over in one operation, the other in two.
fn pair(cpus: usize, affinity: &[u64], shares: &[(u16, Option<u64>)]) -> [Machine; 2] {
    let machine = || {
        let machine = Machine::new(cpus, affinity);
        for (vm, &(weight, cap)) in (0..).zip(shares) {
            machine.scheduler.set_share(vm, weight, cap.map(|quota| (quota, 20)));
        }
        machine
    };
    [machine(), machine()]
}

/// Asserts that the schedulers of two machines are in the same state.
fn assert_same([one, two]: &[Machine; 2]) {
    assert!(one.scheduler.is_same(&two.scheduler), "the schedulers differ");
    assert_eq!(one.kicked, two.kicked);
}

#[test]
fn a_cpu_of_one_vm_is_handed_over_at_once() {
    for beside in [false, true] {
        // The last vCPU is another VM's, on another CPU, with which shares are accounted.
        let mut affinity = [1; 9];
        affinity[8] = 2;
        let vcpus = if beside { 9 } else { 2 };
        let mut machines = pair(2, &affinity[..vcpus], &[]);
        for machine in &mut machines {
            for index in [0, vcpus - 1, 1] {
                let placement = machine.scheduler.start(vcpu(index), 0).ok();
                machine.placed(placement);
            }
            machine.take_kicks();
            machine.now = 10;
            machine.step(cpu(0), crate::Scheduler::block);
            machine.now = 20;
        }
        assert_eq!(machines[0].scheduler.lock_all().policed(), beside);
        let from = machines[0].current(0).expect("vCPU 0 or 1 runs");
        let [one, two] = &mut machines;
        assert!(one.hand_over(cpu(0), vcpu(1 - from), true), "{beside}");
        assert!(!two.hand_over(cpu(0), vcpu(1 - from), false));
        assert_eq!(one.current(0), Some(1 - from));
        one.check();
        assert_same(&machines);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    /// In any state, for any vCPU.
    #[test]
    fn one_operation_is_as_two((cpus, affinity) in shape(), shares in prop::option::of(shares()), ops in prop::collection::vec(op(), 0..100)) {
        let mut machines = pair(cpus, &affinity, &shares.unwrap_or_default());
        for op in ops {
            let [one, two] = &mut machines;
            match op {
                Op::HandOver(number, index) => {
                    let (number, index) = (cpu(number % cpus), vcpu(index % affinity.len()));
                    one.hand_over(number, index, true);
                    two.hand_over(number, index, false);
                }
                op => [one, two].into_iter().for_each(|machine| {
                    machine.now += 1;
                    apply(machine, op);
                }),
            }
            assert_same(&machines);
        }
    }
}
