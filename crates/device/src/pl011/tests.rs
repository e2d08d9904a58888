use super::*;
use proptest::prelude::*;
use std::vec::Vec;

/// Loads, and asserts that the interrupt line does not change.
fn load(uart: &mut Pl011, offset: u32) -> u32 {
    let read = uart.read(offset);
    assert_eq!(read.irq, None);
    read.value
}

/// Stores, and asserts that the interrupt line does not change and nothing is transmitted.
fn store(uart: &mut Pl011, offset: u32, value: u32) {
    let quiet = Write { tx: None, irq: None };
    assert_eq!(uart.write(offset, value), quiet);
}

/// The accesses of Linux's amba-pl011 driver from reset until the port is open.
fn started_by_linux() -> Pl011 {
    let mut uart = Pl011::new();
    store(&mut uart, offset::FBRD, 0);
    store(&mut uart, offset::IBRD, 13);
    store(&mut uart, offset::LCR_H, 0x70);
    store(&mut uart, offset::CR, 0xf01);
    store(&mut uart, offset::ICR, 0x7d0);
    store(&mut uart, offset::IMSC, int::RX | int::RT);
    store(&mut uart, offset::IMSC, 0);
    store(&mut uart, offset::IFLS, 0x12);
    store(&mut uart, offset::CR, 0xf01);
    store(&mut uart, offset::ICR, int::RX | int::RT);
    while load(&mut uart, offset::FR) & fr::RXFE == 0 {
        load(&mut uart, offset::DR);
    }
    store(&mut uart, offset::IMSC, int::RX | int::RT);
    uart
}

#[test]
fn reset_values() {
    let mut uart = Pl011::new();
    let expected = [
        (offset::RSR_ECR, 0),
        (offset::FR, 0x97),
        (offset::ILPR, 0),
        (offset::IBRD, 0),
        (offset::FBRD, 0),
        (offset::LCR_H, 0),
        (offset::CR, 0x300),
        (offset::IFLS, 0x12),
        (offset::IMSC, 0),
        (offset::RIS, 0),
        (offset::MIS, 0),
        (offset::DMACR, 0),
    ];
    for (offset, value) in expected {
        assert_eq!(load(&mut uart, offset), value, "offset {offset:#x}");
    }
    assert!(!uart.irq());
}

#[test]
fn identifies_itself_as_r1p5() {
    let mut uart = Pl011::new();
    let id: Vec<u32> = (0xfe0..0x1000).step_by(4).map(|offset| load(&mut uart, offset)).collect();
    assert_eq!(id, [0x11, 0x10, 0x34, 0x00, 0x0d, 0xf0, 0x05, 0xb1]);
}

#[test]
fn transmits_when_nothing_is_enabled() {
    let mut uart = Pl011::new();
    store(&mut uart, offset::CR, 0);
    for byte in *b"hello" {
        assert_eq!(load(&mut uart, offset::FR) & fr::TXFF, 0);
        let write = uart.write(offset::DR, byte.into());
        assert_eq!((write.tx, write.irq), (Some(byte), None));
    }
}

#[test]
fn a_wide_store_transmits_its_low_byte() {
    let write = Pl011::new().write(offset::DR, 0xffff_ff41);
    assert_eq!(write.tx, Some(b'A'));
}

#[test]
fn registers_keep_their_implemented_bits() {
    let mut uart = Pl011::new();
    let masks = [
        (offset::ILPR, 0xff),
        (offset::IBRD, 0xffff),
        (offset::FBRD, 0x3f),
        (offset::LCR_H, 0xff),
        (offset::CR, 0xff87),
        (offset::IFLS, 0x3f),
        (offset::IMSC, 0x7ff),
        (offset::DMACR, 0x7),
    ];
    for (offset, mask) in masks {
        store(&mut uart, offset, u32::MAX);
        assert_eq!(load(&mut uart, offset), mask, "offset {offset:#x}");
    }
}

#[test]
fn read_only_and_absent_registers_ignore_stores() {
    let mut uart = Pl011::new();
    let offsets = [offset::FR, offset::RIS, offset::MIS, 0x80, 0xfe0, 0xffc];
    for offset in offsets {
        let before = load(&mut uart, offset);
        store(&mut uart, offset, 0xa5a5_a5a5);
        assert_eq!(load(&mut uart, offset), before, "offset {offset:#x}");
    }
}

#[test]
fn narrow_loads_see_their_byte_lanes() {
    let mut uart = Pl011::new();
    store(&mut uart, offset::IBRD, 0x1234);
    assert_eq!(load(&mut uart, offset::IBRD) & 0xff, 0x34);
    assert_eq!(load(&mut uart, offset::IBRD + 1) & 0xff, 0x12);
    assert_eq!(load(&mut uart, offset::IBRD + 2) & 0xffff, 0);
    assert_eq!(load(&mut uart, offset::FR + 1), 0);
}

#[test]
fn only_the_first_lane_of_the_data_register_holds_the_character() {
    let mut uart = Pl011::new();
    assert!(uart.receive(b'x').accepted);
    assert_eq!(load(&mut uart, offset::DR + 1), 0);
    assert_eq!(load(&mut uart, offset::DR), b'x'.into());
    store(&mut uart, offset::DR + 1, 0x41);
}

#[test]
fn a_single_character_interrupts_a_linux_guest() {
    let mut uart = started_by_linux();
    let receive = uart.receive(b'q');
    assert_eq!((receive.accepted, receive.irq), (true, Some(true)));
    assert_eq!(load(&mut uart, offset::RIS), int::RT);
    assert_eq!(load(&mut uart, offset::FR) & fr::RXFE, 0);
    let read = uart.read(offset::DR);
    assert_eq!((read.value, read.irq), (b'q'.into(), Some(false)));
    assert_ne!(load(&mut uart, offset::FR) & fr::RXFE, 0);
}

#[test]
fn input_from_before_the_driver_does_not_hang_its_receiver() {
    let mut uart = Pl011::new();
    uart.receive(b'a');
    // The driver leaves the receive interrupt enabled.
    let mut uart_started = uart.clone();
    store(&mut uart_started, offset::LCR_H, 0x70);
    store(&mut uart_started, offset::IMSC, int::RX | int::RT);
    assert_eq!(uart_started.receive(b'b').irq, Some(true));
    assert_eq!(uart_started.read(offset::DR).value, b'b'.into());
}

#[test]
fn the_driver_says_when_it_listens() {
    let mut uart = Pl011::new();
    assert!(!uart.rx_interrupt_enabled());
    store(&mut uart, offset::IMSC, int::TX);
    assert!(!uart.rx_interrupt_enabled());
    assert!(started_by_linux().rx_interrupt_enabled());
}

#[test]
fn receive_interrupt_follows_the_trigger_level() {
    for (select, level) in [(0, 4), (1, 8), (2, 16), (3, 24), (4, 28), (7, 28)] {
        let mut uart = Pl011::new();
        store(&mut uart, offset::LCR_H, LCR_H_FEN);
        store(&mut uart, offset::IFLS, select << 3);
        for count in 1..=32 {
            uart.receive(0);
            let raised = load(&mut uart, offset::RIS) & int::RX != 0;
            assert_eq!(raised, count >= level, "select {select}, {count} bytes");
        }
        for count in (0..32).rev() {
            load(&mut uart, offset::DR);
            let raised = load(&mut uart, offset::RIS) & int::RX != 0;
            assert_eq!(raised, count >= level, "select {select}, {count} bytes");
        }
        assert_eq!(load(&mut uart, offset::RIS), 0);
    }
}

#[test]
fn without_fifos_one_character_fills_the_receiver() {
    let mut uart = Pl011::new();
    assert_eq!(uart.rx_room(), 1);
    assert!(uart.receive(b'1').accepted);
    assert_eq!(load(&mut uart, offset::RIS), int::RX | int::RT);
    assert_ne!(load(&mut uart, offset::FR) & fr::RXFF, 0);
    assert!(!uart.receive(b'2').accepted);
    assert_eq!(load(&mut uart, offset::DR), b'1'.into());
    assert_eq!(uart.rx_room(), 1);
    assert_eq!(load(&mut uart, offset::DR), 0);
}

#[test]
fn turning_fifos_off_empties_them() {
    let mut uart = started_by_linux();
    uart.receive(b'1');
    uart.receive(b'2');
    let off = uart.write(offset::LCR_H, 0x60);
    assert_eq!(off.irq, Some(false));
    assert_ne!(load(&mut uart, offset::FR) & fr::RXFE, 0);
    assert_eq!(uart.rx_room(), 1);
}

#[test]
fn interrupt_clear_takes_the_named_ones() {
    let mut uart = Pl011::new();
    uart.receive(b'x');
    uart.write(offset::DR, b'y'.into());
    assert_eq!(load(&mut uart, offset::RIS), int::RX | int::RT | int::TX);
    store(&mut uart, offset::ICR, int::RT);
    assert_eq!(load(&mut uart, offset::RIS), int::RX | int::TX);
    store(&mut uart, offset::ICR, u32::MAX);
    assert_eq!(load(&mut uart, offset::RIS), 0);
}

#[test]
fn transmit_interrupt_stands_as_soon_as_a_byte_is_sent() {
    let mut uart = Pl011::new();
    store(&mut uart, offset::IMSC, int::TX);
    assert!(!uart.irq());
    let write = uart.write(offset::DR, b'a'.into());
    assert_eq!((write.tx, write.irq), (Some(b'a'), Some(true)));
    assert_eq!(load(&mut uart, offset::MIS), int::TX);
    assert_eq!(uart.write(offset::ICR, int::TX).irq, Some(false));
    assert_eq!(uart.write(offset::DR, b'b'.into()).irq, Some(true));
    assert_eq!(uart.write(offset::IMSC, 0).irq, Some(false));
}

#[test]
fn back_pressure_stops_and_restarts_a_linux_guest() {
    let mut uart = started_by_linux();
    assert_eq!(uart.set_tx_full(true), None);
    assert_eq!(load(&mut uart, offset::FR) & (fr::TXFF | fr::TXFE), fr::TXFF);
    // The driver finds the FIFO full and enables the transmit interrupt.
    store(&mut uart, offset::IMSC, int::TX | int::RX | int::RT);
    assert_eq!(uart.set_tx_full(true), None);
    assert_eq!(uart.set_tx_full(false), Some(true));
    assert_eq!(load(&mut uart, offset::FR) & (fr::TXFF | fr::TXFE), fr::TXFE);
    // It then sends without polling, and back pressure may return meanwhile.
    assert_eq!(uart.write(offset::DR, b'1'.into()).tx, Some(b'1'));
    assert_eq!(uart.set_tx_full(true), Some(false));
    let write = uart.write(offset::DR, b'2'.into());
    assert_eq!((write.tx, write.irq), (Some(b'2'), None));
}

#[test]
fn loopback_receives_what_it_sends() {
    let mut uart = started_by_linux();
    store(&mut uart, offset::CR, 0xf01 | CR_LBE);
    let write = uart.write(offset::DR, b'z'.into());
    assert_eq!((write.tx, write.irq), (None, Some(true)));
    assert_eq!(uart.read(offset::DR).value, b'z'.into());
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Read(u32),
    Write(u32, u32),
    Receive(u8),
    TxFull(bool),
}

fn step() -> impl Strategy<Value = Step> {
    let offset = prop_oneof![(0u32..0x50), any::<u32>()];
    prop_oneof![
        offset.clone().prop_map(Step::Read),
        (offset, any::<u32>()).prop_map(|(offset, value)| Step::Write(offset, value)),
        any::<u8>().prop_map(Step::Receive),
        any::<bool>().prop_map(Step::TxFull),
    ]
}

proptest! {
    /// For random guest behaviour: no panic; reported line changes add up to the line's level, which is that of the masked
    /// status; flags match the FIFO; and a byte is accepted if and only if there is room.
    #[test]
    fn reported_changes_match_the_level(steps in prop::collection::vec(step(), 0..300)) {
        let mut uart = Pl011::new();
        let mut level = false;
        for step in steps {
            let irq = match step {
                Step::Read(offset) => uart.read(offset).irq,
                Step::Write(offset, value) => uart.write(offset, value).irq,
                Step::Receive(byte) => {
                    let room = uart.rx_room();
                    let receive = uart.receive(byte);
                    prop_assert_eq!(receive.accepted, room > 0);
                    receive.irq
                }
                Step::TxFull(full) => uart.set_tx_full(full),
            };
            if let Some(changed) = irq {
                prop_assert_ne!(changed, level);
                level = changed;
            }
            prop_assert_eq!(uart.irq(), level);
            prop_assert_eq!(load(&mut uart, offset::MIS) != 0, level);
            let flags = load(&mut uart, offset::FR);
            prop_assert_eq!(flags & fr::RXFF != 0, uart.rx_room() == 0);
            prop_assert_eq!(flags & fr::RXFE != 0, uart.rx.is_empty());
        }
    }

    /// Bytes come out in the order in which they were accepted.
    #[test]
    fn receives_in_order(bytes in prop::collection::vec(any::<u8>(), 0..100), drain in 1usize..40) {
        let mut uart = started_by_linux();
        let mut got = Vec::new();
        let mut pending = bytes.iter().copied().peekable();
        while pending.peek().is_some() || !uart.rx.is_empty() {
            while let Some(&byte) = pending.peek() {
                if !uart.receive(byte).accepted {
                    break;
                }
                pending.next();
            }
            for _ in 0..drain {
                if uart.read(offset::FR).value & fr::RXFE != 0 {
                    break;
                }
                got.push(uart.read(offset::DR).value as u8);
            }
        }
        prop_assert_eq!(got, bytes);
    }
}

proptest! {
    /// A copy answers every further access as the original does.
    #[test]
    fn a_copy_goes_on(before in prop::collection::vec(step(), 0..100), after in prop::collection::vec(step(), 0..100)) {
        let mut uart = Pl011::new();
        let act = |uart: &mut Pl011, step: &Step| match *step {
            Step::Read(offset) => (uart.read(offset).value, None),
            Step::Write(offset, value) => (0, uart.write(offset, value).tx),
            Step::Receive(byte) => (uart.receive(byte).accepted.into(), None),
            Step::TxFull(full) => (uart.set_tx_full(full).is_some().into(), None),
        };
        before.iter().for_each(|step| {
            act(&mut uart, step);
        });
        let mut copy = Pl011::new();
        prop_assert_eq!(copy.restore(&uart.save()), uart.irq());
        prop_assert_eq!(copy.save(), uart.save());
        for step in &after {
            prop_assert_eq!(act(&mut copy, step), act(&mut uart, step));
            prop_assert_eq!((copy.irq(), copy.flags()), (uart.irq(), uart.flags()));
        }
    }

    /// Any state that is imported is one that the model keeps consistent.
    #[test]
    fn a_hostile_state_is_reduced(words in any::<[u32; 9]>(), received in any::<[u8; 32]>(), count in any::<u8>(), full in any::<bool>()) {
        let [raw, mask, line_control, control, level_select, low_power, baud_integer, baud_fraction, dma] = words;
        let from = Saved { raw, mask, line_control, control, level_select, low_power, baud_integer, baud_fraction, dma, received, count, full };
        let mut uart = Pl011::new();
        let level = uart.restore(&from);
        prop_assert_eq!(level, load(&mut uart, offset::MIS) != 0);
        prop_assert!(uart.rx.len() <= uart.rx_capacity());
        let first = uart.save();
        prop_assert_eq!(uart.restore(&first), level);
        prop_assert_eq!(uart.save(), first);
    }
}
