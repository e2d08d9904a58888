//! Task switches on simulated memory and registers. `guests/pc/src/tests/tasks` compares with the processor.

mod emulated;

use emulated::Machine;
use proptest::prelude::*;
use stile_x86_decode::task::{self, Cause, Request, Tasks};
use stile_x86_decode::{CodeSize, Descriptor, Event, Exception, Fault, Intent, Vcpu, decode, execute, follow};

const BASE: u64 = 0x1_0000;
const SIZE: usize = 0x2000;
const GDT: u64 = BASE;
const DATA: u16 = 0x08;
const CODE: u16 = 0x10;
/// The tasks: two with 32-bit TSSs, two with 16-bit ones.
const TASKS: [u16; 4] = [0x18, 0x20, 0x28, 0x30];
const LDT: u16 = 0x38;
/// Free for the test's use.
const ODD: u16 = 0x40;
const END: u16 = 0x48;
const NT: u64 = 1 << 14;
const VM: u64 = 1 << 17;
const BUSY: u64 = 2 << 40;

fn is_wide(selector: u16) -> bool {
    selector < TASKS[2]
}

/// Address of a TSS.
fn tss(selector: u16) -> u64 {
    BASE + 0x400 + 0x100 * u64::from(selector / 8)
}

fn descriptor(base: u64, limit: u64, access: u64, flags: u64) -> u64 {
    limit & 0xffff | (base & 0xff_ffff) << 16 | access << 40 | (limit >> 16 & 0xf) << 48 | flags << 52 | base >> 24 << 56
}

impl Tasks for Machine {
    fn task(&self) -> (u64, u32, u32) {
        let found = self.other.descriptors[7].expect("a task");
        (found.base, found.limit, found.rights)
    }

    fn set_rip(&mut self, rip: u64) {
        self.rip = rip;
    }

    fn load_system(&mut self, linear: u64, bytes: &mut [u8]) -> Result<(), Fault> {
        self.load_bytes(linear, bytes, Intent::Use)
    }

    fn store_system(&mut self, linear: u64, bytes: &[u8]) -> Result<(), Fault> {
        self.store_bytes(linear, bytes)
    }

    fn check_system(&mut self, linear: u64, bytes: u64, write: bool) -> Result<(), Fault> {
        if write { self.check_store(linear, bytes) } else { self.load_bytes(linear, &mut vec![0; bytes as usize], Intent::Use) }
    }

    fn set_cr3(&mut self, cr3: u32) -> Result<(), Fault> {
        self.other.cr3 = cr3.into();
        Ok(())
    }

    fn mark_switched(&mut self) {
        self.other.cr0 |= 1 << 3;
    }
}

fn put(machine: &mut Machine, at: u64, bytes: &[u8]) {
    machine.store_bytes(at, bytes).expect("memory");
}

fn get(machine: &mut Machine, at: u64, bytes: usize) -> u64 {
    let mut value = [0; 8];
    machine.load_bytes(at, &mut value[..bytes], Intent::Use).expect("memory");
    u64::from_le_bytes(value)
}

fn entry(machine: &mut Machine, selector: u16) -> u64 {
    get(machine, GDT + u64::from(selector), 8)
}

fn set_entry(machine: &mut Machine, selector: u16, entry: u64) {
    put(machine, GDT + u64::from(selector), &entry.to_le_bytes());
}

/// Writes words of a TSS, from the instruction pointer on: flags, eight registers, segments, LDT.
fn set_task(machine: &mut Machine, selector: u16, words: &[u32]) {
    let (first, size) = if is_wide(selector) { (0x20, 4) } else { (0x0e, 2) };
    for (n, word) in words.iter().enumerate() {
        put(machine, tss(selector) + (first + n * size) as u64, &word.to_le_bytes()[..size]);
    }
}

/// A machine in protected mode with paging, in the first task; the others are valid targets.
fn machine(current: u16) -> Machine {
    let mut machine = Machine::new(BASE, &[0; SIZE]);
    machine.other.efer = 0;
    machine.other.cr0 = 1 | 1 << 31;
    machine.other.tables[0] = (GDT, END + 7);
    set_entry(&mut machine, DATA, descriptor(0, 0xf_ffff, 0x93, 0xc));
    set_entry(&mut machine, CODE, descriptor(0, 0xf_ffff, 0x9b, 0xc));
    for selector in TASKS {
        let (kind, limit) = if is_wide(selector) { (0x89, 103) } else { (0x81, 43) };
        set_entry(&mut machine, selector, descriptor(tss(selector), limit, kind, 0));
        let data = u32::from(DATA);
        let words = [0x5000, 2, 1, 2, 3, 4, 0x1_0f00, 6, 7, 8, data, CODE.into(), data, data];
        set_task(&mut machine, selector, &words);
    }
    set_entry(&mut machine, LDT, descriptor(BASE + 0x200, 31, 0x82, 0));
    // LTR [EBX] of a task that is never resumed.
    set_entry(&mut machine, ODD, descriptor(BASE + 0x1800, 103, 0x89, 0));
    put(&mut machine, BASE + 0x1f00, &ODD.to_le_bytes());
    machine.general[3] = BASE + 0x1f00;
    let load = decode(&[0x0f, 0x00, 0x1b], CodeSize::Bits32).expect("an instruction");
    execute(&load, &mut machine, BASE + 0x1f00).expect("a task");
    go(&mut machine, current, Cause::Jump).expect("another task");
    set_entry(&mut machine, ODD, 0);
    machine.other.cr0 &= !(1 << 3);
    machine
}

fn switch(machine: &mut Machine, request: &Request) -> Result<bool, Fault> {
    let task = task::leave(machine, request)?;
    task::load_segments(machine, &task)?;
    task::begin(machine, &task, request)
}

fn go(machine: &mut Machine, selector: u16, cause: Cause) -> Result<bool, Fault> {
    let request = request(selector, cause, machine);
    switch(machine, &request)
}

fn request(selector: u16, cause: Cause, machine: &Machine) -> Request {
    Request { selector, cause, next: machine.rip, error_code: None }
}

/// The software-visible registers, except CR0.TS.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    general: Vec<u64>,
    rip: u64,
    flags: u64,
    selectors: [u16; 8],
    /// Bases, limits and rights.
    descriptors: Vec<(u64, u32, u32)>,
}

fn seen(machine: &Machine) -> Seen {
    let parts = |found: &Option<Descriptor>| found.map_or((0, 0, 0), |found| (found.base, found.limit, found.rights));
    Seen {
        general: machine.general.iter().map(|value| value & u64::from(u32::MAX)).collect(),
        rip: machine.rip,
        flags: machine.flags,
        selectors: machine.other.selectors,
        descriptors: machine.other.descriptors.iter().map(parts).collect(),
    }
}

/// Whether VM entry accepts these registers ("Checks on Guest Segment Registers").
fn can_be_entered(machine: &Machine) -> bool {
    const UNUSABLE: u32 = 1 << 16;
    let all: Vec<_> = machine.other.descriptors.iter().map(|found| found.expect("each is loaded")).collect();
    let level = |n: usize| all[n].rights >> 5 & 3;
    let granular = |d: &Descriptor| {
        let g = d.rights >> 15 & 1 != 0;
        (d.limit & 0xfff == 0xfff || !g) && (d.limit >> 20 == 0 || g)
    };
    let reserved = |d: &Descriptor| d.rights & 0xfffe_0f00 == 0 && d.base >> 32 == 0;
    let flags = machine.flags & !0x3f_7fd7 == 0 && machine.flags & 2 != 0 && machine.rip >> 32 == 0;
    if machine.flags & VM != 0 {
        let segments = (0..6).all(|n| {
            let found = all[n];
            found.base == u64::from(machine.other.selectors[n]) << 4 && found.limit == 0xffff && found.rights == 0xf3
        });
        return flags && segments;
    }
    let cs = all[1];
    let code = match cs.rights & 0xf {
        9 | 11 => level(1) == level(2),
        13 | 15 => level(1) <= level(2),
        _ => false,
    };
    let code = code && cs.rights & 0x90 == 0x90 && cs.rights & UNUSABLE == 0;
    let data = [0, 2, 3, 4, 5].into_iter().all(|n| {
        let rights = all[n].rights;
        let kind = rights & 0xf;
        let right = if n == 2 { matches!(kind, 3 | 7) } else { kind & 1 != 0 && (kind & 8 == 0 || kind & 2 != 0) };
        rights & UNUSABLE != 0 || right && rights & 0x90 == 0x90 && granular(&all[n])
    });
    let (ldt, task) = (all[6], all[7]);
    let ldt = ldt.rights & UNUSABLE != 0 || ldt.rights & 0x9f == 0x82 && granular(&ldt) && machine.other.selectors[6] & 4 == 0;
    let task = matches!(task.rights & 0x1_009f, 0x83 | 0x8b) && granular(&task) && machine.other.selectors[7] & 4 == 0;
    let reserved = all.iter().all(|found| found.rights & UNUSABLE != 0 || reserved(found));
    flags && code && data && ldt && task && reserved && granular(&cs)
}

#[test]
fn round_trip_restores_all_registers() {
    for from in TASKS {
        for to in TASKS.into_iter().filter(|&to| to != from) {
            for (there, back) in [(Cause::Call, Cause::Return), (Cause::Gate, Cause::Return), (Cause::Jump, Cause::Jump)] {
                let mut m = machine(from);
                m.flags = 0x3_0ed7 & if is_wide(from) { !VM } else { 0xffff };
                m.general[..8].copy_from_slice(&[0xffff_1234; 8]);
                m.rip = 0x777;
                let before = (seen(&m), entry(&mut m, from), entry(&mut m, to));
                assert_eq!(go(&mut m, to, there), Ok(false));
                assert!(can_be_entered(&m));
                assert_eq!(m.other.selectors[7], to);
                let nests = there != Cause::Jump;
                assert_eq!(m.flags & NT != 0, nests);
                assert_eq!(entry(&mut m, from) & BUSY != 0, nests, "{from:#x} {to:#x} {there:?}");
                assert_ne!(entry(&mut m, to) & BUSY, 0);
                if nests {
                    assert_eq!(get(&mut m, tss(to), 2), from.into());
                }
                assert_eq!(go(&mut m, from, back), Ok(false));
                let mut after = (seen(&m), entry(&mut m, from), entry(&mut m, to));
                if !is_wide(from) {
                    // A 16-bit TSS has no FS and GS.
                    for n in [4, 5] {
                        (after.0.selectors[n], after.0.descriptors[n]) = (before.0.selectors[n], before.0.descriptors[n]);
                    }
                }
                assert_eq!(after, before, "{from:#x} {to:#x} {there:?}");
            }
        }
    }
}

#[test]
fn faults_before_the_commit_point_change_nothing() {
    let [main, other, ..] = TASKS;
    type Change = fn(&mut Machine);
    let cases: [(Change, Cause, u16, Fault); 10] = [
        (|_| {}, Cause::Return, other, Fault::InvalidTask(other)),
        (|m| set_bits(m, TASKS[1], BUSY), Cause::Call, other, Fault::Selector(other)),
        (|m| set_bits(m, TASKS[1], BUSY), Cause::Jump, other | 3, Fault::Selector(other)),
        (|m| set_bits(m, TASKS[1], 0x80 << 40), Cause::Gate, other, Fault::NotPresent(other)),
        (|m| set_bits(m, TASKS[1], 0x10 << 40), Cause::Call, other, Fault::Selector(other)),
        (|m| set_bits(m, TASKS[1], 1), Cause::Call, other, Fault::InvalidTask(other)),
        (|_| {}, Cause::Call, other | 4, Fault::Selector(other | 4)),
        (|_| {}, Cause::Return, 0xfff8, Fault::InvalidTask(0xfff8)),
        (|_| {}, Cause::Call, 0, Fault::Selector(0)),
        (
            |m| {
                if let Some(found) = &mut m.other.descriptors[7] {
                    found.limit = 0x5e;
                }
            },
            Cause::Call,
            other,
            Fault::InvalidTask(main),
        ),
    ];
    for (n, (change, cause, selector, fault)) in cases.into_iter().enumerate() {
        let mut m = machine(main);
        change(&mut m);
        let (memory, other) = (m.memory.clone(), m.other.clone());
        assert_eq!(go(&mut m, selector, cause), Err(fault), "{n}");
        assert!(m.memory == memory && m.other == other, "{n}");
    }
    // A TSS whose second half is not present.
    let mut m = machine(main);
    set_entry(&mut m, other, descriptor(BASE + SIZE as u64 - 50, 103, 0x89, 0));
    let memory = m.memory.clone();
    assert!(matches!(go(&mut m, other, Cause::Call), Err(Fault::Page(_))));
    assert!(m.memory == memory);
}

/// Flips bits of a descriptor.
fn set_bits(machine: &mut Machine, selector: u16, bits: u64) {
    let old = entry(machine, selector);
    set_entry(machine, selector, old ^ bits);
}

#[test]
fn error_codes_are_pushed() {
    let [main, wide, small, _] = TASKS;
    for (selector, bytes) in [(wide, 4), (small, 2)] {
        let mut m = machine(main);
        // The upper half of a 16-bit task's ESP is ones.
        set_entry(&mut m, ODD, descriptor(BASE, 0xffff, 0x93, 0));
        let stack = if is_wide(selector) { (0x1_0f00, DATA) } else { (0x0f00, ODD) };
        let words = [0x5000, 2, 1, 2, 3, 4, stack.0, 6, 7, 8, DATA.into(), CODE.into(), stack.1.into(), DATA.into()];
        set_task(&mut m, selector, &words);
        let request = Request { error_code: Some(0x1_0002), ..request(selector, Cause::Gate, &m) };
        assert_eq!(switch(&mut m, &request), Ok(false));
        assert_eq!(m.general[4] & 0xffff, 0x0f00 - bytes);
        assert_eq!(get(&mut m, BASE + 0xf00 - bytes, bytes as usize), 0x1_0002 & ((1 << (8 * bytes)) - 1));
    }
    // The stack has no room.
    let mut m = machine(main);
    set_entry(&mut m, ODD, descriptor(BASE, 0xfff, 0x93, 4));
    set_task(&mut m, wide, &[0x5000, 2, 1, 2, 3, 4, 2, 6, 7, 8, DATA.into(), CODE.into(), ODD.into(), DATA.into()]);
    let request = Request { error_code: Some(2), ..request(wide, Cause::Gate, &m) };
    assert_eq!(switch(&mut m, &request), Err(Fault::Stack));
}

#[test]
fn virtual_8086_tasks_need_no_descriptors() {
    let [main, other, ..] = TASKS;
    let mut m = machine(main);
    set_task(&mut m, other, &[0x10, VM as u32 | 2, 1, 2, 3, 4, 5, 6, 7, 8, 0x1111, 0x2222, 0x3333, 0x4444, 0x5555, 0x6666, 0]);
    assert_eq!(go(&mut m, other, Cause::Jump), Ok(false));
    assert!(can_be_entered(&m));
    assert_eq!(m.other.selectors[..6], [0x1111, 0x2222, 0x3333, 0x4444, 0x5555, 0x6666]);
    // EIP is limited to 64 KiB, and the LDT must be valid.
    set_task(&mut m, main, &[0x1_0000, VM as u32 | 2]);
    assert_eq!(go(&mut m, main, Cause::Jump), Err(Fault::Protection));
    let mut m = machine(main);
    set_task(&mut m, other, &[0x10, VM as u32 | 2, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0, 0, u32::from(DATA)]);
    assert_eq!(go(&mut m, other, Cause::Jump), Err(Fault::InvalidTask(DATA)));
    assert!(can_be_entered(&m));
}

#[test]
fn traced_tasks_begin_with_a_debug_exception() {
    let [main, other, ..] = TASKS;
    let mut m = machine(main);
    put(&mut m, tss(other) + 0x64, &[1]);
    assert_eq!(go(&mut m, other, Cause::Call), Ok(true));
}

#[test]
fn faults_during_event_delivery() {
    const PAGE: Fault = Fault::Page(stile_x86_walk::PageFault { linear: 0, code: stile_x86_walk::ErrorCode(2) });
    const TASK: Fault = Fault::InvalidTask(0x20);
    let event = |kind: u64, vector: u64| Event::new(1 << 31 | kind << 8 | vector);
    let exception = |vector, code| Some(Exception { vector, code: Some(code) });
    let double = exception(8, 0);
    let cases = [
        (None, TASK, exception(10, 0x20)),
        // External interrupts and NMIs, INT n, INT1, INT3.
        (event(0, 0xf0), TASK, exception(10, 0x21)),
        (event(2, 2), Fault::Protection, exception(13, 1)),
        (event(4, 0x80), TASK, exception(10, 0x20)),
        (event(4, 14), PAGE, exception(14, 2)),
        (event(5, 1), TASK, exception(10, 0x21)),
        (event(6, 3), TASK, exception(10, 0x20)),
        (event(0, 0xf0), PAGE, exception(14, 2)),
        // #UD, #DE, #GP, #PF, #DF.
        (event(3, 6), TASK, exception(10, 0x21)),
        (event(3, 0), TASK, double),
        (event(3, 0), PAGE, exception(14, 2)),
        (event(3, 13), Fault::Stack, double),
        (event(3, 14), PAGE, double),
        (event(3, 14), TASK, double),
        (event(3, 8), TASK, None),
        (event(3, 8), PAGE, None),
    ];
    for (event, fault, expected) in cases {
        assert_eq!(follow(event, fault), expected, "{event:x?} {fault:x?}");
    }
    assert_eq!(Event::new(0x30e), None);
}

proptest! {
    /// With random TSSs and descriptors, the resulting state passes the checks of VM entry, and the old task is saved.
    #[test]
    fn random_tasks_yield_a_valid_state(
        tasks in proptest::collection::vec(any::<u8>(), 104),
        selectors in proptest::collection::vec(0..0x50u16, 7),
        entries in proptest::collection::vec((any::<u8>(), 0..16u64, any::<u64>()), 5),
        from in 0..4usize, to in 0..4usize, cause in 0..4u64, plain in any::<bool>(), code in any::<Option<u32>>(),
    ) {
        let (from, to) = (TASKS[from], TASKS[to]);
        let mut m = machine(from);
        let cause = Cause::from_qualification(cause << 30);
        put(&mut m, tss(to), &tasks[..if is_wide(to) { 104 } else { 44 }]);
        let (first, word) = if is_wide(to) { (0x48, 4) } else { (0x22, 2) };
        for (n, selector) in selectors.iter().take(if is_wide(to) { 7 } else { 5 }).enumerate() {
            put(&mut m, tss(to) + first + n as u64 * word, &selector.to_le_bytes());
        }
        if plain {
            // Not in virtual-8086 mode.
            put(&mut m, tss(to) + if is_wide(to) { 0x24 } else { 0x10 }, &[2, 0]);
            if is_wide(to) {
                put(&mut m, tss(to) + 0x26, &[0, 0]);
            }
        }
        for (selector, (access, flags, rest)) in [DATA, CODE, LDT, ODD, END].into_iter().zip(entries) {
            let odd = rest & 0xff0f_00ff_ffff_ffff | u64::from(access) << 40 | flags << 52;
            let usual = entry(&mut m, selector);
            let random = rest & 1 << 13 != 0;
            set_entry(&mut m, selector, if random { odd } else { usual });
        }
        if cause == Cause::Return {
            set_bits(&mut m, to, if from == to { 0 } else { BUSY });
        }
        let (rip, selectors) = (m.rip, m.other.selectors);
        let request = Request { error_code: code, ..request(to, cause, &m) };
        let outcome = switch(&mut m, &request);
        prop_assert!(can_be_entered(&m), "{:x?} {:x?}", outcome, m.other);
        if outcome.is_err() && m.other.selectors[7] == from {
            prop_assert!(from == to || m.rip == rip && m.other.selectors == selectors);
        } else {
            prop_assert_eq!(m.other.selectors[7], to);
            prop_assert_ne!(m.other.cr0 & 1 << 3, 0);
        }
    }
}
