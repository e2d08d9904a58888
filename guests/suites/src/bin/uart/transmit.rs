//! PL011: identification, flags, transmission and its interrupt.

use payload::board::UART_INTID;
use payload::gic::Bits;
use payload::harness::Test;
use payload::prelude::*;
use payload::tests;
use payload::uart::{self, pl011::*};

use crate::identification::identification;
use crate::listen::listen;

pub const TESTS: &[Test] =
    tests![uart_identification, uart_registers, uart_idle, uart_off_and_on, transmit_interrupt, transmit_interrupt_masked, loopback];

fn uart_identification() -> Outcome {
    identification(PERIPH_ID, [0x11, 0x10, 0x04, 0x00])?;
    identification(CELL_ID, [0x0D, 0xF0, 0x05, 0xB1])
}

fn uart_registers() -> Outcome {
    wait::until(|| FR.read() & FR_TXFE != 0);
    CR.write(0);
    for (register, value) in [(IBRD, 0x1234), (FBRD, 0x2A), (LCR_H, 0x70), (IFLS, 0x12), (IMSC, 0x7F0)] {
        register.write(value);
        check_eq!(register.read(), value, "register {:#x}", register.0);
    }
    uart::init();
    check_eq!(CR.read() & 0x301, CR_UARTEN | CR_TXE | CR_RXE, "UARTCR");
    Ok(())
}

fn uart_idle() -> Outcome {
    check!(wait::until(|| FR.read() & FR_TXFE != 0), "UARTFR.TXFE stays 0");
    check!(wait::until(|| FR.read() & FR_BUSY == 0), "UARTFR.BUSY stays 1");
    check_eq!(FR.read() & FR_TXFF, 0, "UARTFR.TXFF");
    Ok(())
}

fn uart_off_and_on() -> Outcome {
    CR.write(0);
    check_eq!(CR.read() & CR_UARTEN, 0, "UARTCR.UARTEN");
    uart::init();
    println!("this line is sent after the UART was off");
    Ok(())
}

/// Sends enough to pass through the FIFO's level.
fn send() {
    for _ in 0..40 {
        uart::put(b'.');
    }
    uart::put(b'\n');
}

/// The interrupt is asserted when the FIFO empties, and deasserted when cleared.
fn transmit_interrupt() -> Outcome {
    listen(UART_INTID);
    ICR.write(0x7FF);
    IMSC.write(INT_TX);
    send();
    check!(wait::until(|| RIS.read() & INT_TX != 0), "UARTRIS.TXRIS stays 0");
    check_eq!(MIS.read(), INT_TX, "UARTMIS");
    check!(wait::until(irq::is_pending), "no interrupt");
    check_eq!(icc::iar1(), UART_INTID, "IAR1");
    ICR.write(INT_TX);
    check_eq!(RIS.read() & INT_TX, 0, "UARTRIS.TXRIS after it was cleared");
    icc::eoir1(UART_INTID);
    wait::until(|| !gic::get(Bits::Pending, UART_INTID));
    check_eq!(icc::iar1(), icc::SPURIOUS, "IAR1 after it was cleared");
    // Level-sensitive: if not cleared, it is signalled again after its end.
    send();
    for round in 0..3 {
        check!(wait::until(irq::is_pending), "no interrupt in round {round}");
        check_eq!(icc::iar1(), UART_INTID, "IAR1 in round {round}");
        icc::eoir1(UART_INTID);
    }
    IMSC.write(0);
    check_eq!(MIS.read(), 0, "UARTMIS with all masked");
    check!(wait::until(|| !irq::is_pending()), "the interrupt stays although it is masked");
    Ok(())
}

fn transmit_interrupt_masked() -> Outcome {
    listen(UART_INTID);
    send();
    wait::settle();
    check_eq!(MIS.read(), 0, "UARTMIS");
    check!(!irq::is_pending(), "an interrupt although all are masked");
    // An asserted raw interrupt is signalled when it is unmasked later.
    check!(wait::until(|| RIS.read() & INT_TX != 0), "UARTRIS.TXRIS stays 0");
    IMSC.write(INT_TX);
    check!(wait::until(irq::is_pending), "no interrupt after it was unmasked");
    IMSC.write(0);
    ICR.write(INT_TX);
    Ok(())
}

fn loopback() -> Outcome {
    wait::until(|| FR.read() & FR_BUSY == 0);
    CR.write(CR_UARTEN | CR_TXE | CR_RXE | CR_LBE);
    if CR.read() & CR_LBE == 0 {
        skip!("UARTCR.LBE can't be set");
    }
    // Some send it out as well.
    DR.write(u32::from(b'\n'));
    let mut got = None;
    wait::settle();
    if FR.read() & FR_RXFE == 0 {
        got = uart::get();
    }
    uart::init();
    match got {
        Some(b'\n') => Ok(()),
        Some(other) => Err(Fail::new(format_args!("received {other:#x}"))),
        None => skip!("no loopback"),
    }
}
