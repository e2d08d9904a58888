//! CPUs that do not answer.

use std::boxed::Box;

use super::{cpu, cpus, number, vcpu};
use crate::{Placement, Scheduler, State};

/// Two CPUs: vCPU 0 runs on CPU 1, and vCPU 1 on CPU 0. Of those that are off 2 and 3 may use both, and 4 only CPU 1.
fn busy() -> Box<Scheduler> {
    let scheduler = Box::new(Scheduler::new());
    (0..2).for_each(|n| scheduler.cpu_online(cpu(n)));
    for (n, allowed) in [(0, 0b10), (1, 0b01), (2, 0b11), (3, 0b11), (4, 0b10)] {
        scheduler.configure(vcpu(n), cpus(allowed)).expect("it is off");
    }
    let _ = scheduler.start(vcpu(0), 0).expect("it is off");
    let _ = scheduler.pick_next(cpu(1), 0);
    let _ = scheduler.start(vcpu(1), 0).expect("it is off");
    let _ = scheduler.pick_next(cpu(0), 0);
    scheduler
}

#[test]
fn those_that_wait_for_a_barred_cpu_go_elsewhere() {
    let scheduler = busy();
    let waits_for_1 = |scheduler: &Scheduler, n| scheduler.state(vcpu(n)) == State::Ready(cpu(1));
    // vCPU 2 waits for CPU 1, though it may use both, as it did when CPU 0 was busier.
    scheduler.lock_vcpu(vcpu(2))[vcpu(2)].last = Some(cpu(1));
    for n in [2, 4] {
        let _ = scheduler.start(vcpu(n), 1).expect("it is off");
        assert!(waits_for_1(&scheduler, n));
    }
    assert_eq!(scheduler.bar(cpu(1), 2), cpus(0b01));
    assert_eq!(scheduler.state(vcpu(2)), State::Ready(cpu(0)));
    assert!(waits_for_1(&scheduler, 4), "it may not run elsewhere");
    assert_eq!(scheduler.current(cpu(1)), Some(vcpu(0)));
    // CPU 0 runs both in turn.
    let ran: std::vec::Vec<_> = (3..7)
        .map(|now| {
            let _ = scheduler.slice_end(cpu(0), now);
            scheduler.current(cpu(0)).map(number)
        })
        .collect();
    assert!(ran.contains(&Some(1)) && ran.contains(&Some(2)), "{ran:?}");
}

#[test]
fn nobody_comes_to_a_barred_cpu_until_it_answers() {
    let scheduler = busy();
    let _ = scheduler.bar(cpu(1), 1);
    // New ones and woken ones.
    scheduler.configure(vcpu(5), cpus(0b11)).expect("it is off");
    for n in [2, 3, 5] {
        assert!(matches!(scheduler.start(vcpu(n), 1), Ok(Placement { cpu: on, .. }) if on == cpu(0)), "{n}");
    }
    for now in 2..40 {
        let _ = scheduler.slice_end(cpu(0), now);
        assert!([2, 3, 5].iter().all(|&n| !matches!(scheduler.state(vcpu(n)), State::Ready(on) | State::Running(on) if on == cpu(1))));
    }
    // The vCPU there leaves: no other vCPU waits for it.
    scheduler.unbar(cpu(1));
    let _ = scheduler.stop(vcpu(0), 40);
    let switch = scheduler.pick_next(cpu(1), 40);
    assert!(switch.next.is_some_and(|next| [2, 3, 5].contains(&number(next.vcpu))), "it steals again");
}

#[test]
fn a_vcpu_without_another_cpu_stays() {
    let scheduler = busy();
    assert!(scheduler.bar(cpu(0), 1).is_empty() && scheduler.bar(cpu(1), 1).is_empty());
    assert!(scheduler.start(vcpu(4), 2).is_ok_and(|placement| placement.cpu == cpu(1)));
    (0..2).for_each(|n| scheduler.unbar(cpu(n)));
    assert!([0, 1].map(|n| scheduler.current(cpu(n))) == [Some(vcpu(1)), Some(vcpu(0))]);
}
