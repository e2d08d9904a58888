//! All phases mixed, on all CPUs at once: `soak=OPERATIONS` on the command line. With `resets=N` CPUs reset the machine up to N times.
//!
//! Excluded are task switches and invalid exception stacks, which change state shared by all CPUs. A random
//! I/O APIC message may reset the first CPU, and so the machine: the guest then continues.

use common::fail::Outcome;
use common::random::Random;
use common::soak::{self, Kind, Machine, Plan, State};
use pc::lapic::{self, command};
use pc::{machine, others};

use crate::odd::odd;
use crate::phase_machine::Pc;
use crate::{apic, arguments, board, bytes, control, cpu, instructions, interrupts, memory, ports, registers, window};

const KINDS: [Kind; 18] = [
    Kind { name: "msrs", weight: 120, run: registers::once },
    Kind { name: "cpuid", weight: 60, run: registers::cpuid_once },
    Kind { name: "control", weight: 30, run: control::once },
    Kind { name: "instructions", weight: 80, run: instructions::once },
    Kind { name: "ports", weight: 120, run: port },
    Kind { name: "strings", weight: 20, run: ports::string_once },
    Kind { name: "memory", weight: 60, run: memory::wild_once },
    Kind { name: "tables", weight: 40, run: memory::tables_once },
    Kind { name: "apics", weight: 80, run: apics },
    Kind { name: "bases", weight: 20, run: base },
    Kind { name: "interrupts", weight: 120, run: interrupts::once },
    Kind { name: "unmasked", weight: 30, run: unmasked },
    Kind { name: "timers", weight: 40, run: interrupts::timer_once },
    Kind { name: "bytes", weight: 120, run: bytes::once },
    Kind { name: "halt", weight: 20, run: halt },
    Kind { name: "cpus", weight: 6, run: power },
    Kind { name: "restore", weight: 60, run: restore },
    Kind { name: "reset", weight: 1, run: reset },
];

impl Machine for Pc {
    fn state() -> &'static State {
        // SAFETY: RAM after the canary, otherwise unused; a `State` consists of atomics.
        unsafe { &*((24 << 20) as *const State) }
    }
}

/// Runs the plan of the command line.
pub fn run(operations: u64) -> Outcome {
    let plan = Plan { seed: arguments::number("seed", 1), operations, resets: arguments::number("resets", 0) };
    board::restore();
    soak::begin::<Pc>(&plan)?;
    cpu::start_others()?;
    cpu::give_others(work);
    work()?;
    // The others are off from now on.
    lapic::send(0, command::OTHERS | command::INIT | command::ASSERT);
    board::restore();
    soak::finish::<Pc>(&KINDS, &plan)
}

fn work() -> Outcome {
    prepare();
    soak::work::<Pc>(&KINDS);
    prepare();
    Ok(())
}

fn prepare() {
    cpu::restore();
    window::mend();
    window::map_user_code();
}

/// The UART is used by the first CPU only, which prints.
fn port(random: &mut Random) -> u64 {
    let is_first = cpu::this() == 0;
    let count = ports::once(random, !is_first);
    if is_first {
        board::restore_console();
    }
    count
}

fn apics(random: &mut Random) -> u64 {
    let count = apic::once(random);
    if random.below(16) == 0 {
        board::mask_inputs();
    }
    // Its own page may be unmapped.
    count
}

fn base(random: &mut Random) -> u64 {
    let count = apic::base_once(random);
    cpu::restore();
    count
}

fn unmasked(random: &mut Random) -> u64 {
    machine::sti();
    for _ in 0..random.below(200) {
        core::hint::spin_loop();
    }
    machine::cli();
    1
}

/// HLT with interrupts enabled, ended at the latest by the watchdog: sti; hlt.
fn halt(random: &mut Random) -> u64 {
    cpu::restore();
    let registers = odd(random);
    cpu::enter(&cpu::watched(cpu::kernel(&[0xfb, 0xf4], registers)));
    1
}

/// The first CPU resets and restarts all others, interrupting anything that they execute.
fn power(random: &mut Random) -> u64 {
    if cpu::this() != 0 || cpu::count() == 1 {
        return 0;
    }
    prepare();
    for _ in 0..random.below(6) {
        let kind = random.pick(&[command::INIT, command::STARTUP, command::NMI]);
        lapic::send(0, command::OTHERS | kind | command::ASSERT | 0x30);
        for _ in 0..random.below(400) {
            core::hint::spin_loop();
        }
    }
    others::start();
    1
}

/// This CPU as at the start; its APIC by MSRs, sometimes.
fn restore(random: &mut Random) -> u64 {
    prepare();
    if random.below(3) == 0 {
        lapic::set_base(lapic::base() | lapic::X2);
        lapic::enable();
    }
    1
}

fn reset(random: &mut Random) -> u64 {
    if Pc::state().take_reset() {
        let (port, value) = random.pick(&[(0xcf9, 6), (0x64, 0xfe)]);
        // SAFETY: the port resets the machine, which is intended, or has no effect.
        unsafe { machine::out8(port, value) };
    }
    0
}
