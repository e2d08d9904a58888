//! A CPU that becomes idle while a vCPU begins to wait for another one: `steal` and `may_spread` of crate `sched`, in small.

use std::sync::Arc;

use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
use loom::thread;

use super::lock::shards::Shards;
use super::model;

/// Two CPUs. The first runs a vCPU, and others wait for it; the second has none. Each guards the number of those that wait.
struct Machine {
    waiting: Shards<(), u32, u32, u32, 2, 1>,
    /// vCPUs that the first CPU runs or that wait for it.
    load: AtomicU32,
    /// Whether the second CPU is idle.
    is_idle: AtomicBool,
    /// A CPU kicked itself, because a lock was not free: it tries again.
    tries_again: AtomicBool,
}

impl Machine {
    /// The second CPU becomes idle, and looks for work.
    fn steal(&self) {
        let mut held = self.waiting.lock(1);
        self.is_idle.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if self.load.load(Ordering::Relaxed) < 2 {
            return;
        }
        if !held.also(0) {
            self.tries_again.store(true, Ordering::Relaxed);
        } else if *held.shard(0) > 0 {
            self.move_one(&mut held);
        }
    }

    /// A vCPU wakes, finds no idle CPU, and waits for the first one, which is kicked.
    fn wake(&self) {
        {
            let mut held = self.waiting.lock(0);
            if self.is_idle.load(Ordering::Relaxed) && held.also(1) {
                *held.shard_mut(1) += 1;
                return;
            }
            self.load.store(2, Ordering::Relaxed);
            *held.shard_mut(0) += 1;
        }
        // Of `request_resched`, or `may_spread`.
        fence(Ordering::SeqCst);
        let mut held = self.waiting.lock(0);
        if *held.shard(0) == 0 || !self.is_idle.load(Ordering::Relaxed) {
            return;
        }
        if held.also(1) {
            self.move_one(&mut held);
        } else {
            self.tries_again.store(true, Ordering::Relaxed);
        }
    }

    fn move_one(&self, held: &mut super::lock::shards::Held<'_, (), u32, u32, u32, 2, 1>) {
        *held.shard_mut(0) -= 1;
        *held.shard_mut(1) += 1;
        self.load.store(1, Ordering::Relaxed);
        self.is_idle.store(false, Ordering::Relaxed);
    }
}

/// No CPU is idle while a vCPU that it may run waits for another one, unless one of them will look again.
#[test]
fn a_cpu_that_becomes_idle_sees_who_waits_or_is_seen() {
    model(3, || {
        let machine = Arc::new(Machine {
            waiting: Shards::new(()),
            load: AtomicU32::new(1),
            is_idle: AtomicBool::new(false),
            tries_again: AtomicBool::new(false),
        });
        let its = machine.clone();
        let other = thread::spawn(move || its.steal());
        machine.wake();
        other.join().unwrap();
        let all = machine.waiting.whole();
        let is_found = *all.shard(1) == 1 && *all.shard(0) == 0;
        assert!(is_found || machine.tries_again.load(Ordering::Relaxed));
    });
}
