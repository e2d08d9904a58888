//! The ITS of a guest against a plain model of the architecture: which event is which LPI, where that is routed, what it is
//! configured as, and whether it is pending.

use std::collections::BTreeMap;

use proptest::prelude::*;
use stile_board::intid::{LPI_BASE, LPI_COUNT};
use stile_its::guest::{Backing, EVENTS, GuestIts, WORK_AT_ONCE, Written, device_id};
use stile_its::{COMMAND_SIZE, Command};

const FUNCTIONS: usize = 2;
const VCPUS: usize = 3;
const RAM: u64 = 0x4000_0000;
const QUEUE: u64 = RAM + 0x1_0000;
const TABLE: u64 = RAM + 0x2_0000;
/// Changes of LPIs that a part of the commands makes at most: a function is unmapped after other commands.
const MOST_CHANGES: usize = 2 * WORK_AT_ONCE as usize + EVENTS;
/// Commands of a queue of one page.
const SLOTS: u64 = 4096 / COMMAND_SIZE as u64;

const CTLR: u64 = 0x00;
const TYPER: u64 = 0x08;
const CBASER: u64 = 0x80;
const CWRITER: u64 = 0x88;
const CREADR: u64 = 0x90;
const PROPBASER: u64 = 0x70;
const PENDBASER: u64 = 0x78;
const VALID: u64 = 1 << 63;

/// A GIC and the guest's memory.
#[derive(Clone, Debug, Default)]
struct Gic {
    queue: BTreeMap<u64, Command>,
    table: BTreeMap<u64, u8>,
    routes: BTreeMap<u32, usize>,
    configurations: BTreeMap<u32, u8>,
    pending: BTreeMap<u32, ()>,
    translations: BTreeMap<(usize, usize), u32>,
    /// Number of changes of LPIs.
    changes: usize,
    /// Number of changes of translations.
    translated: usize,
}

impl Backing for Gic {
    fn command(&self, gpa: u64) -> Option<Command> {
        assert!(gpa.is_multiple_of(COMMAND_SIZE as u64));
        (gpa >= RAM).then(|| self.queue.get(&gpa).copied().unwrap_or_default())
    }

    fn configuration(&self, gpa: u64) -> Option<u8> {
        (gpa >= RAM).then(|| self.table.get(&gpa).copied().unwrap_or_default())
    }

    fn route(&mut self, lpi: u32, vcpu: Option<usize>) {
        self.change(lpi);
        assert!(vcpu.is_none_or(|vcpu| vcpu < VCPUS));
        match vcpu {
            Some(vcpu) => _ = self.routes.insert(lpi, vcpu),
            None => _ = (self.routes.remove(&lpi), self.pending.remove(&lpi)),
        }
    }

    fn configure(&mut self, lpi: u32, configuration: u8) {
        self.change(lpi);
        self.configurations.insert(lpi, configuration);
    }

    fn set_pending(&mut self, lpi: u32) {
        self.change(lpi);
        if self.routes.contains_key(&lpi) {
            self.pending.insert(lpi, ());
        }
    }

    fn clear_pending(&mut self, lpi: u32) {
        self.change(lpi);
        self.pending.remove(&lpi);
    }

    fn translate(&mut self, function: usize, event: usize, lpi: Option<u32>) {
        assert!(function < FUNCTIONS && event < EVENTS);
        self.translated += 1;
        match lpi {
            Some(lpi) => _ = self.translations.insert((function, event), lpi),
            None => _ = self.translations.remove(&(function, event)),
        }
    }
}

impl Gic {
    fn change(&mut self, lpi: u32) {
        assert!((LPI_BASE..LPI_BASE + LPI_COUNT).contains(&lpi), "{lpi}");
        self.changes += 1;
    }
}

#[derive(Clone, Copy, Debug)]
enum Op {
    MapDevice {
        device: u32,
        bits: u8,
        valid: bool,
    },
    MapCollection {
        collection: u16,
        vcpu: u64,
        valid: bool,
    },
    MapEvent {
        device: u32,
        event: u32,
        lpi: u32,
        collection: u16,
    },
    MapEventAlone {
        device: u32,
        event: u32,
        collection: u16,
    },
    MoveEvent {
        device: u32,
        event: u32,
        collection: u16,
    },
    MoveAll {
        from: u64,
        to: u64,
    },
    Discard {
        device: u32,
        event: u32,
    },
    Invalidate {
        device: u32,
        event: u32,
    },
    InvalidateAll {
        collection: u16,
    },
    Interrupt {
        device: u32,
        event: u32,
    },
    Clear {
        device: u32,
        event: u32,
    },
    Sync,
    /// The guest writes a byte of its configuration table.
    Configure {
        lpi: u32,
        byte: u8,
    },
    EnableLpis {
        vcpu: usize,
        on: bool,
    },
    Enable {
        on: bool,
    },
}

impl Op {
    /// The command, if it is one.
    fn encode(self) -> Option<Command> {
        let of = |code: u64, device: u32, event: u64, word: u64| Some([code | u64::from(device) << 32, event, word, 0]);
        match self {
            Op::MapDevice { device, bits, valid } => of(8, device, u64::from(bits) - 1, u64::from(valid) << 63 | 0x4567_8900),
            Op::MapCollection { collection, vcpu, valid } => of(9, 0, 0, u64::from(valid) << 63 | vcpu << 16 | u64::from(collection)),
            Op::MapEvent { device, event, lpi, collection } => of(10, device, u64::from(lpi) << 32 | u64::from(event), collection.into()),
            Op::MapEventAlone { device, event, collection } => of(11, device, event.into(), collection.into()),
            Op::MoveEvent { device, event, collection } => of(1, device, event.into(), collection.into()),
            Op::MoveAll { from, to } => Some([14, 0, from << 16, to << 16]),
            Op::Discard { device, event } => of(15, device, event.into(), 0),
            Op::Invalidate { device, event } => of(12, device, event.into(), 0),
            Op::InvalidateAll { collection } => of(13, 0, 0, collection.into()),
            Op::Interrupt { device, event } => of(3, device, event.into(), 0),
            Op::Clear { device, event } => of(4, device, event.into(), 0),
            Op::Sync => of(5, 0, 0, 0),
            Op::Configure { .. } | Op::EnableLpis { .. } | Op::Enable { .. } => None,
        }
    }
}

/// A plain model of the architecture.
#[derive(Debug, Default)]
struct Model {
    enabled: bool,
    takes: [bool; VCPUS],
    devices: BTreeMap<u32, u32>,
    collections: BTreeMap<u16, usize>,
    events: BTreeMap<(u32, u32), (u32, u16)>,
    table: BTreeMap<u32, u8>,
    /// Bytes of the table as a redistributor has read them.
    configurations: BTreeMap<u32, u8>,
    routes: BTreeMap<u32, usize>,
    pending: BTreeMap<u32, ()>,
}

impl Model {
    fn route(&mut self, lpi: u32, vcpu: Option<usize>) {
        match vcpu.filter(|&vcpu| self.takes[vcpu]) {
            Some(vcpu) => _ = self.routes.insert(lpi, vcpu),
            None => _ = (self.routes.remove(&lpi), self.pending.remove(&lpi)),
        }
    }

    fn read_table(&mut self, lpi: u32) {
        self.configurations.insert(lpi, self.table.get(&lpi).copied().unwrap_or_default());
    }

    fn of_collection(&self, collection: u16) -> Vec<u32> {
        self.events.values().filter(|event| event.1 == collection).map(|event| event.0).collect()
    }

    fn of_vcpu(&self, vcpu: usize) -> Vec<u32> {
        self.events.values().filter(|event| self.collections.get(&event.1) == Some(&vcpu)).map(|event| event.0).collect()
    }

    fn unmap(&mut self, key: (u32, u32)) {
        if let Some((lpi, _)) = self.events.remove(&key) {
            self.route(lpi, None);
        }
    }

    fn is_function(device: u32) -> bool {
        (0..FUNCTIONS).any(|function| device_id(function) == device)
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::MapDevice { device, bits, valid } => {
                if Self::is_function(device) && (!valid || 1 << bits <= EVENTS) {
                    for event in 0..EVENTS as u32 {
                        self.unmap((device, event));
                    }
                    self.devices.insert(device, if valid { 1 << bits } else { 0 });
                }
            }
            Op::MapCollection { collection, vcpu, valid } => {
                if usize::from(collection) > stile_board::MAX_VCPUS || valid && vcpu >= VCPUS as u64 {
                    return;
                }
                match valid {
                    true => _ = self.collections.insert(collection, vcpu as usize),
                    false => _ = self.collections.remove(&collection),
                }
                for lpi in self.of_collection(collection) {
                    self.route(lpi, valid.then_some(vcpu as usize));
                }
            }
            Op::MapEvent { device, event, lpi, collection } => {
                let is_lpi = (LPI_BASE..LPI_BASE + LPI_COUNT).contains(&lpi);
                let fits = self.devices.get(&device).is_some_and(|&count| event < count);
                if is_lpi && fits && usize::from(collection) <= stile_board::MAX_VCPUS {
                    self.unmap((device, event));
                    self.events.insert((device, event), (lpi, collection));
                    self.read_table(lpi);
                    self.route(lpi, self.collections.get(&collection).copied());
                }
            }
            Op::MoveEvent { device, event, collection } => {
                let vcpu = self.collections.get(&collection).copied();
                if let (Some(event), Some(_)) = (self.events.get_mut(&(device, event)), vcpu) {
                    event.1 = collection;
                    let lpi = event.0;
                    self.route(lpi, vcpu);
                }
            }
            Op::MoveAll { from, to } => {
                if from < VCPUS as u64 && to < VCPUS as u64 {
                    for lpi in self.of_vcpu(from as usize) {
                        self.route(lpi, Some(to as usize));
                    }
                }
            }
            Op::Discard { device, event } => self.unmap((device, event)),
            Op::Invalidate { device, event } => {
                if let Some(&(lpi, _)) = self.events.get(&(device, event)) {
                    self.read_table(lpi);
                }
            }
            Op::InvalidateAll { collection } => self.of_collection(collection).into_iter().for_each(|lpi| self.read_table(lpi)),
            Op::Interrupt { device, event } => {
                if let Some((lpi, _)) = self.events.get(&(device, event)).filter(|(lpi, _)| self.routes.contains_key(lpi)) {
                    self.pending.insert(*lpi, ());
                }
            }
            Op::Clear { device, event } => {
                if let Some((lpi, _)) = self.events.get(&(device, event)) {
                    self.pending.remove(lpi);
                }
            }
            Op::Configure { lpi, byte } => _ = self.table.insert(lpi, byte),
            Op::EnableLpis { vcpu, on } => {
                if self.takes[vcpu] != on {
                    self.takes[vcpu] = on;
                    for lpi in self.of_vcpu(vcpu) {
                        if on {
                            self.read_table(lpi);
                        }
                        self.route(lpi, Some(vcpu));
                    }
                }
            }
            Op::Enable { on } => self.enabled = on,
            Op::MapEventAlone { .. } | Op::Sync => {}
        }
    }
}

struct Machine {
    its: GuestIts,
    gic: Gic,
    model: Model,
    writer: u64,
}

impl Machine {
    fn new() -> Self {
        let mut machine = Self { its: GuestIts::new(FUNCTIONS, VCPUS), gic: Gic::default(), model: Model::default(), writer: 0 };
        machine.write(CBASER, QUEUE | VALID);
        for vcpu in 0..VCPUS {
            assert!(!machine.its.write_redistributor(vcpu, PROPBASER, 8, TABLE | 13, &mut machine.gic));
            machine.apply(Op::EnableLpis { vcpu, on: true });
        }
        machine.apply(Op::Enable { on: true });
        machine
    }

    fn write(&mut self, register: u64, value: u64) {
        let bytes = if register == CBASER { 8 } else { 4 };
        let translated = self.gic.translated;
        let written = self.its.write(register, bytes, value);
        assert!(self.gic.translated - translated <= EVENTS, "a write changes the translations of one function");
        if written == Written::Commands {
            self.run();
        }
    }

    /// Runs all commands. Each call does a bounded part.
    fn run(&mut self) {
        for _ in 0..=(SLOTS + 1) * FUNCTIONS as u64 {
            let (before, changes, translated) = (self.its.read(CREADR, 4), self.gic.changes, self.gic.translated);
            let more = self.its.run(&mut self.gic);
            let commands = (self.its.read(CREADR, 4) + 4096 - before) % 4096 / COMMAND_SIZE as u64;
            assert!(commands <= WORK_AT_ONCE.into() && self.gic.changes - changes <= MOST_CHANGES);
            assert!(self.gic.translated - translated <= MOST_CHANGES);
            if !more {
                return;
            }
        }
        panic!("no progress");
    }

    /// Writes GICR_CTLR until it has taken effect. Each write does a bounded part.
    fn enable_lpis(&mut self, vcpu: usize, on: bool) {
        for _ in 0..FUNCTIONS {
            let changes = self.gic.changes;
            let more = self.its.write_redistributor(vcpu, CTLR, 4, on.into(), &mut self.gic);
            assert!(self.gic.changes - changes <= 2 * EVENTS, "a write changes the LPIs of one function");
            if !more {
                return;
            }
        }
        panic!("no progress");
    }

    fn apply(&mut self, op: Op) {
        if let Some(command) = op.encode() {
            if !self.model.enabled {
                return;
            }
            self.gic.queue.insert(QUEUE + self.writer, command);
            self.writer = (self.writer + COMMAND_SIZE as u64) % 4096;
            self.write(CWRITER, self.writer);
            assert_eq!(self.its.read(CREADR, 4), self.writer);
        }
        match op {
            Op::Configure { lpi, byte } => _ = self.gic.table.insert(TABLE + u64::from(lpi - LPI_BASE), byte),
            Op::EnableLpis { vcpu, on } => self.enable_lpis(vcpu, on),
            Op::Enable { on } => self.write(CTLR, on.into()),
            _ => {}
        }
        self.model.apply(op);
        self.check();
    }

    fn check(&self) {
        let (gic, model) = (&self.gic, &self.model);
        assert_eq!(gic.routes, model.routes);
        assert_eq!(gic.pending, model.pending);
        assert_eq!(gic.configurations, model.configurations);
        let function = |device: u32| (0..FUNCTIONS).find(|&function| device_id(function) == device).expect("a function");
        let events = model.events.iter().filter(|_| model.enabled);
        let translations = events.map(|(&(device, event), &(lpi, _))| ((function(device), event as usize), lpi)).collect();
        assert_eq!(gic.translations, translations);
    }
}

fn op() -> impl Strategy<Value = Op> {
    let device = || prop_oneof![8 => (0..FUNCTIONS).prop_map(device_id), 1 => prop::sample::select(&[0, 9, 24, u32::MAX][..])];
    let event = || prop_oneof![8 => 0..4u32, 1 => prop::sample::select(&[31, 32, u32::MAX][..])];
    let lpi = || prop_oneof![8 => (0..6u32).prop_map(|n| LPI_BASE + n), 1 => Just(LPI_BASE + LPI_COUNT - 1)];
    let any_lpi = || prop_oneof![9 => lpi(), 1 => prop::sample::select(&[0, 8191, LPI_BASE + LPI_COUNT, u32::MAX][..])];
    let collection = || prop_oneof![9 => 0..4u16, 1 => prop::sample::select(&[256, 257, u16::MAX][..])];
    let vcpu = || prop_oneof![9 => 0..VCPUS as u64, 1 => prop::sample::select(&[3, 0xffff, 0xf_ffff_ffff][..])];
    prop_oneof![
        2 => (device(), prop_oneof![8 => 1..=5u8, 1 => 6..=32u8], any::<bool>())
            .prop_map(|(device, bits, valid)| Op::MapDevice { device, bits, valid }),
        2 => device().prop_map(|device| Op::MapDevice { device, bits: 5, valid: true }),
        6 => (collection(), vcpu(), prop::bool::weighted(0.9)).prop_map(|(collection, vcpu, valid)| Op::MapCollection { collection, vcpu, valid }),
        20 => (device(), event(), any_lpi(), collection())
            .prop_map(|(device, event, lpi, collection)| Op::MapEvent { device, event, lpi, collection }),
        1 => (device(), event(), collection()).prop_map(|(device, event, collection)| Op::MapEventAlone { device, event, collection }),
        8 => (device(), event(), collection()).prop_map(|(device, event, collection)| Op::MoveEvent { device, event, collection }),
        3 => (vcpu(), vcpu()).prop_map(|(from, to)| Op::MoveAll { from, to }),
        4 => (device(), event()).prop_map(|(device, event)| Op::Discard { device, event }),
        6 => (device(), event()).prop_map(|(device, event)| Op::Invalidate { device, event }),
        3 => collection().prop_map(|collection| Op::InvalidateAll { collection }),
        12 => (device(), event()).prop_map(|(device, event)| Op::Interrupt { device, event }),
        4 => (device(), event()).prop_map(|(device, event)| Op::Clear { device, event }),
        1 => Just(Op::Sync),
        8 => (lpi(), any::<u8>()).prop_map(|(lpi, byte)| Op::Configure { lpi, byte }),
        2 => (0..VCPUS, any::<bool>()).prop_map(|(vcpu, on)| Op::EnableLpis { vcpu, on }),
        1 => prop::bool::weighted(0.8).prop_map(|on| Op::Enable { on }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..Default::default() })]

    #[test]
    fn equals_the_model(ops in prop::collection::vec(op(), 1..150)) {
        let mut machine = Machine::new();
        for op in ops {
            machine.apply(op);
        }
        machine.its.reset();
        prop_assert_eq!(machine.its, GuestIts::new(FUNCTIONS, VCPUS));
    }
}

/// A full queue of the dearest commands is executed in parts.
#[test]
fn a_full_queue_takes_several_calls() {
    let mut machine = Machine::new();
    for slot in 0..SLOTS - 1 {
        let command = Op::InvalidateAll { collection: 0 }.encode().expect("a command");
        machine.gic.queue.insert(QUEUE + slot * COMMAND_SIZE as u64, command);
    }
    let end = (SLOTS - 1) * COMMAND_SIZE as u64;
    assert_eq!(machine.its.write(CWRITER, 4, end), Written::Commands);
    let mut calls = 1;
    while machine.its.run(&mut machine.gic) {
        calls += 1;
    }
    assert_eq!((calls, machine.its.read(CREADR, 4)), (FUNCTIONS as u64 * (SLOTS - 1), end));
}

#[test]
fn a_queue_outside_of_ram_stalls() {
    let mut machine = Machine::new();
    machine.write(CTLR, 0);
    machine.write(CBASER, 0x1000 | VALID);
    machine.write(CTLR, 1);
    machine.write(CWRITER, 0x40);
    assert_eq!(machine.its.read(CREADR, 4), 1, "Stalled at the first command");
    machine.write(CWRITER, 0x60);
    assert_eq!(machine.its.read(CREADR, 4), 1, "without Retry");
    machine.write(CWRITER, 0x61);
    assert_eq!(machine.its.read(CREADR, 4), 1, "it stalls again");
    machine.write(CTLR, 0);
    machine.write(CBASER, QUEUE | VALID);
    machine.write(CWRITER, 0);
    machine.write(CTLR, 1);
    assert_eq!(machine.its.read(CREADR, 4), 0);
}

#[test]
fn registers_keep_what_they_have() {
    let mut machine = Machine::new();
    // CBASER can't be written while the ITS is enabled; its attributes are fixed.
    machine.write(CBASER, 0);
    assert_eq!(machine.its.read(CBASER, 8), QUEUE | VALID | 0b111 << 59 | 1 << 10);
    // Offsets beyond the queue are ignored.
    machine.write(CWRITER, 0x1000);
    assert_eq!(machine.its.read(CWRITER, 8), 0);
    machine.write(CTLR, 0);
    assert_eq!(machine.its.read(CTLR, 4), 1 << 31, "Quiescent");
    // Halves of a 64-bit register.
    for (offset, value) in [(CBASER + 4, 0x8000_0001), (CBASER, 0x5000_00ff)] {
        machine.its.write(offset, 4, value);
    }
    assert_eq!(machine.its.read(CBASER, 8), 0xb800_0001_5000_04ff);
    assert_eq!((machine.its.read(CBASER + 4, 4), machine.its.read(CBASER, 4)), (0xb800_0001, 0x5000_04ff));
    // Physical, 5 bits of EventID, 7 of DeviceID, 4 collections, 9 bits of collections.
    assert_eq!(machine.its.read(TYPER, 8), 1 | 4 << 8 | 6 << 13 | 4 << 24 | 8 << 32 | 1 << 36);
    assert_eq!(machine.its.read(0xffe8, 4) & 0xf0, 0x30, "ArchRev");
    // No table is provided by the guest, and a CPU sends no messages. Other sizes and places read as zero.
    for (offset, bytes) in [(0x100, 8), (0x138, 8), (0x1_0040, 4), (0x81, 4), (0x84, 8), (0x80, 2), (0x80, 1)] {
        machine.its.write(offset, bytes, u64::MAX);
        assert_eq!(machine.its.read(offset, bytes), 0, "{offset:#x}");
    }
}

#[test]
fn redistributors_enable_lpis_each_for_itself() {
    let mut machine = Machine::new();
    let its = &mut machine.its;
    assert_eq!((its.read_redistributor(0, CTLR, 4), its.read_redistributor(0, TYPER, 8)), (0b11, 1));
    while its.write_redistributor(0, CTLR, 4, 0, &mut machine.gic) {}
    assert_eq!([0, 1].map(|vcpu| its.read_redistributor(vcpu, CTLR, 4)), [0b10, 0b11]);
    assert!(!its.write_redistributor(0, PENDBASER, 8, 0x4000_0000_8000_0000 | 0xffff, &mut machine.gic));
    assert!(!its.write_redistributor(1, PENDBASER, 8, u64::MAX, &mut machine.gic));
    assert_eq!([0, 1].map(|vcpu| its.read_redistributor(vcpu, PENDBASER, 8)), [0x8000_0780, 0x780], "enabled: not written");
    assert_eq!(its.read_redistributor(2, PROPBASER, 8), TABLE | 13 | 0x780);
    assert_eq!(its.read_redistributor(VCPUS, CTLR, 4), 0b10, "unused, without effect");
    assert!(!its.write_redistributor(VCPUS, CTLR, 4, 1, &mut machine.gic));
    assert_eq!(its.read_redistributor(VCPUS, CTLR, 4), 0b10);
}

#[test]
fn a_write_of_enable_lpis_changes_one_function() {
    let mut machine = Machine::new();
    machine.apply(Op::MapCollection { collection: 0, vcpu: 0, valid: true });
    for function in 0..FUNCTIONS {
        let device = device_id(function);
        machine.apply(Op::MapDevice { device, bits: 5, valid: true });
        for event in 0..EVENTS as u32 {
            machine.apply(Op::MapEvent { device, event, lpi: LPI_BASE + (function * EVENTS) as u32 + event, collection: 0 });
        }
    }
    // Checks the changes of each write.
    for on in [false, true] {
        let before = machine.gic.changes;
        machine.apply(Op::EnableLpis { vcpu: 0, on });
        assert_eq!(machine.gic.changes - before, FUNCTIONS * EVENTS * if on { 2 } else { 1 });
    }
}

#[test]
fn a_write_of_enabled_changes_one_function() {
    let mut machine = Machine::new();
    let map = |machine: &mut Machine, function: usize, event: u32| {
        machine.apply(Op::MapEvent {
            device: device_id(function),
            event,
            lpi: LPI_BASE + (function * EVENTS) as u32 + event,
            collection: 0,
        });
    };
    for function in 0..FUNCTIONS {
        machine.apply(Op::MapDevice { device: device_id(function), bits: 5, valid: true });
        (0..EVENTS as u32).for_each(|event| map(&mut machine, function, event));
    }
    // Checks the changes of each write, and of each part of what follows.
    for on in [false, true, true, false] {
        machine.apply(Op::Enable { on });
    }
    // The change is complete before commands are executed, and the ITS is not quiescent before that.
    machine.apply(Op::Enable { on: true });
    assert_eq!(machine.its.write(CTLR, 4, 0), Written::Commands);
    assert_eq!(machine.its.read(CTLR, 4), 0);
    assert_eq!(machine.its.write(CTLR, 4, 1), Written::Commands);
    assert_eq!(machine.its.read(CTLR, 4), 1);
    map(&mut machine, 0, 0);
    machine.apply(Op::Enable { on: false });
    assert_eq!(machine.its.read(CTLR, 4), 1 << 31);
}
