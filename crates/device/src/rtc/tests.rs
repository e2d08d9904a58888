use super::*;
use proptest::prelude::*;

fn get(rtc: &mut Rtc, index: u8, now: u64) -> u8 {
    rtc.write(0, index, now);
    rtc.read(1, now, false)
}

fn set(rtc: &mut Rtc, index: u8, value: u8, now: u64) {
    rtc.write(0, index, now);
    rtc.write(1, value, now);
}

/// Second, minute, hour, weekday, day, month, year, century.
fn all(rtc: &mut Rtc, now: u64) -> [u8; 8] {
    [0, 2, 4, 6, 7, 8, 9, 0x32].map(|index| get(rtc, index, now))
}

#[test]
fn the_date_is_right() {
    let mut rtc = Rtc::new();
    assert_eq!(all(&mut rtc, 0), [0, 0, 0, 5, 1, 1, 0x70, 0x19]);
    // 2000-02-29 23:59:59, a Tuesday; and 2026-11-22 13:14:15, a Sunday.
    assert_eq!(all(&mut rtc, 951_868_799), [0x59, 0x59, 0x23, 3, 0x29, 2, 0, 0x20]);
    assert_eq!(all(&mut rtc, 1_795_353_255), [0x15, 0x14, 0x13, 1, 0x22, 0x11, 0x26, 0x20]);
    set(&mut rtc, 0xb, 4, 0);
    assert_eq!(get(&mut rtc, 4, 1_795_353_255), 0x81);
    assert_eq!(get(&mut rtc, 9, 1_795_353_255), 26);
    assert_eq!((get(&mut rtc, 0xa, 0) & 0x80, get(&mut rtc, 0xd, 0)), (0, 0x80));
}

#[test]
fn a_time_that_was_set_goes_on() {
    let mut rtc = Rtc::new();
    set(&mut rtc, 0xb, 0x82, 1000);
    for (index, value) in [(0, 0x30), (2, 0x45), (4, 0x12), (7, 0x31), (8, 0x12), (9, 0x99), (0x32, 0x19)] {
        set(&mut rtc, index, value, 1005);
    }
    assert_eq!(get(&mut rtc, 0, 1010), 0x30, "stands while it is set");
    set(&mut rtc, 0xb, 0x02, 1010);
    assert_eq!(all(&mut rtc, 1010 + 43_200), [0x30, 0x45, 0, 7, 1, 1, 0, 0x20]);
    set(&mut rtc, 0x50, 0xaa, 0);
    assert_eq!(get(&mut rtc, 0x50, 0), 0xaa);
}

proptest! {
    #[test]
    fn dates_and_seconds_are_the_same(seconds in 0..MAX_SECONDS) {
        let time = Time::from_seconds(seconds);
        prop_assert_eq!(time.seconds(), seconds);
        prop_assert!((1..=12).contains(&time.month) && (1..=31).contains(&time.day));
    }

    #[test]
    fn any_access_ends_well(accesses in prop::collection::vec((0..3_u16, any::<u8>(), any::<u64>()), 1..100)) {
        let mut rtc = Rtc::new();
        for (offset, value, now) in accesses {
            rtc.write(offset, value, now);
            rtc.read(offset, now, false);
            rtc.write(0, value % 16, now);
            rtc.write(1, value, now);
            rtc.read(1, now, false);
        }
    }
}

#[test]
fn an_update_shows_unless_the_clock_is_being_set() {
    let mut rtc = Rtc::new();
    rtc.write(0, 0xa, 0);
    assert_eq!((rtc.read(1, 0, false) >> 7, rtc.read(1, 0, true) >> 7), (0, 1));
    rtc.write(0, 0xb, 0);
    rtc.write(1, 0x82, 0);
    rtc.write(0, 0xa, 0);
    assert_eq!(rtc.read(1, 0, true) >> 7, 0);
}

#[test]
fn a_year_that_no_clock_has_leaves_the_century_alone() {
    let mut rtc = Rtc::new();
    let mut write = |index, value| {
        rtc.write(0, index, 0);
        rtc.write(1, value, 0);
        rtc.write(0, 0x32, 0);
        rtc.read(1, 0, false)
    };
    // Stopped, in binary.
    let century = write(0xb, 0x86);
    for _ in 0..400 {
        assert_eq!(write(0x9, 0xff), century);
    }
}

#[test]
fn a_copy_does_not_go_back() {
    let mut copy = Rtc::new();
    copy.restore(&Rtc::new().save(), 951_868_794, 951_868_799);
    assert_eq!(all(&mut copy, 951_868_794), [0x59, 0x59, 0x23, 3, 0x29, 2, 0, 0x20]);
}

/// A clock moves between two machines, one of which is 100 s behind the other. The guest sets it on the way.
#[test]
fn a_lead_does_not_add_up() {
    let mut rtc = Rtc::new();
    for now in (1_000_000_000..).step_by(10).take(5) {
        let mut away = Rtc::new();
        away.restore(&rtc.save(), now - 100, now);
        assert_eq!(all(&mut away, now - 100), all(&mut Rtc::new(), now));
        away.write(0, 0, now - 100);
        away.write(1, away.read(1, now - 100, false), now - 100);
        rtc.restore(&away.save(), now + 5, now + 5 - 100);
        assert_eq!(all(&mut rtc, now + 5), all(&mut Rtc::new(), now + 5));
    }
}

/// A clock that the guest is setting moves to a machine that is 100 s behind, and back: it stands, and continues as set.
#[test]
fn a_clock_that_is_being_set_moves() {
    let (mut rtc, mut away) = (Rtc::new(), Rtc::new());
    let now = 1_000_000_000;
    set(&mut rtc, 0xb, 0x82, now);
    let stands = all(&mut Rtc::new(), now);
    away.restore(&rtc.save(), now + 5 - 100, now + 5);
    assert_eq!(all(&mut away, now + 5 - 100), stands);
    set(&mut away, 7, 0x11, now + 6 - 100);
    let stands = all(&mut away, now + 6 - 100);
    // Continues there, and is moved back.
    let mut back = Rtc::new();
    let mut continued = away.clone();
    set(&mut continued, 0xb, 0x02, now + 7 - 100);
    assert_eq!(all(&mut continued, now + 7 - 100), stands);
    back.restore(&continued.save(), now + 8, now + 8 - 100);
    assert_eq!(get(&mut back, 0, now + 7), stands[0]);
    // Is moved back, and continues there.
    back.restore(&away.save(), now + 8, now + 8 - 100);
    assert_eq!(all(&mut back, now + 8), stands);
    set(&mut back, 0xb, 0x02, now + 9);
    assert_eq!(all(&mut back, now + 9), stands);
}
