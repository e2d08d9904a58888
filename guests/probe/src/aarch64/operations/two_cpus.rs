//! Operations of two CPUs. A CPU that waits for the other one executes YIELD, at which an emulator that runs
//! CPUs in turn switches to the other.

use core::hint::black_box;

use crate::arch::gic::{self, Gic, by_gic, sending};
use crate::arch::measure::{loop_ticks, once_ticks, shift_phase};
use crate::arch::platform::Platform;
use crate::arch::second::{self, Role};
use crate::arch::sysreg::instruction;
use crate::arch::{cpu, others};

/// Microseconds after which the other CPU is asleep under any hypervisor.
const ASLEEP: u64 = 50;

/// An SGI to a running CPU, until this one observes that the handler has run.
pub fn ipi(_platform: &Platform, n: u64) -> u64 {
    second::play(Role::Spin);
    sending!(loop_ticks!(n,
        ["add {expected}, {expected}, #1", SEND,
            "3: yield", "ldr {value}, [{taken}]", "cmp {value}, {expected}", "b.lo 3b"],
        (gic::SGI, 1), expected = inout(reg) cpu::taken(1) => _, taken = in(reg) cpu::taken_address(1), value = out(reg) _))
}

/// An SGI to all other CPUs, which run, until this one observes that all handlers have run.
pub fn sgi_broadcast(platform: &Platform, n: u64) -> u64 {
    second::play(Role::Spin);
    others::start_rest(platform);
    let start = cpu::now();
    for _ in 0..n {
        let before: [u64; cpu::CPUS] = core::array::from_fn(cpu::taken);
        gic::send_to_others(gic::SGI);
        for (number, before) in before.into_iter().enumerate().take(platform.cpus).skip(1) {
            while cpu::taken(number) == before {
                instruction!("yield");
            }
        }
    }
    cpu::now() - start
}

/// An SGI to a CPU in WFI, until this one observes that the handler has run.
pub fn ipi_wfi(_platform: &Platform, n: u64) -> u64 {
    second::play(Role::Sleep);
    let taken = cpu::taken_address(1);
    (0..n)
        .map(|turn| {
            cpu::pause(ASLEEP);
            let expected = cpu::taken(1) + 1;
            shift_phase(turn);
            sending!(once_ticks!([SEND, "3: yield", "ldr {value}, [{taken}]", "cmp {value}, {expected}", "b.lo 3b"],
                (gic::SGI, 1), expected = in(reg) expected, taken = in(reg) taken, value = out(reg) _))
        })
        .sum()
}

/// An SGI to a CPU in WFI with interrupts masked, until its first instruction after WFI.
pub fn wfi_wake(_platform: &Platform, n: u64) -> u64 {
    second::play(Role::Wake);
    by_gic!(wake(n))
}

fn wake<G: Gic>(n: u64) -> u64 {
    (0..n)
        .map(|turn| {
            cpu::pause(ASLEEP);
            let before = second::wakes();
            shift_phase(turn);
            let start = black_box(cpu::now());
            G::send(gic::SGI, 1);
            while second::wakes() == before {
                instruction!("yield");
            }
            second::woken_at().saturating_sub(start)
        })
        .sum()
}

/// A handover of a CPU from one vCPU to the other: an SGI to it and WFI, until it runs. Interrupts are
/// masked. (WFE would be the natural instruction, but it never traps on QEMU.)
pub fn vcpu_switch(_platform: &Platform, n: u64) -> u64 {
    second::play(Role::Return);
    by_gic!(switch(n))
}

fn switch<G: Gic>(n: u64) -> u64 {
    rounds::<G>(n, || {
        instruction!("wfi");
        G::take()
    })
}

/// An SGI to a vCPU in WFI on the same CPU as the sender, which then waits for the reply. Both have handlers.
pub fn ipi_wfi_shared(_platform: &Platform, n: u64) -> u64 {
    second::play(Role::Reply);
    by_gic!(wait_for_reply(n))
}

fn wait_for_reply<G: Gic>(n: u64) -> u64 {
    rounds::<G>(n, || {
        let before = cpu::taken(0);
        instruction!("wfi");
        cpu::unmask();
        cpu::mask();
        cpu::taken(0) != before
    })
}

/// An SGI to a vCPU that spins on the same CPU as the sender, which then spins for the reply. Both have handlers.
pub fn ipi_shared(_platform: &Platform, n: u64) -> u64 {
    second::play(Role::Echo);
    by_gic!(spin_for_reply(n))
}

fn spin_for_reply<G: Gic>(n: u64) -> u64 {
    let start = cpu::now();
    for _ in 0..n.div_ceil(2) {
        let before = cpu::taken(0);
        G::send(gic::SGI, 1);
        cpu::unmask();
        while cpu::taken(0) == before {
            instruction!("yield");
        }
        cpu::mask();
    }
    (cpu::now() - start) * n / (n.div_ceil(2) * 2)
}

/// The ticks of `n` one-way messages, half of them to the second CPU and half of them back.
fn rounds<G: Gic>(n: u64, came_back: fn() -> bool) -> u64 {
    let start = cpu::now();
    for _ in 0..n.div_ceil(2) {
        G::send(gic::SGI, 1);
        while !came_back() {}
    }
    (cpu::now() - start) * n / (n.div_ceil(2) * 2)
}
