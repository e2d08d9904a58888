//! Late SGIs of a VM that is saved or reset, at a CPU where another VM's vCPU becomes direct (`interrupts/direct.rs`).

use std::sync::Arc;

use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;

use super::model;

#[allow(unfulfilled_lint_expectations, reason = "nothing of the copy is public")]
mod late_sgis {
    include!(concat!(env!("OUT_DIR"), "/late.rs"));
}

use late_sgis::{LateSgis, Owner};

const OLD: Owner = Owner { vm: 1, vcpu: 0 };
const NEW: Owner = Owner { vm: 2, vcpu: 0 };
/// SGIs that are pending at the CPU: an old one, and one of the next vCPU.
const OF_OLD: u32 = 1;
const OF_NEW: u32 = 2;

struct Cpu {
    late: LateSgis,
    pending: AtomicU32,
}

impl Cpu {
    /// The old vCPU has left, long ago.
    fn new() -> Arc<Self> {
        let late = LateSgis::new();
        assert!(late.enter(OLD));
        late.leave(0);
        Arc::new(Self { late, pending: AtomicU32::new(OF_OLD) })
    }

    /// As `redistributor::strays`.
    fn strays(&self) -> u32 {
        self.pending.swap(0, Ordering::Relaxed)
    }

    /// As `direct::resume`, until it succeeds. Senders find the vCPU then. Returns what it took for the old one.
    fn resume(&self) -> u32 {
        let mut taken = 0;
        loop {
            let strays = self.strays();
            if self.late.owner() == Some(OLD) {
                taken |= strays;
            }
            if self.late.may_become(NEW, 100, 10) && self.late.enter(NEW) {
                break;
            }
            thread::yield_now();
        }
        self.pending.fetch_or(OF_NEW, Ordering::Relaxed);
        taken
    }
}

#[test]
fn no_sgi_of_the_next_vcpu_is_collected_for_another() {
    model(3, || {
        let cpu = Cpu::new();
        let next = {
            let cpu = Arc::clone(&cpu);
            thread::spawn(move || cpu.resume())
        };
        let mut taken = 0;
        cpu.late.collect(OLD.vm, |owner| {
            assert_eq!(owner, OLD);
            taken = cpu.strays();
        });
        taken |= next.join().unwrap();
        assert_eq!((taken, cpu.pending.load(Ordering::Relaxed)), (OF_OLD, OF_NEW), "SGIs of both");
    });
}

#[test]
fn the_next_vcpu_is_not_forgotten_with_another_vm() {
    model(3, || {
        let cpu = Cpu::new();
        let next = {
            let cpu = Arc::clone(&cpu);
            thread::spawn(move || cpu.resume())
        };
        cpu.late.forget(OLD.vm);
        next.join().unwrap();
        assert_eq!(cpu.late.owner(), Some(NEW));
        assert_eq!(cpu.strays(), OF_NEW);
    });
}
