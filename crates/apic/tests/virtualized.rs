//! APIC virtualization against the software model: the same events in the same order deliver the same
//! interrupts.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use proptest::prelude::*;
use stile_apic::offset::*;
use stile_apic::{Delivery, Destination, Effect, LocalApic, Message, Pages, Received, Vectors, is_kept};

fn apic() -> LocalApic<'static> {
    let pages: &Pages = Box::leak(Box::default());
    pages.reset(0, true);
    let mut apic = LocalApic::new(pages);
    apic.write(SVR, 0x1ff, 0);
    apic
}

fn fixed(vector: u8, level: bool) -> Message {
    Message { destination: Destination::Own, delivery: Delivery::Fixed, vector, level }
}

/// A processor model with a running guest: it accesses the two pages by their layout, like hardware ("APIC
/// Virtualization and Virtual Interrupts").
struct Processor {
    apic: LocalApic<'static>,
    page: &'static [AtomicU32; 1024],
    posted: &'static [AtomicU64; 8],
    /// RVI and SVI.
    requesting: u8,
    serving: u8,
    exits: Vectors,
}

impl Processor {
    fn new() -> Self {
        let apic = apic();
        let pages = &raw const *apic.pages();
        // SAFETY: the layout is the hardware's, and both consist of atomics only.
        let (page, posted) = unsafe { (&*pages.cast(), &*pages.byte_add(Pages::DESCRIPTOR).cast()) };
        let mut new = Self { apic, page, posted, requesting: 0, serving: 0, exits: Vectors::NONE };
        new.apic.set_assisted(true);
        new.enter();
        new
    }

    /// An exit, with the owner's work, and the entry.
    fn enter(&mut self) {
        if let Some(status) = self.apic.take_status() {
            [self.requesting, self.serving] = status.interrupts.to_le_bytes();
            self.exits = status.exits.unwrap_or(self.exits);
        }
        self.virtualize_ppr();
    }

    fn word(&self, set: u32, vector: u8) -> &AtomicU32 {
        &self.page[(set / 4 + u32::from(vector / 32) * 4) as usize]
    }

    fn insert(&self, set: u32, vector: u8) {
        self.word(set, vector).fetch_or(1 << (vector % 32), Ordering::Relaxed);
    }

    fn remove(&self, set: u32, vector: u8) {
        self.word(set, vector).fetch_and(!(1 << (vector % 32)), Ordering::Relaxed);
    }

    fn highest(&self, set: u32) -> u8 {
        (0..=255).rev().find(|&vector| self.word(set, vector).load(Ordering::Relaxed) >> (vector % 32) & 1 != 0).unwrap_or(0)
    }

    fn register(&self, offset: u32) -> u8 {
        self.page[offset as usize / 4].load(Ordering::Relaxed) as u8
    }

    fn virtualize_ppr(&self) {
        let tpr = self.register(TPR);
        let ppr = if tpr >> 4 >= self.serving >> 4 { tpr } else { self.serving & 0xf0 };
        self.page[PPR as usize / 4].store(ppr.into(), Ordering::Relaxed);
    }

    fn recognized(&self) -> Option<u8> {
        (self.requesting >> 4 > self.register(PPR) >> 4).then_some(self.requesting)
    }

    fn request(&mut self, vector: u8) {
        self.insert(IRR, vector);
        self.requesting = self.requesting.max(vector);
    }

    /// "Posted-Interrupt Processing".
    fn process_posted(&mut self) {
        self.posted[4].fetch_and(!1, Ordering::Relaxed);
        for (word, at) in self.posted[..4].iter().zip([0_u8, 64, 128, 192]) {
            let requests = word.swap(0, Ordering::Relaxed);
            (0..64).filter(|bit| requests >> bit & 1 != 0).for_each(|bit| self.request(at + bit));
        }
    }

    /// "Virtual-Interrupt Delivery".
    fn deliver(&mut self) -> Option<u8> {
        let vector = self.recognized()?;
        self.insert(ISR, vector);
        self.serving = vector;
        self.page[PPR as usize / 4].store((vector & 0xf0).into(), Ordering::Relaxed);
        self.remove(IRR, vector);
        self.requesting = self.highest(IRR);
        Some(vector)
    }

    /// "EOI Virtualization". Returns the vector of an EOI-induced exit.
    fn end(&mut self) -> Option<u8> {
        let vector = self.serving;
        self.remove(ISR, vector);
        self.serving = self.highest(ISR);
        self.virtualize_ppr();
        self.exits.contains(vector).then_some(vector)
    }
}

#[derive(Clone, Debug)]
enum Event {
    /// A message from another processor.
    Message(u8, bool),
    /// A self-IPI.
    SelfIpi(u8),
    /// A local interrupt from the owner, such as the timer's.
    Own(u8),
    /// The guest takes deliverable interrupts.
    Take,
    End,
    /// An EOI write emulated by the owner: the APIC-access page is not mapped.
    EmulatedEnd,
    /// HLT: the owner checks for a wake-up event.
    Wait,
    Priority(u8),
    /// An exit and entry for another reason.
    Exit,
}

fn event() -> impl Strategy<Value = Event> {
    // A vector is always either edge- or level-triggered, as in hardware.
    let vector = || prop_oneof![4 => 0x10_u8..0x60, 1 => 0x10_u8..=0xff];
    let edge = |vector: u8| if vector.is_multiple_of(5) { vector ^ 1 } else { vector };
    prop_oneof![
        4 => vector().prop_map(|vector| Event::Message(vector, vector % 5 == 0)),
        2 => vector().prop_map(move |vector| Event::SelfIpi(edge(vector))),
        2 => vector().prop_map(move |vector| Event::Own(edge(vector))),
        4 => Just(Event::Take),
        3 => Just(Event::End),
        2 => Just(Event::EmulatedEnd),
        1 => Just(Event::Wait),
        1 => any::<u8>().prop_map(Event::Priority),
        1 => Just(Event::Exit),
    ]
}

proptest! {
    #[test]
    fn virtualized_and_emulated_delivery_agree(events in prop::collection::vec(event(), 1..150), posted: bool) {
        let mut model = apic();
        let mut processor = Processor::new();
        for event in events {
            match event {
                Event::Message(vector, level) => {
                    model.pages().receive(fixed(vector, level));
                    match processor.apic.pages().receive(fixed(vector, level)) {
                        Received::Interrupt if posted => processor.process_posted(),
                        Received::Interrupt | Received::Level => processor.enter(),
                        other => prop_assert!(false, "{other:?}"),
                    }
                }
                Event::SelfIpi(vector) => {
                    model.pages().receive(fixed(vector, false));
                    processor.request(vector);
                }
                Event::Own(vector) => {
                    model.post(vector);
                    if processor.apic.request_at_once(vector) {
                        processor.requesting = processor.requesting.max(vector);
                    } else {
                        processor.apic.post(vector);
                        processor.enter();
                    }
                }
                Event::Take => prop_assert_eq!(processor.deliver(), model.acknowledge()),
                Event::End => {
                    let exit = if processor.serving == 0 { None } else { processor.end() };
                    let told = exit.map_or(Effect::None, |vector| {
                        let effect = processor.apic.ended(vector);
                        processor.enter();
                        effect
                    });
                    prop_assert_eq!(told, model.end());
                }
                Event::EmulatedEnd => {
                    prop_assert_eq!(processor.apic.write(EOI, 0, 0), model.end());
                    processor.enter();
                }
                Event::Wait => {
                    // Only interrupts not yet in RVI may be missing.
                    if processor.apic.will_deliver(processor.requesting) {
                        prop_assert!(model.is_pending());
                    }
                    prop_assert_eq!(processor.apic.is_pending(), model.is_pending());
                    processor.enter();
                }
                Event::Priority(value) => {
                    processor.page[TPR as usize / 4].store(value.into(), Ordering::Relaxed);
                    processor.virtualize_ppr();
                    model.set_task_priority(value);
                }
                Event::Exit => processor.enter(),
            }
            prop_assert_eq!(processor.recognized(), model.pending());
            prop_assert_eq!(processor.apic.will_deliver(processor.requesting), model.pending().is_some());
            prop_assert_eq!(processor.register(PPR), model.pages().processor_priority());
        }
    }
}

/// A register write performed by APIC virtualization ("APIC-Write VM Exits") has the effects of an emulated
/// write.
#[test]
fn an_apic_write_exit_equals_an_emulated_write() {
    let writes = [
        (ID, 0x7700_0000),
        (LDR, 0x12ff_ffff),
        (DFR, 0),
        (ICR_HIGH, 0xff00_0000),
        (ICR, 0x4_40ff_u32),
        (ICR, 0xc_4500),
        (LVT_TIMER, 0xffff_ff40),
        (LVT_TIMER, 0x2_0041),
        (DIVIDE, 0xff),
        (INITIAL_COUNT, 1000),
        (DIVIDE, 1),
        (LVT_TIMER, 0x4_0042),
        (INITIAL_COUNT, 77),
        (LVT_LINT0, u32::MAX),
        (LVT_ERROR, 0x30),
        (ICR, 0x4_4003),
        (ESR, 5),
        (SVR, 0x10ff),
        (SVR, u32::MAX),
        (EOI, 9),
        (TPR, 0x120),
    ];
    let (mut model, mut processor) = (apic(), Processor::new());
    for (now, (offset, value)) in (0..).step_by(13).zip(writes) {
        processor.page[offset as usize / 4].store(value, Ordering::Relaxed);
        assert_eq!(processor.apic.written(offset, now), model.write(offset, value, now), "{offset:#x}");
        for register in (0..0x400).step_by(16).filter(|&register| register != EOI) {
            assert_eq!(processor.apic.read(register, now), model.read(register, now), "{register:#x} after {offset:#x}");
            let kept = processor.page[register as usize / 4].load(Ordering::Relaxed);
            if ![PPR, CURRENT_COUNT].contains(&register) {
                assert_eq!(kept, model.read(register, now), "{register:#x} in the page after {offset:#x}");
            }
        }
        assert_eq!(processor.apic.timer_deadline(), model.timer_deadline());
    }
}

/// RDMSR answers from the virtual-APIC page equal the model's, for exactly the registers so configured.
#[test]
fn registers_read_from_the_page_equal_the_model() {
    let mut processor = Processor::new();
    processor.apic.set_base(processor.apic.pages().base() | 1 << 10, 39).unwrap();
    processor.apic.write_msr(0x830, 0x1234_5678_0000_4040, 0).unwrap();
    processor.apic.set_task_priority(0x5a);
    processor.enter();
    for msr in 0x800..0x900 {
        let at = (msr as usize - 0x800) * 4;
        let [low, high] = [at, at + 1].map(|word| u64::from(processor.page[word].load(Ordering::Relaxed)));
        let answer = processor.apic.read_msr(msr, 0);
        match msr {
            // The count changes; the other registers not answered from the page don't exist.
            0x839 => assert!(answer.is_ok() && !is_kept(msr, true)),
            0x80a => assert!(is_kept(msr, true) && !is_kept(msr, false) && answer == Ok(low)),
            _ => assert_eq!(is_kept(msr, true).then_some(low | high << 32), answer.ok(), "{msr:#x}"),
        }
    }
}
