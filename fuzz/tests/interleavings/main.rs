//! Lock-free exchanges in all orders that the memory model allows, with loom. The code is Stile's own, with loom's atomics (`build.rs`);
//! docs/proofs.md lists the exchanges. `--cfg loom` is not needed.
#![allow(dead_code, reason = "parts of Stile's files are not tested here")]
#![allow(unused_doc_comments, reason = "statics become invocations of a macro")]

mod deadlines;
mod events;
mod fills;
mod idle;
mod late;
mod messages;
mod places;
mod retirement;
mod samples;
mod shards;
mod traces;
mod vmids;
mod windows;

use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU32, Ordering, fence};
use loom::thread;

/// Names that the included files expect in their crates.
const PAGE_SIZE: u64 = 4096;
const SGIS: usize = 16;

struct Vectors([u64; 4]);

impl Vectors {
    const fn from_words(words: [u64; 4]) -> Self {
        Self(words)
    }
}

mod lock {
    include!(concat!(env!("OUT_DIR"), "/lock.rs"));

    pub mod shards {
        include!(concat!(env!("OUT_DIR"), "/shards.rs"));
    }
}

mod trace_ring {
    include!(concat!(env!("OUT_DIR"), "/trace_ring.rs"));
}

mod posted {
    include!(concat!(env!("OUT_DIR"), "/posted.rs"));

    impl Descriptor {
        /// NV as a guest reads it, which sends to its own vCPUs.
        pub(crate) fn vector(&self) -> u64 {
            self.control.load(Ordering::SeqCst) >> 16 & 0xff
        }
    }
}

mod first_touch {
    include!(concat!(env!("OUT_DIR"), "/first_touch.rs"));
}

mod pending_requests {
    use super::SGIS;
    use loom::sync::atomic::{AtomicU64, Ordering};
    use std::ops::Range;

    struct Bits(u32);

    impl Iterator for Bits {
        type Item = usize;

        fn next(&mut self) -> Option<usize> {
            let bit = self.0.trailing_zeros();
            self.0 &= self.0.wrapping_sub(1);
            (bit < 32).then_some(bit as usize)
        }
    }

    include!(concat!(env!("OUT_DIR"), "/pending_requests.rs"));
}

/// The PC's invalidation of EPT rights, with CPUs that have a TLB of one entry.
mod invalidations {
    use loom::sync::atomic::{AtomicU64, Ordering, fence};

    pub const MAX_CPUS: usize = 2;

    loom::thread_local! {
        static THIS: std::cell::Cell<usize> = std::cell::Cell::new(0);
        /// This CPU's copy of the entry.
        static TLB: std::cell::Cell<Option<u64>> = std::cell::Cell::new(None);
    }

    pub fn become_cpu(index: usize) {
        THIS.with(|this| this.set(index));
    }

    fn this_index() -> usize {
        THIS.with(|this| this.get())
    }

    /// Whether the guest on this CPU can write: by what the CPU remembers, or else by the table.
    pub fn can_write(table: &AtomicU64) -> bool {
        TLB.with(|tlb| {
            let entry = tlb.get().unwrap_or_else(|| table.load(Ordering::Relaxed));
            tlb.set(Some(entry));
            entry != 0
        })
    }

    mod apic {
        /// Sent at some point, concurrently with the test's thread.
        pub fn invalidate(_cpu: usize) {}
    }

    mod second_stage {
        pub fn invalidate(_: u64) {
            super::TLB.with(|tlb| tlb.set(None));
        }
    }

    include!(concat!(env!("OUT_DIR"), "/invalidations.rs"));

    /// Of one VM.
    pub struct Vm(Invalidations);

    impl Vm {
        pub fn new() -> Self {
            Self(Invalidations::new(0))
        }

        // As `Protected` does.

        pub fn load(&self, cpu: usize) {
            self.0.load(cpu);
        }

        pub fn put(&self, cpu: usize) {
            self.0.put(cpu);
        }

        pub fn catch_up(&self, cpu: usize) {
            self.0.catch_up(cpu);
        }

        pub fn take_right(&self, table: &AtomicU64) {
            table.store(0, Ordering::Release);
            self.0.request();
        }

        pub fn is_done(&self) -> bool {
            self.0.all_invalidated()
        }
    }
}

/// INIT and startup messages of a PC's vCPU.
mod startup {
    use loom::sync::atomic::{AtomicU32, Ordering};

    pub struct DeadlockCheck;

    impl DeadlockCheck {
        fn new() -> Self {
            Self
        }

        fn end(&self) {}
    }

    pub struct Power;

    impl Power {
        fn if_on(&self, work: impl FnOnce()) {
            work();
        }

        fn has_errand(&self) -> bool {
            false
        }
    }

    pub struct Arch {
        pub events: Events,
        pub index: usize,
        /// The APIC's own registers, accessed exclusively by the CPU that resets or uses them.
        pub apic: super::Watched,
    }

    impl Arch {
        unsafe fn init(&self) {
            self.apic.add(1);
        }
    }

    pub struct Vcpu {
        pub arch: Arch,
        pub power: Power,
        /// The registers, accessed exclusively by the CPU that resets or uses them.
        pub registers: super::Watched,
        /// Number of starts, and the page of the last one.
        pub starts: AtomicU32,
        pub page: AtomicU32,
    }

    impl Vcpu {
        /// The second one of a VM, which is on.
        pub fn new() -> Self {
            let vcpu = Self {
                arch: Arch { events: Events::new(), index: 1, apic: super::Watched::new(0) },
                power: Power,
                registers: super::Watched::new(0),
                starts: AtomicU32::new(0),
                page: AtomicU32::new(0),
            };
            vcpu.arch.events.reset(true);
            vcpu
        }

        fn vm(&self) -> &Self {
            self
        }

        /// An exit on the CPU that runs the vCPU: turns it off if INIT is pending.
        pub fn exit(&self) -> bool {
            self.registers.add(1);
            let leaves = self.arch.events.init();
            if leaves {
                turned_off(self);
            }
            !leaves
        }
    }

    /// Kicks and wake-ups: here each receiver checks by itself.
    mod cpu {
        pub fn notify(_: &super::Vcpu) {}
    }

    fn start(vcpu: &Vcpu, page: u8) {
        vcpu.arch.events.waiting.fetch_and(INIT | EXTERNAL, Ordering::AcqRel);
        vcpu.registers.add(1);
        vcpu.arch.apic.add(1);
        vcpu.page.store(page.into(), Ordering::Relaxed);
        // Ordered by the scheduler's lock.
        vcpu.starts.fetch_add(1, Ordering::Release);
    }

    include!(concat!(env!("OUT_DIR"), "/events.rs"));
    include!(concat!(env!("OUT_DIR"), "/init.rs"));
    include!(concat!(env!("OUT_DIR"), "/startup.rs"));
}

/// Requests to reschedule.
#[allow(unused_doc_comments, reason = "the file's static becomes a macro")]
mod resched {
    use loom::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

    const MAX_CPUS: usize = 2;

    #[derive(Clone, Copy)]
    pub struct VcpuId;

    #[derive(Clone, Copy)]
    pub struct Vcpu {
        id: VcpuId,
    }

    /// A value that is never set: nothing waits for requests to be taken here.
    pub struct Once<T>(core::marker::PhantomData<T>);

    impl<T> Once<T> {
        const fn new() -> Self {
            Self(core::marker::PhantomData)
        }

        fn try_get(&self) -> Option<&T> {
            None
        }
    }

    #[derive(Clone, Copy)]
    pub struct CpuId(pub usize);

    impl CpuId {
        fn index(self) -> usize {
            self.0
        }
    }

    pub struct Cpu {
        pub index: usize,
        pub vcpu: Option<Vcpu>,
    }

    loom::lazy_static! {
        /// Kicks that were sent.
        pub static ref KICKS: AtomicU32 = AtomicU32::new(0);
    }

    impl Cpu {
        fn mark(place: &AtomicUsize) {
            place.store(1, Ordering::Release);
            loom::sync::atomic::fence(Ordering::SeqCst);
        }

        fn of_mark(_: usize) -> Option<CpuId> {
            None
        }

        fn regain(_: usize) {
            KICKS.fetch_add(1, Ordering::Release);
        }
    }

    include!(concat!(env!("OUT_DIR"), "/resched.rs"));
}

/// Explores all orders with at most this many preemptions.
fn model(preemptions: usize, test: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(test);
}

/// A plain value that loom watches: two CPUs that access it without order are an error.
struct Watched(UnsafeCell<u32>);

// SAFETY: the tests access it only where the code under test promises exclusion; loom panics if that is wrong.
unsafe impl Send for Watched {}
// SAFETY: loom checks that accesses are exclusive.
unsafe impl Sync for Watched {}

impl Watched {
    fn new(value: u32) -> Self {
        Self(UnsafeCell::new(value))
    }

    fn get(&self) -> u32 {
        // SAFETY: loom checks that nothing writes concurrently.
        self.0.with(|value| unsafe { *value })
    }

    fn add(&self, more: u32) {
        // SAFETY: loom checks that nothing accesses it concurrently.
        self.0.with_mut(|value| unsafe { *value += more });
    }
}

#[test]
fn a_ticket_lock_excludes() {
    model(3, || {
        let lock = Arc::new(lock::TicketLock::new(Watched::new(0)));
        let other = {
            let lock = lock.clone();
            thread::spawn(move || {
                lock.lock().add(1);
                if let Some(value) = lock.try_lock() {
                    value.add(2);
                }
            })
        };
        lock.lock().add(4);
        other.join().unwrap();
        let sum = lock.lock().get();
        assert!(sum == 5 || sum == 7, "{sum}");
    });
}

/// Two CPUs fill a block in steps, and the one that maps it has seen all steps.
#[test]
fn a_block_is_filled_once() {
    use first_touch::{Block, Claim, EarlyPages, STEPS};

    fn touch(block: &Block, pages: &EarlyPages, filled: &Watched) {
        match block.claim() {
            Claim::Full => assert_eq!(filled.get(), u32::from(STEPS)),
            Claim::Busy => {}
            Claim::Given => unreachable!("nobody gives it back"),
            Claim::Fill { step, .. } => {
                assert_eq!(filled.get(), u32::from(step), "the steps before");
                let end = (step + STEPS / 2).min(STEPS);
                filled.add((end - step).into());
                if end == STEPS { block.complete(pages) } else { block.release(end) }
            }
        }
    }

    model(3, || {
        let state = Arc::new((Block::new(), EarlyPages::new(), Watched::new(0)));
        let other = {
            let state = state.clone();
            thread::spawn(move || (0..2).for_each(|_| touch(&state.0, &state.1, &state.2)))
        };
        (0..2).for_each(|_| touch(&state.0, &state.1, &state.2));
        other.join().unwrap();
        (0..2).for_each(|_| touch(&state.0, &state.1, &state.2));
        assert!(state.0.is_writable() && state.2.get() == u32::from(STEPS));
    });
}

/// A ring of two slots: what the reader takes was put, in order and whole, and all that was put is taken.
#[test]
fn records_of_a_trace_are_whole_and_in_order() {
    use trace_ring::Slot;

    fn take_all(slots: &[Slot; 2], read: &mut usize, taken: &mut Vec<[u64; 2]>) {
        while let Some(record) = slots[*read % 2].take() {
            *read += 1;
            taken.push(record);
        }
    }

    model(3, || {
        let slots = Arc::new([Slot::default(), Slot::default()]);
        let writer = {
            let slots = slots.clone();
            thread::spawn(move || {
                let mut put = Vec::new();
                for number in 1..=4 {
                    if slots[put.len() % 2].put([number, !number]) {
                        put.push([number, !number]);
                    }
                }
                put
            })
        };
        let (mut read, mut taken) = (0, Vec::new());
        take_all(&slots, &mut read, &mut taken);
        let put = writer.join().unwrap();
        take_all(&slots, &mut read, &mut taken);
        assert!(put.len() >= 2);
        assert_eq!(put, taken);
    });
}

/// Two senders post vectors; the receiver takes them when it finds the notification, and none is lost.
#[test]
fn posted_interrupts_are_not_lost() {
    use posted::Descriptor;

    fn receive(descriptor: &Descriptor) -> u64 {
        if !descriptor.is_outstanding() {
            return 0;
        }
        descriptor.acknowledge();
        descriptor.requests().take().0[0]
    }

    model(3, || {
        let state = Arc::new((Descriptor::default(), AtomicU32::new(0)));
        let senders: Vec<_> = [33, 35]
            .map(|vector| {
                let state = state.clone();
                thread::spawn(move || {
                    state.0.requests().insert(vector);
                    if state.0.notify() {
                        state.1.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .into();
        let mut taken = receive(&state.0);
        senders.into_iter().for_each(|sender| sender.join().unwrap());
        // Each notification that was sent makes the receiver look once more.
        if state.1.load(Ordering::Relaxed) > 0 {
            taken |= receive(&state.0);
        }
        assert_eq!(taken, 1 << 33 | 1 << 35);
    });
}

/// Two guests' vCPUs post vectors for a third one, which is put meanwhile: a notification to its former CPU may be lost. Either the CPU that
/// puts it finds the notification outstanding, or one is sent to Stile's own vector.
#[test]
fn direct_interrupts_to_a_vcpu_that_is_put_are_not_lost() {
    use posted::Descriptor;

    const LOADED: u8 = 0xf3;
    const PUT: u8 = 0xf5;
    model(3, || {
        let descriptor = Arc::new(Descriptor::default());
        assert!(!descriptor.redirect(LOADED, 0));
        let senders: Vec<_> = [33, 35]
            .map(|vector| {
                let descriptor = descriptor.clone();
                thread::spawn(move || {
                    descriptor.requests().insert(vector);
                    descriptor.notify() && descriptor.vector() == u64::from(PUT)
                })
            })
            .into();
        let mut noticed = descriptor.redirect(PUT, 0);
        for sender in senders {
            noticed |= sender.join().unwrap();
        }
        assert!(noticed && descriptor.is_outstanding());
    });
}

/// A sender posts a request and then reads where the vCPU runs (`cpu::wake::notify`); the vCPU's CPU writes that it stops running and then
/// looks for requests (`cpu::stand_aside`). Both have a fence in between: the request is seen by one of them.
#[test]
fn a_request_to_a_vcpu_that_stops_is_seen() {
    use pending_requests::PendingRequests;

    const NOWHERE: u32 = u32::MAX;
    model(4, || {
        let state = Arc::new((PendingRequests::new(), AtomicU32::new(0)));
        let sender = {
            let state = state.clone();
            thread::spawn(move || {
                state.0.post_sgi(3);
                fence(Ordering::SeqCst);
                // Kicks that CPU; else wakes the vCPU by the scheduler.
                state.1.load(Ordering::Relaxed) != NOWHERE
            })
        };
        state.1.store(NOWHERE, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let seen = !state.0.is_empty();
        let is_kick_only = sender.join().unwrap();
        assert!(seen || !is_kick_only, "the vCPU sleeps, and nobody wakes it");
    });
}

/// An SPI is posted to a vCPU that stops running (`delivery::post_spi`). The vCPU takes it, or the sender withdraws it, or
/// power-off takes it (`delivery::release_posted`): exactly one of these.
#[test]
fn a_posted_spi_is_delivered_once() {
    use pending_requests::PendingRequests;

    const NOWHERE: u32 = u32::MAX;
    const SPI: u32 = PendingRequests::POSTED.start;
    model(4, || {
        let state = Arc::new((PendingRequests::new(), AtomicU32::new(0)));
        let sender = {
            let state = state.clone();
            thread::spawn(move || {
                assert!(state.0.post_spi(SPI));
                fence(Ordering::SeqCst);
                let is_kick_only = state.1.load(Ordering::Relaxed) != NOWHERE;
                // Otherwise the distributor gets it.
                !is_kick_only && state.0.withdraw_spi(SPI)
            })
        };
        let takes = || usize::from(state.0.take().posted().any(|spi| spi == SPI));
        // An exit, then power-off.
        let early = takes();
        state.1.store(NOWHERE, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let late = usize::from(state.0.take_posted().posted().any(|spi| spi == SPI));
        let withdrawn = usize::from(sender.join().unwrap());
        assert_eq!(early + late + withdrawn, 1, "taken {early}, {late}, withdrawn {withdrawn}");
        assert!(state.0.take().posted().next().is_none(), "nothing is left");
    });
}

/// Requests of two senders, taken by the vCPU's CPU: each is taken once, and what the sender wrote before is visible.
#[test]
fn requests_are_taken_once() {
    use pending_requests::PendingRequests;

    model(3, || {
        let state = Arc::new((PendingRequests::new(), [Watched::new(0), Watched::new(0)]));
        let senders: Vec<_> = [0, 1]
            .map(|n: usize| {
                let state = state.clone();
                thread::spawn(move || {
                    state.1[n].add(7);
                    state.0.post_sgi(n as u32);
                })
            })
            .into();
        let take = || {
            let taken: Vec<_> = state.0.take().sgis().collect();
            taken.iter().for_each(|&n| assert_eq!(state.1[n as usize].get(), 7, "written before it was posted"));
            taken
        };
        let mut taken = take();
        senders.into_iter().for_each(|sender| sender.join().unwrap());
        taken.extend(take());
        taken.sort();
        assert_eq!(taken, [0, 1]);
    });
}

/// No CPU writes a page whose write right was revoked and that counts as protected: an active CPU invalidates when the interrupt arrives,
/// one that becomes active later invalidates at load.
#[test]
fn rights_that_are_gone_are_used_by_nobody() {
    use invalidations::{Vm, become_cpu, can_write};
    use loom::sync::atomic::AtomicU64;

    model(3, || {
        // The table's entry, and whether the page counts as protected.
        let state = Arc::new((Vm::new(), AtomicU64::new(1), AtomicU32::new(0)));
        let guest = {
            let state = state.clone();
            thread::spawn(move || {
                let (vm, table, protected) = &*state;
                become_cpu(1);
                let write = || {
                    // The check first: a page may become protected at any time after the write.
                    let before = protected.load(Ordering::Acquire);
                    assert!(!can_write(table) || before == 0, "a page that counts as protected is written");
                };
                vm.load(1);
                write();
                vm.catch_up(1);
                write();
                vm.put(1);
                vm.load(1);
                write();
            })
        };
        let (vm, table, protected) = &*state;
        become_cpu(0);
        vm.load(0);
        vm.take_right(table);
        for _ in 0..2 {
            if vm.is_done() {
                protected.store(1, Ordering::Release);
            }
        }
        guest.join().unwrap();
    });
}

/// A vCPU that two others send INIT and a startup message to is on in the end, started by one CPU at a time, for every order.
#[test]
fn a_startup_message_is_neither_lost_nor_obeyed_twice() {
    use startup::{Vcpu, init, start_up};

    model(3, || {
        let vcpu = Arc::new(Vcpu::new());
        let senders: Vec<_> = [5, 6]
            .map(|page| {
                let vcpu = vcpu.clone();
                thread::spawn(move || {
                    init(&vcpu);
                    start_up(&vcpu, page);
                })
            })
            .into();
        // The vCPU's own CPU: it runs while it was started once more than it was turned off.
        let mut stops = 0;
        let mut run = || {
            if vcpu.starts.load(Ordering::Acquire) >= stops && !vcpu.exit() {
                stops += 1;
            }
        };
        run();
        run();
        senders.into_iter().for_each(|sender| sender.join().unwrap());
        (0..3).for_each(|_| run());
        let starts = vcpu.starts.load(Ordering::Relaxed);
        assert!(starts == stops && starts >= 1, "{starts} starts, turned off {stops} times");
        assert!(vcpu.arch.events.is_on() && !vcpu.arch.events.init());
        assert!(matches!(vcpu.page.load(Ordering::Relaxed), 5 | 6));
    });
}

/// INIT that is blocked turns the vCPU off when it no longer is, and a startup message before that is lost, for every order.
#[test]
fn a_blocked_init_waits_and_loses_the_startup_message() {
    use startup::{Vcpu, init, start_up};

    model(3, || {
        let vcpu = Arc::new(Vcpu::new());
        vcpu.arch.events.block_init(true);
        let sender = {
            let vcpu = vcpu.clone();
            thread::spawn(move || {
                init(&vcpu);
                let was_on = vcpu.arch.events.is_on();
                start_up(&vcpu, 5);
                was_on
            })
        };
        vcpu.arch.events.block_init(false);
        let mut is_on = vcpu.exit();
        let was_on = sender.join().unwrap();
        if vcpu.starts.load(Ordering::Acquire) == 0 {
            is_on = is_on && vcpu.exit();
        }
        if vcpu.starts.load(Ordering::Relaxed) == 0 {
            assert!(was_on && !is_on && !vcpu.arch.events.is_on(), "INIT is lost");
            start_up(&vcpu, 6);
            assert_eq!(vcpu.page.load(Ordering::Relaxed), 6);
        }
        assert_eq!(vcpu.starts.load(Ordering::Relaxed), 1);
        assert!(vcpu.arch.events.is_on() && !vcpu.arch.events.init());
    });
}

/// Actions of one CPU while INIT is blocked: the vCPU counts as on, takes INIT once, and ignores a startup message.
#[test]
fn a_vcpu_that_blocks_init_ignores_startup_messages() {
    use startup::{Vcpu, init, start_up};

    model(3, || {
        let vcpu = Vcpu::new();
        let events = &vcpu.arch.events;
        events.block_init(true);
        init(&vcpu);
        start_up(&vcpu, 5);
        assert!(events.is_on() && events.has_blocked_init() && vcpu.exit());
        // An exit of its guest takes it.
        events.drop_init();
        assert!(events.is_on() && !events.has_blocked_init());
        init(&vcpu);
        start_up(&vcpu, 5);
        events.block_init(false);
        assert!(!events.is_on() && !vcpu.exit() && !events.is_on());
        assert_eq!(vcpu.starts.load(Ordering::Relaxed), 0);
        start_up(&vcpu, 6);
        assert!(events.is_on() && vcpu.exit());
        assert_eq!((vcpu.starts.load(Ordering::Relaxed), vcpu.page.load(Ordering::Relaxed)), (1, 6));
    });
}

/// No request to reschedule is missed: the CPU finds it, and all that was written before it, by the kick at the latest.
#[test]
fn a_request_to_reschedule_is_taken_once_and_not_lost() {
    use resched::{Cpu, CpuId, KICKS, request_resched, take_resched};

    model(3, || {
        let work = Arc::new(AtomicU32::new(0));
        let sender = {
            let work = work.clone();
            thread::spawn(move || {
                work.store(1, Ordering::Relaxed);
                request_resched(CpuId(1));
            })
        };
        let cpu = Cpu { index: 1, vcpu: None };
        let take = || {
            let taken = take_resched(&cpu);
            assert!(!taken || work.load(Ordering::Relaxed) == 1, "written before the request");
            u32::from(taken)
        };
        let mut taken = take();
        // The kick arrives, and its handler checks.
        if KICKS.load(Ordering::Acquire) == 1 {
            taken += take();
            assert_eq!(taken, 1, "no request at a kick");
        }
        sender.join().unwrap();
        taken += take();
        assert_eq!(taken, 1);
    });
}

/// A vCPU that is started while its VM is being paused is parked: by who starts it, or by who pauses (`cpu::wake::start`, `power::pause`).
#[test]
fn a_vcpu_that_starts_while_its_vm_is_paused_is_parked() {
    const OFF: u32 = 0;
    const READY: u32 = 1;
    const PARKED: u32 = 2;
    model(4, || {
        let state = Arc::new((lock::TicketLock::new(Watched::new(OFF)), AtomicU32::new(0)));
        let starter = {
            let state = state.clone();
            thread::spawn(move || {
                let schedule = state.0.lock();
                schedule.add(READY - OFF);
                if state.1.load(Ordering::Acquire) == 1 {
                    schedule.add(PARKED - READY);
                }
            })
        };
        // Held first, and then each vCPU under the lock.
        state.1.store(1, Ordering::Release);
        let schedule = state.0.lock();
        if schedule.get() == READY {
            schedule.add(PARKED - READY);
        }
        drop(schedule);
        starter.join().unwrap();
        assert_eq!(state.0.lock().get(), PARKED);
    });
}

/// A CPU wakes a vCPU that is bound to it and blocked there: the scheduler hears of it when the CPU leaves the vCPU that it runs
/// (`cpu::wake::wake_beside`). Meanwhile another CPU wakes that vCPU, too, which then runs and blocks again: no request is left to one that sleeps.
#[test]
fn a_wake_up_that_the_scheduler_hears_of_later_is_not_lost() {
    use pending_requests::PendingRequests;

    const AWAKE: u32 = 0;
    const ASLEEP: u32 = 1;
    /// Under the lock: how often the vCPU was blocked and made ready; and how often it was woken while it was ready, which it has not seen.
    type State = (lock::TicketLock<(Watched, Watched)>, AtomicU32, PendingRequests);

    fn is_ready((state, _): &(Watched, Watched)) -> bool {
        state.get() % 2 == 1
    }

    fn wake(schedule: &(Watched, Watched)) {
        if is_ready(schedule) { schedule.1.add(1) } else { schedule.0.add(1) }
    }

    fn wake_under_the_lock(state: &State) {
        let schedule = state.0.lock();
        state.1.store(AWAKE, Ordering::Relaxed);
        wake(&schedule);
    }

    model(4, || {
        let state: Arc<State> =
            Arc::new((lock::TicketLock::new((Watched::new(0), Watched::new(0))), AtomicU32::new(ASLEEP), PendingRequests::new()));
        let other = {
            let state = state.clone();
            thread::spawn(move || {
                state.2.post_sgi(3);
                fence(Ordering::SeqCst);
                wake_under_the_lock(&state);
            })
        };
        state.2.post_sgi(4);
        let is_deferred = state.1.load(Ordering::Relaxed) == ASLEEP;
        if is_deferred {
            state.1.store(AWAKE, Ordering::Relaxed);
        } else {
            wake_under_the_lock(&state);
        }
        // The CPU leaves its vCPU, and loads the one that was woken.
        let schedule = state.0.lock();
        if is_deferred {
            wake(&schedule);
        }
        assert!(is_ready(&schedule));
        let latched = schedule.1.get();
        drop(schedule);
        state.1.store(AWAKE, Ordering::Relaxed);
        assert!(state.2.take().sgis().any(|sgi| sgi == 4));
        // It blocks again, unless an interrupt is pending or it was woken meanwhile, and is put.
        fence(Ordering::SeqCst);
        if state.2.is_empty() {
            let schedule = state.0.lock();
            if schedule.1.get() == latched {
                schedule.0.add(1);
                state.1.store(ASLEEP, Ordering::Relaxed);
            }
        }
        other.join().unwrap();
        assert!(state.2.is_empty() || is_ready(&state.0.lock()), "a vCPU with a request sleeps");
    });
}
