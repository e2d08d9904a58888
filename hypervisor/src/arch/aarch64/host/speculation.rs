//! Mitigations of speculative-execution attacks on this CPU: chosen by crate `stile-speculation`, applied here.

use core::sync::atomic::{AtomicU8, Ordering};

use smccc::{Call, Smc, arch, psci};
use stile_blob::Mitigations;
use stile_board::MAX_CPUS;
use stile_device::smccc::{Workarounds, id};
use stile_lock::TicketLock;
use stile_speculation::aarch64::{History, Identity, Plan, StoreBypass, Targets, reported};

use super::cpu::{Cpu, this_index};
use super::firmware;
use super::sysreg::read_sysreg;
use crate::console::log;
use crate::once::Once;

core::arch::global_asm!(
    include_str!("speculation.S"),
    HISTORY_BRANCHES = const super::cpu::HISTORY_BRANCHES,
    WORKAROUND_3 = const id::ARCH_WORKAROUND_3,
);

/// Mitigations that a CPU needs, and those that it can execute.
struct Known {
    needed: Plan,
    all: Plan,
    firmware: Workarounds,
}

static KNOWN: [Once<Known>; MAX_CPUS] = [const { Once::new() }; MAX_CPUS];
/// Workarounds visible to guests, set when [`apply`] has seen all CPUs.
static REPORTED: TicketLock<Workarounds> = TicketLock::new(Workarounds::NONE);
/// [`Mitigations`] of the configuration, set by [`apply`]; [`Mitigations::Off`] before.
static MODE: AtomicU8 = AtomicU8::new(Mitigations::Off as u8);

/// Chooses this CPU's mitigations. Called once per CPU, before any guest runs.
pub fn setup_cpu(cpu: &mut Cpu) {
    let firmware = firmware_workarounds();
    let identity = identity(firmware);
    let known = Known { needed: Plan::new(&identity), all: Plan::all(&identity), firmware };
    if let History::Loop(branches) = known.all.history {
        cpu.history_branches = branches.into();
    }
    KNOWN[cpu.index % MAX_CPUS].set(known);
}

fn identity(firmware: Workarounds) -> Identity {
    let pfr0 = read_sysreg!(ID_AA64PFR0_EL1);
    let pfr1 = read_sysreg!(ID_AA64PFR1_EL1);
    let isar2 = read_sysreg!(ID_AA64ISAR2_EL1);
    let mmfr1 = read_sysreg!(ID_AA64MMFR1_EL1);
    let field = |register: u64, shift: u32| (register >> shift & 0xf) as u8;
    Identity {
        midr: read_sysreg!(MIDR_EL1),
        csv2: field(pfr0, 56),
        ssbs: field(pfr1, 4),
        clrbhb: field(isar2, 28) != 0,
        ecbhb: field(mmfr1, 60) != 0,
        firmware,
    }
}

/// Queries firmware's workarounds for this CPU. Firmware before PSCI 1.0 does not implement SMCCC_ARCH_FEATURES
/// queries (DEN 0028, "Discovery"): it has none.
fn firmware_workarounds() -> Workarounds {
    let asked = firmware::is_called_by_smc()
        && psci::version::<Smc>().is_ok_and(|version| version.major >= 1)
        && psci::psci_features::<Smc>(arch::SMCCC_VERSION).is_ok()
        && arch::version::<Smc>().is_ok_and(|version| version >= arch::Version { major: 1, minor: 1 });
    if !asked {
        return Workarounds::NONE;
    }
    let answer = |function| Smc::call32(id::ARCH_FEATURES, [function, 0, 0, 0, 0, 0, 0])[0] as i32;
    Workarounds { one: answer(id::ARCH_WORKAROUND_1), two: answer(id::ARCH_WORKAROUND_2), three: answer(id::ARCH_WORKAROUND_3) }
}

/// Applies the mitigations once all CPUs have chosen, before the first guest runs, and logs those in force.
pub fn apply(mode: Mitigations) {
    MODE.store(mode as u8, Ordering::Release);
    let cpus = || KNOWN.iter().enumerate().filter_map(|(index, known)| Some((index, known.try_get()?)));
    let mut before = None;
    for (index, known) in cpus() {
        if before != Some(known.needed) {
            report(index, known, mode);
            before = Some(known.needed);
        }
    }
    if mode != Mitigations::Off {
        *REPORTED.lock() = reported(cpus().map(|(_, known)| known.firmware));
    }
}

/// Logs the plan of the CPUs from `first` on, unless nothing is needed or in force.
fn report(first: usize, known: &Known, mode: Mitigations) {
    match mode {
        Mitigations::Auto if known.needed != Plan::NONE => log!("speculation, CPU {first}: {}", known.needed),
        Mitigations::All => log!("speculation, CPU {first}: {}", known.all),
        Mitigations::Off if known.needed != Plan::NONE => {
            log!("speculation, CPU {first}: mitigations are off; needed: {}", known.needed);
        }
        Mitigations::Auto | Mitigations::Off => {}
    }
}

/// The plan in force on a CPU.
fn plan(cpu: usize) -> Option<&'static Plan> {
    let mode = MODE.load(Ordering::Acquire);
    if mode == Mitigations::Off as u8 {
        return None;
    }
    let known = KNOWN[cpu % MAX_CPUS].try_get()?;
    Some(if mode == Mitigations::All as u8 { &known.all } else { &known.needed })
}

/// Enables permanent mitigations before the first guest of this CPU.
pub fn enter_first(cpu: usize) {
    if plan(cpu).is_some_and(|plan| plan.store_bypass == StoreBypass::Firmware) {
        arch::arch_workaround_2::<Smc>(true).unwrap_or_else(|error| log!("speculation: CPU {cpu}: workaround 2: {error}"));
    }
}

/// Vectors with this CPU's mitigations in place of table `number` of
/// [`Vectors`](crate::arch::aarch64::exit::vectors::Vectors), if it needs any; the recording tables are counted after
/// the others.
pub fn in_front_of(vectors: usize) -> Option<u64> {
    unsafe extern "C" {
        static CLEARING_VECTORS: [[u64; 10]; 3];
    }
    let plan = plan(this_index())?;
    let way = match plan.history {
        History::Unaffected | History::Exposed => return None,
        History::Loop(_) => 0,
        History::Instruction => 1,
        History::Firmware => 2,
    };
    // SAFETY: speculation.S defines this table as constants, which nothing writes.
    Some(unsafe { CLEARING_VECTORS[way][vectors] })
}

/// Called when another VM's second stage is loaded: the previous VM's branch targets must not steer the next one.
#[inline(always)]
pub fn switch_vm(cpu: usize) {
    if let Some(Plan { targets: Targets::Firmware(function), .. }) = plan(cpu) {
        Smc::call32(*function, [0; 7]);
    }
}

/// Firmware's workarounds as guests see them.
pub fn workarounds() -> Workarounds {
    *REPORTED.lock()
}

/// Handles a guest's call of a workaround. A CPU whose firmware lacks it does not need it: another CPU of the machine
/// does.
pub fn forward(cpu: usize, function: u32) {
    let offered = KNOWN[cpu % MAX_CPUS].try_get().is_some_and(|known| match function {
        id::ARCH_WORKAROUND_1 => known.firmware.one >= 0,
        id::ARCH_WORKAROUND_3 => known.firmware.three >= 0,
        _ => false,
    });
    if offered {
        Smc::call32(function, [0; 7]);
    }
}
