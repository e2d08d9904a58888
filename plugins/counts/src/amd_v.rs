//! Counts of PCs with AMD-V: instructions of guests and outside of them, and exits.
//!
//! VMRUN begins a guest's instructions, and the instruction behind it ends them: the processor continues there after an
//! exit. A guest marks a section by PREFETCHNTA at its begin and its end. Each CPU has a thread of its own.

use std::cell::Cell;
use std::ffi::{c_uint, c_void};
use std::fs::File;
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::account::{Line, Section};
use crate::counts::Counts;
use crate::decode::KINDS;
use crate::qemu::{self, Block, Id};

static PLUGIN: OnceLock<Mutex<State>> = OnceLock::new();

struct State {
    output: File,
    cpus: Vec<&'static Cpu>,
    /// Counts at the begin of the section, if one is open.
    open: Option<[u64; 3]>,
}

/// Counts of a CPU, which only its own thread changes.
#[derive(Default)]
struct Cpu {
    guest: AtomicU64,
    outside: AtomicU64,
    exits: AtomicU64,
    /// The address behind VMRUN while the guest runs, otherwise 0.
    landing: AtomicU64,
}

thread_local! {
    static CPU: Cell<Option<&'static Cpu>> = const { Cell::new(None) };
}

/// Installs the callbacks.
///
/// # Errors
/// The plugin is loaded twice.
pub fn install(id: Id, output: File) -> Result<(), String> {
    let state = State { output, cpus: Vec::new(), open: None };
    PLUGIN.set(Mutex::new(state)).map_err(|_| "it is loaded twice")?;
    qemu::register(id, on_cpu, on_block, on_end_of_run);
    Ok(())
}

fn state() -> Option<MutexGuard<'static, State>> {
    PLUGIN.get().map(|state| state.lock().unwrap_or_else(PoisonError::into_inner))
}

/// The running thread's CPU.
fn cpu() -> &'static Cpu {
    CPU.get().unwrap_or_else(|| {
        let cpu: &'static Cpu = Box::leak(Box::default());
        CPU.set(Some(cpu));
        if let Some(mut state) = state() {
            state.cpus.push(cpu);
        }
        cpu
    })
}

fn add(count: &AtomicU64) {
    count.store(count.load(Relaxed) + 1, Relaxed);
}

extern "C" fn on_cpu(_: Id, _: c_uint) {}

extern "C" fn on_block(_: Id, block: Block<'_>) {
    for instruction in block.instructions() {
        // Leaked: translated code may use it until the emulator ends.
        let address: &'static u64 = Box::leak(Box::new(instruction.address()));
        match instruction.bytes() {
            [0x0f, 0x01, 0xd8, _] => instruction.call_blind(on_vmrun, address),
            // PREFETCHNTA, of an address in a register.
            [0x0f, 0x18, 0..=7, _] | [0x41, 0x0f, 0x18, 0..=7] => instruction.call_blind(on_mark, address),
            _ => instruction.call_blind(on_instruction, address),
        }
    }
}

extern "C" fn on_instruction(_: c_uint, address: &'static u64) {
    let cpu = cpu();
    match cpu.landing.load(Relaxed) {
        0 => add(&cpu.outside),
        landing if landing == *address => {
            cpu.landing.store(0, Relaxed);
            add(&cpu.exits);
            add(&cpu.outside);
        }
        _ => add(&cpu.guest),
    }
}

extern "C" fn on_vmrun(_: c_uint, address: &'static u64) {
    /// Length of VMRUN.
    const LENGTH: u64 = 3;
    let cpu = cpu();
    add(&cpu.outside);
    cpu.landing.store(address + LENGTH, Relaxed);
}

extern "C" fn on_mark(number: c_uint, address: &'static u64) {
    let is_guests = cpu().landing.load(Relaxed) != 0;
    on_instruction(number, address);
    let Some(mut state) = state().filter(|_| is_guests) else { return };
    let [guest, outside, exits] = state.cpus.iter().fold([0; 3], |[guest, outside, exits], cpu| {
        [guest + cpu.guest.load(Relaxed), outside + cpu.outside.load(Relaxed), exits + cpu.exits.load(Relaxed)]
    });
    let Some(before) = state.open.take() else {
        state.open = Some([guest, outside, exits]);
        return;
    };
    let outside = of_instructions(outside - before[1]);
    let section = Section::without_reasons(of_instructions(guest - before[0]), outside, exits - before[2]);
    let written = serde_json::to_string(&Line::Section(section)).map(|line| writeln!(state.output, "{line}"));
    if !matches!(written, Ok(Ok(()))) {
        eprintln!("counts: the output can't be written");
    }
}

fn of_instructions(count: u64) -> Counts {
    let mut kinds = [0; KINDS];
    kinds[0] = count;
    Counts::from(kinds)
}

extern "C" fn on_end_of_run(_: Id, _: *mut c_void) {}
