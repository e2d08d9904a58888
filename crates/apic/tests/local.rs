//! The local APIC: registers in both modes, timer, destinations. Priorities are in `priorities.rs`.

use proptest::prelude::*;
use stile_apic::offset::*;
use stile_apic::{Delivery, Destination, Effect, GeneralProtection, LocalApic, Message, Mode, Pages, Received};

fn reset(id: u32) -> LocalApic<'static> {
    let pages: &Pages = Box::leak(Box::default());
    pages.reset(id, true);
    LocalApic::new(pages)
}

fn enabled(id: u32) -> LocalApic<'static> {
    let mut apic = reset(id);
    assert_eq!(apic.write(SVR, 0x1ff, 0), Effect::None);
    apic
}

fn wide(id: u32) -> LocalApic<'static> {
    let mut apic = enabled(id);
    apic.set_base(apic.pages().base() | 1 << 10, 39).unwrap();
    assert_eq!(apic.mode(), Mode::X2Apic);
    apic
}

fn fixed(vector: u8, level: bool) -> Message {
    Message { destination: Destination::Own, delivery: Delivery::Fixed, vector, level }
}

proptest! {
    /// The fast path of self-IPIs has the effect of the full ICR write, or none.
    #[test]
    fn the_self_ipi_fast_path_equals_the_icr_write(value in any::<u32>(), own: bool) {
        let value = if own { value & !0xc_0700 | 0x4_0000 } else { value };
        let (mut plain, mut short) = (enabled(0), enabled(0));
        let vector = match plain.write(ICR, value, 0) {
            Effect::Send(Message { destination: Destination::Own, delivery: Delivery::Fixed, vector, level: false }) => Some(vector),
            _ => None,
        };
        prop_assert_eq!(short.send_to_self(value), vector);
        if vector.is_some() {
            prop_assert_eq!(short.read(ICR, 0), plain.read(ICR, 0));
        }
    }

    /// The fast path of the x2APIC ICR has the effect of the full write, or none.
    #[test]
    fn the_unicast_fast_path_equals_the_icr_write(low in any::<u32>(), id in prop_oneof![Just(3), Just(u32::MAX), any::<u32>()], plain_kind: bool) {
        let low = if plain_kind { low & 0x4_c0ff } else { low };
        let value = u64::from(id) << 32 | u64::from(low);
        let (mut full, mut fast) = (wide(3), wide(3));
        let expected = match full.write_msr(MSR_BASE + ICR / 16, value, 0) {
            Ok(Effect::Send(Message { destination, delivery: Delivery::Fixed, vector, level: false })) => match destination {
                Destination::Own => Some((3, vector)),
                Destination::Physical(id) => Some((id, vector)),
                _ => None,
            },
            _ => None,
        };
        prop_assert_eq!(fast.send_to_one(value), expected);
        if expected.is_some() {
            prop_assert_eq!(fast.read_msr(MSR_BASE + ICR / 16, 0), full.read_msr(MSR_BASE + ICR / 16, 0));
        }
        let mut with_gaps = wide(3).with_gaps(true);
        with_gaps.init();
        let to_self = low & 0xc_0000 == 0x4_0000;
        prop_assert_eq!(with_gaps.send_to_one(value), expected.filter(|_| to_self));
    }

    /// Arbitrary writes to any register, in both modes: no panic, and only valid messages.
    #[test]
    fn arbitrary_writes_never_panic(writes in prop::collection::vec((0..0x400_u32, any::<u64>(), any::<bool>()), 1..100), x2 in any::<bool>()) {
        let mut apic = if x2 { wide(3) } else { enabled(3) };
        let mut now = 0_u64;
        for (offset, value, aligned) in writes {
            now = now.wrapping_add(value >> 20);
            let offset = if aligned { offset & !15 } else { offset };
            let effect = if x2 { apic.write_msr(MSR_BASE + offset / 16, value, now) } else { Ok(apic.write(offset, value as u32, now)) };
            if let Ok(Effect::Send(message)) = effect {
                prop_assert!(message.vector >= 16 || !matches!(message.delivery, Delivery::Fixed | Delivery::LowestPriority));
                prop_assert!(!matches!(message.delivery, Delivery::External));
                apic.pages().receive(message);
            }
            apic.set_tsc_deadline(value);
            apic.expire_timer(now);
            prop_assert!(apic.timer_deadline().is_none_or(|next| next > now));
            if x2 { let _ = apic.read_msr(MSR_BASE + offset / 16, now); } else { apic.read(offset, now); }
        }
    }

    /// Count and interrupts of the timer, against step-by-step counting.
    #[test]
    fn the_timer_counts(initial in 1..40_u32, divide in prop::sample::select(&[(0xb_u32, 1_u64), (0, 2), (1, 4), (3, 16), (8, 32)][..]), periodic: bool, steps in prop::collection::vec(0..90_u64, 1..30)) {
        let mut apic = enabled(0);
        let (code, divisor) = divide;
        apic.write(LVT_TIMER, 0x40 | u32::from(periodic) << 17, 0);
        apic.write(DIVIDE, code, 0);
        apic.write(INITIAL_COUNT, initial, 0);
        let (mut now, mut count, mut fired) = (0, u64::from(initial) * divisor, false);
        for step in steps {
            for _ in 0..step {
                if count > 0 {
                    count -= 1;
                    if count == 0 {
                        fired = true;
                        count = if periodic { u64::from(initial) * divisor } else { 0 };
                    }
                }
            }
            now += step;
            prop_assert_eq!(u64::from(apic.read(CURRENT_COUNT, now)), count / divisor);
            prop_assert_eq!(apic.expire_timer(now), if fired { Received::Interrupt } else { Received::Nothing });
            apic.merge();
            prop_assert_eq!(u64::from(apic.read(CURRENT_COUNT, now)), count / divisor);
            prop_assert_eq!(apic.timer_deadline(), (count > 0).then_some(now + count));
            fired = false;
        }
    }
}

#[test]
fn a_deadline_fires_once_and_then_reads_as_zero() {
    let mut apic = enabled(0);
    apic.set_tsc_deadline(100);
    assert_eq!((apic.tsc_deadline(), apic.timer_deadline()), (0, None), "not in deadline mode");
    apic.write(LVT_TIMER, 0x40 | 2 << 17, 0);
    apic.set_tsc_deadline(100);
    assert_eq!((apic.tsc_deadline(), apic.timer_deadline()), (100, Some(100)));
    apic.write(INITIAL_COUNT, 5, 0);
    assert_eq!(apic.read(CURRENT_COUNT, 50), 0);
    assert_eq!(apic.expire_timer(99), Received::Nothing);
    assert_eq!(apic.expire_timer(100), Received::Interrupt);
    assert_eq!((apic.tsc_deadline(), apic.timer_deadline(), apic.pending()), (0, None, Some(0x40)));
    apic.set_tsc_deadline(200);
    apic.set_tsc_deadline(0);
    assert_eq!(apic.timer_deadline(), None);
    apic.set_tsc_deadline(300);
    apic.write(LVT_TIMER, 0x40, 0);
    assert_eq!((apic.tsc_deadline(), apic.timer_deadline()), (0, None), "leaving deadline mode disarms the timer");
}

/// A vCPU that was paused has as much of the timer's time left as before.
#[test]
fn a_pause_moves_the_next_expiry() {
    const DIVIDE: u32 = 0x3e0;
    const BY_ONE: u32 = 0b1011;
    for mode in [0, 1 << 17, 2 << 17] {
        let mut apic = enabled(0);
        apic.hold_timer(1000);
        assert_eq!(apic.timer_deadline(), None, "a timer that is stopped stays so");
        apic.write(DIVIDE, BY_ONE, 0);
        apic.write(LVT_TIMER, 0x40 | mode, 0);
        apic.write(INITIAL_COUNT, 100, 0);
        apic.set_tsc_deadline(100);
        apic.hold_timer(1000);
        assert_eq!(apic.timer_deadline(), Some(1100), "mode {mode:#x}");
        assert_eq!((apic.expire_timer(1099), apic.expire_timer(1100)), (Received::Nothing, Received::Interrupt));
    }
}

/// A vCPU for which time has passed at once has as much less of the timer's time left.
#[test]
fn time_that_passed_at_once_moves_the_next_expiry() {
    for (passed, next) in [(40, 1060), (5000, 1)] {
        let mut apic = enabled(0);
        apic.advance_timer(passed);
        assert_eq!(apic.timer_deadline(), None, "a timer that is stopped stays so");
        apic.write(LVT_TIMER, 0x40 | 2 << 17, 0);
        apic.set_tsc_deadline(1100);
        apic.advance_timer(passed);
        assert_eq!(apic.timer_deadline(), Some(next));
    }
}

/// A deadline stored directly has the effect of a WRMSR, and direct storage is available only while that
/// holds.
#[test]
fn a_directly_stored_deadline_equals_a_written_one() {
    let mut apic = enabled(0);
    assert_eq!(apic.tsc_deadline_slot(), None, "one-shot mode");
    apic.write(LVT_TIMER, 0x5_0040, 0);
    assert_eq!(apic.tsc_deadline_slot(), None, "masked");
    apic.write(LVT_TIMER, 0x4_0040, 0);
    *apic.tsc_deadline_slot().unwrap() = 500;
    assert_eq!((apic.tsc_deadline(), apic.timer_deadline()), (500, Some(500)));
    assert_eq!((apic.fire_timer(499), apic.fire_timer(500), apic.fire_timer(501)), (None, Some(0x40), None));
    assert_eq!((apic.tsc_deadline(), apic.timer_deadline(), apic.pending()), (0, None, None));
    *apic.tsc_deadline_slot().unwrap() = 600;
    *apic.tsc_deadline_slot().unwrap() = 0;
    assert_eq!(apic.fire_timer(u64::MAX), None, "zero disarms it");
    apic.write(SVR, 0xff, 0);
    assert_eq!(apic.tsc_deadline_slot(), None, "disabling the APIC masks it");
}

#[test]
fn destinations() {
    let ids = |destination: Destination, apics: &[LocalApic]| -> Vec<usize> {
        apics.iter().enumerate().filter(|(_, apic)| apic.pages().is_target(destination, 1)).map(|(i, _)| i).collect()
    };
    let mut flat: Vec<_> = (0..4).map(enabled).collect();
    for (i, apic) in flat.iter_mut().enumerate() {
        apic.write(LDR, 1 << (24 + i), 0);
    }
    assert_eq!(ids(Destination::Own, &flat), [1]);
    assert_eq!(ids(Destination::All, &flat), [0, 1, 2, 3]);
    assert_eq!(ids(Destination::Others, &flat), [0, 2, 3]);
    assert_eq!(ids(Destination::Physical(2), &flat), [2]);
    assert_eq!(ids(Destination::Logical { mask: 0b1010, wide: false }, &flat), [1, 3]);
    for (i, apic) in flat.iter_mut().enumerate() {
        apic.write(DFR, 0x0fff_ffff, 0);
        apic.write(LDR, (i as u32 / 2) << 28 | 1 << (24 + i % 2), 0);
    }
    assert_eq!(ids(Destination::Logical { mask: 0x13, wide: false }, &flat), [2, 3]);
    assert_eq!(ids(Destination::Logical { mask: 0xf2, wide: false }, &flat), [1, 3]);
    let x2: Vec<_> = [0, 1, 17, 18].map(wide).into();
    assert_eq!(ids(Destination::Logical { mask: 0x1_0006, wide: true }, &x2), [2, 3]);
    assert_eq!(ids(Destination::Logical { mask: 0x2, wide: false }, &x2), [1]);
    assert_eq!(ids(Destination::Physical(17), &x2), [2]);
    let mut off = enabled(1);
    off.set_base(0xfee0_0000, 39).unwrap();
    assert!(!off.pages().is_target(Destination::All, 0));
}

fn send(apic: &mut LocalApic, high: u32, low: u32) -> Effect {
    apic.write(ICR_HIGH, high, 0);
    apic.write(ICR, low, 0)
}

#[test]
fn interrupt_commands_are_decoded() {
    let message = |destination, delivery, vector| Effect::Send(Message { destination, delivery, vector, level: false });
    let mut apic = enabled(1);
    assert_eq!(send(&mut apic, 2 << 24, 0x4040), message(Destination::Physical(2), Delivery::Fixed, 0x40));
    assert_eq!(send(&mut apic, 0xff << 24, 0x4040), message(Destination::All, Delivery::Fixed, 0x40));
    assert_eq!(send(&mut apic, 0xff << 24, 0x4840), message(Destination::All, Delivery::Fixed, 0x40), "whatever the logical IDs are");
    assert_eq!(send(&mut apic, 5 << 24, 0x4940), message(Destination::Logical { mask: 5, wide: false }, Delivery::LowestPriority, 0x40));
    assert_eq!(send(&mut apic, 0, 0x0004_4040), message(Destination::Own, Delivery::Fixed, 0x40));
    assert_eq!(send(&mut apic, 0, 0x0008_4040), message(Destination::All, Delivery::Fixed, 0x40));
    assert_eq!(send(&mut apic, 0, 0x000c_4500), message(Destination::Others, Delivery::Init, 0));
    assert_eq!(send(&mut apic, 3 << 24, 0xc500), message(Destination::Physical(3), Delivery::Init, 0));
    assert_eq!(send(&mut apic, 3 << 24, 0x8500), Effect::None, "INIT level de-assert");
    assert_eq!(send(&mut apic, 3 << 24, 0x4699), message(Destination::Physical(3), Delivery::Startup, 0x99));
    assert_eq!(send(&mut apic, 3 << 24, 0x4400), message(Destination::Physical(3), Delivery::Nmi, 0));
    assert_eq!(apic.read(ICR, 0) & 1 << 12, 0, "never busy");
    let mut apic = wide(1);
    assert_eq!(apic.write_msr(0x830, 0x1_0000_0000_4240, 0), Ok(message(Destination::Physical(0x1_0000), Delivery::Smi, 0x40)));
    assert_eq!(apic.write_msr(0x830, 0xffff_ffff_0000_4040, 0), Ok(message(Destination::All, Delivery::Fixed, 0x40)));
    assert_eq!(apic.write_msr(0x830, 0xffff_ffff_0000_4840, 0), Ok(message(Destination::All, Delivery::Fixed, 0x40)));
    assert_eq!(apic.write_msr(0x83f, 0x33, 0), Ok(message(Destination::Own, Delivery::Fixed, 0x33)));
}

#[test]
fn errors_accumulate_until_esr_is_latched() {
    let mut apic = enabled(0);
    apic.write(LVT_ERROR, 0xfe, 0);
    assert_eq!(send(&mut apic, 0, 0x4_4005), Effect::None);
    assert_eq!(apic.pending(), Some(0xfe));
    assert_eq!(apic.read(ESR, 0), 0);
    apic.write(ESR, 0, 0);
    assert_eq!(apic.read(ESR, 0), 1 << 5);
    apic.pages().receive(fixed(3, false));
    apic.read(0x400, 0);
    apic.write(ESR, 0, 0);
    assert_eq!(apic.read(ESR, 0), 1 << 6 | 1 << 7);
    apic.write(ESR, 0, 0);
    assert_eq!(apic.read(ESR, 0), 0);
}

#[test]
fn invalid_msr_accesses_raise_gp() {
    let mut apic = wide(0x25);
    let gp = Err(GeneralProtection);
    assert_eq!(apic.read_msr(0x802, 0), Ok(0x25));
    assert_eq!(apic.read_msr(0x80d, 0), Ok(0x2_0020));
    for msr in [0x80b, 0x80e, 0x831, 0x83f, 0x801, 0x8ff] {
        assert_eq!(apic.read_msr(msr, 0), Err(GeneralProtection), "{msr:x}");
    }
    for (msr, value) in
        [(0x802, 0), (0x80d, 0), (0x80b, 1), (0x828, 1), (0x808, 0x100), (0x831, 0), (0x839, 0), (0x80f, 1 << 13), (0x810, 0), (0x800, 0)]
    {
        assert_eq!(apic.write_msr(msr, value, 0), gp.map(|()| Effect::None), "{msr:x}");
    }
    assert_eq!(apic.write_msr(0x80b, 0, 0), Ok(Effect::None));
    assert!(enabled(0).read_msr(0x802, 0).is_err(), "no MSRs in xAPIC mode");
    assert_eq!(enabled(3).read(ID, 0), 3 << 24);
}

#[test]
fn mode_transitions_follow_the_state_machine() {
    const EN: u64 = 1 << 11;
    const X2: u64 = 1 << 10;
    // (from, to, allowed)
    for (from, to, allowed) in [
        (EN, EN | X2, true),
        (EN, 0, true),
        (EN, X2, false),
        (EN | X2, EN, false),
        (EN | X2, 0, true),
        (0, EN | X2, false),
        (0, X2, false),
        (0, EN, true),
    ] {
        let mut apic = enabled(0);
        for step in [EN, from] {
            apic.set_base(0xfee0_0000 | step, 39).unwrap();
        }
        assert_eq!(apic.set_base(0xfee0_0000 | to, 39).is_ok(), allowed, "{from:x} to {to:x}");
    }
    assert!(enabled(0).set_base(1 << 39 | EN, 39).is_err());
    assert!(enabled(0).set_base(1 | EN, 39).is_err());
    // The logical ID of x2APIC mode ends with it.
    let mut apic = wide(0x23);
    assert_eq!(apic.register(LDR, 0), Some(2 << 16 | 1 << 3));
    apic.set_base(0xfee0_0000, 39).unwrap();
    apic.set_base(0xfee0_0000 | EN, 39).unwrap();
    assert_eq!((apic.register(LDR, 0), apic.register(ID, 0)), (Some(0), Some(0x23 << 24)));
}

#[test]
fn extint_passes_through_lint0() {
    let mut apic = enabled(0);
    assert!(!apic.passes_external());
    apic.write(LVT_LINT0, 0x700, 0);
    assert!(apic.passes_external());
    assert_eq!(apic.pages().pulse(0), Received::External);
    apic.write(LVT_LINT1, 0x400, 0);
    assert_eq!(apic.pages().pulse(1), Received::Nmi);
    apic.write(SVR, 0xff, 0);
    assert!(!apic.passes_external(), "software-disabled: masked");
    apic.set_base(0xfee0_0000, 39).unwrap();
    assert!(apic.passes_external(), "APIC off: the pin is INTR");
}

#[test]
fn firmware_sets_virtual_wire_mode() {
    let apic = reset(0);
    assert!(!apic.passes_external());
    apic.pages().set_virtual_wire();
    assert!(apic.passes_external() && apic.pages().enabled());
    assert_eq!((apic.pages().pulse(0), apic.pages().pulse(1)), (Received::External, Received::Nmi));
}

#[test]
fn device_messages_are_decoded() {
    let expected = Message { destination: Destination::Physical(3), delivery: Delivery::Fixed, vector: 0x41, level: false };
    assert_eq!(Message::from_msi(0xfee0_3000, 0x41), Some(expected));
    assert_eq!(Message::from_msi(0xfed0_3000, 0x41), None);
    assert_eq!(Message::from_msi(0xfee0_3004, 0x41).unwrap().destination, Destination::Logical { mask: 3, wide: false });
    assert_eq!(Message::from_msi(0xfeef_f000, 0x41).unwrap().destination, Destination::All);
    assert_eq!(Message::from_msi(0xfee0_3000, 0x541).unwrap().delivery, Delivery::Init);
    assert_eq!(Message::from_msi(0xfee0_3000, 0x641), None, "startup is reserved for devices");
}

#[test]
fn the_end_of_a_level_interrupt_is_broadcast_unless_suppressed() {
    for (svr, effect) in [(0x1ff, Effect::End(0x50)), (0x11ff, Effect::None)] {
        let mut apic = enabled(0);
        apic.write(SVR, svr, 0);
        apic.pages().receive(fixed(0x50, true));
        assert_eq!(apic.acknowledge(), Some(0x50));
        assert_eq!(apic.write(EOI, 0, 0), effect);
        assert_eq!(apic.write(EOI, 0, 0), Effect::None, "no interrupt is in service");
    }
}

#[test]
fn plain_registers_equal_the_full_read() {
    let mut apic = enabled(5);
    apic.write(TPR, 0x35, 0);
    let plain: Vec<_> = (0..0x1000).step_by(4).filter(|&offset| apic.plain(offset).is_some()).collect();
    for &offset in &plain {
        assert_eq!(apic.plain(offset), apic.register(offset, 0), "{offset:#x}");
    }
    assert_eq!((plain.len(), apic.plain(TPR), apic.plain(ID)), (34, Some(0x35), Some(5 << 24)));
}

/// With the shorthands self and all-including-self, only fixed interrupts are valid.
#[test]
fn invalid_icr_combinations_are_ignored() {
    let mut apic = enabled(3);
    let mut sends = |command: u32| matches!(apic.write(ICR, command, 0), Effect::Send(_));
    for shorthand in [1, 2, 3] {
        // Fixed; lowest priority, SMI, NMI, INIT, startup.
        assert!(sends(shorthand << 18 | 0x4040));
        for mode in [1, 2, 4, 5, 6] {
            assert_eq!(sends(shorthand << 18 | mode << 8 | 0x4040), shorthand == 3);
        }
    }
}

/// An expiry while the timer's vector is masked raises no interrupt at the unmask.
#[test]
fn a_masked_expiry_is_dropped() {
    const MASKED: u32 = 1 << 16;
    const PERIODIC: u32 = 1 << 17;
    let mut apic = enabled(0);
    apic.write(DIVIDE, 0xb, 0);
    apic.write(LVT_TIMER, MASKED | 0x40, 0);
    apic.write(INITIAL_COUNT, 100, 0);
    apic.write(LVT_TIMER, 0x40, 150);
    assert_eq!((apic.timer_deadline(), apic.expire_timer(150), apic.pending()), (None, Received::Nothing, None));
    // A period continues.
    apic.write(LVT_TIMER, MASKED | PERIODIC | 0x40, 200);
    apic.write(INITIAL_COUNT, 100, 200);
    apic.write(LVT_TIMER, PERIODIC | 0x40, 450);
    assert_eq!(apic.timer_deadline(), Some(500));
    // A running count continues in the other mode.
    apic.write(LVT_TIMER, 0x40, 460);
    assert_eq!((apic.timer_deadline(), apic.read(CURRENT_COUNT, 460)), (Some(500), 40));
}

/// Between one-shot and periodic, the count continues; an expired one-shot does not restart.
#[test]
fn a_mode_change_preserves_the_count() {
    const PERIODIC: u32 = 1 << 17;
    let mut apic = enabled(0);
    apic.write(DIVIDE, 0xb, 0);
    apic.write(LVT_TIMER, 0x40, 0);
    apic.write(INITIAL_COUNT, 1000, 0);
    apic.write(LVT_TIMER, PERIODIC | 0x40, 600);
    assert_eq!((apic.read(INITIAL_COUNT, 600), apic.read(CURRENT_COUNT, 600)), (1000, 400));
    // The first period ends when the one-shot would have.
    assert_eq!(apic.expire_timer(1000), Received::Interrupt);
    assert_eq!(apic.read(CURRENT_COUNT, 1300), 700);
    apic.write(LVT_TIMER, 0x40, 1300);
    assert_eq!((apic.read(CURRENT_COUNT, 1300), apic.timer_deadline()), (700, Some(2000)));
    apic.expire_timer(2000);
    assert_eq!((apic.read(CURRENT_COUNT, 2100), apic.timer_deadline()), (0, None));
    apic.write(LVT_TIMER, PERIODIC | 0x40, 2200);
    assert_eq!((apic.read(CURRENT_COUNT, 2300), apic.timer_deadline()), (0, None));
}

#[test]
fn a_reverted_acknowledge_requests_the_interrupt_again() {
    let mut apic = enabled(0);
    apic.pages().receive(fixed(0x51, false));
    assert_eq!(apic.acknowledge(), Some(0x51));
    apic.put_back(0x51);
    assert_eq!(apic.take_status().map(|status| status.interrupts), Some(0x51), "RVI is set again");
    // A higher one takes precedence.
    apic.pages().receive(fixed(0x62, false));
    assert_eq!(apic.acknowledge(), Some(0x62));
    assert_eq!(apic.pending(), None);
    apic.end();
    assert_eq!(apic.acknowledge(), Some(0x51));
}

#[test]
fn only_a_single_posted_edge_is_acknowledged_at_once() {
    let mut apic = enabled(0);
    assert_eq!(apic.acknowledge_posted(), None);
    for (second, level) in [(0x52, false), (0xe0, false), (0x71, true)] {
        apic.pages().receive(fixed(0x51, false));
        apic.pages().receive(fixed(second, level));
        assert_eq!(apic.acknowledge_posted(), None, "{second:#x}");
        assert!(apic.pages().has_posted(), "they stay posted");
        assert_eq!((apic.acknowledge(), apic.acknowledge()), (Some(second), None));
        apic.end();
        assert_eq!(apic.acknowledge(), Some(0x51));
        apic.end();
    }
    // Its notification is taken: the next one is sent again.
    assert_eq!(apic.pages().receive(fixed(0x51, false)), Received::Interrupt);
    assert_eq!(apic.acknowledge_posted(), Some(0x51));
    assert_eq!(apic.pages().receive(fixed(0x51, false)), Received::Interrupt);
    assert_eq!(apic.acknowledge_posted(), None, "its priority is that of the one in service");
    apic.end();
    assert_eq!(apic.acknowledge(), Some(0x51));
}

#[test]
fn short_periods_are_extended() {
    let mut apic = enabled(0).with_least_period(1000);
    apic.write(DIVIDE, 0xb, 0);
    apic.write(LVT_TIMER, 1 << 17 | 0x40, 0);
    apic.write(INITIAL_COUNT, 1, 0);
    assert_eq!(apic.timer_deadline(), Some(1));
    apic.expire_timer(5);
    assert_eq!(apic.timer_deadline(), Some(1005));
    // INIT preserves the minimum, and longer periods are unchanged.
    apic.init();
    apic.write(SVR, 0x1ff, 0);
    apic.write(DIVIDE, 0xb, 0);
    apic.write(LVT_TIMER, 1 << 17 | 0x40, 0);
    apic.write(INITIAL_COUNT, 2000, 0);
    apic.expire_timer(2100);
    assert_eq!(apic.timer_deadline(), Some(4000));
    apic.write(INITIAL_COUNT, 10, 4000);
    apic.expire_timer(4010);
    assert_eq!(apic.timer_deadline(), Some(5010));
}
