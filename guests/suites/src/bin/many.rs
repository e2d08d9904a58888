//! A VM with many vCPUs, on operations whose cost could grow with their number. The others send interrupts to all
//! continuously, wait, or turn themselves off. After a reset it does the same again.
//!
//! Boot arguments: `vcpus=N` (default 64), `rounds=N` (default 1). `sleep=spread`: all others only sleep without end, each until a time of
//! its own in each slice of `slice_us=N` (default 1000); `sleep=together`: all until the same time.
#![no_std]
#![no_main]

use payload::entry::Entry;
use payload::gic::{Bits, GICD_CTLR, gicd, gicr};
use payload::harness::{self, Harness};
use payload::instruction;
use payload::prelude::*;
use payload::psci::{self, affinity, id};
use payload::timer::Timer;
use payload::uart::Reg32;

payload::program!(main);

core::arch::global_asm!(include_str!("many.s"));

unsafe extern "C" {
    /// Entry of the others; the context is the function in `many.s`.
    fn many_other();
}

/// Functions in `many.s`.
const WAIT: u64 = 0;
const SEND: u64 = 1;
const TURN_OFF: u64 = 2;
const TAKE: u64 = 3;
/// With a period in ticks from bit 8, and an offset in it from bit 32.
const SLEEP: u64 = 4;

/// In RAM that a reset preserves.
const MARK: u32 = 0x6d61_6e79;

fn main(entry: &Entry) -> ! {
    let mark = Reg32(machine::free_ram().end - 4096);
    let mut harness = Harness::new("many", entry);
    let outcome = run();
    if outcome.is_ok() && mark.read() != MARK {
        mark.write(MARK);
        psci::system_reset()
    }
    harness.record("many", outcome);
    harness::exit(harness.sum())
}

/// One in 16 sends, one in eight turns off, the others wait. If they are more than 64, the first one would hardly run: none
/// sends, and those that wait take their interrupts, and so sleep.
const fn function(vcpu: u64, vcpus: u64) -> u64 {
    match vcpu % 16 {
        2 | 10 => TURN_OFF,
        _ if vcpus > 64 => TAKE,
        1 => SEND,
        _ => WAIT,
    }
}

fn turn_on(vcpu: u64, vcpus: u64) -> i64 {
    psci::call(id::CPU_ON, [affinity(vcpu), many_other as *const () as u64, function(vcpu, vcpus)])
}

fn run() -> Outcome {
    let vcpus = machine::number("vcpus", 64);
    gic::reset();
    if let Some(kind) = machine::text("sleep") {
        sleep(vcpus, kind == "spread")
    }
    for vcpu in 1..vcpus {
        let result = turn_on(vcpu, vcpus);
        check!(result == psci::SUCCESS, "CPU_ON of vCPU {vcpu} returned {result}");
    }
    for _ in 0..machine::number("rounds", 1) {
        redistributors(vcpus);
        distributor(vcpus)?;
        for intid in 0..16 {
            icc::sgi_others(intid);
            icc::sgi(intid, 0xffff);
        }
        // Half of the SGIs, in group 0.
        (0..vcpus as usize).for_each(|vcpu| gicr(vcpu, 0x1_0000 + Bits::Group as u64).write(0xff));
        (8..16).for_each(icc::group0_sgi_others);
        for vcpu in 1..vcpus {
            turn_on(vcpu, vcpus);
            psci::call(id::AFFINITY_INFO, [affinity(vcpu), 0, 0]);
        }
    }
    Ok(())
}

/// Has all others sleep: each until a time of its own in a slice (`spread`), or all until the same time.
fn sleep(vcpus: u64, spread: bool) -> ! {
    let slice = wait::ticks(machine::number("slice_us", 1000));
    for vcpu in 1..vcpus {
        gicr(vcpu as usize, 0x1_0000 + Bits::Group as u64).write(!0);
        gicr(vcpu as usize, 0x1_0000 + Bits::Enable as u64).write(1 << Timer::Virtual.intid());
        let offset = if spread { slice * vcpu / vcpus } else { 0 };
        psci::call(id::CPU_ON, [affinity(vcpu), many_other as *const () as u64, SLEEP | slice << 8 | offset << 32]);
    }
    println!("many: {vcpus} sleep");
    loop {
        instruction!("wfi");
    }
}

/// Makes all SGIs and PPIs of each vCPU enabled and pending.
fn redistributors(vcpus: u64) {
    for vcpu in 0..vcpus as usize {
        for bits in [Bits::Group, Bits::Enable, Bits::Pending] {
            gicr(vcpu, 0x1_0000 + bits as u64).write(0xffff);
            gicr(vcpu, 0x1_0000 + bits as u64).read();
        }
        gicr(vcpu, 0x14).write(0);
    }
}

/// Makes all SPIs enabled and pending, routed to any vCPU or to a certain one, and turns the distributor off and on.
fn distributor(vcpus: u64) -> Outcome {
    let words = 1..u64::from(gic::limit()) / 32;
    for bits in [Bits::Group, Bits::Enable, Bits::Pending] {
        words.clone().for_each(|word| gicd(bits as u64 + 4 * word).write(!0));
    }
    let control = GICD_CTLR.read();
    GICD_CTLR.write(control & !0b11);
    GICD_CTLR.write(control | 0b11);
    // Those that are off, too, apply it.
    check!(wait::until(|| GICD_CTLR.read() & gic::CTLR_RWP == 0), "GICD_CTLR.RWP stays set");
    for spi in 32..96 {
        /// GICD_IROUTER.Interrupt_Routing_Mode: any vCPU.
        const ANY: u32 = 1 << 31;
        gicd(0x6000 + 8 * spi).write(ANY);
        gicd(0x6000 + 8 * spi).write(affinity(vcpus - 1 - spi % vcpus) as u32);
    }
    // The state of some is in list registers of any vCPU.
    for bits in [Bits::Pending, Bits::Active] {
        words.clone().for_each(|word| _ = gicd(bits as u64 + 4 * word).read());
    }
    // The clear registers follow their set registers at 0x80.
    for bits in [Bits::Enable, Bits::Pending, Bits::Active] {
        words.clone().for_each(|word| gicd(bits as u64 + 0x80 + 4 * word).write(!0));
    }
    Ok(())
}
