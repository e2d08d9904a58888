//! Waits to be paused: the time-stamp counter stops meanwhile, ACPI's timer continues. Then waits for the power button.
#![no_std]
#![no_main]

use common::pause::{self, Clocks};
use pc::console::println;
use pc::{console, exception, machine};

pc::program!();

/// ACPI's PM1a events: status, and enable in the upper half.
const EVENTS: u16 = 0x600;
/// ACPI's timer.
const TIMER: u16 = 0x608;
/// Its frequency in Hz.
const TIMER_HZ: u64 = 3_579_545;
/// PWRBTN_STS and PWRBTN_EN.
const BUTTON: u32 = 1 << 8;

#[unsafe(no_mangle)]
extern "C" fn main(_magic: u32, _info: u32) -> ! {
    exception::setup();
    console::setup();
    println!("suite pause");
    // SAFETY: reading the timer has no side effect.
    let timer = || u64::from(unsafe { machine::in32(TIMER) });
    // The timer has 32 bits, and does not wrap within 20 minutes.
    let ratio = pause::ratio(machine::ticks, timer, TIMER_HZ / 100);
    let slack = (TIMER_HZ / 50 * ratio) >> 16;
    let mut watch = Clocks { held: machine::ticks, running: || (timer() * ratio) >> 16, slack }.watch();
    for pause in 1..=2 {
        println!("pause: waiting for pause {pause}");
        println!("pause: pause {pause}: {} ticks", watch.wait());
    }
    // SAFETY: this program has no handler of ACPI's events: it polls them.
    unsafe { machine::out32(EVENTS, BUTTON << 16) };
    println!("pause: waiting for the power button");
    // SAFETY: reading the status has no side effect.
    while unsafe { machine::in32(EVENTS) } & BUTTON == 0 {}
    println!("PASS pause");
    println!("EXIT: STATUS=0");
    machine::off()
}
