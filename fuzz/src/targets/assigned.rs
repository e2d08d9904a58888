//! Answers of PCI functions that VMs own, of their SMMU and of their ITS, and writes of guests to the models of functions and of
//! the ITS.

use stile_board::intid::{LPI_BASE, LPI_COUNT};
use stile_board::{MAX_FUNCTIONS, MAX_VCPUS};
use stile_its::guest::{Backing, EVENTS as EVENTIDS, GuestIts, WORK_AT_ONCE, Written};
use stile_its::{Command, DirectLpis, Misplaced, PAGE_SIZES, check_place, place_queue, place_table, table_of};
use stile_pci::{
    BARS, ConfigSpace, Effect, Faults, MAX_VECTORS, MOST_FAULTS, MOST_REPORTS, PAGE, Table, VirtualFunction, capabilities, find_reset,
    probe_bars, silence, virtio_common,
};
use stile_smmu::{Event, Queue};

use crate::input::Input;
use crate::marks::reach;
use crate::target::Target;

/// Any commands of a guest to its ITS, and any accesses to its registers.
pub const COMMANDS: Target = Target {
    name: "guest-its",
    run: commands,
    seeds: queues,
    mutations: 4000,
    marks: &["routed", "unrouted", "configured", "pending", "cleared", "translated", "untranslated", "injected", "more", "stalled"],
};

/// A function with any configuration space, and any accesses of its guest.
pub const FUNCTION: Target = Target {
    name: "pci",
    run: function,
    seeds: functions,
    mutations: 8000,
    marks: &["refused", "assigned", "bar", "wide bar", "msix", "reset", "decoding", "vector", "found"],
};

/// Events of an SMMU, and its queues' indexes.
pub const EVENTS: Target =
    Target { name: "smmu", run: events, seeds: records, mutations: 4000, marks: &["report", "silent", "cut off", "full", "empty"] };

/// An ITS's registers read back.
pub const PLACES: Target =
    Target { name: "its", run: places, seeds: registers, mutations: 4000, marks: &["placed", "page size", "shareability", "elsewhere"] };

/// Configuration space: values, and which bits can be written.
struct Space {
    registers: [u32; 64],
    writable: [u32; 64],
}

impl ConfigSpace for Space {
    fn read(&self, register: u8) -> u32 {
        assert!(register.is_multiple_of(4));
        self.registers[usize::from(register) / 4]
    }

    fn write(&mut self, register: u8, value: u32) {
        assert!(register.is_multiple_of(4));
        let index = usize::from(register) / 4;
        let writable = self.writable[index];
        self.registers[index] = self.registers[index] & !writable | value & writable;
    }
}

/// A function with BARs and MSI-X, one with a reset of its own, a virtio function, and a bridge; each with accesses behind it.
fn functions() -> Vec<Vec<u8>> {
    let bytes = |words: &[(usize, u32, u32)], accesses: &[u8]| {
        let (mut registers, mut writable) = ([0u32; 64], [0u32; 64]);
        words.iter().for_each(|&(register, value, mask)| (registers[register / 4], writable[register / 4]) = (value, mask));
        let words = registers.into_iter().zip(writable).flat_map(|(value, mask)| [value, mask]);
        let mut bytes: Vec<u8> = words.flat_map(u32::to_le_bytes).collect();
        bytes.extend_from_slice(accesses);
        bytes
    };
    let plain = [
        (0x00, 0x0010_1b36, 0),
        (0x04, 1 << 20, 0x547),
        (0x08, 0x0108_0202, 0),
        (0x10, 4, !0x3fff),
        (0x14, 0, u32::MAX),
        (0x18, 0, !0xfff),
        (0x34, 0x40, 0),
        (0x40, 0x0040_8011, 0xc000_0000),
        (0x44, 0x2000, 0),
        (0x80, 0x0002_0010, 0),
        (0x84, 1 << 28, 0),
    ];
    let mut virtio = plain;
    virtio[0] = (0x00, 0x1042_1af4, 0);
    virtio[9] = (0x80, 0x0110_0009, 0);
    virtio[10] = (0x84, 0, 0);
    // Offset, size, value: BAR 0 at a place, memory decoding and bus mastering, MSI-X, and a vector.
    let accesses =
        [[0x10, 0, 2, 0, 0, 0, 0x20], [4, 0, 2, 6, 0, 0, 0], [0x43, 0, 0, 0xc0, 0, 0, 0], [0, 0, 2, 1, 2, 3, 4], [0xc, 0, 2, 0, 0, 0, 0]]
            .concat();
    let bridge = [(0x00, 0x000c_1b36, 0), (0x08, 0x0604_0000, 0), (0x0c, 0x0001_0000, 0)];
    vec![bytes(&plain, &accesses), bytes(&virtio, &accesses), bytes(&bridge, &accesses)]
}

fn function(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut space = Space { registers: [0; 64], writable: [0; 64] };
    for index in 0..64 {
        (space.registers[index], space.writable[index]) = (input.word(), input.word());
    }
    let command = space.registers[1] & 0xffff;
    let bars = probe_bars(&mut space);
    assert!(space.registers[1] & 0xffff & space.writable[1] == command & space.writable[1], "probing restores the command register");
    assert!(capabilities(&space).count() <= 48);
    if find_reset(&space).is_some() {
        reach("reset");
    }
    if let Some((bar, _)) = virtio_common(&space) {
        assert!(bar < BARS);
    }
    let model = VirtualFunction::new(&space, bars);
    silence(&mut space, &(1 << 31..1 << 32));
    let Ok(mut model) = model else { return reach("refused") };
    reach("assigned");
    for bar in model.bars().iter().flatten() {
        reach(if bar.wide { "wide bar" } else { "bar" });
        assert!(bar.size.is_power_of_two() && bar.mapped_size().is_multiple_of(PAGE));
    }
    let mut table = Table::new(0);
    if let Some(msix) = model.msix() {
        reach("msix");
        let bar = model.bars()[msix.bar].expect("its BAR is there");
        let pages = msix.pages();
        assert!(pages.start < pages.end && pages.end <= bar.mapped_size() && pages.start.is_multiple_of(PAGE), "{pages:x?}");
        assert!((1..=MAX_VECTORS).contains(&msix.vectors()));
        table = Table::new(msix.vectors());
    }
    while !input.is_empty() {
        let (offset, size, value) = (u64::from(input.half()), 1 << input.below(4), u64::from(input.word()));
        // A table's offsets are checked by the device that has it, as are widths.
        let in_table = (offset % (16 * MAX_VECTORS as u64)) & !(size - 1);
        if let Some(vector) = table.write(in_table, size, value) {
            reach("vector");
            assert!(vector < table.vectors());
        }
        table.read(in_table, size);
        model.read(offset & 0xfff, size);
        if model.write(offset & 0xfff, size, value) == Effect::Decoding {
            reach("decoding");
        }
        for (index, bar) in model.bars().iter().enumerate() {
            let (Some(bar), Some(address)) = (bar, model.address(index)) else { continue };
            assert!(address.is_multiple_of(bar.mapped_size()), "BAR {index} at {address:#x}");
            let found = model.find(address, 4);
            assert_eq!(found.is_some(), model.decodes_memory());
            if found.is_some() {
                reach("found");
            }
        }
    }
}

/// A repeated fault, and faults at a different page each time.
fn records() -> Vec<Vec<u8>> {
    let record = |page: u32| {
        let words = [0x10_0000_0010_u64, 1 << 35, u64::from(page) << 12, 0];
        words.into_iter().flat_map(u64::to_le_bytes).collect::<Vec<u8>>()
    };
    // The queue's indexes first: it is empty after one step.
    let input = |records: Vec<u8>| [&[0, 0, 0, 0, 1, 0, 0, 0][..], &records].concat();
    vec![input((0..100).flat_map(|_| record(1)).collect()), input((0..20).flat_map(record).collect())]
}

fn events(bytes: &[u8]) {
    const QUEUE: Queue = Queue { log2: 6 };
    let mut input = Input::new(bytes);
    let (mut faults, mut reports, mut ends, mut counted) = (Faults::NONE, 0, 0, 0);
    let (mut producer, mut consumer) = (input.word(), input.word());
    while !input.is_empty() {
        let event = Event::decode(core::array::from_fn(|_| input.double()));
        let verdict = faults.count(event.address, Some(event.access));
        reach(if verdict.report { "report" } else { "silent" });
        assert!(ends == 0 || !verdict.report && !verdict.cut_off, "silent after the end");
        (reports, ends, counted) = (reports + u32::from(verdict.report), ends + u32::from(verdict.cut_off), counted + 1);
        if verdict.cut_off {
            reach("cut off");
            assert!(reports == MOST_REPORTS || counted == MOST_FAULTS);
        }
        // Registers may have any value: each step stays in the queue.
        assert!(QUEUE.slot(producer) < 64 && QUEUE.slot(consumer) < 64);
        producer = QUEUE.next(producer);
        let is_empty = QUEUE.is_empty(producer, consumer);
        reach(if is_empty { "empty" } else { "full" });
        if !is_empty {
            consumer = QUEUE.next(consumer);
        }
    }
}

/// A register of the ITS, read back as it was written, and with each of its fields changed.
fn registers() -> Vec<Vec<u8>> {
    [0, 1 << 8, 1 << 10, 1 << 62, 1 << 63, 1 << 20, 7].map(|change: u64| [&[0; 9][..], &change.to_le_bytes()].concat()).into()
}

fn places(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    while !input.is_empty() {
        let table = input.double() & 0x0000_ffff_ffff_0000;
        let written = match input.below(4) {
            3 => place_queue(table),
            size => place_table(table, PAGE_SIZES[size]),
        };
        let read = written ^ input.double();
        let (_, entry) = table_of(read);
        assert!((1..=32).contains(&entry));
        match check_place(written, read) {
            Ok(()) => {
                reach("placed");
                // The register as the hardware reads it: valid, one level, this address, as many pages of the same
                // size, coherent.
                const PLACE: u64 = 0b11 << 62 | 0x0000_ffff_ffff_f000 | 0b1111 << 8 | 0xff;
                assert_eq!(read & PLACE, written & PLACE);
            }
            Err(Misplaced::PageSize) => reach("page size"),
            Err(Misplaced::Shareability) => reach("shareability"),
            Err(Misplaced::Other) => reach("elsewhere"),
        }
    }
}

/// The guest's memory, which holds the input's commands, a GIC that checks what it is told, and the commands that a physical ITS
/// gets with GICv4.
struct Parts {
    commands: Vec<Command>,
    changes: usize,
    direct: DirectLpis,
}

/// Of the physical ITS: the DeviceID of the first function, and the first of the VM's vPEs and doorbells.
const DEVICE: u32 = 0x100;
const VPE: u16 = 300;
const DOORBELL: u32 = 9000;

/// Checks commands for the physical ITS: they name functions, vPEs, doorbells and LPIs of the VM alone.
fn check(commands: &[Command]) {
    reach("injected");
    assert!(commands.len() <= 3, "they fit into the queue");
    let vpe = |command: &Command| (command[1] >> 32) as u16;
    for command in commands {
        let (code, device, event) = (command[0] as u8, (command[0] >> 32) as u32, command[1] as u32);
        if code != 0x25 {
            assert!((DEVICE..DEVICE + MAX_FUNCTIONS as u32).contains(&device) && event < EVENTIDS as u32, "{command:x?}");
        }
        if matches!(code, 0x21 | 0x25 | 0x2a) {
            assert!((VPE..VPE + MAX_VCPUS as u16).contains(&vpe(command)), "{command:x?}");
        }
        match code {
            0x21 | 0x2a => assert_eq!((command[2] >> 32) as u32, DOORBELL + u32::from(vpe(command) - VPE)),
            0x03 | 0x04 | 0x0c | 0x0f | 0x25 => {}
            _ => panic!("{command:x?}"),
        }
        if code == 0x2a {
            assert!((LPI_BASE..LPI_BASE + LPI_COUNT).contains(&(command[2] as u32)));
        }
    }
}

/// Start of the guest's memory: a queue below it, or above [`Parts::END`], can't be read.
const MEMORY: u64 = 0x4000_0000;

impl Parts {
    const END: u64 = MEMORY + 0x10_0000;

    fn change(&mut self, lpi: u32, mark: &'static str) {
        reach(mark);
        assert!((LPI_BASE..LPI_BASE + LPI_COUNT).contains(&lpi));
        self.changes += 1;
    }
}

impl Backing for Parts {
    fn command(&self, gpa: u64) -> Option<Command> {
        assert!(gpa.is_multiple_of(32));
        let index = usize::try_from(gpa.checked_sub(MEMORY)? / 32).ok()?;
        (gpa < Self::END).then(|| self.commands[index % self.commands.len()])
    }

    fn configuration(&self, gpa: u64) -> Option<u8> {
        (MEMORY..Self::END).contains(&gpa).then_some(gpa as u8)
    }

    fn route(&mut self, lpi: u32, vcpu: Option<usize>) {
        self.change(lpi, if vcpu.is_some() { "routed" } else { "unrouted" });
        assert!(vcpu.is_none_or(|vcpu| vcpu < MAX_VCPUS));
        self.direct.route(lpi, vcpu, check);
    }

    fn configure(&mut self, lpi: u32, _: u8) {
        self.change(lpi, "configured");
        self.direct.invalidate(lpi, check);
    }

    fn set_pending(&mut self, lpi: u32) {
        self.change(lpi, "pending");
        self.direct.set_pending(lpi, check);
    }

    fn clear_pending(&mut self, lpi: u32) {
        self.change(lpi, "cleared");
        self.direct.clear_pending(lpi, check);
    }

    fn translate(&mut self, function: usize, event: usize, lpi: Option<u32>) {
        reach(if lpi.is_some() { "translated" } else { "untranslated" });
        assert!(function < MAX_FUNCTIONS && event < EVENTIDS);
        self.direct.translate(function, event, lpi, check);
    }
}

/// A command of each kind for the first function, and writes to registers that have the ITS execute them.
fn queues() -> Vec<Vec<u8>> {
    let device = 8 << 32;
    let commands: [Command; 12] = [
        [8 | device, 4, 1 << 63, 0],
        [9, 0, 1 << 63 | 1, 0],
        [10 | device, 8192 << 32 | 3, 1, 0],
        [3 | device, 3, 0, 0],
        [12 | device, 3, 0, 0],
        [13, 0, 1, 0],
        [14, 0, 0, 1 << 16],
        [1 | device, 3, 1, 0],
        [4 | device, 3, 0, 0],
        [5, 0, 0, 0],
        [15 | device, 3, 0, 0],
        [8 | device, 4, 0, 0],
    ];
    // Register, redistributor's or not, size, value.
    let write = |register: u16, bytes: u8, value: u64| {
        [&register.to_le_bytes()[..], &[u8::from(bytes == 9), if bytes == 4 { 0 } else { 1 }], &value.to_le_bytes()].concat()
    };
    let start = [write(0x70, 9, MEMORY | 13), write(0, 9, 1), write(0x80, 8, 1 << 63 | MEMORY), write(0, 4, 1)].concat();
    let run = |writer| [&start[..], &write(0x88, 4, writer)].concat();
    let enable = [write(0, 4, 0), write(0, 4, 1)].concat();
    let text = commands.iter().flatten().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
    let bad = [write(0x80, 8, 1 << 63), write(0, 4, 1), write(0x88, 4, 64), write(0x88, 4, 65)].concat();
    [run(0x180), run(0xfe0), [run(0x60), enable].concat(), bad].map(|writes| [&[11, 0][..], &text, &writes].concat()).into()
}

fn commands(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let count = 1 + usize::from(input.half() % 64);
    let commands = (0..count).map(|_| core::array::from_fn(|_| input.double())).collect();
    let mut direct = DirectLpis::new(VPE, DOORBELL, MAX_VCPUS as u16);
    (0..MAX_FUNCTIONS).for_each(|function| direct.set_device(function, DEVICE + function as u32));
    let mut parts = Parts { commands, changes: 0, direct };
    let (mut its, mut redistributor) = (GuestIts::new(MAX_FUNCTIONS, MAX_VCPUS), 0);
    while !input.is_empty() {
        let (offset, kind, size, value) = (u64::from(input.half()), input.byte(), 1 << (input.byte() & 1), input.double());
        let bytes = 4 * size;
        if kind & 1 != 0 {
            redistributor = (redistributor + usize::from(kind >> 1)) % (MAX_VCPUS + 1);
            while its.write_redistributor(redistributor, offset & 0x7f, bytes, value, &mut parts) {}
            its.read_redistributor(redistributor, offset & 0x7f, bytes);
        } else if its.write(offset, bytes, value) == Written::Commands {
            for _ in 0..64 {
                let before = parts.changes;
                let more = its.run(&mut parts);
                assert!(parts.changes - before <= 2 * WORK_AT_ONCE as usize + EVENTIDS, "work of an exit is bounded");
                if !more {
                    break;
                }
                reach("more");
            }
        }
        if its.read(0x90, 4) & 1 != 0 {
            reach("stalled");
        }
        // The offsets stay within the queue.
        let queue = ((its.read(0x80, 8) & 0xff) + 1) * 4096;
        assert!(its.read(0x88, 8) < queue && its.read(0x90, 8) & !1 < queue);
    }
}
