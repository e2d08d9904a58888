//! Callbacks of the emulator.

use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::fs::File;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::account::{Account, Level, Line, Place, Reason, Tally};
use crate::amd_v;
use crate::decode::{self, KINDS};
use crate::qemu::{self, Block, Id, Info, Register};
use crate::regime::Regime;
use crate::sharing::Sharing;
use crate::{BEGIN, END};

/// Version of the interface that the plugin requires.
#[unsafe(no_mangle)]
pub static qemu_plugin_version: c_int = 3;

static PLUGIN: OnceLock<Plugin> = OnceLock::new();

struct Plugin {
    registers: OnceLock<Registers>,
    verify: bool,
    sharing: bool,
    /// A section is open: sharing is counted only then, as a register is read for each stretch of EL2.
    is_open: AtomicBool,
    state: Mutex<State>,
}

struct State {
    account: Account,
    additions: HashMap<(Place, [u32; KINDS]), &'static Addition>,
    output: File,
    /// Whether an error was written; further ones are dropped.
    failed: bool,
    /// With `verify=on`: whether the last block ran at EL1, or at EL0 under it.
    below: bool,
}

/// Counts to add when a stretch of instructions runs.
struct Addition {
    tally: &'static Tally,
    counts: [u32; KINDS],
}

/// Assumptions about a block.
struct Assumed {
    place: Place,
    is_vector: bool,
}

/// The registers that are read.
struct Registers {
    pstate: Register,
    /// `None` on a machine without EL2.
    el2: Option<El2>,
    /// General registers X0 to X30, and `None` for XZR.
    general: [Option<Register>; 32],
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
    // SAFETY: QEMU passes `count` pointers to strings that end with NUL and stay valid during the call (qemu-plugin.h).
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
    let is_pc = match info.machine() {
        Some(machine) if machine == c"aarch64" => false,
        Some(machine) if machine == c"x86_64" => true,
        _ => return Err("only AArch64 and x86-64 machines are understood".into()),
    };
    let (mut path, mut verify, mut sharing) = (None, false, false);
    for argument in arguments {
        match argument.split_once('=') {
            Some(("out", file)) => path = Some(file),
            Some(("verify", "on")) => verify = true,
            Some(("verify", "off")) => verify = false,
            Some(("sharing", "on")) => sharing = true,
            _ => return Err(format!("{argument}: expected out=FILE, verify=on or sharing=on")),
        }
    }
    let path = path.ok_or("the argument out=FILE is missing")?;
    let output = File::create(path).map_err(|error| format!("{path}: {error}"))?;
    if is_pc {
        return match verify || sharing {
            true => Err("a PC has neither verify=on nor sharing=on".into()),
            false => amd_v::install(id, output),
        };
    }
    let account = Account::new(sharing.then(Sharing::default));
    let state = Mutex::new(State { account, additions: HashMap::new(), output, failed: false, below: false });
    let plugin = Plugin { registers: OnceLock::new(), verify, sharing, is_open: AtomicBool::new(false), state };
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
        // Fails only if another CPU has set them, to equal values.
        Some(pstate) => drop(plugin.registers.set(Registers { pstate, el2: el2(), general: general_registers() })),
        None => plugin.error("the emulator shows no register called cpsr"),
    }
}

/// X0 to X30, and `None` for XZR.
fn general_registers() -> [Option<Register>; 32] {
    let registers = qemu::registers([
        c"x0", c"x1", c"x2", c"x3", c"x4", c"x5", c"x6", c"x7", c"x8", c"x9", c"x10", c"x11", c"x12", c"x13", c"x14", c"x15", c"x16",
        c"x17", c"x18", c"x19", c"x20", c"x21", c"x22", c"x23", c"x24", c"x25", c"x26", c"x27", c"x28", c"x29", c"x30",
    ]);
    std::array::from_fn(|number| registers.get(number).copied().flatten())
}

/// Instruments a translated block. The CPU's state at translation is its state at every execution: blocks are cached per
/// translation regime, and pages are retranslated when written.
extern "C" fn on_block(_id: Id, block: Block<'_>) {
    let Some(plugin) = PLUGIN.get() else { return };
    let Some(place) = plugin.place() else { return plugin.error(UNREADABLE) };
    let vector = if place.level == Level::El2 { plugin.vector(block.address()) } else { None };
    if plugin.verify {
        block.call(on_block_run, Box::leak(Box::new(Assumed { place, is_vector: vector.is_some() })));
    }
    if let Some(vector) = vector {
        block.call(on_vector, Box::leak(Box::new(vector)));
    }
    let instructions: Vec<_> = block.instructions().collect();
    let words: Vec<_> = instructions.iter().map(qemu::Instruction::word).collect();
    let mut state = plugin.state();
    for stretch in decode::stretches(&words) {
        instructions[stretch.last].call_blind(on_stretch, state.addition(place, stretch.counts));
    }
    drop(state);
    if plugin.sharing && place.level == Level::El2 {
        count_sharing(&instructions, &words);
    }
    for (instruction, word) in instructions.iter().zip(words) {
        match word {
            Some(BEGIN) => instruction.call(on_begin, &()),
            Some(END) => instruction.call(on_end, &()),
            _ => {}
        }
    }
}

/// Instruments a translated block of EL2 to count sharing. (The status of a store-exclusive that ends a block is not
/// read: the next block may run on another CPU first.)
fn count_sharing(instructions: &[qemu::Instruction<'_>], words: &[Option<u32>]) {
    for stretch in decode::stretches(words) {
        instructions[stretch.last].call(on_stretch_of_loaded, Box::leak(Box::new(stretch.counts)));
    }
    for (index, (instruction, word)) in instructions.iter().zip(words).enumerate() {
        let Some(word) = *word else { continue };
        if word == decode::YIELD {
            instruction.call(on_spin, &());
        }
        if decode::is_atomic(word) {
            instruction.call_for_writes(on_atomic, &());
        }
        if let (Some(status), Some(next)) = (decode::store_exclusive(word), instructions.get(index + 1)) {
            next.call(on_status, Box::leak(Box::new(status)));
        }
    }
}

extern "C" fn on_stretch_of_loaded(_: c_uint, counts: &'static [u32; KINDS]) {
    with_sharing(|sharing, loaded| sharing.ran(loaded, counts));
}

extern "C" fn on_spin(_: c_uint, (): &'static ()) {
    with_sharing(|sharing, loaded| sharing.spun(loaded));
}

extern "C" fn on_atomic(_: c_uint, _: c_uint, address: u64, (): &'static ()) {
    with_sharing(|sharing, loaded| sharing.wrote(loaded, address));
}

/// Counts a failed store-exclusive; its status is in this register.
extern "C" fn on_status(_: c_uint, number: &'static usize) {
    let Some(plugin) = PLUGIN.get() else { return };
    let register = plugin.registers.get().and_then(|registers| *registers.general.get(*number)?);
    let Some(status) = register.and_then(Register::read) else { return plugin.error(UNREADABLE) };
    if status & 1 != 0 {
        with_sharing(|sharing, loaded| sharing.failed(loaded));
    }
}

/// Counts an event at EL2 for the regime whose second stage is loaded.
fn with_sharing(count: impl FnOnce(&mut Sharing, Regime)) {
    let Some(plugin) = PLUGIN.get().filter(|plugin| plugin.is_open.load(Ordering::Relaxed)) else { return };
    let vttbr = plugin.registers.get().and_then(|registers| registers.el2.as_ref()?.vttbr.read());
    let Some(vttbr) = vttbr else { return plugin.error(UNREADABLE) };
    // At EL2 of a host with VHE, HCR_EL2.VM is clear; VTTBR_EL2 is still the loaded regime's.
    if let Some(sharing) = &mut plugin.state().account.sharing {
        count(sharing, Regime::new(1, vttbr));
    }
}

extern "C" fn on_stretch(_: c_uint, addition: &'static Addition) {
    addition.tally.add(&addition.counts);
}

extern "C" fn on_vector(_: c_uint, vector: &'static u64) {
    let Some(plugin) = PLUGIN.get() else { return };
    let Some(el2) = plugin.registers.get().and_then(|registers| registers.el2.as_ref()) else { return };
    let values = || Some((el2.hcr.read()?, el2.vttbr.read()?, el2.esr.read()?, el2.hpfar.read()?));
    let Some((hcr, vttbr, esr, hpfar)) = values() else { return plugin.error(UNREADABLE) };
    // From the host's own EL0, such as a system call.
    if hcr & HCR_TGE == 0 {
        plugin.state().account.exit(Regime::new(hcr, vttbr), Reason::new(*vector, esr, hpfar));
    }
}

extern "C" fn on_begin(_: c_uint, (): &'static ()) {
    let Some(plugin) = PLUGIN.get() else { return };
    let Some(place) = plugin.place() else { return plugin.error(UNREADABLE) };
    let result = plugin.state().account.begin(place.regime);
    plugin.is_open.store(true, Ordering::Relaxed);
    if let Err(sentence) = result {
        plugin.error(&sentence);
    }
}

extern "C" fn on_end(_: c_uint, (): &'static ()) {
    let Some(plugin) = PLUGIN.get() else { return };
    let Some(place) = plugin.place() else { return plugin.error(UNREADABLE) };
    plugin.is_open.store(false, Ordering::Relaxed);
    let result = plugin.state().account.end(place.regime);
    match result {
        Ok(section) => plugin.write(&Line::Section(section)),
        Err(sentence) => plugin.error(&sentence),
    }
}

extern "C" fn on_end_of_run(_id: Id, _: *mut c_void) {
    let Some(plugin) = PLUGIN.get() else { return };
    let run = plugin.state().account.run();
    plugin.write(&Line::Run(run));
}

/// Verifies that a block runs in the state in which it was translated, and that EL2 is entered from below only through
/// its vectors. (The latter only with one CPU: with several, another one's block may have run before.)
extern "C" fn on_block_run(_: c_uint, assumed: &'static Assumed) {
    let Some(plugin) = PLUGIN.get() else { return };
    let Some(place) = plugin.place() else { return plugin.error(UNREADABLE) };
    if place != assumed.place {
        plugin.error(&format!("what was translated for {:?} runs at {place:?}", assumed.place));
    }
    let below = matches!(place.level, Level::El1 | Level::El0);
    let was_below = std::mem::replace(&mut plugin.state().below, below);
    if was_below && !below && !assumed.is_vector && qemu::cpus() == 1 {
        plugin.error("EL2 was reached from below, but not through a vector");
    }
}

const UNREADABLE: &str = "this emulator's registers can't be read";

/// HCR_EL2.TGE.
const HCR_TGE: u64 = 1 << 27;

impl Plugin {
    /// Exception level and regime of the current CPU.
    fn place(&self) -> Option<Place> {
        let registers = self.registers.get()?;
        let (hcr, vttbr) = match &registers.el2 {
            Some(el2) => (el2.hcr.read()?, el2.vttbr.read()?),
            None => (0, 0),
        };
        // PSTATE.nRW is bit 4, PSTATE.EL bits 3:2; in AArch32 state M[3:0] is zero at EL0.
        let level = match registers.pstate.read()? & 0x1f {
            0b0_1000..=0b0_1111 => Level::El2,
            0b0_0000..=0b0_0011 | 0b1_0000 if hcr & HCR_TGE != 0 => Level::HostEl0,
            0b0_0000..=0b0_0011 | 0b1_0000 => Level::El0,
            _ => Level::El1,
        };
        let regime = if matches!(level, Level::El1 | Level::El0) { Regime::new(hcr, vttbr) } else { Regime::BARE };
        Some(Place { level, regime })
    }

    /// Offset of the vector at this address, if exceptions from lower Exception levels enter there.
    fn vector(&self, address: u64) -> Option<u64> {
        let table = self.registers.get()?.el2.as_ref()?.vbar.read()?;
        let offset = address.wrapping_sub(table);
        ((0x400..0x800).contains(&offset) && offset % 0x80 == 0).then_some(offset)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn error(&self, sentence: &str) {
        let failed = std::mem::replace(&mut self.state().failed, true);
        if !failed {
            self.write(&Line::Error(sentence.to_owned()));
        }
    }

    fn write(&self, line: &Line) {
        let written = serde_json::to_string(line).map(|text| writeln!(self.state().output, "{text}"));
        if !matches!(written, Ok(Ok(()))) {
            eprintln!("counts: the output can't be written");
        }
    }
}

impl State {
    fn addition(&mut self, place: Place, counts: [u32; KINDS]) -> &'static Addition {
        let account = &mut self.account;
        // Leaked: translated code may use it until the emulator ends. Few values differ.
        self.additions.entry((place, counts)).or_insert_with(|| Box::leak(Box::new(Addition { tally: account.tally(place), counts })))
    }
}
