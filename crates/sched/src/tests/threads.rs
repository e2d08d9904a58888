//! CPUs that act at the same time: a thread for each.

use std::boxed::Box;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::vec::Vec;

use super::machine::Machine;
use super::{VCPUS_OF_VM, cpu, cpus, vcpu};
use crate::{CpuId, Loading, Next, Placement, Scheduler, State, VcpuId};

const CPUS: usize = 3;
/// Three VMs.
const VCPUS: usize = 3 * VCPUS_OF_VM;
const ROUNDS: usize = if cfg!(miri) { 50 } else { 1500 };

struct Shared {
    scheduler: Box<Scheduler>,
    kicked: [AtomicBool; CPUS],
    /// The CPU that has each vCPU's registers, plus 1.
    loaded_on: [AtomicUsize; VCPUS],
    /// Whether each vCPU has a pending interrupt.
    pending: [AtomicBool; VCPUS],
    now: AtomicU64,
}

/// A pseudorandom sequence (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, most: u64) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % most) as usize
    }
}

impl Shared {
    fn kick(&self, cpu: CpuId) {
        self.kicked[super::place(cpu)].store(true, Ordering::SeqCst);
    }

    fn placed(&self, placement: Option<Placement>) {
        if let Some(Placement { cpu, kick: true }) = placement {
            self.kick(cpu);
        }
    }

    fn load(&self, me: usize, vcpu: VcpuId) {
        let before = self.loaded_on[super::number(vcpu)].swap(me + 1, Ordering::SeqCst);
        assert_eq!(before, 0, "{vcpu:?} is loaded on CPU {me}, and its registers are not in memory");
    }

    fn put(&self, me: usize, vcpu: VcpuId) {
        let before = self.loaded_on[super::number(vcpu)].swap(0, Ordering::SeqCst);
        assert_eq!(before, me + 1, "{vcpu:?} is put by CPU {me}");
    }

    /// An operation of a CPU on itself, and what a hypervisor does with the result.
    fn act(&self, me: usize, held: &mut Option<VcpuId>, random: &mut Random) {
        let (id, now) = (cpu(me), self.now.fetch_add(1, Ordering::SeqCst));
        let takes_pending = |vcpu: VcpuId| self.pending[super::number(vcpu)].swap(false, Ordering::SeqCst);
        let waits = random.below(3) == 0 && held.is_some_and(|vcpu| !takes_pending(vcpu));
        let mut locked = self.scheduler.lock(id);
        let switch = match random.below(16) {
            0 => locked.off(id, now),
            1 => locked.yield_now(id, now),
            2..6 => locked.slice_end(id, now),
            _ if waits => locked.block(id, now),
            _ => locked.pick_next(id, now),
        };
        let keeps = switch.next.map_or(locked.loaded(id).is_some(), |next| next.loading != Loading::Empty);
        if let Some(vcpu) = held.take_if(|_| !keeps) {
            self.put(me, vcpu);
        }
        if let Some(Next { loading: Loading::Replace(old), .. }) = switch.next {
            assert_eq!(held.take(), Some(old));
            // Time for another CPU to load it too early.
            thread::yield_now();
            self.put(me, old);
        }
        drop(locked);
        switch.kicks.iter().for_each(|cpu| self.kick(cpu));
        if let Some(next) = switch.next {
            if next.loading == Loading::Loaded {
                assert_eq!(*held, Some(next.vcpu));
            } else {
                self.load(me, next.vcpu);
                *held = Some(next.vcpu);
            }
            takes_pending(next.vcpu);
        }
    }

    /// Acts on any vCPU or CPU, as a guest that sends interrupts, an operator or the watch does.
    fn act_on_others(&self, random: &mut Random) {
        let (index, now) = (random.below(VCPUS as u64), self.now.fetch_add(1, Ordering::SeqCst));
        let vcpu = vcpu(index);
        match random.below(24) {
            0 => self.scheduler.stop(vcpu, now).into_iter().for_each(|cpu| self.kick(cpu)),
            1 => self.scheduler.park(vcpu, now).into_iter().for_each(|cpu| self.kick(cpu)),
            2..4 => self.placed(self.scheduler.unpark(vcpu, now)),
            4..7 => self.placed(self.scheduler.start(vcpu, now).ok()),
            7 => self.scheduler.bar(cpu(index % CPUS), now).iter().for_each(|cpu| self.kick(cpu)),
            8..10 => (0..CPUS).for_each(|number| self.scheduler.unbar(cpu(number))),
            _ => {
                self.pending[index].store(true, Ordering::SeqCst);
                self.placed(self.scheduler.wake(vcpu, now));
            }
        }
    }
}

/// No vCPU is loaded before its registers are in memory, no wake-up is lost, and once all is still, all invariants hold and no CPU idles
/// in vain.
#[test]
fn cpus_that_act_at_once_agree() {
    let scheduler = Box::new(Scheduler::new());
    (0..CPUS).for_each(|number| scheduler.cpu_online(cpu(number)));
    for index in 0..VCPUS {
        // Any CPU or two of them, as the VM's others, or one.
        let of_vm = [0b111, 0b011, 0b110][index / VCPUS_OF_VM];
        let mask = if index % 3 == 0 { 1 << (index % CPUS) } else { of_vm };
        scheduler.configure(vcpu(index), cpus(mask)).expect("it is off");
    }
    for (vm, cap) in [(0, None), (1, Some((40, 100))), (2, Some((90, 100)))] {
        scheduler.set_share(vm, 100, cap);
    }
    let shared = Shared {
        scheduler,
        kicked: [const { AtomicBool::new(false) }; CPUS],
        loaded_on: [const { AtomicUsize::new(0) }; VCPUS],
        pending: [const { AtomicBool::new(false) }; VCPUS],
        now: AtomicU64::new(1),
    };
    let registers: Vec<_> = thread::scope(|scope| {
        let shared = &shared;
        let run = move |me: usize| {
            let (mut held, mut random) = (None, Random(0x9e37_79b9_7f4a_7c15 + me as u64));
            for _ in 0..ROUNDS {
                shared.kicked[me].store(false, Ordering::SeqCst);
                shared.act(me, &mut held, &mut random);
                shared.act_on_others(&mut random);
                // The host may have fewer CPUs than threads.
                thread::yield_now();
            }
            held
        };
        let threads: Vec<_> = (0..CPUS).map(|me| scope.spawn(move || run(me))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no thread panics")).collect()
    });
    (0..CPUS).for_each(|number| shared.scheduler.unbar(cpu(number)));
    let kicked: BTreeSet<_> = (0..CPUS).filter(|&number| shared.kicked[number].load(Ordering::SeqCst)).map(cpu).collect();
    let mut machine = Machine::around(shared.scheduler, CPUS, VCPUS, registers, kicked, shared.now.into_inner());
    machine.settle();
    machine.check();
    for index in 0..VCPUS {
        let is_lost = shared.pending[index].load(Ordering::SeqCst) && machine.scheduler.state(vcpu(index)) == State::Blocked;
        assert!(!is_lost, "vCPU {index} sleeps with an interrupt pending");
    }
    // A CPU that waited for another one's lock may not know of an idle CPU until its slice ends.
    (0..CPUS).for_each(|number| machine.step(cpu(number), Scheduler::slice_end));
    machine.settle();
    machine.check();
    machine.check_busy();
}
