//! The serial line: output that it does not take, and input.

use std::sync::atomic::Ordering;

use stile_wire::{Channel, Command, Decoder, Event, VmState};

use super::{MANY_MESSAGES as MANY, take_line};
use crate::arch::fake;
use crate::console;

/// A slow line delays only a sender of messages that must not be lost, and that sender delays no other. Guests cause no such message.
#[test]
fn a_line_that_takes_nothing_blocks_no_other_cpu() {
    const VM: u8 = stile_board::MAX_VMS as u8 - 1;
    let _turn = take_line();
    console::listen();
    fake::BUSY.store(true, Ordering::SeqCst);
    for n in 0..MANY {
        console::log!("line {n}");
    }
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| (0..MANY).for_each(|_| console::event(&Event::CounterFrequency { hz: 1 })));
        std::thread::sleep(std::time::Duration::from_millis(50));
        for _ in 0..100 {
            console::send(stile_board::MAX_VMS - 1, b'x');
            console::log!("another line");
        }
        for n in 1..=MANY {
            console::event(&Event::Vm { vm: VM, state: VmState::Restarted(n) });
        }
        assert!(!sender.is_finished(), "messages are kept");
        fake::BUSY.store(false, Ordering::SeqCst);
    });
    console::flush();
    let line = fake::LINE.lock().unwrap();
    let mut decoder = Decoder::new();
    let messages: Vec<_> = line.iter().filter_map(|&byte| decoder.push(byte)?.event()?.ok()).collect();
    assert_eq!(messages.iter().filter(|&event| *event == Event::CounterFrequency { hz: 1 }).count(), MANY as usize);
    assert!(messages.contains(&Event::Vm { vm: VM, state: VmState::Restarted(MANY) }));
}

/// An interrupt receives a bounded number of bytes and one command, and none without room for an answer.
#[test]
fn an_exit_receives_a_bounded_part_of_the_input() {
    let _turn = take_line();
    console::listen();
    let mut command = Vec::new();
    stile_wire::Encoder::new().command(&Command::TraceStop, &mut |byte| command.push(byte));
    let mut typed = Vec::new();
    stile_wire::Encoder::new().bytes(Channel::console(1), &[b'x'; MANY as usize], &mut |byte| typed.push(byte));
    fake::INPUT.lock().unwrap().extend(typed.iter().chain(&command).chain(&command));
    let (mut bytes, mut commands) = (0, 0);
    while !fake::INPUT.lock().unwrap().is_empty() {
        let before = fake::INPUT.lock().unwrap().len();
        let mut executed = 0;
        let input = |input| match input {
            console::Input::Guest(vm, byte) => {
                assert_eq!((vm, byte), (1, b'x'));
                bytes += 1;
            }
            console::Input::Command(_) => executed += 1,
        };
        console::interrupt(input, |_| ());
        let taken = before - fake::INPUT.lock().unwrap().len();
        assert!((1..=32).contains(&taken) && executed <= 1, "{taken} {executed}");
        commands += executed;
    }
    assert_eq!((bytes, commands), (MANY, 2));
    fake::BUSY.store(true, Ordering::SeqCst);
    (0..MANY).for_each(|n| console::log!("line {n}"));
    while console::has_room_for_answer() {
        console::event(&Event::CounterFrequency { hz: 1 });
    }
    fake::INPUT.lock().unwrap().extend(&command);
    console::interrupt(|_| panic!("its answer would wait for the line"), |_| ());
    assert_eq!(fake::INPUT.lock().unwrap().len(), command.len());
    fake::BUSY.store(false, Ordering::SeqCst);
    console::flush();
    console::interrupt(|_| commands += 1, |_| ());
    assert_eq!(commands, 3);
}

/// An interrupt visits the VMs that wait for room, and no others; it follows even if another CPU has sent everything.
#[test]
fn only_vms_that_wait_for_the_line_are_visited() {
    const VMS: [usize; 2] = [1, stile_board::MAX_VMS - 1];
    let _turn = take_line();
    console::listen();
    let visited = || {
        let mut visited = Vec::new();
        console::interrupt(|_| (), |vm| visited.push(vm));
        visited
    };
    visited();
    fake::BUSY.store(true, Ordering::SeqCst);
    assert!(console::send(2, b'x'), "one byte leaves room");
    VMS.iter().for_each(|&vm| while console::send(vm, b'x') {});
    assert_eq!(visited(), VMS);
    assert_eq!(visited(), [0; 0], "they were told, and have not asked again");
    assert_eq!(VMS.map(console::has_room), [false; 2]);
    fake::BUSY.store(false, Ordering::SeqCst);
    console::flush();
    assert!(fake::SENDS.load(Ordering::SeqCst), "an interrupt follows, with nothing to send");
    assert_eq!(visited(), VMS);
    assert_eq!(VMS.map(console::has_room), [true; 2]);
    assert!(visited().is_empty() && !fake::SENDS.load(Ordering::SeqCst));
}
