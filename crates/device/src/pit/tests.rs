use super::*;
use proptest::prelude::*;

/// Linux's pit_calibrate_tsc: counter 2 in mode 0, its output polled at port 0x61.
#[test]
fn linux_can_calibrate_by_the_output() {
    let mut pit = Pit::new();
    let mut now = 1000;
    pit.write_speaker(pit.read_speaker(now) & !2 | 1, now);
    pit.write(3, 0xb0, now);
    pit.write(2, 0x34, now);
    assert_eq!(pit.read_speaker(now) & 0x20, 0);
    pit.write(2, 0x12, now);
    let start = now;
    while pit.read_speaker(now) & 0x20 == 0 {
        now += 1;
    }
    assert_eq!(now - start, 0x1234);
}

/// Linux's quick_pit_calibrate: the counter's high byte counts down by one every 256 ticks.
#[test]
fn linux_can_calibrate_by_the_count() {
    let mut pit = Pit::new();
    pit.write_speaker(1, 0);
    for (port, value) in [(3, 0xb0), (2, 0xff), (2, 0xff)] {
        pit.write(port, value, 0);
    }
    for step in 0..200_u64 {
        pit.read(2, step * 256);
        assert_eq!(u64::from(pit.read(2, step * 256)), 0xff - step);
    }
}

/// Repeated calibration of an APIC timer by small kernels: counter 2 in mode 1, triggered by its gate.
#[test]
fn the_gate_triggers_a_counter() {
    let mut pit = Pit::new();
    pit.write_speaker(1, 0);
    for (port, value) in [(3, 0xb2), (2, 0x9b), (2, 0x2e)] {
        pit.write(port, value, 10);
    }
    assert_ne!(pit.read_speaker(20_000) & 0x20, 0, "it waits for its trigger");
    for start in [20_000, 90_000] {
        pit.write_speaker(0, start - 5);
        pit.write_speaker(1, start);
        assert_eq!(pit.read_speaker(start) & 0x20, 0);
        // Closing the gate does not stop a triggered counter.
        pit.write_speaker(0, start + 100);
        let mut now = start + 100;
        while pit.read_speaker(now) & 0x20 == 0 {
            now += 1;
        }
        assert_eq!(now - start, 0x2e9b);
    }
}

#[test]
fn counter_0_interrupts() {
    let mut pit = Pit::new();
    // Mode 2, 1000 ticks.
    for (port, value) in [(3, 0x34), (0, 0xe8), (0, 0x03)] {
        pit.write(port, value, 50);
    }
    assert_eq!(pit.deadline(), Some(1050));
    assert!(!pit.expire(1049));
    assert!(pit.expire(1050));
    assert_eq!(pit.deadline(), Some(2050));
    assert!(pit.expire(9999));
    assert_eq!(pit.deadline(), Some(10050));
    // Once: mode 4.
    for (port, value) in [(3, 0x38), (0, 10), (0, 0)] {
        pit.write(port, value, 100);
    }
    assert!(pit.expire(110));
    assert_eq!(pit.deadline(), None);
}

#[test]
fn what_is_latched_stays() {
    let mut pit = Pit::new();
    for (port, value) in [(3, 0x34), (0, 0), (0, 0)] {
        pit.write(port, value, 0);
    }
    pit.write(3, 0x00, 0x100);
    assert_eq!((pit.read(0, 0x500), pit.read(0, 0x600)), (0x00, 0xff));
    assert_eq!((pit.read(0, 0x101), pit.read(0, 0x101)), (0xff, 0xfe));
    // Read-back of status and count of counter 0.
    pit.write(3, 0xc2, 0x200);
    assert_eq!(pit.read(0, 0x300), 0xb4);
    assert_eq!((pit.read(0, 0x300), pit.read(0, 0x300)), (0x00, 0xfe));
}

#[test]
fn a_closed_gate_stops_counter_2() {
    let mut pit = Pit::new();
    pit.write_speaker(1, 0);
    for (port, value) in [(3, 0x90), (2, 100)] {
        pit.write(port, value, 0);
    }
    pit.write_speaker(0, 40);
    assert_eq!(pit.read(2, 1000), 60);
    pit.write_speaker(1, 1000);
    assert_eq!(pit.read(2, 1010), 50);
    assert_eq!((pit.read_speaker(1059) & 0x20, pit.read_speaker(1060) & 0x20), (0, 0x20));
}

proptest! {
    #[test]
    fn any_access_ends_well(accesses in prop::collection::vec((0..5_u16, any::<u8>(), any::<u16>()), 1..200)) {
        let mut pit = Pit::new();
        let mut now = 0_u64;
        for (offset, value, step) in accesses {
            now += u64::from(step);
            pit.write(offset, value, now);
            pit.read(offset, now);
            if offset == 4 {
                pit.write_speaker(value, now);
            }
            pit.read_speaker(now);
            pit.expire(now);
            prop_assert!(pit.deadline().is_none_or(|next| next > now));
        }
    }
}

/// With an odd count the first half of a period is longer by a tick, and the count starts with each half.
#[test]
fn an_odd_square_wave_counts_with_its_output() {
    let mut pit = Pit::new();
    for (port, value) in [(3, 0x16), (0, 5)] {
        pit.write(port, value, 0);
    }
    let mut values = [0; 10];
    for (now, value) in values.iter_mut().enumerate() {
        *value = pit.read(0, now as u64);
    }
    assert_eq!(values, [5, 3, 1, 5, 3, 5, 3, 1, 5, 3]);
}
