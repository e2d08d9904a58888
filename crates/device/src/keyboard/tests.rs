use super::*;

fn answer(keyboard: &mut Keyboard, command: u8) -> Option<u8> {
    assert!(!keyboard.write(COMMAND, command));
    (keyboard.read(COMMAND) & status::OUTPUT_FULL != 0).then(|| keyboard.read(DATA))
}

#[test]
fn status_bits_let_drivers_proceed() {
    let mut keyboard = Keyboard::new();
    assert_eq!(keyboard.read(COMMAND) & 0b11, 0);
    assert_eq!(answer(&mut keyboard, command::TEST), Some(TEST_PASSED));
    assert_eq!(answer(&mut keyboard, command::TEST_KEYBOARD), Some(KEYBOARD_PASSED));
    assert_eq!(keyboard.read(COMMAND) & 0b11, 0);
}

#[test]
fn the_mode_is_kept() {
    let mut keyboard = Keyboard::new();
    assert_eq!(answer(&mut keyboard, command::READ_MODE), Some(MODE_TESTED));
    assert!(!keyboard.write(COMMAND, command::WRITE_MODE) && !keyboard.write(DATA, 0x65));
    keyboard.write(COMMAND, command::DISABLE);
    assert_eq!(answer(&mut keyboard, command::READ_MODE), Some(0x75));
    keyboard.write(COMMAND, command::ENABLE);
    assert_eq!(answer(&mut keyboard, command::READ_MODE), Some(0x65));
}

#[test]
fn no_keyboard_answers() {
    let mut keyboard = Keyboard::new();
    keyboard.write(DATA, 0xff);
    assert_eq!(keyboard.read(COMMAND) & (status::OUTPUT_FULL | status::TIME_OUT), status::OUTPUT_FULL | status::TIME_OUT);
    assert_eq!(keyboard.read(DATA), RESEND);
    assert_eq!(keyboard.read(COMMAND) & (status::OUTPUT_FULL | status::TIME_OUT), 0);
}

#[test]
fn the_machine_is_reset_in_three_ways_and_no_other() {
    let mut keyboard = Keyboard::new();
    assert!(keyboard.write(COMMAND, 0xfe) && keyboard.write(COMMAND, 0xf0) && !keyboard.write(COMMAND, 0xff));
    assert!(!keyboard.write(COMMAND, command::WRITE_OUTPUT) && keyboard.write(DATA, A20));
    assert!(keyboard.write(QUICK, QUICK_RESET | A20));
    // A read-modify-write enables address line 20.
    let value = keyboard.read(QUICK);
    assert!(!keyboard.write(QUICK, value | A20));
    assert!(!keyboard.write(COMMAND, command::WRITE_OUTPUT) && !keyboard.write(DATA, 0xdf));
}

#[test]
fn address_line_20_is_told_both_ways() {
    let mut keyboard = Keyboard::new();
    assert_eq!((keyboard.read(QUICK), answer(&mut keyboard, command::READ_OUTPUT)), (A20, Some(A20 | NO_RESET)));
    keyboard.write(COMMAND, command::WRITE_OUTPUT);
    keyboard.write(DATA, NO_RESET);
    assert_eq!((keyboard.read(QUICK), answer(&mut keyboard, command::READ_OUTPUT)), (0, Some(NO_RESET)));
}
