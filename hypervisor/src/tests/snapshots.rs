//! Snapshots: a VM is saved and destroyed, and another one continues in its place.

use std::sync::atomic::Ordering;

use stile_board::map::RAM_BASE;
use stile_snapshot::pages::{Builder, PAGES, WINDOW};
use stile_wire::{Answer, Scope};

use super::counts::{PAUSES, count};
use super::machine::Machine;
use super::{guest, operator};
use crate::arch::fake;
use crate::vm::{self, power};

/// The VM's number.
const NUMBER: usize = 1;

/// The snapshot of a VM.
struct Saved {
    window: Vec<u8>,
    /// Pieces of memory.
    pieces: Vec<Vec<u8>>,
    /// Parts of the state.
    states: Vec<Vec<u8>>,
}

/// A VM is saved and destroyed; another one gets its state and continues with its memory and registers.
pub fn become_other_vms(machine: &mut Machine) {
    operator::resume_all();
    let vm = vm::get(NUMBER).unwrap();
    let mut saved = Saved { window: vec![0; WINDOW], pieces: Vec::new(), states: Vec::new() };
    let window = &mut saved.window;
    assert!(vm.save_state(0, window).is_err() && vm.save_memory(0, Scope::Rest, window).is_err() && vm.collect(0).is_err(), "it runs");
    saved.save_while_it_runs(machine, vm);
    saved.save_rest(machine, vm);
    let before = registers(vm);
    let uses = guest::memory_uses(NUMBER);
    // Time passes between the snapshot and its restoration.
    fake::pass(5_000_000);
    let config = stile_blob::Vm { vcpus: vm.vcpus.len() as u16, ..machine.configuration[NUMBER].clone() };
    machine.destroy(NUMBER);
    let vm = machine.create(NUMBER, &config);
    saved.restore(vm);
    assert_eq!(registers(vm), before);
    // The fake counter has nanoseconds.
    assert!(fake::ADVANCED.load(Ordering::Relaxed) >= 5_000_000);
    guest::expect_restored(vm, uses);
    let held = fake::HELD.load(Ordering::Relaxed);
    assert!(operator::resume(vm));
    assert_eq!(fake::HELD.load(Ordering::Relaxed), held, "its clocks run since the snapshot");
    run_until_used(machine, 11);
}

fn registers(vm: &vm::Vm) -> Vec<u64> {
    vm.vcpus.iter().map(|vcpu| vcpu.arch.saved.load(Ordering::Relaxed)).collect()
}

/// Steps the machine until the VM has used its memory `times` times more.
fn run_until_used(machine: &mut Machine, times: u64) {
    let until = guest::memory_uses(NUMBER) + times;
    machine.run_until(|| guest::memory_uses(NUMBER) >= until);
}

impl Saved {
    /// Pauses the VM when it has used its memory since its last reset.
    fn pause(&mut self, machine: &mut Machine, vm: &'static vm::Vm) {
        loop {
            machine.run_until(|| guest::has_used_memory(vm) && operator::pause(vm));
            machine.run_until(|| vm.save_state(0, &mut self.window).is_ok());
            if guest::has_used_memory(vm) {
                return;
            }
            // A reset preceded the pause.
            assert!(operator::resume(vm));
        }
    }

    /// Saves a round of memory. Returns false if there was nothing to save.
    fn save_round(&mut self, vm: &vm::Vm, scope: Scope) -> bool {
        let (mut from, before) = (Some(0), self.pieces.len());
        while let Some(at) = from {
            let (length, next) = vm.save_memory(at, scope, &mut self.window).unwrap();
            self.pieces.push(self.window[..length].to_vec());
            from = next;
        }
        self.pieces[before..].iter().any(|piece| !piece.is_empty())
    }

    /// Saves three rounds of memory while the VM runs, whose contents later rounds replace. The third one is the first of another
    /// migration: the one before it is abandoned.
    fn save_while_it_runs(&mut self, machine: &mut Machine, vm: &'static vm::Vm) {
        for (round, scope) in [Scope::First, Scope::Changed, Scope::First].into_iter().enumerate() {
            if round == 2 {
                vm.end_copy();
                run_until_used(machine, 1);
                assert!(vm.is_writable(RAM_BASE) && vm.arch.protected.lock().unwrap().is_empty(), "its block is whole again");
            }
            self.pause(machine, vm);
            let (mut collected, mut from) = (0, Some(0));
            while let Some(at) = from {
                let (pages, next) = vm.collect(at).unwrap();
                (collected, from) = (collected + pages, next);
            }
            assert_ne!(collected, 0, "it writes to its memory");
            assert!(operator::resume(vm));
            assert!(self.save_round(vm, scope) && !self.save_round(vm, Scope::Changed), "each round saves what was collected, once");
            run_until_used(machine, 11);
        }
    }

    /// Pauses the VM, and saves the rest of its memory and its state.
    fn save_rest(&mut self, machine: &mut Machine, vm: &'static vm::Vm) {
        self.pause(machine, vm);
        let prepared = fake::PREPARED.load(Ordering::Relaxed);
        assert!(self.save_round(vm, Scope::Rest), "it has written to its memory since");
        assert_eq!(vm.save_state(1, &mut self.window), Err("the snapshot's first part was not saved"));
        let mut part = Some(0);
        while let Some(at) = part {
            let (length, next) = vm.save_state(at, &mut self.window).unwrap();
            if length == 0 {
                assert_eq!(next, part, "not all vCPUs are prepared yet");
            } else {
                self.states.push(self.window[..length].to_vec());
            }
            part = next;
        }
        assert_eq!(fake::PREPARED.load(Ordering::Relaxed) - prepared, vm.vcpus.len());
        assert!(vm.save_state(self.states.len(), &mut self.window).is_err(), "no such part");
        assert!(vm.restore_state(0, &self.states[0]).is_err() && vm.restore_memory(0, &self.pieces[0]).is_err(), "it is not new");
    }

    /// Returns a piece of memory that was not saved.
    fn piece(&mut self, fill: impl FnOnce(&mut Builder, &mut [u8])) -> Vec<u8> {
        let mut builder = Builder::new();
        fill(&mut builder, &mut self.window);
        let length = builder.finish(&mut self.window[..]);
        self.window[..length].to_vec()
    }

    /// Restores a new VM, which stays paused.
    fn restore(&mut self, vm: &'static vm::Vm) {
        fake::RESTORES.store(true, Ordering::Relaxed);
        power::begin_restore(vm);
        fake::RESTORES.store(false, Ordering::Relaxed);
        for command in [power::pause, power::resume, power::turn_on] {
            assert_eq!(command(vm), Answer::WrongState, "it is being restored");
        }
        for (part, state) in self.states.iter().enumerate() {
            assert!(vm.restore_state(part, &[]).is_err() && vm.restore_state(part, state).is_ok());
        }
        let begin = self.piece(|builder, window| builder.block(window, RAM_BASE));
        // More pages of zeros than one call may clear, which the saved pieces replace.
        let zeros = self.piece(|builder, window| (0..20).for_each(|page| builder.zero(window, RAM_BASE + page * 4096)));
        for piece in [&begin, &zeros].into_iter().chain(&self.pieces) {
            let (mut done, mut is_complete) = (0, false);
            while !is_complete {
                let before = done;
                (done, is_complete) = vm.restore_memory(done, piece).unwrap();
                assert!(done - before <= 1 + PAGES, "the work of a call is bounded");
            }
        }
        let (not_ram, not_begun) = (0, RAM_BASE + (2 << 20));
        for address in [not_ram, not_begun] {
            let piece = self.piece(|builder, window| _ = builder.page(window, address));
            assert!(vm.restore_memory(0, &piece).is_err());
        }
        assert_eq!((power::end_restore(vm, true), power::end_restore(vm, true)), (Answer::Done, Answer::WrongState));
        // It is paused now, by a message like that of the operator's pause.
        count(&PAUSES, 1);
    }
}
