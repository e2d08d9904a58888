//! Figures of a machine that measures, in firmware's variables.

use std::fmt::Write;
use std::sync::atomic::Ordering;

use stile_firmware::figures::{Document, LONGEST, PIECE, join};

use super::take_line;
use crate::arch::fake::{FAULTY, FULL, VARIABLES};
use crate::{figures, keep_figures};

/// Measures this number of operations, and returns the document that firmware keeps.
fn kept(operations: usize, passed: bool) -> Option<String> {
    *VARIABLES.lock().unwrap() = Some(Vec::new());
    figures::begin(Box::leak(Box::new(Document::new("0.0.0"))));
    figures::describe(format_args!("CPU: fake\n"));
    figures::measure();
    for number in 0..operations {
        let mut line = String::new();
        writeln!(line, "{{\"operation\":\"{number}\",\"ticks\":1.000}}").unwrap();
        line.bytes().for_each(figures::byte);
    }
    keep_figures::keep(passed);
    keep_figures::keep(passed);
    found()
}

/// The document that the next start finds.
fn found() -> Option<String> {
    let variables = VARIABLES.lock().unwrap().take().unwrap();
    let mut to = vec![0; LONGEST];
    let read = |part: usize, to: &mut [u8; _]| {
        let Some(data) = variables.get(part).filter(|data| !data.is_empty()) else { return Ok(None) };
        to[..data.len()].copy_from_slice(data);
        Ok(Some(data.len()))
    };
    join(read, &mut to).unwrap().map(|document| String::from_utf8(document.to_vec()).unwrap())
}

#[test]
fn figures_are_kept_until_the_next_start() {
    let _turn = take_line();
    for operations in [0, 1, 100] {
        let document = kept(operations, true).unwrap();
        assert_eq!(document.matches("\"operation\"").count(), operations);
        assert!(document.contains("\"CPU: fake\"") && document.contains("\"complete\": true"));
    }
    assert!(kept(1, false).unwrap().contains("\"complete\": false"));
    // Firmware is full: nothing remains.
    let parts = kept(300, true).unwrap().len().div_ceil(PIECE);
    for full in 0..=parts {
        FULL.store(full, Ordering::SeqCst);
        assert_eq!(kept(300, true).is_some(), full == parts);
    }
    FULL.store(usize::MAX, Ordering::SeqCst);
    // Firmware faults: there are no figures, rather than damaged ones.
    for faulty in 0..parts {
        FAULTY.store(faulty, Ordering::SeqCst);
        assert!(std::panic::catch_unwind(|| kept(300, true)).is_err());
        assert_eq!(found(), None);
    }
    FAULTY.store(usize::MAX, Ordering::SeqCst);
    // A machine that does not measure has no figures.
    *VARIABLES.lock().unwrap() = Some(Vec::new());
    keep_figures::keep(true);
    assert_eq!(VARIABLES.lock().unwrap().take(), Some(Vec::new()));
}
