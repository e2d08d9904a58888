//! Description of the machine for the log of one that measures: hardware, firmware's tables, and features that Stile uses.

use core::fmt;

use super::board::{self, Conduit, Gic};
use super::features::Features;
use super::sysreg::read_sysreg;
use super::{features, gic, pmu, timer};
use crate::console::log;
use crate::cpu::SCHEDULE;

/// Logs the description, on the boot CPU.
pub fn log() {
    let board = board::get();
    let have = features::get();
    log!("CPU: MIDR_EL1 {:#x}, {} by the tables", read_sysreg!(MIDR_EL1), board.cpus.len());
    log!("features: PARange {}, FEAT_NV {}{}", have.pa_range, have.nv, Names(have));
    log!(
        "errata: {}",
        if features::closes_el1() { "speculative AT: EL1's translation is closed at switches" } else { "none that Stile knows" }
    );
    let (kind, note) = match board.gic {
        Some(Gic::V2(_)) => ("GICv2", ""),
        Some(Gic::V3 { .. }) | None => ("GICv3", if board.its.is_some() { ", ITS" } else { "" }),
    };
    log!("interrupts: {kind}{note}{}", if gic::is_of_qemu() { ", QEMU's model" } else { "" });
    log!("timers: INTIDs {:?}; maintenance interrupt: {:?}", board.timers, board.maintenance);
    let by = if board.time.is_some() { "ACPI tables" } else { "a device tree" };
    let power = match board.psci {
        Some(Conduit::Smc) => "PSCI by SMC",
        Some(Conduit::Hvc) => "PSCI by HVC",
        None => "no PSCI",
    };
    log!("firmware: {by}, {power}; SMMUv3: {}; PCI bridge: {}", yes(board.smmu.is_some()), yes(board.pci.is_some()));
    match &board.uart {
        Some(port) => log!("console: {:?} at {:#x}, interrupt {:?}", port.kind, port.registers.start, port.intid),
        None => log!("console: none"),
    }
    log!("frame buffer: {}", yes(board.frame_buffer.is_some()));
    board.ram.iter().for_each(|ram| log!("RAM: {:#x} to {:#x}", ram.start, ram.end));
    let mode = if have.vhe { "VHE" } else { "no VHE" };
    log!("Stile: EL2, {mode}, VMIDs of {} bits, CPUs: {}", if have.vmid16 { 16 } else { 8 }, SCHEDULE.online().len());
    log!("clock: {} Hz", timer::frequency());
    log!("counters: {}", pmu::Description);
}

/// Names of the features that a CPU has.
struct Names<'a>(&'a Features);

impl fmt::Display for Names<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let have = self.0;
        [
            (have.aarch32_el0, "AArch32 at EL0"),
            (have.vhe, "VHE"),
            (have.sve, "SVE"),
            (have.sme, "SME"),
            (have.pauth, "PAuth"),
            (have.fgt, "FGT"),
            (have.fgt2, "FGT2"),
            (have.hcx, "HCX"),
            (have.mops, "MOPS"),
            (have.ras, "RAS"),
            (have.mte, "MTE"),
            (have.amu, "AMU"),
            (have.mpam, "MPAM"),
            (have.ecv, "ECV"),
            (have.trf, "TRF"),
            (have.trbe, "TRBE"),
            (have.spe, "SPE"),
            (have.vmid16, "VMID16"),
            (have.pan, "PAN"),
        ]
        .into_iter()
        .filter(|(has, _)| *has)
        .try_for_each(|(_, name)| write!(f, ", {name}"))
    }
}

fn yes(is_there: bool) -> &'static str {
    if is_there { "yes" } else { "no" }
}
