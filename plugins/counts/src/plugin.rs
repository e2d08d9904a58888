//! What the emulator calls.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::fs::File;
use std::io::Write;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::account::{Account, Counters, LEVELS, Level, Line, Reason, World};
use crate::decode::{self, KINDS, Kind};
use crate::qemu::{self, Block, Id, Info, Register, Scoreboard};
use crate::{BEGIN, END};

/// The version of the interface that the plugin is written for.
#[unsafe(no_mangle)]
pub static qemu_plugin_version: c_int = 3;

static PLUGIN: OnceLock<Plugin> = OnceLock::new();

struct Plugin {
    counters: Scoreboard,
    registers: OnceLock<Registers>,
    verify: bool,
    state: Mutex<State>,
}

struct State {
    account: Account,
    output: File,
    /// Of each CPU, if that is verified: whether the last block ran at EL1 or EL0 under it.
    below: Vec<bool>,
}

/// The registers that are read.
struct Registers {
    pstate: Register,
    /// None on a machine without EL2.
    el2: Option<El2>,
}

struct El2 {
    hcr: Register,
    vttbr: Register,
    vbar: Register,
    esr: Register,
    hpfar: Register,
}

/// Loads the plugin.
///
/// # Safety
/// The emulator calls it, with information and arguments.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qemu_plugin_install(id: Id, info: &Info, count: c_int, arguments: *const *const c_char) -> c_int {
    // SAFETY: they come from the emulator.
    let arguments = unsafe { qemu::arguments(count, arguments) };
    match install(id, info, &arguments) {
        Ok(()) => 0,
        Err(sentence) => {
            eprintln!("counts: {sentence}");
            1
        }
    }
}

fn install(id: Id, info: &Info, arguments: &[String]) -> Result<(), String> {
    if !info.is_aarch64_machine() {
        return Err("only AArch64 machines are understood".into());
    }
    let (mut path, mut verify) = (None, false);
    for argument in arguments {
        match argument.split_once('=') {
            Some(("out", file)) => path = Some(file),
            Some(("verify", "on")) => verify = true,
            Some(("verify", "off")) => verify = false,
            _ => return Err(format!("{argument}: expected out=FILE or verify=on")),
        }
    }
    let path = path.ok_or("the argument out=FILE is missing")?;
    let output = File::create(path).map_err(|error| format!("{path}: {error}"))?;
    let state = Mutex::new(State { account: Account::default(), output, below: Vec::new() });
    let plugin = Plugin { counters: Scoreboard::new(LEVELS * KINDS), registers: OnceLock::new(), verify, state };
    PLUGIN.set(plugin).map_err(|_| "it is loaded twice")?;
    qemu::register(id, on_cpu, on_block, on_end_of_run);
    Ok(())
}

extern "C" fn on_cpu(_id: Id, _cpu: c_uint) {
    let Some(plugin) = PLUGIN.get() else { return };
    let [pstate, hcr, vttbr, vbar, esr, hpfar] =
        qemu::registers([c"cpsr", c"HCR_EL2", c"VTTBR_EL2", c"VBAR_EL2", c"ESR_EL2", c"HPFAR_EL2"]);
    let el2 = || Some(El2 { hcr: hcr?, vttbr: vttbr?, vbar: vbar?, esr: esr?, hpfar: hpfar? });
    match pstate {
        // It fails only if an earlier CPU has set them: to the same.
        Some(pstate) => drop(plugin.registers.set(Registers { pstate, el2: el2() })),
        None => plugin.error("the emulator shows no register called cpsr"),
    }
}

/// Instructs the emulator what to count when a block runs that it translates. The CPU is in the state then in which the block runs, and a
/// block that was translated in one translation regime, and so Exception level, never runs in another.
extern "C" fn on_block(_id: Id, block: Block<'_>) {
    let Some(plugin) = PLUGIN.get() else { return };
    let Some(level) = plugin.level() else { return plugin.error("registers can't be read") };
    let vector = if level == Level::El2 { plugin.vector(block.address()) } else { None };
    if plugin.verify {
        block.call(on_block_run, level as u64 | if vector.is_some() { IS_VECTOR } else { 0 });
    }
    if let Some(vector) = vector {
        block.call(on_vector, vector);
    }
    let count = |instruction: &qemu::Instruction<'_>, kind: Kind, value| {
        instruction.count(&plugin.counters, level as usize * KINDS + kind as usize, value);
    };
    let mut pending = 0;
    let mut instructions = block.instructions().peekable();
    while let Some(instruction) = instructions.next() {
        pending += 1;
        // AArch32 may have shorter ones; it is never outside of guests.
        let word = instruction.word();
        // Fewer additions: those that fall through are counted with the one that they fall to.
        if !word.is_some_and(decode::falls_through) || instructions.peek().is_none() {
            count(&instruction, Kind::Instruction, pending);
            pending = 0;
        }
        for kind in word.map_or(&[][..], decode::kinds) {
            count(&instruction, *kind, 1);
        }
        match word {
            Some(BEGIN) => instruction.call(on_begin),
            Some(END) => instruction.call(on_end),
            _ => {}
        }
    }
}

extern "C" fn on_vector(cpu: c_uint, vector: *mut c_void) {
    let Some(plugin) = PLUGIN.get() else { return };
    let Some(el2) = plugin.registers.get().and_then(|registers| registers.el2.as_ref()) else { return };
    let (cpu, vector) = (cpu as usize, vector.addr() as u64);
    let values = || Some((el2.hcr.read()?, el2.vttbr.read()?, el2.esr.read()?, el2.hpfar.read()?));
    let Some((hcr, vttbr, esr, hpfar)) = values() else { return plugin.error("registers can't be read") };
    // From the host's own EL0: a system call, or the like.
    if hcr & HCR_TGE != 0 {
        return;
    }
    plugin.state().account.exit(cpu, &plugin.counters_of(cpu), World::new(hcr, vttbr), Reason::new(vector, esr, hpfar));
}

extern "C" fn on_begin(cpu: c_uint, _: *mut c_void) {
    let Some(plugin) = PLUGIN.get() else { return };
    let Some(world) = plugin.world() else { return plugin.error("registers can't be read") };
    let result = plugin.state().account.begin(cpu as usize, &plugin.counters_of_all(), world);
    if let Err(sentence) = result {
        plugin.error(&sentence);
    }
}

extern "C" fn on_end(cpu: c_uint, _: *mut c_void) {
    let Some(plugin) = PLUGIN.get() else { return };
    let Some(world) = plugin.world() else { return plugin.error("registers can't be read") };
    let result = plugin.state().account.end(cpu as usize, &plugin.counters_of_all(), world);
    match result {
        Ok(section) => plugin.write(&Line::Section(section)),
        Err(sentence) => plugin.error(&sentence),
    }
}

extern "C" fn on_end_of_run(_id: Id, _: *mut c_void) {
    let Some(plugin) = PLUGIN.get() else { return };
    let run = plugin.state().account.run(&plugin.counters_of_all());
    plugin.write(&Line::Run(run));
}

/// Verifies that a block runs at the level that it was translated for, and that EL2 is reached from below through its vectors only.
extern "C" fn on_block_run(cpu: c_uint, block: *mut c_void) {
    let Some(plugin) = PLUGIN.get() else { return };
    let (cpu, level, is_vector) = (cpu as usize, block.addr() as u64 & !IS_VECTOR, block.addr() as u64 & IS_VECTOR != 0);
    let now = plugin.level();
    if now.is_none_or(|now| now as u64 != level) {
        plugin.error(&format!("a block that was translated for level {level} runs at {now:?}"));
    }
    let below = matches!(now, Some(Level::El1 | Level::El0));
    let mut state = plugin.state();
    if state.below.len() <= cpu {
        state.below.resize(cpu + 1, false);
    }
    let was_below = std::mem::replace(&mut state.below[cpu], below);
    drop(state);
    if was_below && !below && !is_vector {
        plugin.error("EL2 was reached from below, but not through a vector");
    }
}

/// What is passed to [`on_block_run`] with the level of a block that is a vector's first.
const IS_VECTOR: u64 = 1 << 8;

/// HCR_EL2.TGE.
const HCR_TGE: u64 = 1 << 27;

impl Plugin {
    /// Where the CPU is whose thread this is.
    fn level(&self) -> Option<Level> {
        let registers = self.registers.get()?;
        // PSTATE.nRW is bit 4, PSTATE.EL bits 3:2; in AArch32 state M[3:0] is zero at EL0.
        Some(match registers.pstate.read()? & 0x1f {
            0b0_1000..=0b0_1111 => Level::El2,
            0b0_0000..=0b0_0011 | 0b1_0000 => match &registers.el2 {
                Some(el2) if el2.hcr.read()? & HCR_TGE != 0 => Level::HostEl0,
                _ => Level::El0,
            },
            _ => Level::El1,
        })
    }

    /// Which world is below EL2 on the CPU whose thread this is.
    fn world(&self) -> Option<World> {
        match &self.registers.get()?.el2 {
            Some(el2) => Some(World::new(el2.hcr.read()?, el2.vttbr.read()?)),
            None => Some(World::BARE),
        }
    }

    /// The offset of the vector at this address, if it is one for exceptions from lower Exception levels.
    fn vector(&self, address: u64) -> Option<u64> {
        let table = self.registers.get()?.el2.as_ref()?.vbar.read()?;
        let offset = address.wrapping_sub(table);
        ((0x400..0x800).contains(&offset) && offset % 0x80 == 0).then_some(offset)
    }

    fn counters_of(&self, cpu: usize) -> Counters {
        std::array::from_fn(|level| std::array::from_fn(|kind| self.counters.get(cpu, level * KINDS + kind)))
    }

    fn counters_of_all(&self) -> Vec<Counters> {
        (0..qemu::cpus()).map(|cpu| self.counters_of(cpu)).collect()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn error(&self, sentence: &str) {
        self.write(&Line::Error(sentence.to_owned()));
    }

    fn write(&self, line: &Line) {
        let written = serde_json::to_string(line).map(|text| writeln!(self.state().output, "{text}"));
        if !matches!(written, Ok(Ok(()))) {
            eprintln!("counts: the output can't be written");
        }
    }
}
