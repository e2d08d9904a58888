//! The memory of a VM that was removed from lookups is freed when no CPU refers to it (`vm/retire.rs`).

use std::sync::Arc;

use loom::sync::Mutex;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;

use super::places::{self, Cpu, MAX_CPUS, Place, Vcpu};
use super::{Watched, model};

mod epoch {
    include!(concat!(env!("OUT_DIR"), "/epoch.rs"));
}

use epoch::Epochs;

struct Machine {
    /// 1 while lookups find the VM.
    vm: AtomicU32,
    memory: Watched,
    /// The list of VMs that leave: the epoch of the one that does.
    leaving: Mutex<Option<u64>>,
    epochs: Epochs,
    /// Another VM's vCPU, which has direct interrupts on CPU 1.
    place: Place,
    vcpu: Vcpu,
}

impl Machine {
    fn new() -> Self {
        Self {
            vm: AtomicU32::new(1),
            memory: Watched::new(0),
            leaving: Mutex::new(None),
            epochs: Epochs::new(),
            place: Place::new(),
            vcpu: Vcpu::new(),
        }
    }

    /// An exit that looks up the VM.
    fn refer(&self) {
        if self.vm.load(Ordering::Acquire) != 0 {
            self.memory.get();
        }
    }

    /// As `begin`.
    fn begin(&self) {
        self.vm.swap(0, Ordering::AcqRel);
        let mut leaving = self.leaving.lock().unwrap();
        *leaving = Some(self.epochs.begin());
    }

    /// As `pass`, on a CPU that holds no reference. Frees the memory if no other does. Returns whether it has.
    fn pass(&self, cpu: usize) -> bool {
        let ready = {
            let mut leaving = self.leaving.lock().unwrap();
            self.epochs.see(cpu);
            let oldest = self.epochs.seen_by_all(0..MAX_CPUS, places::is_confined);
            leaving.take_if(|epoch| *epoch <= oldest).is_some()
        };
        if ready {
            self.memory.add(1);
        }
        ready
    }
}

#[test]
fn memory_is_freed_once_no_cpu_refers_to_it() {
    model(3, || {
        let machine = Arc::new(Machine::new());
        let other = Arc::clone(&machine);
        let thread = thread::spawn(move || {
            other.refer();
            let freed = other.pass(1);
            other.refer();
            freed
        });
        machine.begin();
        let freed = machine.pass(0);
        let freed = [freed, thread.join().unwrap(), machine.pass(1)];
        assert_eq!(freed.iter().filter(|freed| **freed).count(), 1);
    });
}

/// CPU 1 takes no request to reschedule while its vCPU has direct interrupts.
#[test]
fn a_confined_cpu_refers_to_no_vm_that_is_freed() {
    model(3, || {
        let machine = Arc::new(Machine::new());
        let other = Arc::clone(&machine);
        let thread = thread::spawn(move || {
            let cpu = Cpu { index: 1 };
            other.refer();
            other.place.publish(&cpu, &other.vcpu);
            other.place.unpublish(&cpu);
            other.refer();
        });
        machine.begin();
        let freed = machine.pass(0);
        thread.join().unwrap();
        assert!(freed != machine.pass(1));
    });
}
