use super::*;
use proptest::prelude::*;

fn read(uart: &mut Uart16550, offset: u16) -> u8 {
    uart.read(offset).value
}

#[test]
fn linux_finds_a_16550a() {
    let mut uart = Uart16550::new();
    // serial8250's autoconfig: the loopback test and the FIFO test.
    uart.write(offset::MCR, 0x1a);
    assert_eq!(read(&mut uart, offset::MSR) & 0xf0, 0x90);
    uart.write(offset::MCR, 0x08);
    uart.write(offset::IIR_FCR, 1);
    assert_eq!(read(&mut uart, offset::IIR_FCR) >> 6, 3);
    uart.write(offset::SCR, 0xa5);
    assert_eq!(read(&mut uart, offset::SCR), 0xa5);
    uart.write(offset::LCR, 0x83);
    uart.write(offset::DATA, 1);
    uart.write(offset::IER, 0);
    assert_eq!((read(&mut uart, offset::DATA), read(&mut uart, offset::IER)), (1, 0));
    uart.write(offset::LCR, 3);
    assert_eq!(read(&mut uart, offset::LSR), 0x60);
    assert_eq!(uart.write(offset::DATA, b'x'), Write { tx: Some(b'x'), irq: None });
}

#[test]
fn the_empty_transmitter_interrupts_until_it_is_told() {
    let mut uart = Uart16550::new();
    assert_eq!(uart.write(offset::IER, 2).irq, Some(true));
    assert_eq!(uart.read(offset::IIR_FCR), Read { value: 2, irq: Some(false) });
    assert_eq!(uart.write(offset::DATA, 1), Write { tx: Some(1), irq: Some(true) });
    assert_eq!(uart.write(offset::IER, 0).irq, Some(false));
    assert_eq!(uart.set_tx_full(true), None);
    assert_eq!(read(&mut uart, offset::LSR) & 0x60, 0);
    assert_eq!(uart.write(offset::IER, 2).irq, None);
    assert_eq!(uart.set_tx_full(false), Some(true));
}

#[test]
fn received_bytes_interrupt_at_once() {
    let mut uart = Uart16550::new();
    uart.write(offset::IIR_FCR, 0xc1);
    uart.write(offset::IER, 1);
    assert_eq!(uart.receive(b'a'), Receive { accepted: true, irq: Some(true) });
    assert_eq!(read(&mut uart, offset::IIR_FCR), 0xcc);
    for _ in 1..16 {
        assert!(uart.receive(b'b').accepted);
    }
    assert_eq!(read(&mut uart, offset::IIR_FCR), 0xc4);
    assert!(!uart.receive(b'c').accepted);
    assert_eq!(read(&mut uart, offset::DATA), b'a');
    for _ in 1..15 {
        assert_eq!(uart.read(offset::DATA), Read { value: b'b', irq: None });
    }
    assert_eq!(uart.read(offset::DATA), Read { value: b'b', irq: Some(false) });
    assert_eq!(read(&mut uart, offset::LSR) & 1, 0);
}

proptest! {
    #[test]
    fn irq_matches_reported_changes(accesses in prop::collection::vec((0..10_u16, any::<u8>(), 0..4_u8), 1..200)) {
        let mut uart = Uart16550::new();
        let mut line = false;
        for (offset, value, what) in accesses {
            let change = match what {
                0 => uart.read(offset).irq,
                1 => uart.write(offset, value).irq,
                2 => uart.receive(value).irq,
                _ => uart.set_tx_full(value & 1 != 0),
            };
            prop_assert_ne!(change, Some(line));
            line = change.unwrap_or(line);
            prop_assert_eq!(uart.irq(), line);
            prop_assert!(uart.rx_room() <= 16);
        }
    }
}
