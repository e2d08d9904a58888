//! The messages to the operator, and what they must add up to.

use std::sync::atomic::{AtomicU64, Ordering};

use stile_wire::{Decoder, Event, VmState};

use super::{CYCLES, STEPS, VCPUS};
use crate::arch::fake;

/// Times the operator paused, resumed and started a VM.
pub static PAUSES: AtomicU64 = AtomicU64::new(0);
pub static RESUMES: AtomicU64 = AtomicU64::new(0);
pub static STARTS: AtomicU64 = AtomicU64::new(0);
/// VMs that were created while the machine ran, and destroyed.
pub static CREATED: AtomicU64 = AtomicU64::new(0);
pub static DESTROYED: AtomicU64 = AtomicU64::new(0);
/// Totals of ledgers that the operator got while the machine ran.
pub static TOTALS: AtomicU64 = AtomicU64::new(0);
/// Samples by idle CPUs.
pub static SAMPLES: AtomicU64 = AtomicU64::new(0);

/// Adds to a counter.
pub fn count(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Ordering::Relaxed);
}

/// The number of bytes sent over the serial line.
pub fn line_length() -> usize {
    fake::LINE.lock().unwrap().len()
}

/// Returns the messages to the operator, from a byte of the line on.
pub fn messages(from: usize) -> Vec<Event> {
    let mut decoder = Decoder::new();
    let line = fake::LINE.lock().unwrap();
    line[from..].iter().filter_map(|&byte| decoder.push(byte)?.event()?.ok()).collect()
}

/// Checks all messages: every VM ended once more than it was restarted, and no exit and no memory is missing. `vcpus`: that the machine had
/// at its end.
pub fn check_messages(vcpus: usize) {
    let mut decoder = Decoder::new();
    let (mut off, mut resets, mut totals, mut samples, mut end) = (0, 0, 0, 0, None);
    let (mut started, mut paused, mut resumed, mut destroyed) = (0, 0, 0, 0);
    let mut counts = [0; VCPUS.len()];
    for &byte in fake::LINE.lock().unwrap().iter() {
        let Some(event) = decoder.push(byte).and_then(|item| item.event()) else { continue };
        match event.expect("no frame is damaged") {
            Event::Vm { state: VmState::PoweredOff, .. } => off += 1,
            Event::Vm { vm, state: VmState::Reset } => {
                off += 1;
                counts[usize::from(vm)] += 1;
            }
            Event::Vm { state: VmState::Started, .. } => started += 1,
            Event::Vm { state: VmState::Paused, .. } => paused += 1,
            Event::Vm { state: VmState::Resumed, .. } => resumed += 1,
            Event::Vm { vm, state: VmState::Destroyed } => {
                destroyed += 1;
                counts[usize::from(vm)] = 0;
            }
            Event::Vm { vm, state: VmState::Restarted(count) } => {
                resets += 1;
                counts[usize::from(vm)] += 1;
                assert_eq!(count, counts[usize::from(vm)]);
            }
            Event::LedgerTotal(total) => {
                assert_eq!(total.taken, total.counted, "an exit is missing");
                totals += 1;
            }
            Event::Sample(_) => samples += 1,
            Event::Memory { before, now } => assert_eq!(now, before, "memory is missing"),
            Event::End { status } => end = Some(status),
            _ => {}
        }
    }
    let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let (created, starts) = (value(&CREATED), value(&STARTS));
    // Each VM ends once more than the operator starts it: VMs of the configuration and created ones start without a message.
    assert_eq!((off, started), (VCPUS.len() as u64 + created + starts, starts));
    assert_eq!((destroyed, destroyed), (value(&DESTROYED), created));
    assert!(destroyed > CYCLES as u64 * 9 / 10, "{destroyed}");
    // A VM that ends before a pause is complete sends no message about it.
    assert!(paused > STEPS as u64 / 600 && paused <= value(&PAUSES), "{paused}");
    assert_eq!(resumed, value(&RESUMES));
    assert!(starts > STEPS as u64 / 1200 && fake::HELD.load(Ordering::Relaxed) != 0, "{starts}");
    assert!(resets > STEPS / 600, "{resets}");
    assert_eq!(samples, value(&SAMPLES));
    assert!(samples > STEPS as u64 / 5_000, "{samples}");
    assert_eq!(totals, vcpus as u64 + value(&TOTALS));
    assert_eq!(end, Some(0));
}
