//! The simulated machine: its CPUs take turns in random order, on one thread.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;

use stile_blob::Files;
use stile_sched::CpuId;
use stile_wire::Answer;

use super::counts::{CREATED, DESTROYED, count};
use super::random::random;
use super::{CPUS, guest, operator};
use crate::arch::Cpu;
use crate::arch::fake::{self, PoweredOff};
use crate::vm::power::{self, End};
use crate::vm::{self, retire};
use crate::{cpu, trace};

/// An idle CPU ends its turn by a panic with this payload.
struct Idle;

/// Lets an idle CPU wait: an interrupt wakes it, or its turn ends.
fn wait() {
    fake::pass(random(10_000_000));
    if random(4) == 0 {
        std::panic::panic_any(Idle);
    }
    guest::interrupt();
}

/// Installs [`wait`], and silences panics that end a turn.
pub fn setup() {
    fake::NOTHING_TO_DO.set(wait);
    let default = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if !info.payload().is::<Idle>() && !info.payload().is::<PoweredOff>() {
            default(info);
        }
    }));
}

/// The CPUs, each of which runs a vCPU or idles, and the VMs of the configuration.
pub struct Machine {
    pub cpus: Vec<Cpu>,
    pub idle: [bool; CPUS],
    /// An unresponsive CPU: its guest waits with all of its interrupts masked.
    unreachable: Option<usize>,
    pub configuration: Vec<stile_blob::Vm<'static>>,
    pub files: Files<'static>,
}

impl Machine {
    /// A machine all of whose CPUs idle.
    pub fn new(cpus: Vec<Cpu>, configuration: Vec<stile_blob::Vm<'static>>, files: Files<'static>) -> Machine {
        Machine { cpus, idle: [true; CPUS], unreachable: None, configuration, files }
    }

    /// Steps a CPU, which must not power the machine off.
    pub fn step(&mut self) {
        assert!(self.step_to_end(), "one VM is always on");
    }

    /// Steps a CPU: one exit, or one interrupt if it idles. Returns false once the machine is off.
    pub fn step_to_end(&mut self) -> bool {
        operator::note_states();
        let n = random(CPUS as u64) as usize;
        self.unreachable == Some(n) || self.step_cpu(n)
    }

    /// Steps CPU number `n`.
    pub fn step_cpu(&mut self, n: usize) -> bool {
        let (cpu, idle) = (&mut self.cpus[n], self.idle[n]);
        let result = catch_unwind(AssertUnwindSafe(|| if idle { cpu::run_for_tests(cpu) } else { guest::exit(cpu) }));
        self.idle[n] = match result {
            Ok(()) => {
                assert!(cpu::timer_is_in_time(&self.cpus[n]), "the vCPU is entered, and the timer would be late for something");
                if self.cpus[n].traced.get() {
                    trace::trace_enter(&self.cpus[n]);
                }
                false
            }
            Err(reason) if reason.is::<Idle>() => true,
            Err(reason) if reason.is::<PoweredOff>() => return false,
            Err(reason) => std::panic::resume_unwind(reason),
        };
        true
    }

    /// Steps the machine until the condition holds.
    pub fn run_until(&mut self, mut condition: impl FnMut() -> bool) {
        self.run_until_its(|_| condition());
    }

    /// Steps the machine until a CPU runs a vCPU of this VM.
    pub fn run_until_runs(&mut self, vm: usize) {
        self.run_until_its(|machine| (0..CPUS).any(|n| machine.runs(n, vm)));
    }

    fn run_until_its(&mut self, mut condition: impl FnMut(&Machine) -> bool) {
        let mut steps = 0;
        while !condition(self) {
            self.step();
            steps += 1;
            assert!(steps < 100_000, "the condition never holds");
        }
    }

    /// Whether CPU `n` runs a vCPU of this VM.
    fn runs(&self, n: usize, vm: usize) -> bool {
        !self.idle[n] && self.cpus[n].vcpu.is_some_and(|vcpu| vcpu.vm().number == vm)
    }

    /// Makes a CPU that runs VM 0 unresponsive, if there is one, and returns it.
    pub fn lose_cpu(&mut self) -> Option<CpuId> {
        self.unreachable = (0..CPUS).find(|&n| self.runs(n, 0));
        fake::CONFINED.store(self.unreachable.map_or(0, |n| 1 << n), Ordering::Relaxed);
        self.unreachable.and_then(CpuId::new)
    }

    /// Makes the unresponsive CPU respond again.
    pub fn regain_cpu(&mut self) {
        self.unreachable = None;
        fake::CONFINED.store(0, Ordering::Relaxed);
    }

    /// Creates a VM, whose number must be free.
    pub fn create(&self, number: usize, config: &stile_blob::Vm<'static>) -> &'static vm::Vm {
        assert!(retire::claim(number), "the number is in use");
        guest::forget(number);
        let vm = vm::create(number, config, self.files).unwrap();
        count(&CREATED, 1);
        vm
    }

    /// Destroys a VM that is on.
    pub fn destroy(&mut self, number: usize) {
        power::end_now(vm::get(number).unwrap(), End::Off);
        self.run_until(|| power::destroy(vm::get(number).unwrap()) == Answer::Done);
        self.run_until(|| vm::get(number).is_none() && !retire::is_any());
        count(&DESTROYED, 1);
    }
}
