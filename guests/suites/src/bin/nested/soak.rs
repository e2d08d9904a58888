//! The wild phases mixed, on all CPUs concurrently: the boot argument `soak=OPERATIONS`. With `resets=N` CPUs
//! reset the machine up to N times.

use core::sync::atomic::{AtomicU64, Ordering::*};

use common::phases;
use common::soak::{self, Kind, Machine, Plan, State};
use payload::board::MAX_CPUS;
use payload::gic::Bits;
use payload::lock::SpinLock;
use payload::mmu::Table;
use payload::prelude::*;
use payload::psci;
use payload::random::Random;

use crate::guest::Guest;
use crate::restore;
use crate::stage2::Stage2;
use crate::wild::Wild;

const KINDS: [Kind; 13] = [
    Kind { name: "el2-registers", weight: 100, run: registers },
    Kind { name: "el2-instructions", weight: 60, run: |random| with(random, |wild, _| wild.any_instruction()) },
    Kind { name: "l2-tables", weight: 60, run: tables },
    Kind { name: "l2-roots", weight: 40, run: |random| with(random, |wild, own| wild.root(own.stage2)) },
    Kind { name: "l2-controls", weight: 60, run: |random| with(random, |wild, own| wild.controls(own.stage2)) },
    Kind { name: "l2-lists", weight: 60, run: lists },
    Kind { name: "l2-timers", weight: 40, run: |random| with(random, |wild, _| wild.timers()) },
    Kind { name: "l2-returns", weight: 40, run: returns },
    Kind { name: "l2-shared", weight: 80, run: shared },
    Kind { name: "l2-interrupts", weight: 60, run: interrupts },
    Kind { name: "l2-cpus", weight: 10, run: power },
    Kind { name: "el2-restore", weight: 20, run: restore },
    Kind { name: "l2-reset", weight: 1, run: reset },
];

/// State of a CPU between operations.
#[derive(Clone, Copy)]
struct Own {
    stage2: Stage2,
    canary: &'static Table,
}

static OWN: [SpinLock<Option<Own>>; MAX_CPUS] = [const { SpinLock::new(None) }; MAX_CPUS];
/// The root of the tables that all share.
static SHARED: AtomicU64 = AtomicU64::new(0);

/// The machine of this soak.
struct Virt;

impl phases::Machine for Virt {
    fn this() -> usize {
        smp::this()
    }

    fn cpus() -> usize {
        machine::cpus()
    }

    fn canary() -> &'static mut [u64] {
        const BYTES: u64 = 0x8_0000;
        let end = machine::free_ram().end & !0xFFF;
        // SAFETY: the end of free RAM, below the soak's state; tables are allocated from its beginning, and
        // never reach this.
        unsafe { core::slice::from_raw_parts_mut((end - 0x1_0000 - BYTES) as *mut u64, BYTES as usize / 8) }
    }

    fn restore() -> Outcome {
        Ok(())
    }

    fn say(line: core::fmt::Arguments<'_>) {
        println!("{line}");
    }
}

impl Machine for Virt {
    fn state() -> &'static State {
        let end = machine::free_ram().end & !0xFFF;
        // SAFETY: free RAM, used here only; a `State` consists of atomics and fits into it.
        unsafe { &*((end - 0x1_0000) as *const State) }
    }
}

/// Runs the plan of the boot arguments.
pub fn run(operations: u64) -> Outcome {
    let plan = Plan { seed: machine::number("seed", 1), operations, resets: machine::number("resets", 0) };
    restore::prepare();
    smp::start_all()?;
    soak::begin::<Virt>(&plan)?;
    let stage2 = Stage2::new(90);
    // All of them run the first CPU's page of code.
    Guest::new(stage2);
    SHARED.store(stage2.root, Release);
    for cpu in 1..machine::cpus() {
        smp::give(cpu, work);
    }
    work()?;
    for cpu in 1..machine::cpus() {
        let back = wait::until(|| {
            if psci::affinity_info(cpu) == psci::OFF {
                psci::cpu_on(cpu, 0);
            }
            smp::is_idle(cpu)
        });
        check!(back, "CPU {cpu} does not come back: AFFINITY_INFO {}", psci::affinity_info(cpu));
    }
    restore::prepare();
    for own in OWN.iter().filter_map(|own| *own.lock()) {
        Wild::with(Random::new(0), own.canary).check()?;
    }
    soak::finish::<Virt>(&KINDS, &plan)
}

fn work() -> Outcome {
    prepare();
    soak::work::<Virt>(&KINDS);
    prepare();
    Ok(())
}

fn prepare() {
    gic::reset_cpu();
    restore::restore();
    for intid in [26, 27, 28, 30].into_iter().chain(0..16) {
        gic::set(Bits::Enable, intid);
    }
    own().stage2.activate();
}

/// State of this CPU; created at the first use.
fn own() -> Own {
    *OWN[smp::this()].lock().get_or_insert_with(|| {
        let stage2 = Stage2::new(20 + smp::this() as u64);
        Guest::new(stage2);
        Own { stage2, canary: Wild::new(0).canary() }
    })
}

/// An operation of the phases', with this CPU's tables.
fn with(random: &mut Random, operation: impl FnOnce(&mut Wild, Own)) -> u64 {
    let own = own();
    own.stage2.activate();
    operation(&mut Wild::with(Random::new(random.bits()), own.canary), own);
    1
}

fn registers(random: &mut Random) -> u64 {
    with(random, |wild, _| (0..8).for_each(|_| wild.register()));
    // Restores HCR_EL2, for any values of the other registers.
    restore::restore();
    8
}

fn tables(random: &mut Random) -> u64 {
    with(random, |wild, own| wild.table(own.stage2, &mut Guest::bare()))
}

fn returns(random: &mut Random) -> u64 {
    with(random, |wild, _| wild.way_back(&mut Guest::bare()))
}

/// List registers with a status that the guest can't survive.
fn lists(random: &mut Random) -> u64 {
    with(random, |wild, _| {
        if let Err(why) = wild.lists() {
            println!("FAIL soak: {why}");
        }
    })
}

/// Tables of all CPUs: changed, or used.
fn shared(random: &mut Random) -> u64 {
    let stage2 = Stage2 { root: SHARED.load(Acquire), vmid: 90 };
    let changes = random.below(2) == 0;
    let clears = random.below(3) == 0;
    with(random, |wild, _| {
        stage2.activate();
        if changes { wild.change_shared(stage2, clears) } else { wild.use_shared() }
    })
}

/// SGIs to all CPUs, which interrupt their guests.
fn interrupts(random: &mut Random) -> u64 {
    match random.below(4) {
        0 => icc::sgi_others(random.below(16) as u32),
        1 => icc::sgi1r(random.bits()),
        _ => icc::sgi(random.below(16) as u32, random.bits()),
    }
    1
}

fn power(random: &mut Random) -> u64 {
    if random.below(4) == 0 && smp::this() != 0 {
        psci::cpu_off();
    }
    for cpu in 1..machine::cpus() {
        psci::cpu_on(cpu, random.odd());
    }
    1
}

fn restore(_: &mut Random) -> u64 {
    prepare();
    1
}

fn reset(_: &mut Random) -> u64 {
    if Virt::state().take_reset() {
        psci::system_reset();
    }
    0
}
