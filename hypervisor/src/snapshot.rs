//! The operator's commands for snapshots: parts of VMs move through the [`window`].

use stile_wire::{Answer, Event, Scope};

use crate::vm::{self, Vm, power};
use crate::{console, window};

const CLOSED: &str = "the window of the transfer is closed";
const NO_VM: &str = "the VM is gone";

/// Calls `act` with a VM and the window's bytes. Refuses the command with the error.
fn run(tag: u32, number: u8, act: impl FnOnce(&'static Vm, &mut [u8]) -> Result<Event, &'static str>) {
    let done = match vm::get(usize::from(number)) {
        None => Err(NO_VM),
        Some(vm) => window::with(|bytes| act(vm, bytes)).unwrap_or(Err(CLOSED)),
    };
    match done {
        Ok(event) => console::event(&event),
        Err(why) => console::refuse(tag, format_args!("{why}")),
    }
}

/// Puts a part of a paused VM's state into the window.
pub fn save_state(tag: u32, number: u8, part: u16) {
    run(tag, number, |vm, window| {
        let (length, more) = vm.save_state(part.into(), window)?;
        Ok(Event::Saved { tag, at: part.into(), length: length as u32, next: more.then(|| u64::from(part) + 1) })
    });
}

/// Puts a piece of a VM's RAM into the window.
pub fn save_memory(tag: u32, number: u8, from: u64, scope: Scope) {
    run(tag, number, |vm, window| {
        let (length, next) = vm.save_memory(from, scope, window)?;
        Ok(Event::Saved { tag, at: from, length: length as u32, next })
    });
}

/// Begins to find the blocks of a paused VM's RAM that it accesses.
pub fn collect(tag: u32, number: u8, from: u64) {
    run(tag, number, |vm, _| {
        let (blocks, next) = vm.collect(from)?;
        Ok(Event::Saved { tag, at: from, length: blocks, next })
    });
}

/// Takes a part of the state of a VM that is being restored from the window.
pub fn restore_state(tag: u32, number: u8, part: u16, length: u32) {
    run(tag, number, |vm, window| {
        let bytes = window.get(..length as usize).ok_or(CLOSED)?;
        vm.restore_state(part.into(), bytes).map(|()| Event::Restored { tag, done: 1, all: true })
    });
}

/// Takes a piece of RAM of a VM that is being restored from the window.
pub fn restore_memory(tag: u32, number: u8, from: u32, length: u32) {
    run(tag, number, |vm, window| {
        let bytes = window.get(..length as usize).ok_or(CLOSED)?;
        let (done, all) = vm.restore_memory(from as usize, bytes)?;
        Ok(Event::Restored { tag, done: done as u32, all })
    });
}

/// Completes a restoration.
pub fn restore_end(tag: u32, number: u8, advance: bool) {
    let answer = vm::get(usize::from(number)).map_or(Answer::NoVm, |vm| power::end_restore(vm, advance));
    console::event(&Event::Answer { tag, answer });
}
