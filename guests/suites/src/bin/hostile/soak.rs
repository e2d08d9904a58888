//! All phases mixed, on all CPUs concurrently: the boot argument `soak=OPERATIONS`. With `resets=N` CPUs
//! reset the machine up to N times; with `lost` the last CPU meanwhile loops in exceptions forever.

use core::sync::atomic::{AtomicUsize, Ordering::*};

use common::soak::{self, Kind, Machine, Plan, State};
use payload::gic::Bits;
use payload::prelude::*;
use payload::random::Random;
use payload::timer::Timer;
use payload::{board, entry, psci, uart};

use crate::virt::Virt;
use crate::{bursts, cpus, devices, exceptions, hypercalls, instructions, interrupts, lost, memory, pages, restore, sysregs, waiting};

const KINDS: [Kind; 25] = [
    Kind { name: "sysregs", weight: 60, run: sysregs::registers_once },
    Kind { name: "instructions-system", weight: 30, run: sysregs::instructions_once },
    Kind { name: "hypercalls", weight: 60, run: hypercalls::once },
    Kind { name: "memory", weight: 30, run: memory::wild_once },
    Kind { name: "tables", weight: 40, run: memory::tables_once },
    Kind { name: "pages", weight: 60, run: pages::once },
    Kind { name: "devices", weight: 120, run: devices::once },
    Kind { name: "interrupts", weight: 120, run: interrupts_once },
    Kind { name: "unmasked", weight: 40, run: unmasked },
    Kind { name: "timers", weight: 80, run: interrupts::timer },
    Kind { name: "cpus", weight: 30, run: cpus::once },
    Kind { name: "waiting", weight: 40, run: waiting_once },
    Kind { name: "exceptions", weight: 30, run: exceptions::once },
    Kind { name: "stacks", weight: 10, run: exceptions::stack_nowhere },
    Kind { name: "instructions", weight: 10, run: instructions::once },
    Kind { name: "burst-sysregs", weight: 15, run: bursts::registers },
    Kind { name: "burst-calls", weight: 30, run: bursts::calls },
    Kind { name: "burst-devices", weight: 30, run: bursts::accesses },
    Kind { name: "burst-memory", weight: 20, run: bursts::nowhere },
    Kind { name: "burst-interrupts", weight: 40, run: burst_of_interrupts },
    Kind { name: "burst-timers", weight: 30, run: bursts::timers },
    Kind { name: "burst-pages", weight: 20, run: bursts::pages },
    Kind { name: "restore", weight: 20, run: restore },
    Kind { name: "nudge", weight: 10, run: nudge },
    Kind { name: "reset", weight: 1, run: reset },
];

/// Number of interrupts that a CPU takes before it disables them one by one.
const PATIENCE: usize = 24;
/// Maximum duration of a wait for a 60 microsecond timer on a shared CPU, in microseconds.
const LONGEST_WAIT: u64 = 500_000;
/// The SGI by which CPUs that wait are woken.
const NUDGE: u32 = 15;

static LEFT: [AtomicUsize; board::MAX_CPUS] = [const { AtomicUsize::new(0) }; board::MAX_CPUS];

impl Machine for Virt {
    fn state() -> &'static State {
        let end = machine::free_ram().end & !0xFFF;
        // SAFETY: free RAM after the canary, used here only; a `State` consists of atomics and fits into it.
        unsafe { &*((end - 0x1_0000) as *const State) }
    }
}

/// Runs the plan of the boot arguments.
pub fn run(operations: u64) -> Outcome {
    let plan = Plan { seed: machine::number("seed", 1), operations, resets: machine::number("resets", 0) };
    restore::restore()?;
    soak::begin::<Virt>(&plan)?;
    let last = if machine::has("lost") && machine::cpus() > 1 { machine::cpus() - 1 } else { machine::cpus() };
    for cpu in 1..last {
        smp::give(cpu, work);
    }
    if last < machine::cpus() {
        lost::begin(last);
    }
    work()?;
    // All return: CPUs that are off are turned on, and waiting ones are woken.
    for cpu in 1..last {
        let back = wait::until(|| {
            if psci::affinity_info(cpu) == psci::OFF {
                psci::cpu_on(cpu, 0);
            }
            nudge_all();
            wait::spin(200);
            smp::is_idle(cpu)
        });
        check!(back, "CPU {cpu} does not come back: AFFINITY_INFO {}", psci::affinity_info(cpu));
    }
    console_only();
    soak::finish::<Virt>(&KINDS, &plan)
}

fn work() -> Outcome {
    prepare();
    soak::work::<Virt>(&KINDS);
    console_only();
    Ok(())
}

/// Disables all interrupts of this CPU.
fn console_only() {
    restore::restore_cpu();
    uart::init();
}

/// Restores a state of this CPU in which interrupts are delivered.
fn prepare() {
    restore::restore_cpu();
    gic::reset_cpu();
    irq::set_hook(hook);
    for intid in (0..16).chain(Timer::ALL.map(Timer::intid)) {
        gic::set(Bits::Enable, intid);
    }
}

/// Replies to some SGIs with another one, and finally disables recurring interrupts.
fn hook(intid: u32) {
    Timer::of(intid).into_iter().for_each(Timer::stop);
    let left = &LEFT[smp::this()];
    match left.load(Acquire) {
        0 => gic::clear(Bits::Enable, intid),
        rest => {
            left.store(rest - 1, Release);
            if rest % 8 == 0 {
                icc::sgi((intid + 1) % 16, 0xFFFF);
            }
        }
    }
}

/// Takes pending interrupts.
fn take() {
    LEFT[smp::this()].store(PATIENCE, Release);
    irq::take();
}

fn interrupts_once(random: &mut Random) -> u64 {
    LEFT[smp::this()].store(PATIENCE, Release);
    let count = interrupts::once(random);
    irq::mask();
    count
}

fn burst_of_interrupts(random: &mut Random) -> u64 {
    LEFT[smp::this()].store(PATIENCE, Release);
    let count = bursts::interrupts(random);
    irq::mask();
    count
}

/// Interrupts unmasked, while others send them.
fn unmasked(random: &mut Random) -> u64 {
    LEFT[smp::this()].store(PATIENCE, Release);
    irq::unmask();
    for _ in 0..random.below(200) {
        core::hint::spin_loop();
    }
    irq::mask();
    1
}

/// Waits, or requests standby. One of several CPUs does not, so that it can wake the others in any state
/// of the distributor.
fn waiting_once(random: &mut Random) -> u64 {
    if smp::this() == 0 && machine::cpus() > 1 {
        return 0;
    }
    prepare();
    LEFT[smp::this()].store(PATIENCE, Release);
    gic::GICD_CTLR.write(gic::CTLR_ARE | gic::CTLR_DS | gic::CTLR_GROUP1);
    let start = wait::now();
    if random.below(4) > 0 {
        waiting::once(random);
    } else {
        Timer::Virtual.start(random.below(60));
        // Standby, or power-down with this CPU's start as its way back.
        let odd = random.odd();
        let state = random.pick(&[0, 0, 1 << 16, odd]);
        psci::call(psci::id::CPU_SUSPEND, [state, entry::start_address(), random.odd()]);
        Timer::Virtual.stop();
    }
    let waited = wait::now() - start;
    // No other CPU has changed the routing of its interrupts, and time is that of the instructions.
    if machine::cpus() == 1 && machine::has("timed") && waited > wait::ticks(LONGEST_WAIT) {
        println!("FAIL soak: waited for {waited} ticks, for a timer of 60 us");
    }
    1
}

fn restore(random: &mut Random) -> u64 {
    match random.below(8) {
        0 => gic::reset_distributor(),
        1..4 => prepare(),
        _ => take(),
    }
    1
}

fn nudge(random: &mut Random) -> u64 {
    nudge_all();
    for cpu in 1..machine::cpus() {
        psci::cpu_on(cpu, random.bits());
    }
    machine::cpus() as u64
}

/// Wakes CPUs that wait, whose redistributors others have changed.
fn nudge_all() {
    gic::GICD_CTLR.write(gic::CTLR_ARE | gic::CTLR_DS | gic::CTLR_GROUP1);
    for cpu in 0..machine::cpus() {
        gic::gicr(cpu, 0x14).write(0);
        uart::Reg32(gic::gicr(cpu, 0x1_0000).0 + Bits::Group as u64).write(!0);
        uart::Reg32(gic::gicr(cpu, 0x1_0000).0 + 0x400 + u64::from(NUDGE & !3)).write(0);
        uart::Reg32(gic::gicr(cpu, 0x1_0000).0 + Bits::Active as u64 + 0x80).write(!0);
        gic::set_on(cpu, Bits::Enable, NUDGE);
        gic::set_on(cpu, Bits::Pending, NUDGE);
    }
}

fn reset(_: &mut Random) -> u64 {
    if Virt::state().take_reset() {
        psci::system_reset();
    }
    0
}
