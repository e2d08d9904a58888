//! The operator's commands for snapshots: parts of VMs move through the [`window`].

use stile_wire::{Answer, Event, Scope};

use crate::arch::Arch;
use crate::arch::contract::Counter;
use crate::vm::{self, Vm, power};
use crate::{console, window};

const CLOSED: &str = "the window of the transfer is closed";
const NO_VM: &str = "the VM is gone";

/// Calls `act` with a VM and the window's bytes, and reports `answer` of its result, with the ticks that it took. Refuses
/// the command with the error.
fn run<T>(tag: u32, number: u8, act: impl FnOnce(&'static Vm, &mut [u8]) -> Result<T, &'static str>, answer: impl FnOnce(T, u64) -> Event) {
    let begun = Arch::now();
    let done = match vm::get(usize::from(number)) {
        None => Err(NO_VM),
        Some(vm) => window::with(|bytes| act(vm, bytes)).unwrap_or(Err(CLOSED)),
    };
    match done {
        Ok(done) => console::event(&answer(done, Arch::now().saturating_sub(begun))),
        Err(why) => console::refuse(tag, format_args!("{why}")),
    }
}

/// Puts a part of a paused VM's state into the window.
pub fn save_state(tag: u32, number: u8, part: u16) {
    run(
        tag,
        number,
        |vm, window| vm.save_state(part.into(), window),
        |(length, next), ticks| {
            let next = next.map(|next| next as u64);
            Event::Saved { tag, at: part.into(), length: length as u32, next, ticks }
        },
    );
}

/// Puts a piece of a VM's RAM into the window.
pub fn save_memory(tag: u32, number: u8, from: u64, scope: Scope) {
    run(
        tag,
        number,
        |vm, window| vm.save_memory(from, scope, window),
        |(length, next), ticks| Event::Saved { tag, at: from, length: length as u32, next, ticks },
    );
}

/// Begins to find the pages of a paused VM's RAM that it writes.
pub fn collect(tag: u32, number: u8, from: u64) {
    run(tag, number, |vm, _| vm.collect(from), |(pages, next), ticks| Event::Saved { tag, at: from, length: pages, next, ticks });
}

/// Takes a part of the state of a VM that is being restored from the window.
pub fn restore_state(tag: u32, number: u8, part: u16, length: u32) {
    run(
        tag,
        number,
        |vm, window| vm.restore_state(part.into(), window.get(..length as usize).ok_or(CLOSED)?),
        |(), ticks| Event::Restored { tag, done: 1, all: true, ticks },
    );
}

/// Takes a piece of RAM of a VM that is being restored from the window.
pub fn restore_memory(tag: u32, number: u8, from: u32, length: u32) {
    run(
        tag,
        number,
        |vm, window| vm.restore_memory(from as usize, window.get(..length as usize).ok_or(CLOSED)?),
        |(done, all), ticks| Event::Restored { tag, done: done as u32, all, ticks },
    );
}

/// Completes a restoration.
pub fn restore_end(tag: u32, number: u8, advance: bool) {
    let begun = Arch::now();
    console::event(&match vm::get(usize::from(number)).map_or(Answer::NoVm, |vm| power::end_restore(vm, advance)) {
        Answer::Done => Event::Restored { tag, done: 1, all: true, ticks: Arch::now().saturating_sub(begun) },
        answer => Event::Answer { tag, answer },
    });
}
