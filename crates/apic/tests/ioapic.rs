//! The I/O APIC against a plain model of each pin.

use proptest::prelude::*;
use stile_apic::{Delivery, Destination, IoApic, PINS};

const SELECT: u32 = 0;
const WINDOW: u32 = 0x10;

fn read(ioapic: &mut IoApic, index: u32) -> u32 {
    ioapic.write(SELECT, index);
    ioapic.read(WINDOW)
}

fn write(ioapic: &mut IoApic, index: u32, value: u32) {
    ioapic.write(SELECT, index);
    ioapic.write(WINDOW, value);
}

#[derive(Clone, Copy, Default)]
struct Pin {
    vector: u8,
    level: bool,
    masked: bool,
    line: bool,
    /// Sent, with the level interrupt not ended.
    waiting: bool,
    edge: bool,
}

#[derive(Clone, Debug)]
enum Op {
    Line(usize, bool),
    Entry { pin: usize, vector: u8, level: bool, masked: bool },
    End(u8),
    Take,
}

fn op() -> impl Strategy<Value = Op> {
    let pin = || 0..4_usize;
    let vector = || 0x30..0x33_u8;
    prop_oneof![
        4 => (pin(), any::<bool>()).prop_map(|(pin, on)| Op::Line(pin, on)),
        2 => (pin(), vector(), any::<bool>(), prop::bool::weighted(0.3))
            .prop_map(|(pin, vector, level, masked)| Op::Entry { pin, vector, level, masked }),
        2 => vector().prop_map(Op::End),
        4 => Just(Op::Take),
    ]
}

proptest! {
    #[test]
    fn pins_match_the_model(ops in prop::collection::vec(op(), 1..200)) {
        let mut ioapic = IoApic::new();
        let mut pins = [Pin { masked: true, ..Pin::default() }; 4];
        for op in ops {
            match op {
                Op::Line(pin, on) => {
                    ioapic.set_line(pin, on);
                    let pin = &mut pins[pin];
                    pin.edge |= on && !pin.line && !pin.level && !pin.masked;
                    pin.line = on;
                }
                Op::Entry { pin, vector, level, masked } => {
                    let low = u32::from(vector) | u32::from(level) << 15 | u32::from(masked) << 16;
                    write(&mut ioapic, 0x10 + pin as u32 * 2, low);
                    let pin = &mut pins[pin];
                    *pin = Pin { vector, level, masked, waiting: pin.waiting && level, edge: pin.edge && !level && !masked, ..*pin };
                }
                Op::End(vector) => {
                    ioapic.end(vector);
                    for pin in pins.iter_mut().filter(|pin| pin.level && pin.vector == vector) {
                        pin.waiting = false;
                    }
                }
                Op::Take => {
                    let mut sent = Vec::new();
                    let mut kinds = Vec::new();
                    while let Some(batch) = ioapic.next_batch() {
                        let kind = (batch.message().vector, batch.message().level);
                        prop_assert!(!kinds.contains(&kind), "two batches of a kind");
                        kinds.push(kind);
                        sent.extend((0..PINS).filter(|pin| batch.pins() >> pin & 1 != 0).map(|pin| (pin, kind)));
                    }
                    sent.sort_unstable();
                    let mut expected = Vec::new();
                    for (number, pin) in pins.iter_mut().enumerate() {
                        if pin.edge || pin.level && pin.line && !pin.masked && !pin.waiting {
                            expected.push((number, (pin.vector, pin.level)));
                            pin.waiting = pin.level;
                            pin.edge = false;
                        }
                    }
                    prop_assert_eq!(sent, expected);
                }
            }
            for (i, pin) in pins.iter().enumerate() {
                let entry = read(&mut ioapic, 0x10 + i as u32 * 2);
                prop_assert_eq!(entry >> 14 & 1 != 0, pin.waiting, "remote IRR of {}", i);
            }
        }
    }

    #[test]
    fn arbitrary_accesses_never_panic(accesses in prop::collection::vec((0..0x100_u32, any::<u32>(), any::<u8>()), 1..100)) {
        let mut ioapic = IoApic::new();
        for (offset, value, line) in accesses {
            ioapic.write(if value & 1 == 0 { WINDOW } else { offset }, value);
            ioapic.read(offset);
            ioapic.set_line(line.into(), value & 2 != 0);
            let sent = std::iter::from_fn(|| ioapic.next_batch()).take(100).count();
            prop_assert!(sent <= PINS);
        }
    }
}

#[test]
fn registers() {
    let mut ioapic = IoApic::new();
    assert_eq!(read(&mut ioapic, 1), 0x0017_0020);
    write(&mut ioapic, 0, 0x0f00_0000);
    assert_eq!(read(&mut ioapic, 0), 0x0f00_0000);
    assert_eq!(read(&mut ioapic, 0x10), 1 << 16);
    write(&mut ioapic, 0x12, 0xffff_ffff);
    write(&mut ioapic, 0x13, 0xffff_ffff);
    assert_eq!((read(&mut ioapic, 0x12), read(&mut ioapic, 0x13)), (0x1_afff, 0xff00_0000));
    assert_eq!(read(&mut ioapic, 0x40), 0);
    // Addressed to the processor with ID 2, written through the EOI register.
    write(&mut ioapic, 0x15, 2 << 24);
    write(&mut ioapic, 0x14, 0x8055);
    ioapic.set_line(2, true);
    assert_eq!(ioapic.next_batch().unwrap().message().destination, Destination::Physical(2));
    assert!(ioapic.next_batch().is_none());
    ioapic.write(0x40, 0x55);
    assert!(ioapic.next_batch().is_some(), "still asserted");
}

/// An EOI of level-triggered interrupts with one vector sends them again in one batch, in which each pin has its destination.
#[test]
fn one_end_sends_one_batch() {
    let mut ioapic = IoApic::new();
    for pin in 0..PINS {
        write(&mut ioapic, 0x11 + 2 * pin as u32, (pin as u32) << 24);
        write(&mut ioapic, 0x10 + 2 * pin as u32, 1 << 15 | 0x55);
        ioapic.set_line(pin, true);
    }
    for _ in 0..2 {
        let batch = ioapic.next_batch().unwrap();
        assert_eq!(batch.pins(), (1 << PINS) - 1);
        assert!(batch.each().all(|(pin, destination)| destination == Destination::Physical(pin as u32)));
        assert!(ioapic.next_batch().is_none());
        ioapic.end(0x55);
    }
}

/// Remote IRR stays clear if no local APIC accepts the message, which is sent again once the pin changes.
#[test]
fn nobody_accepts() {
    const REMOTE_IRR: u32 = 1 << 14;
    let mut ioapic = IoApic::new();
    write(&mut ioapic, 0x14, 1 << 15 | 0x55);
    ioapic.set_line(2, true);
    let batch = ioapic.next_batch().unwrap();
    assert_ne!(read(&mut ioapic, 0x14) & REMOTE_IRR, 0);
    ioapic.refused(&batch, batch.pins());
    assert_eq!(read(&mut ioapic, 0x14) & REMOTE_IRR, 0);
    assert!(ioapic.next_batch().is_none(), "it is sent without end");
    ioapic.set_line(2, true);
    assert_eq!(ioapic.next_batch().map(|batch| batch.pins()), Some(1 << 2));
    assert_ne!(read(&mut ioapic, 0x14) & REMOTE_IRR, 0);
}

/// A processor finds that nobody accepted a message after another one has sent the pin's next message.
#[test]
fn a_late_refusal_leaves_the_next_message_alone() {
    const REMOTE_IRR: u32 = 1 << 14;
    let mut ioapic = IoApic::new();
    write(&mut ioapic, 0x14, 1 << 15 | 0x55);
    ioapic.set_line(2, true);
    let refused = ioapic.next_batch().unwrap();
    ioapic.end(0x55);
    assert!(ioapic.next_batch().is_some());
    ioapic.refused(&refused, refused.pins());
    assert_ne!(read(&mut ioapic, 0x14) & REMOTE_IRR, 0, "the next message's bit is clear");
}

/// NMI, INIT, SMI and ExtINT are edge-triggered even if programmed otherwise.
#[test]
fn signals_are_edges() {
    for mode in [2, 4, 5, 7] {
        let mut ioapic = IoApic::new();
        write(&mut ioapic, 0x14, 1 << 15 | mode << 8 | 0x55);
        ioapic.set_line(2, true);
        assert!(ioapic.next_batch().is_some(), "mode {mode}");
        assert_eq!(read(&mut ioapic, 0x14), 1 << 15 | mode << 8 | 0x55, "mode {mode}");
        ioapic.end(0x55);
        assert!(ioapic.next_batch().is_none(), "mode {mode}");
    }
}

/// Valid delivery modes of redirection entries: startup and the reserved mode are invalid.
#[test]
fn deliveries() {
    let sent = (0..8).map(|mode| {
        let mut ioapic = IoApic::new();
        write(&mut ioapic, 0x14, mode << 8 | 0x55);
        ioapic.set_line(2, true);
        ioapic.next_batch().map(|batch| batch.message().delivery)
    });
    let [fixed, lowest, smi] = [Delivery::Fixed, Delivery::LowestPriority, Delivery::Smi].map(Some);
    let [nmi, init, external] = [Delivery::Nmi, Delivery::Init, Delivery::External].map(Some);
    assert!(sent.eq([fixed, lowest, smi, None, nmi, init, None, external]));
}

/// Destinations of 15 bits if they are extended, also after a reset and in a snapshot; the same bits are reserved if not.
#[test]
fn extended_destinations() {
    let message = |ioapic: &mut IoApic, high: u32, low: u32| {
        write(ioapic, 0x15, high);
        write(ioapic, 0x14, low | 0x55);
        ioapic.set_line(2, false);
        ioapic.set_line(2, true);
        ioapic.next_batch().map(|batch| batch.message().destination)
    };
    const LOGICAL: u32 = 1 << 11;
    let high = 0x24 << 24 | 1 << 17;
    let mut extended = IoApic::new().with_extended_destinations();
    extended.reset();
    assert_eq!(message(&mut extended, high, 0), Some(Destination::Physical(0x124)));
    assert_eq!(message(&mut extended, high | 1 << 16, 0), Some(Destination::Physical(0x124)));
    assert_eq!(message(&mut extended, high, LOGICAL), Some(Destination::Logical { mask: 0x24, wide: false }));
    write(&mut extended, 0x14, 0x55);
    let mut restored = IoApic::new().with_extended_destinations();
    restored.restore(&extended.save());
    assert_eq!(read(&mut restored, 0x15), high);
    let mut plain = IoApic::new();
    plain.restore(&extended.save());
    assert_eq!(read(&mut plain, 0x15), 0x24 << 24);
    assert_eq!(message(&mut plain, high, 0), Some(Destination::Physical(0x24)));
}
