//! A physical timer that goes back and forth between the hypervisor and its guest, against a plain timer: the guest
//! gets the same interrupts, none early and none lost.

use std::collections::BTreeSet;

use proptest::prelude::*;
use stile_apic::offset::{IRR, LVT_TIMER, SVR};
use stile_apic::{Demand, Effect, Form, Hardware, HostTimer, LocalApic, Pages};

const MASKED: u32 = 1 << 16;
const DEADLINE: u32 = 2 << 17;

/// The physical CPU.
#[derive(Debug, Default)]
struct Cpu {
    now: u64,
    deadline: u64,
    pending: bool,
    passes: bool,
    notifies: bool,
    /// A notification is requested.
    notified: bool,
}

impl Cpu {
    fn expire(&mut self) {
        if self.deadline != 0 && self.deadline <= self.now {
            self.deadline = 0;
            *(if self.notifies { &mut self.notified } else { &mut self.pending }) = true;
        }
    }
}

impl Hardware for Cpu {
    /// Time passes between two steps of the hypervisor's.
    fn now(&mut self) -> u64 {
        self.now += 1;
        self.now
    }

    fn deadline(&mut self) -> u64 {
        self.deadline
    }

    fn set_deadline(&mut self, deadline: u64) {
        self.deadline = deadline;
        self.expire();
    }

    fn is_pending(&mut self) -> bool {
        self.pending
    }

    fn pass_through(&mut self, on: bool) {
        assert_ne!(self.passes, on, "passthrough that was on already, or off");
        self.passes = on;
    }

    fn set_notifies(&mut self, on: bool) {
        assert!(self.notifies != on && self.deadline == 0);
        self.notifies = on;
    }

    fn is_notified(&mut self) -> bool {
        self.notified
    }
}

/// A timer of one guest that has a processor for itself.
#[derive(Debug)]
struct Model {
    deadline: u64,
    local: u32,
    enabled: bool,
    offset: u64,
    fired: BTreeSet<u8>,
}

impl Model {
    fn takes_deadline(&self) -> bool {
        self.local >> 17 & 3 == 2
    }

    fn expire(&mut self, now: u64) {
        if self.deadline != 0 && self.deadline <= now.wrapping_add(self.offset) {
            self.deadline = 0;
            if self.local & MASKED == 0 {
                self.fired.insert(self.local as u8);
            }
        }
    }

    fn write_local(&mut self, value: u32) {
        let before = self.takes_deadline();
        self.local = value | if self.enabled { 0 } else { MASKED };
        if before != self.takes_deadline() {
            self.deadline = 0;
        }
    }
}

/// Both, and the hypervisor between them.
struct Machine {
    cpu: Cpu,
    timer: HostTimer,
    apic: LocalApic<'static>,
    model: Model,
    loaded: bool,
    own: Option<u64>,
    watch: Option<u64>,
    passthrough: bool,
    /// The guest has asked for notifications.
    notifies: bool,
}

impl Machine {
    fn new(passthrough: bool) -> Self {
        let pages: &Pages = Box::leak(Box::default());
        pages.reset(0, true);
        let model = Model { deadline: 0, local: MASKED, enabled: false, offset: 0, fired: BTreeSet::new() };
        let cpu = Cpu { now: 1, ..Cpu::default() };
        let (own, watch) = (None, None);
        let (timer, apic) = (HostTimer::default(), LocalApic::new(pages));
        let mut new = Self { cpu, timer, apic, model, loaded: true, own, watch, passthrough, notifies: false };
        new.write(SVR, 0x1ff);
        new
    }

    fn demand(&self) -> Demand {
        Demand { passthrough: self.passthrough, notifies: self.notifies, same_tsc: self.model.offset == 0, watch: self.watch }
    }

    fn update(&mut self) {
        let demand = self.demand();
        self.timer.update(&mut self.cpu, &mut self.apic, demand);
    }

    /// The guest writes a register of its APIC.
    fn write(&mut self, offset: u32, value: u32) {
        let old = self.model.local as u8;
        match self.apic.write(offset, value, self.cpu.now) {
            Effect::Reclaim { offset, value } => {
                self.timer.reclaim(&mut self.cpu, &mut self.apic);
                assert_ne!(self.apic.write(offset, value, self.cpu.now), Effect::Reclaim { offset, value });
                self.update();
            }
            Effect::Timer => self.update(),
            effect => assert_eq!(effect, Effect::None),
        }
        // SVR may have been written after the timer was taken back.
        self.update();
        self.model.expire(self.cpu.now);
        match offset {
            SVR => {
                self.model.enabled = value & 0x100 != 0;
                if !self.model.enabled {
                    self.model.local |= MASKED;
                }
            }
            _ => self.model.write_local(value),
        }
        if self.notifies {
            // Stile merges posted interrupts before the guest runs again; the guest then moves its request to the new vector.
            self.apic.merge();
            self.apic.pages().withdraw(old);
            if self.model.deadline != 0 {
                self.apic.pages().preset(self.model.local as u8);
            }
        }
    }

    /// The guest asks for notifications, or no longer.
    fn set_notifies(&mut self, on: bool) {
        let fired = self.timer.reclaim(&mut self.cpu, &mut self.apic);
        if self.notifies && !on && !fired {
            self.apic.pages().withdraw(self.model.local as u8);
        }
        self.notifies = on;
        self.update();
    }

    /// The processor takes a notification while the guest runs, which compares the counter.
    fn notify(&mut self) {
        let vector = self.model.local as u8;
        if !self.notifies || !self.apic.pages().is_preset(vector) {
            return;
        }
        self.apic.pages().withdraw(vector);
        self.model.expire(self.cpu.now);
        if self.model.fired.contains(&vector) {
            self.apic.post(vector);
            self.apic.merge();
        }
        if self.model.deadline != 0 {
            self.apic.pages().preset(vector);
        }
    }

    fn wrmsr(&mut self, guest: u64) {
        if self.notifies && guest != 0 {
            self.apic.pages().preset(self.model.local as u8);
        }
        if self.model.takes_deadline() {
            self.model.deadline = guest;
        }
        if self.cpu.passes {
            self.cpu.set_deadline(guest);
        } else if self.timer.form() == Form::Relayed {
            self.apic.set_tsc_deadline(guest);
            self.cpu.set_deadline(guest);
        } else {
            self.apic.set_tsc_deadline(physical(guest, self.model.offset, self.cpu.now));
            self.update();
        }
    }

    fn rdmsr(&self) -> u64 {
        if self.cpu.passes {
            return self.cpu.deadline;
        }
        match self.apic.tsc_deadline() {
            0 => 0,
            physical => physical.wrapping_add(self.model.offset),
        }
    }

    fn move_tsc(&mut self, offset: u64) {
        self.timer.reclaim(&mut self.cpu, &mut self.apic);
        self.apic.expire_timer(self.cpu.now);
        let deadline = self.apic.tsc_deadline();
        let guest = deadline.wrapping_add(self.model.offset);
        self.model.expire(self.cpu.now);
        self.model.offset = offset;
        if deadline != 0 {
            self.apic.set_tsc_deadline(physical(guest, offset, self.cpu.now));
        }
        self.update();
    }

    /// The CPU takes the timer's interrupt: by an exit, or as it idles.
    fn take(&mut self) {
        if self.loaded && std::mem::take(&mut self.cpu.notified) {
            self.notify();
        }
        if !std::mem::take(&mut self.cpu.pending) {
            return;
        }
        if let Some(vector) = self.apic.lent_timer() {
            assert!(self.loaded && self.cpu.passes && !self.cpu.notifies);
            self.apic.post(vector);
            return;
        }
        let (own, guest) = self.timer.due(self.cpu.now, self.loaded.then_some(&self.apic));
        if own {
            // The caller is notified, and sets the next one.
            self.set_own(None);
        }
        if self.loaded && guest {
            self.apic.expire_timer(self.cpu.now);
        }
        if self.loaded {
            if self.watch.is_some_and(|at| at <= self.cpu.now) {
                self.watch = None;
            }
            self.update();
        }
    }

    fn set_own(&mut self, own: Option<u64>) {
        self.own = own;
        let demand = self.demand();
        let loaded = self.loaded.then_some((&mut self.apic, demand));
        self.timer.set_own(&mut self.cpu, own, loaded);
    }

    fn put(&mut self) {
        if std::mem::take(&mut self.loaded) {
            self.timer.release(&mut self.cpu, &mut self.apic);
        }
    }

    fn load(&mut self) {
        if !std::mem::replace(&mut self.loaded, true) {
            self.apic.expire_timer(self.cpu.now);
            self.update();
        }
    }

    fn check(&mut self) {
        assert_eq!(self.cpu.passes, self.timer.form() == Form::PassedThrough);
        assert_eq!(self.cpu.passes, self.apic.lent_timer().is_some());
        assert_eq!((self.timer.notifies(), self.cpu.notifies), (self.cpu.passes && self.notifies, self.cpu.notifies));
        if self.cpu.passes {
            assert!(self.loaded && self.passthrough && self.own.is_none() && self.watch.is_none());
            assert!(self.model.offset == 0 && self.model.takes_deadline() && self.model.local & MASKED == 0);
        }
    }

    /// The interrupts that wait in the guest's APIC.
    fn requested(&mut self) -> BTreeSet<u8> {
        self.apic.merge();
        (16..=255_u8).filter(|v| self.apic.read(IRR + 16 * u32::from(v / 32), 0) >> (v % 32) & 1 != 0).collect()
    }

    /// Takes all interrupts as the guest does, unless it has the APIC off.
    fn taken(&mut self) -> BTreeSet<u8> {
        let requested = self.requested();
        while self.apic.acknowledge().is_some() {
            self.apic.end();
        }
        requested
    }

    /// The guest runs until nothing is left to be taken.
    fn settle(&mut self) {
        self.load();
        for _ in 0..4 {
            self.take();
        }
        assert!(!self.cpu.pending);
        assert_eq!(self.taken(), self.model.fired, "at {:#x}", self.cpu.now);
        if self.model.enabled {
            self.model.fired.clear();
            if self.notifies && self.model.deadline != 0 {
                // An interrupt that Stile has posted takes the guest's request with it. The guest, before its deadline, repeats it.
                self.apic.pages().preset(self.model.local as u8);
            }
        }
    }
}

/// As the hypervisor converts the guest's deadline.
fn physical(guest: u64, offset: u64, now: u64) -> u64 {
    if offset == 0 || guest == 0 { guest } else { now.saturating_add(guest.saturating_sub(now.wrapping_add(offset))).max(1) }
}

#[derive(Clone, Debug)]
enum Op {
    Advance(u64),
    Arm(i8),
    Cancel,
    Local(u32),
    Enable(bool),
    MoveTsc(u64),
    Own(Option<u64>),
    Watch(Option<u64>),
    Put,
    Load,
    Init,
    Read,
    Settle,
    /// The guest asks for notifications, or no longer.
    Notifies(bool),
    /// Another interrupt's notification.
    Notification,
}

fn op() -> impl Strategy<Value = Op> {
    let local = (prop_oneof![4 => Just(0), 1 => Just(MASKED)], prop_oneof![6 => Just(2), 1 => Just(0)], 0x40_u32..0x44)
        .prop_map(|(mask, mode, vector)| mask | mode << 17 | vector);
    prop_oneof![
        6 => (0..40_u64).prop_map(Op::Advance),
        6 => (-5..60_i8).prop_map(Op::Arm),
        1 => Just(Op::Cancel),
        3 => local.prop_map(Op::Local),
        1 => prop::bool::weighted(0.7).prop_map(Op::Enable),
        1 => prop_oneof![2 => Just(0_u64), 1 => 1..100_u64].prop_map(Op::MoveTsc),
        2 => prop::option::of(1..40_u64).prop_map(Op::Own),
        1 => prop::option::of(1..40_u64).prop_map(Op::Watch),
        2 => Just(Op::Put),
        2 => Just(Op::Load),
        1 => Just(Op::Init),
        2 => Just(Op::Read),
        3 => Just(Op::Settle),
        1 => prop::bool::weighted(0.7).prop_map(Op::Notifies),
        2 => Just(Op::Notification),
    ]
}

/// `late`: an interrupt that is requested now is taken only after the next operation, if that is possible.
fn run(passthrough: bool, operations: Vec<(Op, bool)>) {
    let mut machine = Machine::new(passthrough);
    machine.write(LVT_TIMER, DEADLINE | 0x40);
    for (operation, late) in operations {
        let by_host = matches!(operation, Op::Own(_) | Op::Watch(_) | Op::Put | Op::Load | Op::Settle | Op::Advance(_));
        if !by_host {
            machine.load();
            if machine.notifies {
                // The hypervisor merges what it posts before the guest runs, whose processor takes notifications between two instructions.
                machine.apic.merge();
                machine.take();
            }
        }
        match operation {
            Op::Advance(by) => {
                // One tick after the other: the interrupt of one may be taken before the next.
                for _ in 0..by {
                    machine.cpu.now += 1;
                    machine.cpu.expire();
                    machine.model.expire(machine.cpu.now);
                    if !late {
                        machine.take();
                    }
                }
            }
            Op::Arm(by) => {
                let guest = machine.cpu.now.wrapping_add(machine.model.offset).saturating_add_signed(by.into()).max(1);
                machine.wrmsr(guest);
            }
            Op::Cancel => machine.wrmsr(0),
            Op::Local(value) => machine.write(LVT_TIMER, value),
            Op::Enable(on) => machine.write(SVR, if on { 0x1ff } else { 0xff }),
            Op::MoveTsc(offset) => machine.move_tsc(offset),
            Op::Own(after) => machine.set_own(after.map(|after| machine.cpu.now + after)),
            Op::Watch(after) => {
                machine.watch = after.map(|after| machine.cpu.now + after);
                if machine.loaded {
                    machine.update();
                }
            }
            Op::Put => machine.put(),
            Op::Load => machine.load(),
            Op::Init => {
                machine.put();
                machine.apic.init();
                machine.notifies = false;
                let offset = machine.model.offset;
                machine.model = Model { deadline: 0, local: MASKED, enabled: false, offset, fired: BTreeSet::new() };
            }
            Op::Read if machine.model.local & MASKED == 0 => {
                let (read, now) = (machine.rdmsr(), machine.cpu.now.wrapping_add(machine.model.offset));
                // An expired deadline reads as zero, or unchanged until its interrupt is taken.
                assert!(read == machine.model.deadline || machine.model.deadline == 0 && read <= now);
            }
            Op::Read => {}
            Op::Notifies(on) => machine.set_notifies(on),
            Op::Notification => machine.notify(),
            Op::Settle => machine.settle(),
        }
        machine.model.expire(machine.cpu.now);
        machine.check();
        // Before its exit, a guest whose write exits can go no further.
        if !late || machine.timer.form() != Form::PassedThrough {
            machine.take();
        }
        machine.check();
        assert!(machine.requested().is_subset(&machine.model.fired), "an interrupt before its time");
    }
    machine.settle();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1024, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_guest_sees_its_own_timer(passthrough in prop::bool::weighted(0.8), operations in prop::collection::vec((op(), any::<bool>()), 1..60)) {
        run(passthrough, operations);
    }
}

#[test]
fn an_interrupt_takes_the_next_request_with_it() {
    let operations = [Op::Arm(0), Op::Arm(2), Op::Notifies(true), Op::Settle, Op::Advance(1)];
    run(true, operations.into_iter().zip([true, true, false, false, false]).collect());
}

#[test]
fn arming_and_cancelling_is_the_guests_own() {
    let mut machine = Machine::new(true);
    machine.write(LVT_TIMER, DEADLINE | 0x40);
    assert_eq!(machine.timer.form(), Form::PassedThrough);
    machine.wrmsr(50);
    assert_eq!((machine.rdmsr(), machine.cpu.deadline), (50, 50));
    machine.wrmsr(0);
    assert_eq!(machine.cpu.deadline, 0);
}

#[test]
fn an_interrupt_of_the_hypervisor_is_not_the_guests() {
    let mut machine = Machine::new(true);
    machine.set_own(Some(10));
    machine.cpu.now = 10;
    machine.cpu.expire();
    // It is pending although its deadline has passed when the guest gets the timer: later, when it was taken.
    machine.write(LVT_TIMER, DEADLINE | 0x40);
    machine.set_own(None);
    assert_eq!(machine.timer.form(), Form::Merged);
    machine.take();
    assert_eq!((machine.timer.form(), machine.taken()), (Form::PassedThrough, BTreeSet::new()));
}

#[test]
fn an_expiry_is_not_lost_with_the_timer() {
    for write in [DEADLINE | MASKED | 0x40, 0x40, DEADLINE | 0x41] {
        let mut machine = Machine::new(true);
        machine.write(LVT_TIMER, DEADLINE | 0x40);
        machine.wrmsr(20);
        machine.cpu.now = 20;
        machine.cpu.expire();
        machine.wrmsr(90);
        // Both have happened before the CPU took the interrupt.
        machine.write(LVT_TIMER, write);
        assert_eq!(machine.taken(), BTreeSet::from([0x40]));
        assert_eq!(machine.apic.tsc_deadline() == 90 || machine.cpu.deadline == 90, write & DEADLINE != 0);
    }
}

#[test]
fn a_notification_delivers_what_the_guest_has_set() {
    let mut machine = Machine::new(true);
    machine.write(LVT_TIMER, DEADLINE | 0x40);
    machine.wrmsr(20);
    // Armed before: its interrupt is in the descriptor all the same.
    machine.set_notifies(true);
    assert!(machine.cpu.notifies && machine.apic.pages().is_preset(0x40));
    machine.notify();
    assert_eq!((machine.requested(), machine.apic.pages().is_preset(0x40)), (BTreeSet::new(), true));
    machine.cpu.now = 20;
    machine.cpu.expire();
    machine.model.expire(20);
    assert!(machine.cpu.notified && !machine.cpu.pending);
    machine.take();
    assert_eq!(machine.taken(), BTreeSet::from([0x40]));
    // Nothing is left of a timer that is armed when the guest gives the notifications up.
    machine.wrmsr(90);
    machine.set_notifies(false);
    assert_eq!((machine.cpu.notifies, machine.cpu.deadline, machine.apic.pages().is_preset(0x40)), (false, 90, false));
}

#[test]
fn an_expiry_outside_of_the_guest_is_posted() {
    let mut machine = Machine::new(true);
    machine.write(LVT_TIMER, DEADLINE | 0x40);
    machine.set_notifies(true);
    machine.wrmsr(20);
    machine.cpu.now = 20;
    machine.cpu.expire();
    // The notification was not taken when the vCPU leaves the CPU.
    machine.put();
    assert!(!machine.cpu.notifies);
    assert_eq!(machine.taken(), BTreeSet::from([0x40]));
}
