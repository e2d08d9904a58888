//! Priorities of the local APIC's interrupts against a plain model, with and without ends of interrupts by a bit in the guest's memory.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;

use proptest::prelude::*;
use stile_apic::offset::*;
use stile_apic::{Delivery, Destination, Effect, EoiBit, LocalApic, Message, Pages, Received};

fn enabled<B: EoiBit>() -> LocalApic<'static, B> {
    let pages: &Pages = Box::leak(Box::default());
    pages.reset(0, true);
    let mut apic = LocalApic::with_bits(pages);
    assert_eq!(apic.write(SVR, 0x1ff, 0), Effect::None);
    apic
}

fn fixed(vector: u8, level: bool) -> Message {
    Message { destination: Destination::Own, delivery: Delivery::Fixed, vector, level }
}

/// A guest that has a bit, or none.
trait Guest {
    type Bit: EoiBit;

    fn bit(&self) -> Option<Self::Bit>;

    fn is_set(&self) -> bool;

    /// Tests and clears the bit.
    fn ends(&self) -> bool;
}

#[derive(Clone, Copy)]
struct Bit(&'static Cell<bool>);

impl EoiBit for Bit {
    fn set(self) {
        self.0.set(true);
    }

    fn take(self) -> bool {
        self.0.replace(false)
    }
}

impl Guest for Bit {
    type Bit = Bit;

    fn bit(&self) -> Option<Bit> {
        Some(*self)
    }

    fn is_set(&self) -> bool {
        self.0.get()
    }

    fn ends(&self) -> bool {
        self.take()
    }
}

/// The guest has none.
struct NoBit;

impl Guest for NoBit {
    type Bit = Infallible;

    fn bit(&self) -> Option<Infallible> {
        None
    }

    fn is_set(&self) -> bool {
        false
    }

    fn ends(&self) -> bool {
        false
    }
}

#[derive(Clone, Debug)]
enum Op {
    Receive(u8, bool),
    ReceiveAndAcknowledge(u8),
    Own(u8),
    Acknowledge,
    End,
    EndAtOnce,
    Refresh,
    Priority(u8),
    Enable(bool),
    /// The guest ends an interrupt by its bit, or by EOI if that is clear.
    GuestEnds,
    /// The vCPU is put, and loaded again.
    PutAndLoad,
    /// Delivery of the last interrupt is reverted.
    PutBack,
    /// An interrupt arrives, and the guest ends another one before it is interrupted.
    ReceiveAndGuestEnds(u8),
    /// The guest names the bit, or none.
    SetBit(bool),
}

fn op() -> impl Strategy<Value = Op> {
    let vector = prop_oneof![4 => 0x10_u8..0x60, 1 => any::<u8>()];
    prop_oneof![
        4 => (vector.clone(), any::<bool>()).prop_map(|(vector, level)| Op::Receive(vector, level)),
        3 => vector.clone().prop_map(Op::ReceiveAndAcknowledge),
        3 => vector.clone().prop_map(Op::Own),
        1 => vector.prop_map(Op::ReceiveAndGuestEnds),
        3 => Just(Op::EndAtOnce),
        1 => Just(Op::Refresh),
        4 => Just(Op::Acknowledge),
        3 => Just(Op::End),
        1 => any::<u8>().prop_map(Op::Priority),
        1 => prop::bool::weighted(0.8).prop_map(Op::Enable),
        6 => Just(Op::GuestEnds),
        1 => Just(Op::PutAndLoad),
        1 => Just(Op::PutBack),
        1 => prop::bool::weighted(0.7).prop_map(Op::SetBit),
    ]
}

/// "Interrupt, Task, and Processor Priority", in sets and maps.
#[derive(Default)]
struct Model {
    requests: BTreeSet<u8>,
    in_service: BTreeSet<u8>,
    level: BTreeMap<u8, bool>,
    tpr: u8,
    enabled: bool,
}

impl Model {
    fn ppr(&self) -> u8 {
        let serving = self.in_service.last().copied().unwrap_or(0);
        if self.tpr / 16 >= serving / 16 { self.tpr } else { serving / 16 * 16 }
    }

    fn pending(&self) -> Option<u8> {
        self.requests.last().copied().filter(|vector| self.enabled && vector / 16 > self.ppr() / 16)
    }
}

/// The words of a set of the APIC's.
fn words<B: EoiBit>(apic: &mut LocalApic<'_, B>, first: u32) -> [u32; 8] {
    [0, 1, 2, 3, 4, 5, 6, 7].map(|i| apic.read(first + i * 16, 0))
}

/// The words of a set with these vectors.
fn words_of(vectors: &BTreeSet<u8>) -> [u32; 8] {
    let mut words = [0; 8];
    for vector in vectors {
        words[usize::from(vector / 32)] |= 1 << (vector % 32);
    }
    words
}

/// The guest ends an interrupt, by its bit if that is set.
fn guest_ends<G: Guest>(apic: &mut LocalApic<'_, G::Bit>, guest: &G, model: &mut Model) -> Result<(), TestCaseError> {
    let by_bit = guest.ends();
    let ended = model.in_service.pop_last();
    if by_bit {
        prop_assert!(ended.is_some_and(|vector| !model.level[&vector]), "the bit was set without reason");
        return Ok(());
    }
    let expected = ended.filter(|vector| model.level[vector]).map_or(Effect::None, Effect::End);
    prop_assert_eq!(apic.write(EOI, 0, 0), expected);
    Ok(())
}

/// Compares an APIC with the model. After operations that are not followed by a look at ISR, a bit stays lent.
fn compare<G: Guest>(guest: G, ops: Vec<(Op, bool)>) -> Result<(), TestCaseError> {
    let mut apic = enabled::<G::Bit>();
    let mut has_bit = false;
    let mut model = Model { enabled: true, ..Model::default() };
    for (op, looks) in ops {
        match op {
            Op::Receive(vector, level) => {
                let taken = model.enabled && vector >= 16;
                let expected = match (taken, level) {
                    (false, _) => Received::Nothing,
                    (true, false) => Received::Interrupt,
                    (true, true) => Received::Level,
                };
                prop_assert_eq!(apic.pages().receive(fixed(vector, level)), expected);
                if taken {
                    let again = if level { Received::Level } else { Received::Nothing };
                    prop_assert_eq!(apic.pages().receive(fixed(vector, level)), again, "told already");
                }
                if taken {
                    model.requests.insert(vector);
                    model.level.insert(vector, level);
                }
            }
            Op::ReceiveAndAcknowledge(vector) => {
                let alone = model.requests.is_empty();
                apic.pages().receive(fixed(vector, false));
                if model.enabled && vector >= 16 {
                    model.requests.insert(vector);
                    model.level.insert(vector, false);
                }
                let expected = model.pending().filter(|_| alone);
                prop_assert_eq!(apic.acknowledge_posted(), expected);
                if let Some(vector) = expected {
                    model.requests.remove(&vector);
                    model.in_service.insert(vector);
                }
            }
            Op::Own(vector) => {
                let alone = model.requests.is_empty() && !model.level.get(&vector).copied().unwrap_or(false);
                let expected = alone && model.enabled && vector >= 16 && vector >> 4 > model.ppr() >> 4;
                prop_assert_eq!(apic.take_at_once(vector), expected);
                if expected {
                    model.in_service.insert(vector);
                    model.level.insert(vector, false);
                }
            }
            Op::EndAtOnce => {
                let highest = model.in_service.last().copied();
                let expected = model.requests.is_empty() && highest.is_none_or(|vector| !model.level[&vector]);
                prop_assert_eq!(apic.end_at_once(), expected);
                if expected {
                    model.in_service.pop_last();
                }
            }
            Op::Refresh => apic.set_assisted(false),
            Op::Acknowledge => {
                let expected = model.pending();
                prop_assert_eq!(apic.acknowledge(), expected);
                if let Some(vector) = expected {
                    model.requests.remove(&vector);
                    model.in_service.insert(vector);
                }
            }
            Op::End => {
                let ended = model.in_service.pop_last();
                let expected = ended.filter(|vector| model.level[vector]).map_or(Effect::None, Effect::End);
                prop_assert_eq!(apic.write(EOI, 0, 0), expected);
            }
            Op::Priority(value) => {
                apic.write(TPR, value.into(), 0);
                model.tpr = value;
            }
            Op::GuestEnds => guest_ends(&mut apic, &guest, &mut model)?,
            Op::ReceiveAndGuestEnds(vector) => {
                // Before the notification has interrupted the guest.
                apic.pages().receive(fixed(vector, false));
                if model.enabled && vector >= 16 {
                    model.requests.insert(vector);
                    model.level.insert(vector, false);
                }
                guest_ends(&mut apic, &guest, &mut model)?;
            }
            Op::PutAndLoad => {
                apic.set_eoi_bit(None);
                prop_assert!(!guest.is_set(), "memory and registers may be saved now");
                apic.set_eoi_bit(guest.bit().filter(|_| has_bit));
            }
            Op::PutBack => {
                if let Some(vector) = model.in_service.pop_last() {
                    prop_assert!(apic.put_back(vector));
                    model.requests.insert(vector);
                }
            }
            Op::SetBit(on) => {
                has_bit = on;
                apic.set_eoi_bit(guest.bit().filter(|_| on));
                prop_assert!(!guest.is_set(), "a bit that is not lent is clear");
            }
            Op::Enable(on) => {
                apic.write(SVR, if on { 0x1ff } else { 0xff }, 0);
                model.enabled = on;
            }
        }
        prop_assert_eq!(apic.pending(), model.pending());
        // With another one requested, the guest's end of an interrupt exits.
        prop_assert!(!guest.is_set() || model.requests.is_empty());
        if looks {
            prop_assert_eq!(words(&mut apic, IRR), words_of(&model.requests));
            prop_assert_eq!(apic.read(PPR, 0), u32::from(model.ppr()));
            prop_assert_eq!(words(&mut apic, ISR), words_of(&model.in_service));
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn interrupts_are_delivered_in_order_of_priority(ops in prop::collection::vec(op(), 1..200)) {
        compare(NoBit, ops.into_iter().map(|op| (op, true)).collect())?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn ends_by_a_bit_keep_the_order(ops in prop::collection::vec((op(), prop::bool::weighted(0.2)), 1..200)) {
        compare(Bit(Box::leak(Box::default())), ops)?;
    }

    /// Others may write the bit at any time: no vector is in service that was not taken, and each end takes one at most.
    #[test]
    fn a_bit_that_lies_harms_nobody(ops in prop::collection::vec((0..6_u8, 16..=u8::MAX, any::<bool>()), 1..200)) {
        let bit = Bit(Box::leak(Box::default()));
        let mut apic = enabled::<Bit>();
        apic.set_eoi_bit(Some(bit));
        let mut taken = BTreeSet::new();
        for (op, vector, flips) in ops {
            if flips {
                bit.0.set(!bit.0.get());
            }
            match op {
                0 => { apic.pages().receive(fixed(vector, vector & 1 != 0)); }
                1 => taken.extend(apic.acknowledge()),
                2 => taken.extend(apic.acknowledge_posted()),
                3 => { apic.end(); }
                4 => { apic.end_at_once(); }
                _ => prop_assert!(words(&mut apic, ISR).iter().zip(words_of(&taken)).all(|(serving, taken)| serving & !taken == 0)),
            }
        }
    }
}

/// The guest's end by the bit costs no exit, and the next interrupt finds it done.
#[test]
fn an_end_by_the_bit_is_found_by_the_next_interrupt() {
    let bit = Bit(Box::leak(Box::default()));
    let mut apic = enabled::<Bit>();
    apic.set_eoi_bit(Some(bit));
    for vector in [0x61, 0x41, 0x41] {
        assert_eq!(apic.pages().receive(fixed(vector, false)), Received::Interrupt);
        assert_eq!(apic.acknowledge_posted(), Some(vector));
        assert!(bit.ends());
    }
    // Not for an interrupt that is level-triggered, or behind which another one waits.
    apic.pages().receive(fixed(0x51, true));
    assert_eq!((apic.acknowledge(), bit.is_set()), (Some(0x51), false));
    assert_eq!(apic.write(EOI, 0, 0), Effect::End(0x51));
    apic.pages().receive(fixed(0x51, false));
    apic.pages().receive(fixed(0x31, false));
    assert_eq!((apic.acknowledge(), bit.is_set()), (Some(0x51), false));
    assert_eq!(apic.write(EOI, 0, 0), Effect::None);
    assert_eq!((apic.acknowledge(), bit.is_set()), (Some(0x31), true));
    // The bit is taken back for one that waits from now on.
    apic.pages().receive(fixed(0x32, false));
    assert_eq!((apic.acknowledge_posted(), bit.is_set()), (None, false));
    assert_eq!((apic.write(EOI, 0, 0), apic.acknowledge()), (Effect::None, Some(0x32)));
    // INIT takes it back, and the guest has none.
    apic.init();
    assert!(!bit.is_set());
    apic.write(SVR, 0x1ff, 0);
    apic.pages().receive(fixed(0x32, false));
    assert_eq!((apic.acknowledge(), bit.is_set()), (Some(0x32), false));
}

/// An interrupt that was not delivered is the APIC's again, even if another processor of the guest has cleared the bit.
#[test]
fn an_interrupt_that_was_not_delivered_is_requested_again() {
    let bit = Bit(Box::leak(Box::default()));
    let mut apic = enabled::<Bit>();
    apic.set_eoi_bit(Some(bit));
    for clears in [false, true] {
        apic.pages().receive(fixed(0x61, false));
        assert_eq!((apic.acknowledge(), bit.is_set()), (Some(0x61), true));
        assert!(!clears || bit.ends());
        assert!(apic.put_back(0x61) && !bit.is_set());
        assert_eq!(apic.acknowledge(), Some(0x61));
        assert!(bit.ends() && !apic.put_back(0x62));
    }
}
