use super::*;

#[test]
fn s5_is_off() {
    let mut power = Power::new();
    assert_eq!(power.read(offset::CONTROL, 0), 1);
    let write = |value| Write { request: value, sci: None };
    assert_eq!(power.write(offset::CONTROL, 5 << 10, 2), write(None));
    assert_eq!(power.write(offset::CONTROL, 4 << 10 | 1 << 13, 2), write(None));
    assert_eq!(power.write(offset::CONTROL, 5 << 10 | 1 << 13 | 1, 2), write(Some(Request::Off)));
    assert_eq!(power.write(offset::CONTROL + 1, 5 << 2 | 1 << 5, 1), write(Some(Request::Off)));
    assert_eq!((Power::write_reset(RESET_VALUE), Power::write_reset(2)), (Some(Request::Reset), None));
}

#[test]
fn the_button_interrupts_until_it_is_cleared() {
    let mut power = Power::new();
    assert_eq!((power.press_button(), power.has_button_enabled()), (None, false));
    assert_eq!((power.write(2, 0x120, 2).sci, power.has_button_enabled()), (Some(true), true));
    assert_eq!(power.read(offset::EVENT, 0), 0x0100_0100);
    assert_eq!(power.write(offset::EVENT, 0x100, 2).sci, Some(false));
    assert_eq!(power.press_button(), Some(true));
}

#[test]
fn the_timer_is_the_callers() {
    assert_eq!(Power::new().read(offset::TIMER, 0x1_2345_6789), 0x2345_6789);
    assert_eq!(Power::new().read(offset::TIMER + 2, 0x1_2345_6789), 0x2345);
}
