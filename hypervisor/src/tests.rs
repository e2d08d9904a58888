//! A machine of the fake architecture: VMs are created and destroyed, vCPUs sleep, wake, move and power themselves off, at random.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use stile_blob::{Blob, Files, OnReset, Settings, Techniques, write};
use stile_board::map::{PL011_BASE, RAM_BASE};
use stile_ledger::RowId;
use stile_sched::{CpuId, CpuSet};
use stile_snapshot::pages::{Builder, PAGES, WINDOW};
use stile_trace::{Kind, Record};
use stile_wire::{Answer, Channel, Command, Decoder, Event, Scope, VmState};

use crate::arch::contract::Host;
use crate::arch::devices::Device;
use crate::arch::fake::PoweredOff;
use crate::arch::{Arch, Cpu, fake};
use crate::arena;
use crate::cpu::{self, Leave, Outcome};
use crate::vm::power::{self, End};
use crate::vm::retire;
use crate::{console, memory, report, sample, trace, upload, vm, watch};

const CPUS: usize = 3;
const VCPUS: [u16; 3] = [4, 2, 1];
/// Miri takes hundreds of times as long for each.
const STEPS: usize = if cfg!(miri) { 1_200 } else { 60_000 };
const CYCLES: usize = if cfg!(miri) { 12 } else { 1_000 };
const TRACES: u32 = if cfg!(miri) { 1 } else { 12 };
/// Messages that are more than the buffer of a line that takes nothing has room for.
const MANY: u32 = if cfg!(miri) { 400 } else { 1_000 };

/// A sequence of numbers that is the same each time (xorshift64*).
fn random(below: u64) -> u64 {
    static STATE: AtomicU64 = AtomicU64::new(0x9e37_79b9_7f4a_7c15);
    let mut x = STATE.load(Ordering::Relaxed);
    x ^= x >> 12;
    x ^= x << 25;
    x ^= x >> 27;
    STATE.store(x, Ordering::Relaxed);
    (x.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % below
}

fn any_vcpu() -> &'static vm::Vcpu {
    let vcpus: Vec<_> = vm::all().flat_map(|vm| vm.vcpus.iter().copied()).collect();
    vcpus[random(vcpus.len() as u64) as usize]
}

/// A CPU has nothing to do for now: what it panics with while it idles, so that the others get their turn.
struct Idle;

/// An idle CPU wakes for an interrupt, or it is another one's turn.
fn wait() {
    fake::pass(random(10_000_000));
    if random(4) == 0 {
        std::panic::panic_any(Idle);
    }
    interrupt();
}

/// How often a vCPU was woken from a handler, and how often the scheduler was told only later.
static WOKEN: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// An interrupt for some vCPU, from a handler of the vCPU that runs on `cpu` and continues.
fn interrupt_beside(cpu: &mut Cpu) {
    let vcpu = any_vcpu();
    vcpu.arch.pending.store(true, Ordering::Relaxed);
    if !cpu::kick_if_running(vcpu) {
        let before = cpu.woken;
        cpu::wake_beside(cpu, vcpu);
        WOKEN[0].fetch_add(1, Ordering::Relaxed);
        if cpu.woken.is_some() && cpu.woken != before {
            assert_eq!(cpu.woken.map(|(woken, _)| woken), Some(vcpu.id));
            assert!(cpu.slice_end.is_some() && cpu.waiting_trapped, "nothing ends the turn of the vCPU that goes on");
            WOKEN[1].fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// An interrupt for some vCPU.
fn interrupt() {
    let vcpu = any_vcpu();
    vcpu.arch.pending.store(true, Ordering::Relaxed);
    cpu::notify(vcpu);
}

fn blob() -> &'static [u8] {
    let names = ["one", "two", "three"];
    let mut machine =
        write::Machine { settings: Settings { report_exits: true, slice_us: 100, mitigations: Default::default() }, vms: Vec::new() };
    let files: Vec<_> = (0..VCPUS.len()).map(|vm| write::File { vm, bytes: b"a guest", gpa: RAM_BASE, mem_len: 4096 }).collect();
    for (name, vcpus) in names.into_iter().zip(VCPUS) {
        let vm = stile_blob::Vm {
            name,
            memory: 2 << 20,
            ram_base: RAM_BASE,
            firmware: 0,
            vcpus,
            topology: None,
            class: None,
            cpus: CpuSet::EMPTY,
            pinned: name == "one",
            share: stile_blob::Share::default(),
            entry: RAM_BASE,
            info: RAM_BASE,
            mode: stile_blob::Mode::Reset,
            loads: heapless::Vec::new(),
            on_reset: OnReset::Restart,
            techniques: Techniques::default(),
            functions: heapless::Vec::new(),
            served: heapless::Vec::new(),
            serves: 0,
            gic: stile_blob::Gic::default(),
        };
        machine.vms.push(vm);
    }
    let bytes = write::blob(&machine, &write::symbols(&[]), &files).unwrap();
    // As behind an image: at the start of a page.
    let memory = Vec::leak(vec![0u128; bytes.len() / 16 + 512]);
    let start = (memory.as_mut_ptr() as usize).next_multiple_of(4096) as *mut u8;
    // SAFETY: `memory` has that many bytes from there, and nothing else refers to it.
    unsafe {
        start.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        std::slice::from_raw_parts(start, bytes.len())
    }
}

/// The last life in which each VM touched its memory, and how often it did.
static LIVES: [AtomicU64; VCPUS.len()] = [const { AtomicU64::new(0) }; VCPUS.len()];
static TOUCHES: [AtomicU64; VCPUS.len()] = [const { AtomicU64::new(0) }; VCPUS.len()];

/// The guest touches its memory: files are as loaded since the last reset, and the rest as the guest left it before and after resets.
fn use_memory(vm: &vm::Vm) {
    let at = |gpa| {
        // Stile's own accesses may precede.
        if random(2) == 0 {
            vm.fill_page(gpa);
        }
        while !vm.arch.can_write(gpa) {
            assert!(vm.handle_write_fault(gpa) || vm.touch(gpa));
        }
        assert!(vm.is_mapped(gpa));
        let start = *vm.arch.mapped.lock().unwrap().get(&RAM_BASE).expect("a block that is full is mapped");
        Arch::physical(start + (gpa - RAM_BASE)).cast::<[u8; 8]>()
    };
    let (file, rest) = (at(RAM_BASE), at(RAM_BASE + 4096));
    let life = vm.arch.lives.load(Ordering::Relaxed);
    let expected = if LIVES[vm.number].swap(life, Ordering::Relaxed) == life { b"written\0" } else { b"a guest\0" };
    let touches = TOUCHES[vm.number].fetch_add(1, Ordering::Relaxed);
    // SAFETY: it is the VM's memory, which only this thread uses.
    unsafe {
        assert_eq!(&file.read(), expected);
        assert_eq!(rest.read(), touches.to_le_bytes());
        file.write(*b"written\0");
        rest.write((touches + 1).to_le_bytes());
    }
}

/// The guest accesses its devices: each keeps what its own VM wrote, and only accesses that the bus lets through reach one.
fn use_devices(cpu: &mut Cpu) {
    let buses = &cpu.vcpu().vm().devices.buses;
    let value = cpu.vcpu().vm().number as u64 + 1;
    // UARTIBRD, which holds 16 bits.
    let divisor = PL011_BASE + 0x24;
    let hit = buses.memory.find(divisor, 4).expect("the UART is on the memory bus");
    assert_eq!((hit.device, hit.offset), (Device::Uart, 0x24));
    assert!(buses.memory.find(divisor, 1).is_none() && buses.memory.find(divisor, 8).is_none());
    assert!(hit.device.write(cpu, hit.offset, 4, value).is_none());
    assert_eq!(hit.device.read(cpu, hit.offset, 4), value);
    // PL031's match register, at ports here.
    let hit = buses.port(0x74, 4).expect("the clock is on the port bus");
    assert_eq!((hit.device, hit.offset), (Device::Clock, 4));
    assert!(hit.device.write(cpu, hit.offset, 4, value).is_none());
    assert_eq!(hit.device.read(cpu, hit.offset, 4), value);
    assert!(buses.memory.find(0x74, 4).is_none() && buses.port(0x78, 4).is_none());
}

/// Whether a VM is paused, as [`note_states`] saw it before the exit.
fn is_paused(vm: usize) -> bool {
    PAUSED[vm].load(Ordering::Relaxed)
}

static PAUSED: [AtomicBool; VCPUS.len()] = [const { AtomicBool::new(false) }; VCPUS.len()];
/// Totals of ledgers that the operator got while the machine ran.
static TOTALS: AtomicU64 = AtomicU64::new(0);
/// Samples by idle CPUs.
static SAMPLES: AtomicU64 = AtomicU64::new(0);
/// VMs that were created while the machine ran, and destroyed.
static CREATED: AtomicU64 = AtomicU64::new(0);
static DESTROYED: AtomicU64 = AtomicU64::new(0);
/// How often the operator did what was not refused.
static DONE: [AtomicU64; 4] = [const { AtomicU64::new(0) }; 4];

/// The operator pauses, resumes, resets, turns off and starts VMs. One stays on, so that the machine does.
fn operate() {
    let Some(vm) = vm::get(random(VCPUS.len() as u64) as usize) else { return };
    let (number, action) = match random(8) {
        0..3 => (0, power::pause(vm)),
        3..6 => (1, power::resume(vm)),
        6 if vm.number != 0 => (2, power::end_now(vm, if random(2) == 0 { End::Off } else { End::Restart })),
        7 => (3, power::turn_on(vm)),
        _ => return,
    };
    DONE[number].fetch_add(u64::from(action == Answer::Done), Ordering::Relaxed);
    note_states();
}

/// Notes which VMs are paused.
fn note_states() {
    for vm in vm::all() {
        PAUSED[vm.number].store(vm.power.is_held() && !vm.power.is_changing(), Ordering::Relaxed);
    }
}

/// One exit of the vCPU that runs on `cpu`, of a kind that chance chooses.
fn exit(cpu: &mut Cpu) {
    let vcpu = cpu.vcpu();
    assert_eq!(vcpu.runs_on.load(Ordering::Relaxed), cpu.index as u32);
    assert_eq!(*vcpu.arch.loaded.lock().unwrap(), Some(cpu.index));
    assert!(!is_paused(vcpu.vm().number), "a vCPU of a paused VM runs");
    // The guest computes: what it has must never be another's, or lost.
    assert_eq!(cpu.register & 0xff, RAM_BASE & 0xff, "a register of nobody's");
    cpu.register += 0x100;
    fake::pass(random(50_000));
    use_memory(vcpu.vm());
    use_devices(cpu);
    cpu.exit();
    if random(4) == 0 {
        interrupt_beside(cpu);
    }
    let on = vcpu.vm().vcpus.iter().filter(|vcpu| vcpu.arch.loaded.lock().unwrap().is_some()).count();
    cpu.leave = match random(40) {
        0..12 => Leave::Wait,
        12..20 => Leave::Yield,
        20..30 => Leave::Timer,
        30 if on > 1 => Leave::Off,
        31 => {
            power::end(vcpu.vm(), End::Reset);
            Leave::Resched
        }
        32..34 => {
            let vm = vcpu.vm();
            let other = vm.vcpus[random(vm.vcpus.len() as u64) as usize];
            let off = cpu::SCHEDULE.state(other.id) == stile_sched::State::Off;
            if off && !vm.power.is_ending() {
                fake::turn_on(other);
            }
            Leave::Resched
        }
        _ => {
            interrupt();
            Leave::Resched
        }
    };
    let row = RowId::masked(0);
    if cpu.traced.get() {
        trace::trace_leave(cpu, Outcome::leave(row));
    }
    cpu::leave(cpu, row);
}

const RINGS: usize = CPUS * size_of::<stile_trace::Ring>();
/// Memory of a trace.
const TRACED: u64 = trace::size(CPUS);

/// Leaves something in the memory from which the next trace takes its rings.
fn dirty_rings() -> *const u8 {
    let block = memory::take_aligned(TRACED, align_of::<stile_trace::Ring>() as u64).unwrap();
    let rings = Arch::physical(block.start);
    // SAFETY: the block was just allocated, so that nothing else refers to it.
    unsafe { rings.write_bytes(0xff, TRACED as usize) };
    memory::free(block);
    rings
}

/// The operator traces the machine repeatedly: every exit is in a record or counted as dropped, and other operations continue.
fn traces_come_and_go(machine: &mut Simulation) {
    for tag in 0..TRACES {
        let from = fake::LINE.lock().unwrap().len();
        let resumed = vm::all().filter(|vm| power::resume(vm) == Answer::Done).count();
        DONE[1].fetch_add(resumed as u64, Ordering::Relaxed);
        let rings = dirty_rings();
        trace::start(tag);
        // SAFETY: the rings are in the fake memory, which is never freed.
        let rings = unsafe { std::slice::from_raw_parts(rings, RINGS) };
        assert!(rings.iter().all(|&byte| byte == 0xff), "one exit clears the rings of all CPUs");
        // A second one is refused; the same one was not heard.
        [tag, tag + 1].into_iter().for_each(trace::start);
        let steps = if tag % 4 == 3 { 16 * stile_trace::SLOTS } else { 4_000 };
        for step in 0..steps {
            assert!(machine.step(), "one VM is always on");
            if step % 64 == 0 {
                operate();
            }
            if step % 64 == 0 && tag % 4 != 3 {
                trace::fetch(false);
            }
        }
        trace::stop();
        // Records of CPUs that have not ended yet are not dropped.
        trace::fetch(true);
        let mut ended = false;
        while !ended {
            assert!(machine.step(), "one VM is always on");
            let answer = fake::LINE.lock().unwrap().len();
            trace::fetch(tag % 2 == 1);
            ended = messages(answer).contains(&Event::TraceFetched { more: false, ended: true });
        }
        check_trace(tag, &messages(from));
        assert!(machine.cpus.iter().all(|cpu| !cpu.recorder.is_on() && !cpu.traced.get()), "a CPU records after the end");
    }
}

/// Returns the messages to the operator, from a byte of the line on.
fn messages(from: usize) -> Vec<Event> {
    let mut decoder = Decoder::new();
    let line = fake::LINE.lock().unwrap();
    line[from..].iter().filter_map(|&byte| decoder.push(byte)?.event()?.ok()).collect()
}

fn check_trace(tag: u32, messages: &[Event]) {
    let (mut exits, mut taken, mut dropped, mut refused, mut started) = (0, 0, 0, 0, 0);
    let mut sent = [0; CPUS];
    let mut last = [0; CPUS];
    for message in messages {
        match *message {
            Event::TraceStarted { tag: of, cpus, .. } => {
                assert_eq!((of, CpuSet::from_words(cpus)), (tag, CpuSet::first_few(CPUS)));
                started += 1;
            }
            Event::Refused { .. } => refused += 1,
            Event::TraceRecords { cpu, first, records } => {
                let cpu = usize::from(cpu);
                assert_eq!(first, sent[cpu]);
                for record in records.bytes().chunks(16) {
                    let words = [&record[..8], &record[8..]].map(|word| u64::from_le_bytes(word.try_into().unwrap()));
                    let record = Record::decode(words).expect("a record");
                    assert!(record.ticks >= last[cpu] || matches!(record.kind, Kind::Leave { .. } | Kind::Ipi { .. }), "they are in order");
                    last[cpu] = record.ticks;
                    exits += u64::from(matches!(record.kind, Kind::Leave { row: 0, .. }));
                    sent[cpu] += 1;
                }
            }
            Event::TraceCpu { taken: of, exits: lost, .. } => {
                taken += of;
                dropped += lost;
            }
            _ => {}
        }
    }
    assert_eq!((started, refused), (2, 1));
    assert_eq!(exits + dropped, taken);
    assert!(taken > 20 && (tag % 2 == 1 || dropped == 0) && (tag % 4 != 3 || dropped != 0), "{taken} {dropped} {tag}");
}

/// The CPUs, each of which runs a vCPU or idles.
struct Simulation {
    cpus: Vec<Cpu>,
    idle: [bool; CPUS],
    /// An unresponsive CPU: its guest waits with all of its interrupts masked.
    unreachable: Option<usize>,
}

impl Simulation {
    /// One exit, or one interrupt of an idle CPU. False if the machine is off.
    fn step(&mut self) -> bool {
        note_states();
        let n = random(CPUS as u64) as usize;
        self.unreachable == Some(n) || self.step_of(n)
    }

    /// That of one CPU.
    fn step_of(&mut self, n: usize) -> bool {
        let (cpu, idle) = (&mut self.cpus[n], self.idle[n]);
        let result = catch_unwind(AssertUnwindSafe(|| if idle { cpu::run_for_tests(cpu) } else { exit(cpu) }));
        self.idle[n] = match result {
            Ok(()) => {
                assert!(cpu::timer_is_in_time(&self.cpus[n]), "a vCPU is entered, and the timer would be late for something");
                if self.cpus[n].traced.get() {
                    trace::trace_enter(&self.cpus[n]);
                }
                false
            }
            Err(reason) if reason.is::<Idle>() => true,
            Err(reason) if reason.is::<PoweredOff>() => return false,
            Err(reason) => std::panic::resume_unwind(reason),
        };
        true
    }

    /// Steps the machine until a CPU runs a vCPU of this VM.
    fn run_until_runs(&mut self, vm: usize) {
        for _ in 0..100_000 {
            if (0..CPUS).any(|n| !self.idle[n] && self.cpus[n].vcpu.is_some_and(|vcpu| vcpu.vm().number == vm)) {
                return;
            }
            assert!(self.step(), "one VM is always on");
        }
        panic!("VM {vm} never runs");
    }

    /// Has the guest of a CPU that runs VM 0 keep that CPU, if there is one.
    fn lose_a_cpu(&mut self) {
        let runs = |n: &usize| !self.idle[*n] && self.cpus[*n].vcpu.is_some_and(|vcpu| vcpu.vm().number == 0);
        self.unreachable = (0..CPUS).find(runs);
        fake::CONFINED.store(self.unreachable.map_or(0, |n| 1 << n), Ordering::Relaxed);
    }

    /// The guest gives it back.
    fn regain(&mut self) {
        self.unreachable = None;
        fake::CONFINED.store(0, Ordering::Relaxed);
    }

    /// Steps the machine until the condition holds.
    fn run_until(&mut self, mut done: impl FnMut() -> bool) {
        let mut steps = 0;
        while !done() {
            assert!(self.step(), "one VM is always on");
            steps += 1;
            assert!(steps < 100_000, "it never comes true");
        }
    }
}

/// Whether memory is zero.
fn is_clear(start: *const u8, size: usize) -> bool {
    // SAFETY: the address is in the fake memory, which is never freed. No other thread writes there.
    let words = unsafe { std::slice::from_raw_parts(start.cast::<u128>(), size / 16) };
    words.iter().all(|&word| word == 0)
}

/// A vCPU's ledger is wanted, which ran when that was said, but waits by the time at which its CPU takes the kick: in a sleep of the CPU's.
fn an_idle_cpu_answers(machine: &mut Simulation) {
    machine.run_until(|| vm::all().flat_map(|vm| &vm.vcpus).any(|vcpu| vcpu.arch.loaded.lock().unwrap().is_none()));
    let Some(n) = (0..CPUS).find(|&n| machine.idle[n]) else { return };
    let vcpus = vm::all().flat_map(|vm| &vm.vcpus);
    let Some(vcpu) = { vcpus }.find(|vcpu| vcpu.arch.loaded.lock().unwrap().is_none()) else { return };
    sample::want_for_tests(vcpu.id.vm(), vcpu.id.vcpu());
    cpu::request_resched(stile_sched::CpuId::new(n).unwrap());
    assert!(machine.step_of(n));
    assert!(!sample::is_wanted(), "the idle CPU took the request, and did not answer");
    SAMPLES.fetch_add(1, Ordering::Relaxed);
}

/// The operator gets all ledgers of the running machine, in pieces.
fn ledgers_are_sent_in_pieces(machine: &mut Simulation) {
    let vcpus = vm::all().map(|vm| vm.vcpus.len() as u64).sum::<u64>();
    let count = |from: usize| {
        let messages = messages(from);
        let rows = messages.iter().filter(|event| matches!(event, Event::LedgerRow(_) | Event::LedgerTotal(_))).count();
        (rows, messages.contains(&Event::LedgerEnd))
    };
    let from = fake::LINE.lock().unwrap().len();
    report::begin();
    assert!(count(from).0 <= 17, "an exit sends many rows");
    let mut seen = from;
    machine.run_until(|| {
        let end = fake::LINE.lock().unwrap().len();
        count(core::mem::replace(&mut seen, end)).1
    });
    let totals = messages(from).iter().filter(|event| matches!(event, Event::LedgerTotal(_))).count() as u64;
    assert_eq!(totals, vcpus);
    TOTALS.fetch_add(totals, Ordering::Relaxed);
}

/// VMs are destroyed and created while others run: all memory is returned and cleared, and no state of a VM reaches the next one with its number.
fn vms_come_and_go(machine: &mut Simulation, configuration: &[stile_blob::Vm<'static>], files: Files<'static>) {
    let resumed = vm::all().filter(|vm| power::resume(vm) == Answer::Done).count();
    DONE[1].fetch_add(resumed as u64, Ordering::Relaxed);
    let all = vm::all().map(vm::Vm::memory).sum::<u64>() + memory::available();
    for cycle in 0..CYCLES {
        let number = 1 + random(VCPUS.len() as u64 - 1) as usize;
        if let Some(vm) = vm::get(number) {
            if power::turn_on(vm) == Answer::Done {
                DONE[3].fetch_add(1, Ordering::Relaxed);
            }
            assert_eq!(power::destroy(vm), Answer::WrongState, "it is on");
            power::end_now(vm, End::Off);
            machine.run_until(|| power::destroy(vm::get(number).unwrap()) == Answer::Done);
            assert_eq!(
                (power::destroy(vm), power::turn_on(vm), power::pause(vm)),
                (Answer::WrongState, Answer::WrongState, Answer::WrongState)
            );
            assert_eq!((power::end_now(vm, End::Off), power::end_now(vm, End::Restart)), (Answer::WrongState, Answer::WrongState));
            if random(4) == 0 {
                machine.lose_a_cpu();
            }
            let ram: Vec<u64> = vm.arch.mapped.lock().unwrap().values().copied().collect();
            let place = std::ptr::from_ref(vm).cast::<u8>();
            machine.run_until(|| vm::get(number).is_none() && !retire::is_any());
            machine.regain();
            DESTROYED.fetch_add(1, Ordering::Relaxed);
            assert!(ram.iter().all(|&block| is_clear(Arch::physical(block), 2 << 20)), "RAM is returned with the guest's data");
            assert!(is_clear(place, size_of::<vm::Vm>() & !15), "memory is returned with Stile's data");
        }
        let rest = vm::all().map(vm::Vm::memory).sum::<u64>();
        assert_eq!(memory::available() + rest, all, "memory is missing after {cycle} cycles");
        let mut config = configuration[number].clone();
        config.memory = (1 + random(4)) * (2 << 20);
        config.vcpus = if cycle % 16 == 0 { stile_board::MAX_VCPUS as u16 } else { 1 + random(8) as u16 };
        assert!(retire::claim(number) && !retire::claim(number));
        if random(8) == 0 {
            // One that can't be made leaves nothing behind.
            let too_large = stile_blob::Vm { memory: 1 << 30, ..config.clone() };
            let nowhere = stile_blob::Vm { cpus: CpuId::wrapping(CPUS).into(), ..config.clone() };
            assert!(vm::create(number, &too_large, files).is_err() && vm::create(number, &nowhere, files).is_err());
            retire::abandon(number);
            machine.run_until(|| !retire::is_any());
            assert_eq!(memory::available() + rest, all);
            assert!(retire::claim(number));
        }
        LIVES[number].store(0, Ordering::Relaxed);
        TOUCHES[number].store(0, Ordering::Relaxed);
        let vm = vm::create(number, &config, files).unwrap();
        let times = vm.vcpus.iter().map(|vcpu| cpu::SCHEDULE.times(vcpu.id, u64::MAX));
        assert!(times.eq(vm.vcpus.iter().map(|_| stile_sched::Times::default())), "a new VM has not run");
        CREATED.fetch_add(1, Ordering::Relaxed);
        power::start(vm);
        for _ in 0..random(200) {
            assert!(machine.step());
        }
    }
}

/// Destroys a VM that is on.
fn destroy(machine: &mut Simulation, number: usize) {
    power::end_now(vm::get(number).unwrap(), End::Off);
    machine.run_until(|| power::destroy(vm::get(number).unwrap()) == Answer::Done);
    machine.run_until(|| vm::get(number).is_none() && !retire::is_any());
    DESTROYED.fetch_add(1, Ordering::Relaxed);
}

/// The operator resets a VM that a reset of its guest would turn off, and its guest resets itself meanwhile.
fn an_operators_reset_is_not_the_guests(machine: &mut Simulation, configuration: &[stile_blob::Vm<'static>], files: Files<'static>) {
    let number = 1;
    destroy(machine, number);
    let config = stile_blob::Vm { on_reset: OnReset::Stop, vcpus: 4, ..configuration[number].clone() };
    assert!(retire::claim(number));
    LIVES[number].store(0, Ordering::Relaxed);
    TOUCHES[number].store(0, Ordering::Relaxed);
    let vm = vm::create(number, &config, files).unwrap();
    CREATED.fetch_add(1, Ordering::Relaxed);
    power::start(vm);
    for _ in 0..20 {
        if power::turn_on(vm) == Answer::Done {
            DONE[3].fetch_add(1, Ordering::Relaxed);
        }
        machine.run_until_runs(number);
        let from = fake::LINE.lock().unwrap().len();
        power::end_now(vm, End::Restart);
        power::end(vm, if random(2) == 0 { End::Reset } else { End::Off });
        let mut fate = None;
        machine.run_until(|| {
            let states = messages(from).into_iter().filter_map(|event| match event {
                Event::Vm { vm, state } if usize::from(vm) == number && state != VmState::Started => Some(state),
                _ => None,
            });
            fate = states.fold(fate, |_, state| Some(state));
            fate.is_some()
        });
        assert!(matches!(fate, Some(VmState::Restarted(_))), "{fate:?}");
        for _ in 0..random(50) {
            assert!(machine.step());
        }
    }
}

/// Each allocation that the creation of a VM makes fails in turn: it is refused, nothing is left behind, and the number can be used again.
fn each_allocation_fails(machine: &mut Simulation, configuration: &[stile_blob::Vm<'static>], files: Files<'static>) {
    let number = 1;
    destroy(machine, number);
    let before = memory::available();
    let mut config = configuration[number].clone();
    config.vcpus = 8;
    let mut failed = 0;
    loop {
        assert!(retire::claim(number), "the number of a VM that was refused is lost");
        memory::tests::fail_after(failed);
        let created = vm::create(number, &config, files);
        if !memory::tests::fail_no_more() {
            power::start(created.unwrap());
            break;
        }
        assert!(created.is_err_and(|why| !why.is_empty()) && vm::get(number).is_none());
        retire::abandon(number);
        machine.run_until(|| !retire::is_any());
        assert_eq!(memory::available(), before, "memory is missing after allocation {failed} failed");
        failed += 1;
    }
    assert!(failed >= 2, "RAM, and Stile's own: {failed}");
    CREATED.fetch_add(1, Ordering::Relaxed);
    LIVES[number].store(0, Ordering::Relaxed);
    TOUCHES[number].store(0, Ordering::Relaxed);
    memory::tests::fail_after(0);
    upload::begin(7, 2, 1 << 20, 0);
    assert!(!memory::tests::fail_no_more(), "its number is taken");
    destroy(machine, 2);
    memory::tests::fail_after(0);
    upload::begin(8, 2, 1 << 20, 0);
    assert!(memory::tests::fail_no_more());
    machine.run_until(|| !retire::is_any());
    upload::begin(9, 2, 1 << 20, 0);
    let available = memory::available();
    // The client is gone, and another one begins.
    upload::begin(10, 2, 1 << 20, 0);
    assert!(!retire::is_any() && memory::available() == available, "the number is not free at once");
    upload::begin(11, 0, 1, 0);
    machine.run_until(|| !retire::is_any());
    let free = memory::available();
    // The number of a VM that could not be created is not free at once: the transfer begins once it is.
    let from = fake::LINE.lock().unwrap().len();
    assert!(retire::claim(2));
    retire::abandon(2);
    upload::begin(17, 2, 1 << 20, 0);
    assert!(retire::is_any() && messages(from).is_empty());
    machine.run_until(|| !retire::is_any());
    assert!(messages(from).into_iter().any(|event| matches!(event, Event::Uploaded { tag: 17, next: 0 })));
    // Not, if its client has left meanwhile.
    upload::abandon(18, 17);
    upload::begin(19, 2, 1 << 20, 0);
    upload::abandon(20, 19);
    machine.run_until(|| !retire::is_any());
    assert_eq!(memory::available(), free, "a transfer without a client began");
    upload::begin(12, 2, 1 << 20, free);
    assert!(!retire::is_any(), "the number of a VM without memory is not free at once");
    upload::begin(13, 2, 1 << 20, free / 2);
    assert!(!retire::is_any() && memory::available() < free, "there is room");
    upload::abandon(14, 12);
    assert!(!retire::is_any(), "another transfer");
    upload::abandon(15, 13);
    upload::abandon(16, 13);
    machine.run_until(|| !retire::is_any());
    assert_eq!(memory::available(), free, "the package of a client that left stays");
    assert!(retire::claim(2), "an upload that was refused keeps its number");
    vm::create(2, &configuration[2], files).map(power::start).unwrap();
    CREATED.fetch_add(1, Ordering::Relaxed);
    LIVES[2].store(0, Ordering::Relaxed);
    TOUCHES[2].store(0, Ordering::Relaxed);
}

/// A VM is saved and destroyed; another one gets its state and continues with its memory and registers.
fn a_snapshot_becomes_another_vm(machine: &mut Simulation, configuration: &[stile_blob::Vm<'static>], files: Files<'static>) {
    let (number, mut window) = (1, vec![0; WINDOW]);
    let resumed = vm::all().filter(|vm| power::resume(vm) == Answer::Done).count();
    DONE[1].fetch_add(resumed as u64, Ordering::Relaxed);
    let vm = vm::get(number).unwrap();
    assert!(vm.save_state(0, &mut window).is_err() && vm.save_memory(0, Scope::Rest, &mut window).is_err() && vm.collect(0).is_err());
    let has_written = || vm.arch.lives.load(Ordering::Relaxed) == LIVES[number].load(Ordering::Relaxed);
    let pause = |machine: &mut Simulation, window: &mut [u8]| {
        loop {
            machine.run_until(|| has_written() && power::pause(vm) == Answer::Done);
            machine.run_until(|| vm.save_state(0, window).is_ok());
            if has_written() {
                break;
            }
            // It was reset before the pause began, and has not written to its memory since.
            assert_eq!(power::resume(vm), Answer::Done);
            DONE[0].fetch_add(1, Ordering::Relaxed);
            DONE[1].fetch_add(1, Ordering::Relaxed);
        }
    };
    let mut pieces = Vec::new();
    let mut round = |scope: Scope, window: &mut [u8]| {
        let (mut from, before) = (Some(0), pieces.len());
        while let Some(at) = from {
            let (length, next) = vm.save_memory(at, scope, window).unwrap();
            pieces.push(window[..length].to_vec());
            from = next;
        }
        pieces[before..].iter().any(|piece| !piece.is_empty())
    };
    // Rounds while it runs, whose contents may be older than those of the last one.
    // The third one is that of another migration, after the first one was abandoned.
    for (number_of, scope, again) in
        [(0, Scope::First, Scope::Changed), (1, Scope::Changed, Scope::Changed), (2, Scope::First, Scope::Changed)]
    {
        if number_of == 2 {
            vm.end_copy();
            let touches = TOUCHES[number].load(Ordering::Relaxed);
            machine.run_until(|| TOUCHES[number].load(Ordering::Relaxed) > touches);
            assert!(vm.is_writable(RAM_BASE) && vm.arch.protected.lock().unwrap().is_empty(), "its block is whole again");
        }
        pause(machine, &mut window);
        let (mut collected, mut from) = (0, Some(0));
        while let Some(at) = from {
            let (pages, next) = vm.collect(at).unwrap();
            (collected, from) = (collected + pages, next);
        }
        assert_ne!(collected, 0, "it writes to its memory");
        assert_eq!(power::resume(vm), Answer::Done);
        assert!(round(scope, &mut window) && !round(again, &mut window), "each round saves what was collected, once");
        DONE[0].fetch_add(1, Ordering::Relaxed);
        DONE[1].fetch_add(1, Ordering::Relaxed);
        let touches = TOUCHES[number].load(Ordering::Relaxed);
        machine.run_until(|| TOUCHES[number].load(Ordering::Relaxed) > touches + 10);
    }
    let prepared = fake::PREPARED.load(Ordering::Relaxed);
    pause(machine, &mut window);
    assert!(round(Scope::Rest, &mut window), "it has written to its memory since");
    assert_eq!(vm.save_state(1, &mut window), Err("the snapshot's first part was not saved"));
    let mut states = Vec::new();
    let mut part = Some(0);
    while let Some(at) = part {
        let (length, next) = vm.save_state(at, &mut window).unwrap();
        if length == 0 {
            assert_eq!(next, part, "not all vCPUs are prepared yet");
        } else {
            states.push(window[..length].to_vec());
        }
        part = next;
    }
    assert_eq!(fake::PREPARED.load(Ordering::Relaxed) - prepared, 2 * vm.vcpus.len());
    assert!(vm.save_state(states.len(), &mut window).is_err(), "no such part");
    assert!(vm.restore_state(0, &states[0]).is_err() && vm.restore_memory(0, &pieces[0]).is_err(), "it is not new");
    let registers = |vm: &vm::Vm| vm.vcpus.iter().map(|vcpu| vcpu.arch.saved.load(Ordering::Relaxed)).collect::<Vec<_>>();
    let before = registers(vm);
    fake::pass(5_000_000);
    let config = stile_blob::Vm { vcpus: vm.vcpus.len() as u16, ..configuration[number].clone() };
    destroy(machine, number);
    assert!(retire::claim(number));
    let vm = vm::create(number, &config, files).unwrap();
    CREATED.fetch_add(1, Ordering::Relaxed);
    fake::RESTORES.store(true, Ordering::Relaxed);
    power::begin_restore(vm);
    fake::RESTORES.store(false, Ordering::Relaxed);
    assert_eq!((power::pause(vm), power::resume(vm), power::turn_on(vm)), (Answer::WrongState, Answer::WrongState, Answer::WrongState));
    for (part, state) in states.iter().enumerate() {
        assert!(vm.restore_state(part, &[]).is_err() && vm.restore_state(part, state).is_ok());
    }
    // The machine's process says where a block begins.
    let mut builder = Builder::new();
    builder.block(&mut window[..], RAM_BASE);
    let length = builder.finish(&mut window[..]);
    pieces.insert(0, window[..length].to_vec());
    // More pages of zeros than one call may clear, in place of which the following pieces have others.
    let mut builder = Builder::new();
    (0..20).for_each(|page| builder.zero(&mut window[..], RAM_BASE + page * 4096));
    let length = builder.finish(&mut window[..]);
    pieces.insert(1, window[..length].to_vec());
    for piece in &pieces {
        let (mut done, mut all) = (0, false);
        while !all {
            let before = done;
            (done, all) = vm.restore_memory(done, piece).unwrap();
            assert!(done - before <= 1 + PAGES, "the work of a call is bounded");
        }
    }
    // A page where there is no RAM, and one in a block that was not begun.
    for address in [0, RAM_BASE + (2 << 20)] {
        let mut builder = Builder::new();
        builder.page(&mut window[..], address);
        let length = builder.finish(&mut window[..]);
        assert!(vm.restore_memory(0, &window[..length]).is_err());
    }
    assert_eq!((power::end_restore(vm, true), power::end_restore(vm, true)), (Answer::Done, Answer::WrongState));
    assert_eq!(registers(vm), before);
    // A tick is a nanosecond here.
    assert!(fake::ADVANCED.load(Ordering::Relaxed) >= 5_000_000);
    // `use_memory` compares: the file as the guest left it, and the number of its touches.
    LIVES[number].store(vm.arch.lives.load(Ordering::Relaxed), Ordering::Relaxed);
    let held = fake::HELD.load(Ordering::Relaxed);
    assert_eq!(power::resume(vm), Answer::Done);
    assert_eq!(fake::HELD.load(Ordering::Relaxed), held, "its clocks run since the snapshot");
    DONE[0].fetch_add(2, Ordering::Relaxed);
    DONE[1].fetch_add(1, Ordering::Relaxed);
    let touches = TOUCHES[number].load(Ordering::Relaxed);
    machine.run_until(|| TOUCHES[number].load(Ordering::Relaxed) > touches + 10);
}

/// A CPU does not answer: it is found, and is one like others once it answers.
fn a_cpu_that_does_not_answer_is_found(machine: &mut Simulation) {
    // CPU 0 is the one that gets the operator's commands here.
    while machine.unreachable.is_none_or(|n| n == 0) {
        machine.regain();
        assert!(machine.step());
        machine.lose_a_cpu();
    }
    let lost = machine.unreachable.and_then(CpuId::new).unwrap();
    watch::begin();
    assert!(!watch::is_lost(lost));
    cpu::request_resched(lost);
    watch::begin();
    machine.run_until(|| {
        fake::pass(1_000_000);
        watch::is_lost(lost)
    });
    machine.regain();
    machine.run_until(|| {
        fake::pass(1_000_000);
        !watch::is_lost(lost)
    });
}

/// All other VMs end while one is made, and before it is started.
fn a_new_vm_keeps_the_machine_on(machine: &mut Simulation, configuration: &[stile_blob::Vm<'static>], files: Files<'static>) {
    let resumed = vm::all().filter(|vm| power::resume(vm) == Answer::Done).count();
    DONE[1].fetch_add(resumed as u64, Ordering::Relaxed);
    for number in 1..VCPUS.len() {
        destroy(machine, number);
    }
    for number in 1..VCPUS.len() {
        assert!(retire::claim(number));
        vm::create(number, &configuration[number], files).unwrap();
        CREATED.fetch_add(1, Ordering::Relaxed);
        LIVES[number].store(0, Ordering::Relaxed);
        TOUCHES[number].store(0, Ordering::Relaxed);
    }
    power::end(vm::get(0).unwrap(), End::Off);
    for _ in 0..2_000 {
        assert!(machine.step(), "the machine ended under VMs that were just created");
    }
    vm::all().filter(|vm| vm.number != 0).for_each(power::start);
}

#[test]
fn vms_live_and_end() {
    let _turn = take_line();
    let cpus: Vec<Cpu> = (0..CPUS).map(Cpu::new).collect();
    memory::setup(std::iter::once(&(0x1000..fake::MEMORY as u64)), &[]);
    cpus.iter().for_each(|cpu| cpu::online(cpu).unwrap());
    let blob = Blob::parse(blob()).unwrap();
    cpu::setup(blob.settings.slice_us);
    let (configuration, files) = (blob.vms.clone().collect::<Vec<_>>(), blob.files());
    arena::check_that_all_comes_back();
    vm::create_all(blob).unwrap();
    sample::setup().unwrap();
    memory::tests::fail_after(0);
    assert!(report::setup(true).is_err() && memory::tests::fail_no_more());
    report::setup(true).unwrap();
    vm::all().for_each(power::start);
    watch::setup();
    upload::setup();
    trace::setup();
    fake::NOTHING_TO_DO.set(wait);
    let quiet = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if !info.payload().is::<Idle>() && !info.payload().is::<PoweredOff>() {
            quiet(info);
        }
    }));

    let mut machine = Simulation { cpus, idle: [true; CPUS], unreachable: None };
    for step in 0..STEPS {
        assert!(machine.step(), "one VM is always on");
        if step % 16 == 0 {
            operate();
        }
        if step % 512 == 0 {
            an_idle_cpu_answers(&mut machine);
        }
    }
    traces_come_and_go(&mut machine);
    ledgers_are_sent_in_pieces(&mut machine);
    vms_come_and_go(&mut machine, &configuration, files);
    a_cpu_that_does_not_answer_is_found(&mut machine);
    an_operators_reset_is_not_the_guests(&mut machine, &configuration, files);
    each_allocation_fails(&mut machine, &configuration, files);
    a_snapshot_becomes_another_vm(&mut machine, &configuration, files);
    a_new_vm_keeps_the_machine_on(&mut machine, &configuration, files);
    let vcpus = vm::all().map(|vm| vm.vcpus.len()).sum();
    let all_off = catch_unwind(|| vm::all().for_each(|vm| power::end(vm, End::Off)));
    // The last VM ends immediately if it is paused.
    if all_off.is_ok() {
        while machine.step() {}
    }
    assert!(WOKEN.iter().all(|count| count.load(Ordering::Relaxed) > 100), "{WOKEN:?}");
    check_messages(vcpus);
}

/// Tests take turns: there is one machine, with one line.
fn take_line() -> MutexGuard<'static, ()> {
    static MACHINE: Mutex<()> = Mutex::new(());
    let turn = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    fake::LINE.lock().unwrap().clear();
    turn
}

/// A slow line delays only a sender of messages that must not be lost, and that sender delays no other. Guests cause no such message.
#[test]
fn a_line_that_takes_nothing_blocks_no_other_cpu() {
    const VM: u8 = stile_board::MAX_VMS as u8 - 1;
    let _turn = take_line();
    console::listen();
    fake::BUSY.store(true, Ordering::SeqCst);
    for n in 0..MANY {
        console::log!("line {n}");
    }
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| (0..MANY).for_each(|_| console::event(&Event::CounterFrequency { hz: 1 })));
        std::thread::sleep(std::time::Duration::from_millis(50));
        for _ in 0..100 {
            console::send(stile_board::MAX_VMS - 1, b'x');
            console::log!("another line");
        }
        for n in 1..=MANY {
            console::event(&Event::Vm { vm: VM, state: VmState::Restarted(n) });
        }
        assert!(!sender.is_finished(), "messages are kept");
        fake::BUSY.store(false, Ordering::SeqCst);
    });
    console::flush();
    let line = fake::LINE.lock().unwrap();
    let mut decoder = Decoder::new();
    let messages: Vec<_> = line.iter().filter_map(|&byte| decoder.push(byte)?.event()?.ok()).collect();
    assert_eq!(messages.iter().filter(|&event| *event == Event::CounterFrequency { hz: 1 }).count(), MANY as usize);
    assert!(messages.contains(&Event::Vm { vm: VM, state: VmState::Restarted(MANY) }));
}

/// An interrupt receives a bounded number of bytes and one command, and none without room for an answer.
#[test]
fn an_exit_receives_a_bounded_part_of_the_input() {
    let _turn = take_line();
    console::listen();
    let mut command = Vec::new();
    stile_wire::Encoder::new().command(&Command::TraceStop, &mut |byte| command.push(byte));
    let mut typed = Vec::new();
    stile_wire::Encoder::new().bytes(Channel::console(1), &[b'x'; MANY as usize], &mut |byte| typed.push(byte));
    fake::INPUT.lock().unwrap().extend(typed.iter().chain(&command).chain(&command));
    let (mut bytes, mut commands) = (0, 0);
    while !fake::INPUT.lock().unwrap().is_empty() {
        let before = fake::INPUT.lock().unwrap().len();
        let mut executed = 0;
        console::interrupt(|input| match input {
            console::Input::Guest(vm, byte) => {
                assert_eq!((vm, byte), (1, b'x'));
                bytes += 1;
            }
            console::Input::Command(_) => executed += 1,
        });
        let taken = before - fake::INPUT.lock().unwrap().len();
        assert!((1..=32).contains(&taken) && executed <= 1, "{taken} {executed}");
        commands += executed;
    }
    assert_eq!((bytes, commands), (MANY, 2));
    fake::BUSY.store(true, Ordering::SeqCst);
    (0..MANY).for_each(|n| console::log!("line {n}"));
    while console::has_room_for_answer() {
        console::event(&Event::CounterFrequency { hz: 1 });
    }
    fake::INPUT.lock().unwrap().extend(&command);
    console::interrupt(|_| panic!("its answer would wait for the line"));
    assert_eq!(fake::INPUT.lock().unwrap().len(), command.len());
    fake::BUSY.store(false, Ordering::SeqCst);
    console::flush();
    console::interrupt(|_| commands += 1);
    assert_eq!(commands, 3);
}

/// Checks the messages to the operator: every VM ended once more than it was restarted, and every account is square.
fn check_messages(vcpus: usize) {
    let mut decoder = Decoder::new();
    let (mut off, mut resets, mut totals, mut samples, mut end) = (0, 0, 0, 0, None);
    let (mut started, mut paused, mut resumed, mut destroyed) = (0, 0, 0, 0);
    let mut counts = [0; VCPUS.len()];
    for &byte in fake::LINE.lock().unwrap().iter() {
        let Some(event) = decoder.push(byte).and_then(|item| item.event()) else { continue };
        match event.expect("no frame is damaged") {
            Event::Vm { state: VmState::PoweredOff, .. } => off += 1,
            Event::Vm { vm, state: VmState::Reset } => {
                off += 1;
                counts[usize::from(vm)] += 1;
            }
            Event::Vm { state: VmState::Started, .. } => started += 1,
            Event::Vm { state: VmState::Paused, .. } => paused += 1,
            Event::Vm { state: VmState::Resumed, .. } => resumed += 1,
            Event::Vm { vm, state: VmState::Destroyed } => {
                destroyed += 1;
                counts[usize::from(vm)] = 0;
            }
            Event::Vm { vm, state: VmState::Restarted(count) } => {
                resets += 1;
                counts[usize::from(vm)] += 1;
                assert_eq!(count, counts[usize::from(vm)]);
            }
            Event::LedgerTotal(total) => {
                assert_eq!(total.taken, total.counted, "an exit is missing");
                totals += 1;
            }
            Event::Sample(_) => samples += 1,
            Event::Memory { before, now } => assert_eq!(now, before, "memory is missing"),
            Event::End { status } => end = Some(status),
            _ => {}
        }
    }
    let done = DONE.each_ref().map(|number| number.load(Ordering::Relaxed));
    let [pauses, resumes, _, starts] = done;
    // Those that were on at first or once created, which `power::start` does not tell, and those that the operator turned on.
    let created = CREATED.load(Ordering::Relaxed);
    assert_eq!((off, started), (VCPUS.len() as u64 + created + starts, starts));
    assert_eq!(destroyed, DESTROYED.load(Ordering::Relaxed));
    assert!(destroyed > CYCLES as u64 * 9 / 10 && created == destroyed, "{destroyed} {created}");
    assert!(paused > STEPS as u64 / 600 && paused <= pauses && resumed == resumes, "{paused} {resumed} {done:?}");
    assert!(starts > STEPS as u64 / 1200 && fake::HELD.load(Ordering::Relaxed) != 0, "{done:?}");
    assert!(resets > STEPS / 600, "{resets}");
    assert_eq!(samples, SAMPLES.load(Ordering::Relaxed));
    assert!(samples > STEPS as u64 / 5_000, "{samples}");
    assert_eq!(totals, vcpus + TOTALS.load(Ordering::Relaxed) as usize);
    assert_eq!(end, Some(0));
}
