//! APIC virtualization against the software model: the same events in the same order deliver the same
//! interrupts.

mod processor;

use std::sync::atomic::Ordering;

use processor::{Away, Event, Processor, apic, compare, fixed, pages};
use proptest::prelude::*;
use stile_apic::offset::*;
use stile_apic::reads_from_page;

fn event() -> impl Strategy<Value = Event> {
    // A vector is always either edge- or level-triggered, as in hardware.
    let vector = || prop_oneof![4 => 0x10_u8..0x60, 1 => 0x10_u8..=0xff];
    let edge = |vector: u8| if vector.is_multiple_of(5) { vector ^ 1 } else { vector };
    let away = prop_oneof![
        Just(Away::Take),
        Just(Away::End),
        any::<u8>().prop_map(Away::Priority),
        vector().prop_map(move |vector| Away::Message(edge(vector))),
    ];
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
        1 => prop::collection::vec(vector().prop_map(|vector| (vector, vector % 5 == 0)), 1..5).prop_map(Event::Late),
        1 => prop::collection::vec(away, 1..8).prop_map(Event::Away),
    ]
}

proptest! {
    #[test]
    fn virtualized_and_emulated_delivery_agree(events in prop::collection::vec(event(), 1..150), posted: bool) {
        compare(events, posted, [pages(), pages()]);
    }
}

/// A notification that the processor handles only at the entry clears ON, but takes no level-triggered interrupt: the
/// exit for that one merges it.
#[test]
fn a_late_notification_leaves_level_triggered_interrupts() {
    let mut processor = Processor::new(pages());
    for (vector, level) in [(0x41, false), (0x55, true)] {
        processor.apic.pages().receive(fixed(vector, level));
    }
    processor.process_posted();
    assert_eq!(processor.recognized(), Some(0x41));
    processor.enter();
    assert_eq!(processor.recognized(), Some(0x55));
}

/// An EOI and a lower TPR, while the processor does not run the guest, unblock interrupts at once.
#[test]
fn interrupts_are_unblocked_without_an_entry() {
    use Event::{Message, Take};
    let requests = [Message(0x51, false), Take, Message(0x41, false)];
    let ended = Event::Away(vec![Away::End, Away::Take, Away::End]);
    let lowered = Event::Away(vec![Away::Priority(0xf0), Away::Message(0x31), Away::Priority(0), Away::Take]);
    compare(requests.into_iter().chain([ended, lowered]), false, [pages(), pages()]);
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
    let (mut model, mut processor) = (apic(pages()), Processor::new(pages()));
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
    let mut processor = Processor::new(pages());
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
            0x839 => assert!(answer.is_ok() && !reads_from_page(msr, true)),
            0x80a => assert!(reads_from_page(msr, true) && !reads_from_page(msr, false) && answer == Ok(low)),
            _ => assert_eq!(reads_from_page(msr, true).then_some(low | high << 32), answer.ok(), "{msr:#x}"),
        }
    }
}
