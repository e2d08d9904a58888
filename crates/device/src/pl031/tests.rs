use super::*;
use proptest::prelude::*;

/// 2026-01-01.
const EPOCH: u32 = 1_767_225_600;

#[test]
fn counts_seconds_from_the_start() {
    let rtc = Pl031::new(EPOCH, 1000);
    assert_eq!(rtc.read(offset::DR, 1000), EPOCH);
    assert_eq!(rtc.read(offset::DR, 1060), EPOCH + 60);
    assert_eq!(rtc.read(offset::CR, 1000), 1);
}

#[test]
fn identifies_itself() {
    let rtc = Pl031::new(0, 0);
    let id = [0x31, 0x10, 0x14, 0x00, 0x0d, 0xf0, 0x05, 0xb1];
    for (offset, value) in (0xfe0..).step_by(4).zip(id) {
        assert_eq!(rtc.read(offset, 0), value);
    }
}

#[test]
fn can_be_set() {
    let mut rtc = Pl031::new(EPOCH, 10);
    assert_eq!(rtc.write(offset::LR, 77, 20), None);
    assert_eq!(rtc.read(offset::LR, 20), 77);
    assert_eq!(rtc.read(offset::DR, 20), 77);
    assert_eq!(rtc.read(offset::DR, 23), 80);
    assert_eq!(rtc.read(offset::DR + 1, 20), 0);
}

#[test]
fn stopping_it_has_no_effect() {
    let mut rtc = Pl031::new(EPOCH, 0);
    rtc.write(offset::CR, 0, 0);
    assert_eq!(rtc.read(offset::CR, 0), 1);
    assert_eq!(rtc.read(offset::DR, 5), EPOCH + 5);
}

#[test]
fn alarm_interrupts_at_its_time() {
    let mut rtc = Pl031::new(EPOCH, 100);
    assert_eq!(rtc.deadline(), None);
    assert_eq!(rtc.write(offset::MR, EPOCH + 30, 100), None);
    assert_eq!(rtc.deadline(), None, "masked");
    assert_eq!(rtc.write(offset::IMSC, 1, 101), None);
    assert_eq!(rtc.deadline(), Some(130));
    assert_eq!(rtc.expire(129), None);
    assert_eq!(rtc.read(offset::RIS, 129), 0);
    assert_eq!(rtc.read(offset::RIS, 130), 1);
    assert_eq!(rtc.expire(130), Some(true));
    assert_eq!(rtc.expire(131), None);
    assert_eq!(rtc.read(offset::MIS, 131), 1);
    assert_eq!(rtc.deadline(), None, "already raised");
    assert_eq!(rtc.write(offset::ICR, 1, 140), Some(false));
    assert_eq!(rtc.read(offset::RIS, 140), 0);
    assert_eq!(rtc.deadline(), Some(130 + (1 << 32)), "next time round");
}

#[test]
fn a_masked_alarm_is_remembered() {
    let mut rtc = Pl031::new(0, 0);
    rtc.write(offset::MR, 5, 0);
    assert_eq!(rtc.expire(6), None);
    assert_eq!(rtc.read(offset::RIS, 6), 1);
    assert_eq!(rtc.read(offset::MIS, 6), 0);
    assert_eq!(rtc.write(offset::IMSC, 1, 7), Some(true));
    assert!(rtc.irq());
}

#[test]
fn an_alarm_for_now_comes_at_once() {
    let mut rtc = Pl031::new(50, 0);
    rtc.write(offset::IMSC, 1, 0);
    assert_eq!(rtc.write(offset::MR, 50, 0), Some(true));
}

#[test]
fn setting_the_clock_moves_the_alarm() {
    let mut rtc = Pl031::new(0, 0);
    rtc.write(offset::IMSC, 1, 0);
    rtc.write(offset::MR, 1000, 0);
    assert_eq!(rtc.deadline(), Some(1000));
    rtc.write(offset::LR, 990, 0);
    assert_eq!(rtc.deadline(), Some(10));
    rtc.write(offset::LR, 1001, 0);
    assert_eq!(rtc.deadline(), Some((1 << 32) - 1));
}

#[test]
fn a_copy_does_not_repeat_a_cleared_alarm() {
    let mut rtc = Pl031::new(0, 0);
    rtc.write(offset::IMSC, 1, 0);
    rtc.write(offset::MR, 5, 0);
    assert_eq!(rtc.expire(5), Some(true));
    assert_eq!(rtc.write(offset::ICR, 1, 5), Some(false));
    let mut copy = Pl031::new(0, 0);
    assert!(!copy.restore(&rtc.save(), 5, 5));
    assert_eq!(copy.deadline(), rtc.deadline());
}

#[test]
fn clearing_after_the_time_clears_that_alarm() {
    let mut rtc = Pl031::new(0, 0);
    rtc.write(offset::IMSC, 1, 0);
    rtc.write(offset::MR, 5, 0);
    // Without a call of `expire` the raised alarm is cleared all the same, and the line never changes.
    assert_eq!(rtc.write(offset::ICR, 1, 9), None);
    assert_eq!(rtc.read(offset::RIS, 10), 0);
}

proptest! {
    #[test]
    fn reported_changes_match_the_level(
        steps in prop::collection::vec(
            (0u32..0x24, prop_oneof![0u32..40, any::<u32>()], 0u64..10),
            0..100,
        ),
    ) {
        let mut rtc = Pl031::new(0, 0);
        let (mut now, mut level) = (0, false);
        for (offset, value, wait) in steps {
            now += wait;
            if let Some(changed) = rtc.write(offset, value, now) {
                prop_assert_ne!(changed, level);
                level = changed;
            }
            prop_assert_eq!(rtc.irq(), level);
            prop_assert_eq!(rtc.read(self::offset::MIS, now) != 0, level);
            prop_assert!(rtc.deadline().is_none_or(|deadline| deadline > now));
        }
    }

    #[test]
    fn extreme_times_do_not_overflow(now: u64, value: u32, offset: u32) {
        let mut rtc = Pl031::new(value, now);
        rtc.write(offset::MR, value, now);
        rtc.write(offset, value, now);
        rtc.expire(u64::MAX);
        rtc.read(offset, now);
    }
}

proptest! {
    /// A copy made later goes on as the original would have: an alarm that passed meanwhile is raised.
    #[test]
    fn a_copy_goes_on(steps in prop::collection::vec((0u32..0x24, 0u32..40), 0..30), wait in 0u64..100) {
        let (mut rtc, mut now) = (Pl031::new(0, 0), 0);
        for (offset, value) in steps {
            now += 1;
            rtc.write(offset, value, now);
        }
        let saved = rtc.save();
        now += wait;
        let mut copy = Pl031::new(0, 0);
        let level = copy.restore(&saved, now, now - wait);
        rtc.expire(now);
        prop_assert_eq!(level, rtc.irq());
        prop_assert_eq!((copy.save(), copy.deadline()), (rtc.save(), rtc.deadline()));
        prop_assert_eq!(copy.read(offset::DR, now), rtc.read(offset::DR, now));
    }

    /// On a machine whose time of day is behind, the counter does not go back, and the alarm comes at the same count.
    #[test]
    fn a_copy_where_it_is_earlier_goes_on(matching in 0u32..2000, begun in 0u64..1000, behind in 0u64..1000) {
        let mut rtc = Pl031::new(500, begun);
        rtc.write(offset::MR, matching, begun);
        rtc.write(offset::IMSC, 1, begun);
        let (saved, earlier) = (rtc.save(), begun.saturating_sub(behind));
        let mut copy = Pl031::new(0, 0);
        copy.restore(&saved, earlier, begun);
        prop_assert_eq!(copy.read(offset::DR, earlier), 500);
        prop_assert_eq!(copy.deadline().map(|at| at - earlier), rtc.deadline().map(|at| at - begun));
    }

    /// It moves between two machines, one of which is behind the other. The guest sets it there, or an alarm.
    #[test]
    fn a_lead_does_not_add_up(behind in 0u64..1000, set in any::<bool>(), wait in 6u32..100) {
        let mut rtc = Pl031::new(500, 10_000);
        for now in (10_000..).step_by(10).take(5) {
            let (mut away, there) = (Pl031::new(0, 0), now - behind);
            away.restore(&rtc.save(), there, now);
            let count = away.read(offset::DR, there);
            prop_assert_eq!(count, rtc.read(offset::DR, now));
            if set {
                away.write(offset::LR, count, there);
            }
            away.write(offset::IMSC, 1, there);
            away.write(offset::ICR, 1, there);
            away.write(offset::MR, count + wait, there);
            prop_assert_eq!(away.deadline(), Some(there + u64::from(wait)));
            rtc.restore(&away.save(), now + 5, there + 5);
            prop_assert_eq!(rtc.read(offset::DR, now + 5), count + 5);
            prop_assert!(!rtc.irq());
            prop_assert_eq!(rtc.deadline(), Some(now + u64::from(wait)));
        }
    }

    /// The alarm passes while the clock moves back to the machine that is ahead.
    #[test]
    fn an_alarm_with_a_lead_is_not_lost(behind in 0u64..1000, wait in 1u32..50, passed in 50u64..1000) {
        let (mut rtc, mut away) = (Pl031::new(500, 10_000), Pl031::new(0, 0));
        away.restore(&rtc.save(), 10_000 - behind, 10_000);
        away.write(offset::IMSC, 1, 10_000 - behind);
        away.write(offset::MR, 500 + wait, 10_000 - behind);
        prop_assert!(rtc.restore(&away.save(), 10_000 + passed, 10_000 - behind));
        rtc.write(offset::ICR, 1, 10_000 + passed);
        prop_assert_eq!(rtc.deadline(), Some(10_000 + u64::from(wait) + (1 << 32)));
    }

    #[test]
    fn a_hostile_state_is_reduced(words in any::<[u32; 5]>(), times in any::<[u64; 3]>(), alarm in any::<Option<u64>>()) {
        let [ahead, matching, loaded, raw, mask] = words;
        let [now, lead, exported] = times;
        let mut rtc = Pl031::new(0, 0);
        let level = rtc.restore(&Saved { ahead, lead, matching, loaded, raw, mask, alarm }, now, exported);
        prop_assert_eq!(level, rtc.read(offset::MIS, now) != 0);
        prop_assert!(rtc.deadline().is_none_or(|deadline| deadline > now));
        rtc.expire(u64::MAX);
    }
}
