//! Transfers of packages, from which the operator creates VMs.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use stile_wire::Event;

use super::configuration::{CLIENT, SERVER};
use super::counts::{line_length, messages};
use super::machine::Machine;
use crate::vm::{power, retire};
use crate::{memory, upload};

/// Bytes of the packages.
const SIZE: u32 = 1 << 20;
/// The number for which most of them are.
const NUMBER: u8 = 2;

/// Transfers begin, replace each other, are refused and abandoned: each leaves its memory and its number.
pub fn leave_nothing_behind(machine: &mut Machine) {
    let number = usize::from(NUMBER);
    let is_retired = || !retire::is_any();
    memory::tests::fail_after(0);
    upload::begin(7, NUMBER, SIZE, 0);
    assert!(!memory::tests::fail_no_more(), "its number is taken");
    machine.destroy(number);
    memory::tests::fail_after(0);
    upload::begin(8, NUMBER, SIZE, 0);
    assert!(memory::tests::fail_no_more());
    machine.run_until(is_retired);
    upload::begin(9, NUMBER, SIZE, 0);
    let available = memory::available();
    // The client is gone, and another one begins.
    upload::begin(10, NUMBER, SIZE, 0);
    assert!(is_retired() && memory::available() == available, "the number is not free at once");
    upload::begin(11, 0, 1, 0);
    machine.run_until(is_retired);
    let free = memory::available();
    refuses_numbers_of_links();
    waits_for_its_number(machine);
    assert_eq!(memory::available(), free, "a transfer without a client began");
    is_abandoned_while_it_begins(machine);
    upload::begin(12, NUMBER, SIZE, free);
    assert!(is_retired(), "the number of a VM without memory is not free at once");
    upload::begin(13, NUMBER, SIZE, free / 2);
    assert!(is_retired() && memory::available() < free, "there is room");
    upload::abandon(14, 12);
    assert!(is_retired(), "another transfer");
    upload::abandon(15, 13);
    upload::abandon(16, 13);
    machine.run_until(is_retired);
    assert_eq!(memory::available(), free, "the package of a client that left stays");
    // An upload that was refused does not keep its number.
    power::start(machine.create(number, &machine.configuration[number]));
}

/// A server's window, and its client's links, must not lead to another VM with the number of one that was removed.
fn refuses_numbers_of_links() {
    for number in [CLIENT, SERVER] {
        let from = line_length();
        upload::begin(23, number as u8, SIZE, 0);
        let begun = messages(from).into_iter().any(|event| matches!(event, Event::Uploaded { tag: 23, .. }));
        assert!(!begun && retire::claim(number), "number {number} is reused");
    }
}

/// A transfer whose number is still being freed begins once it is free, unless its client leaves before.
fn waits_for_its_number(machine: &mut Machine) {
    let number = usize::from(NUMBER);
    let from = line_length();
    assert!(retire::claim(number));
    retire::abandon(number);
    upload::begin(17, NUMBER, SIZE, 0);
    assert!(retire::is_any() && messages(from).is_empty());
    machine.run_until(|| !retire::is_any());
    assert!(messages(from).into_iter().any(|event| matches!(event, Event::Uploaded { tag: 17, next: 0 })));
    upload::abandon(18, 17);
    upload::begin(19, NUMBER, SIZE, 0);
    upload::abandon(20, 19);
    machine.run_until(|| !retire::is_any());
}

/// A client leaves while another CPU begins the transfer, whose number has become free: nothing is left of it.
fn is_abandoned_while_it_begins(machine: &mut Machine) {
    let number = usize::from(NUMBER);
    let free = memory::available();
    assert!(retire::claim(number));
    retire::abandon(number);
    upload::begin(21, NUMBER, SIZE, 0);
    let (sender, clients) = mpsc::channel();
    *memory::tests::AT_ALLOCATION.lock().unwrap() = Some(Box::new(move || {
        sender.send(thread::spawn(|| upload::abandon(22, 21))).unwrap();
        // It answers meanwhile, or waits until the transfer has begun.
        thread::sleep(Duration::from_millis(50));
    }));
    machine.run_until(|| !retire::is_any());
    clients.recv().unwrap().join().unwrap();
    machine.run_until(|| !retire::is_any());
    assert_eq!(memory::available(), free, "the package of a client that left stays");
}
