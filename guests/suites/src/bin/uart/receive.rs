//! PL011: reception, with the boot argument `rx`, which means that a line is sent.

use core::sync::atomic::{AtomicU8, AtomicUsize, Ordering::*};

use payload::board::UART_INTID;
use payload::harness::Test;
use payload::prelude::*;
use payload::uart::{self, pl011::*};
use payload::{instruction, tests};

use crate::listen::listen;

pub const TESTS: &[Test] = tests![receive_empty, receive_line];

const LONGEST: usize = 1024;

static LINE: [AtomicU8; LONGEST] = [const { AtomicU8::new(0) }; LONGEST];
static LENGTH: AtomicUsize = AtomicUsize::new(0);
static ENDED: AtomicUsize = AtomicUsize::new(0);

fn receive_empty() -> Outcome {
    if machine::has("rx") {
        skip!("somebody may be sending");
    }
    check_eq!(FR.read() & FR_RXFE, FR_RXFE, "UARTFR.RXFE");
    check_eq!(RIS.read() & (INT_RX | INT_RT), 0, "UARTRIS.RXRIS and RTRIS");
    Ok(())
}

fn on_interrupt(_: u32) {
    while let Some(byte) = uart::get() {
        if matches!(byte, b'\n' | b'\r') {
            ENDED.store(1, Release);
            continue;
        }
        let length = LENGTH.load(Relaxed);
        LINE[length % LONGEST].store(byte, Relaxed);
        LENGTH.store(length + 1, Release);
    }
    ICR.write(INT_RX | INT_RT);
}

/// Reads a line by interrupts, however long it takes, and says it back with its length.
fn receive_line() -> Outcome {
    if !machine::has("rx") {
        skip!("nobody sends: no boot argument `rx`");
    }
    listen(UART_INTID);
    irq::set_hook(on_interrupt);
    println!("uart: send a line");
    IMSC.write(INT_RX | INT_RT);
    while ENDED.load(Acquire) == 0 {
        instruction!("wfi");
        irq::take();
    }
    IMSC.write(0);
    let length = LENGTH.load(Acquire);
    print!("uart: received {length} bytes: ");
    for byte in &LINE[..length.min(LONGEST)] {
        uart::put(byte.load(Relaxed));
    }
    println!("");
    check!(length > 0, "an empty line");
    Ok(())
}
