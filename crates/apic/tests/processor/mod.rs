//! A processor with APIC virtualization, and the comparison of its deliveries with the software model's.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use stile_apic::offset::{EOI, IRR, ISR, PPR, SVR, TPR};
use stile_apic::{Delivery, Destination, Effect, LocalApic, Message, Pages, Received, Vectors};

/// Pages for one APIC.
pub fn pages() -> &'static Pages {
    Box::leak(Box::default())
}

/// An enabled APIC with these pages, as after a reset.
pub fn apic(pages: &'static Pages) -> LocalApic<'static> {
    pages.reset(0, true);
    let mut apic = LocalApic::new(pages);
    apic.write(SVR, 0x1ff, 0);
    apic
}

pub fn fixed(vector: u8, level: bool) -> Message {
    Message { destination: Destination::Own, delivery: Delivery::Fixed, vector, level }
}

/// A processor model with a running guest: it accesses the two pages by their layout, like hardware ("APIC
/// Virtualization and Virtual Interrupts").
pub struct Processor {
    pub apic: LocalApic<'static>,
    pub page: &'static [AtomicU32; 1024],
    posted: &'static [AtomicU64; 8],
    /// RVI and SVI.
    requesting: u8,
    serving: u8,
    exits: Vectors,
}

impl Processor {
    pub fn new(pages: &'static Pages) -> Self {
        let apic = apic(pages);
        let pages = &raw const *apic.pages();
        // SAFETY: the layout is the hardware's, and both consist of atomics only.
        let (page, posted) = unsafe { (&*pages.cast(), &*pages.byte_add(Pages::DESCRIPTOR).cast()) };
        let mut new = Self { apic, page, posted, requesting: 0, serving: 0, exits: Vectors::NONE };
        new.apic.set_assisted(true);
        new.enter();
        new
    }

    /// An exit, with the owner's work, and the entry.
    pub fn enter(&mut self) {
        if let Some(status) = self.apic.take_status() {
            [self.requesting, self.serving] = status.interrupts.to_le_bytes();
            self.exits = status.exits.unwrap_or(self.exits);
        }
        self.virtualize_ppr();
    }

    pub fn word(&self, set: u32, vector: u8) -> &AtomicU32 {
        &self.page[(set / 4 + u32::from(vector / 32) * 4) as usize]
    }

    pub fn insert(&self, set: u32, vector: u8) {
        self.word(set, vector).fetch_or(1 << (vector % 32), Ordering::Relaxed);
    }

    pub fn remove(&self, set: u32, vector: u8) {
        self.word(set, vector).fetch_and(!(1 << (vector % 32)), Ordering::Relaxed);
    }

    pub fn highest(&self, set: u32) -> u8 {
        (0..=255).rev().find(|&vector| self.word(set, vector).load(Ordering::Relaxed) >> (vector % 32) & 1 != 0).unwrap_or(0)
    }

    pub fn register(&self, offset: u32) -> u8 {
        self.page[offset as usize / 4].load(Ordering::Relaxed) as u8
    }

    pub fn virtualize_ppr(&self) {
        let tpr = self.register(TPR);
        let ppr = if tpr >> 4 >= self.serving >> 4 { tpr } else { self.serving & 0xf0 };
        self.page[PPR as usize / 4].store(ppr.into(), Ordering::Relaxed);
    }

    pub fn recognized(&self) -> Option<u8> {
        (self.requesting >> 4 > self.register(PPR) >> 4).then_some(self.requesting)
    }

    pub fn request(&mut self, vector: u8) {
        self.insert(IRR, vector);
        self.requesting = self.requesting.max(vector);
    }

    /// "Posted-Interrupt Processing".
    pub fn process_posted(&mut self) {
        self.posted[4].fetch_and(!1, Ordering::Relaxed);
        for (word, at) in self.posted[..4].iter().zip([0_u8, 64, 128, 192]) {
            let requests = word.swap(0, Ordering::Relaxed);
            (0..64).filter(|bit| requests >> bit & 1 != 0).for_each(|bit| self.request(at + bit));
        }
    }

    /// "Virtual-Interrupt Delivery".
    pub fn deliver(&mut self) -> Option<u8> {
        let vector = self.recognized()?;
        self.insert(ISR, vector);
        self.serving = vector;
        self.page[PPR as usize / 4].store((vector & 0xf0).into(), Ordering::Relaxed);
        self.remove(IRR, vector);
        self.requesting = self.highest(IRR);
        Some(vector)
    }

    /// "EOI Virtualization". Returns the vector of an EOI-induced exit.
    pub fn end(&mut self) -> Option<u8> {
        let vector = self.serving;
        self.remove(ISR, vector);
        self.serving = self.highest(ISR);
        self.virtualize_ppr();
        self.exits.contains(vector).then_some(vector)
    }
}

#[derive(Clone, Debug)]
pub enum Event {
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
    /// Messages from other processors during an exit. The notification reaches the processor at the entry, before the
    /// kick for a level-triggered one.
    Late(Vec<(u8, bool)>),
    /// An exit, and work of the owner before the entry. Meanwhile the processor runs an L2, and leaves PPR as it is.
    Away(Vec<Away>),
}

/// Work of the owner on the APIC of a guest that does not run.
#[derive(Clone, Debug)]
pub enum Away {
    /// Interrupts are taken.
    Take,
    End,
    Priority(u8),
    /// A message from another processor.
    Message(u8),
}

impl Processor {
    fn work(&mut self, away: &Away, model: &mut LocalApic<'_>) {
        match *away {
            Away::Take => {
                let taken = if self.apic.is_pending() { self.apic.acknowledge() } else { None };
                assert_eq!(taken, model.acknowledge());
            }
            Away::End => assert_eq!(self.apic.write(EOI, 0, 0), model.end()),
            Away::Priority(value) => {
                self.apic.set_task_priority(value);
                model.set_task_priority(value);
            }
            Away::Message(vector) => {
                model.pages().receive(fixed(vector, false));
                self.apic.pages().receive(fixed(vector, false));
            }
        }
        if let Some(status) = self.apic.take_status() {
            [self.requesting, self.serving] = status.interrupts.to_le_bytes();
            self.exits = status.exits.unwrap_or(self.exits);
        }
        let status = u16::from_le_bytes([self.requesting, self.serving]);
        assert_eq!(self.apic.can_deliver(status), model.pending().is_some(), "{away:?}");
        assert!(!self.apic.is_quiet(status) || model.pending().is_none(), "{away:?}");
    }
}

/// Performs the events on the model and on the processor, with these pages. Panics if they differ.
pub fn compare(events: impl IntoIterator<Item = Event>, posted: bool, pages: [&'static Pages; 2]) {
    let [model, processor] = pages;
    let mut model = apic(model);
    let mut processor = Processor::new(processor);
    for event in events {
        match event {
            Event::Message(vector, level) => {
                model.pages().receive(fixed(vector, level));
                match processor.apic.pages().receive(fixed(vector, level)) {
                    Received::Interrupt if posted => processor.process_posted(),
                    Received::Interrupt | Received::Level => processor.enter(),
                    other => panic!("{other:?}"),
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
            Event::Take => assert_eq!(processor.deliver(), model.acknowledge()),
            Event::End => {
                let exit = if processor.serving == 0 { None } else { processor.end() };
                let told = exit.map_or(Effect::None, |vector| {
                    let effect = processor.apic.ended(vector);
                    processor.enter();
                    effect
                });
                assert_eq!(told, model.end());
            }
            Event::EmulatedEnd => {
                assert_eq!(processor.apic.write(EOI, 0, 0), model.end());
                processor.enter();
            }
            Event::Wait => {
                // Only interrupts not yet in RVI may be missing.
                if processor.apic.will_deliver(processor.requesting) {
                    assert!(model.is_pending());
                }
                assert_eq!(processor.apic.is_pending(), model.is_pending());
                processor.enter();
            }
            Event::Priority(value) => {
                processor.page[TPR as usize / 4].store(value.into(), Ordering::Relaxed);
                processor.virtualize_ppr();
                model.set_task_priority(value);
            }
            Event::Exit => processor.enter(),
            Event::Late(messages) => {
                let mut received = Vec::new();
                for (vector, level) in messages {
                    model.pages().receive(fixed(vector, level));
                    received.push(processor.apic.pages().receive(fixed(vector, level)));
                }
                if posted && received.contains(&Received::Interrupt) {
                    processor.process_posted();
                }
                if !posted || received.contains(&Received::Level) {
                    processor.enter();
                }
            }
            Event::Away(work) => {
                work.iter().for_each(|away| processor.work(away, &mut model));
                processor.enter();
            }
        }
        assert_eq!(processor.recognized(), model.pending());
        assert_eq!(processor.apic.will_deliver(processor.requesting), model.pending().is_some());
        assert_eq!(processor.register(PPR), model.pages().processor_priority());
    }
}
