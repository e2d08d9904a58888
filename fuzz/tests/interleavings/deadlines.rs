//! Counts of the 8254 that two vCPUs set: the deadline is that of the last one.

use std::sync::Arc;

use loom::thread;

mod watch {
    include!(concat!(env!("OUT_DIR"), "/watch.rs"));
}

mod timer {
    use super::super::lock::{TicketGuard, TicketLock};
    use super::watch::Watch;

    mod pit {
        pub const FREQUENCY: u64 = 1;
    }

    mod ticks {
        pub fn tsc_at(at: u64, _: u64) -> u64 {
            at
        }
    }

    mod events {
        pub fn watch(_: &super::Vcpu) {}
    }

    /// A counter, by the time of its expiry.
    pub struct Pit(pub Option<u64>);

    impl Pit {
        fn deadline(&self) -> Option<u64> {
            self.0
        }
    }

    pub struct Arch {
        pub watch: Watch,
    }

    pub struct Vcpu {
        pub arch: Arch,
    }

    pub struct Vm {
        pub vcpus: [Vcpu; 1],
    }

    pub struct Timer(pub TicketLock<Pit>);

    include!(concat!(env!("OUT_DIR"), "/pit_watch.rs"));

    impl Timer {
        /// As `write` of the device does.
        pub fn write(&self, vm: &Vm, at: u64) {
            let mut pit = self.0.lock();
            pit.0 = Some(at);
            Timer::watch(pit, vm);
        }
    }
}

use timer::{Arch, Pit, Timer, Vcpu, Vm};
use watch::Watch;

#[test]
fn the_deadline_is_of_the_last_count() {
    super::model(3, || {
        let vm = Vm { vcpus: [Vcpu { arch: Arch { watch: Watch::new() } }] };
        let state = Arc::new((Timer(super::lock::TicketLock::new(Pit(None))), vm));
        let other = {
            let state = state.clone();
            thread::spawn(move || state.0.write(&state.1, 1))
        };
        state.0.write(&state.1, 2);
        other.join().unwrap();
        assert_eq!(state.1.vcpus[0].arch.watch.next(), state.0.0.lock().0);
    });
}
