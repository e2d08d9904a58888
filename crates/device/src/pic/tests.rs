use super::*;
use proptest::prelude::*;

fn started() -> Pic {
    let mut pic = Pic::new();
    for (port, value) in [(0x20, 0x11), (0x21, 0x30), (0x21, 4), (0x21, 1), (0xa0, 0x11), (0xa1, 0x38), (0xa1, 2), (0xa1, 1)] {
        pic.write(port, value);
    }
    pic
}

#[test]
fn lines_interrupt_by_priority() {
    let mut pic = started();
    pic.write(0x21, 0);
    pic.write(0xa1, 0);
    pic.set_line(4, true);
    pic.set_line(8, true);
    assert!(pic.output());
    assert_eq!(pic.acknowledge(), 0x38, "the second's come in at input 2");
    assert!(!pic.output(), "4 is lower than 2");
    pic.set_line(0, true);
    assert_eq!(pic.acknowledge(), 0x30);
    pic.write(0x20, 0x20);
    assert!(!pic.output());
    pic.write(0xa0, 0x20);
    pic.write(0x20, 0x20);
    assert_eq!(pic.acknowledge(), 0x34);
    pic.write(0x20, 0x64);
    assert!(!pic.output(), "an edge is used up");
    pic.write(0x20, 0x0b);
    assert_eq!(pic.read(0x20), 0);
}

#[test]
fn masked_lines_wait_and_lost_ones_are_spurious() {
    let mut pic = started();
    pic.write(0x21, 0xff);
    pic.set_line(4, true);
    assert!(!pic.output());
    pic.write(0x21, 0xef);
    assert!(pic.output());
    pic.set_line(4, false);
    assert!(!pic.output());
    assert_eq!(pic.acknowledge(), 0x37);
    assert_eq!(pic.read(0x21), 0xef);
}

#[test]
fn level_lines_interrupt_again() {
    let mut pic = started();
    pic.write(0x21, 0);
    pic.write(0x4d0, 0xff);
    assert_eq!(pic.read(0x4d0), 0xf8);
    pic.set_line(5, true);
    assert_eq!(pic.acknowledge(), 0x35);
    assert!(!pic.output());
    pic.write(0x20, 0x20);
    assert!(pic.output());
    pic.set_line(5, false);
    assert!(!pic.output());
}

proptest! {
    #[test]
    fn any_access_ends_well(accesses in prop::collection::vec((0..6_usize, any::<u8>(), 0..20_u8, any::<bool>()), 1..200)) {
        let mut pic = Pic::new();
        for (port, value, line, high) in accesses {
            let port = [0x20, 0x21, 0xa0, 0xa1, 0x4d0, 0x4d1][port];
            pic.write(port, value);
            pic.read(port);
            pic.set_line(line, high);
            if pic.output() {
                pic.acknowledge();
            }
        }
    }
}
