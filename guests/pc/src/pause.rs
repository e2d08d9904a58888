//! Waits to be paused: the time-stamp counter stops meanwhile, ACPI's timer continues. Then waits for the power button.
#![no_std]
#![no_main]

use common::pause::{self, Clocks};
use pc::acpi::{self, TIMER_HZ, timer};
use pc::console::println;
use pc::{console, exception, machine};

pc::program!();

#[unsafe(no_mangle)]
extern "C" fn main(_magic: u32, _info: u32) -> ! {
    exception::setup();
    console::setup();
    println!("suite pause");
    // ACPI's timer does not wrap meanwhile.
    let ratio = pause::ratio(machine::ticks, timer, TIMER_HZ / 100);
    let slack = (TIMER_HZ / 50 * ratio) >> 16;
    let mut watch = Clocks { held: machine::ticks, running: || (timer() * ratio) >> 16, slack }.watch();
    for pause in 1..=2 {
        println!("pause: waiting for pause {pause}");
        println!("pause: pause {pause}: {} ticks", watch.wait());
    }
    acpi::wait_for_power_button(|| println!("pause: waiting for the power button"));
    println!("PASS pause");
    println!("EXIT: STATUS=0");
    machine::off()
}
