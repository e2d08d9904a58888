//! Description of the machine for the log of one that measures: hardware, firmware's tables, and features that Stile uses.

use super::board::Board;
use super::instructions::{CpuidResult, cpuid};
use super::{pmu, timer};
use crate::arch::x86_64::virt::extension;
use crate::console::log;
use crate::cpu::SCHEDULE;

/// Logs the description, on the boot CPU.
pub fn log(board: &Board) {
    let mut brand = [0; 48];
    if cpuid(0x8000_0000, 0).eax >= 0x8000_0004 {
        for (part, leaf) in brand.chunks_exact_mut(16).zip(0x8000_0002..) {
            let CpuidResult { eax, ebx, ecx, edx } = cpuid(leaf, 0);
            part.chunks_exact_mut(4).zip([eax, ebx, ecx, edx]).for_each(|(part, register)| part.copy_from_slice(&register.to_le_bytes()));
        }
    }
    let end = brand.iter().position(|&byte| byte == 0).unwrap_or(brand.len());
    let leaf = cpuid(1, 0);
    log!("CPU: {}, leaf 1: {:#x} {:#x} {:#x}", core::str::from_utf8(&brand[..end]).unwrap_or("?").trim(), leaf.eax, leaf.ecx, leaf.edx);
    log!("features: {:?}", extension::features());
    let tables = &board.tables;
    log!("errata: none that Stile knows");
    log!("firmware: {} CPUs and {} I/O APICs by ACPI; power-off: {:?}", tables.cpus.len(), tables.io_apics.len(), tables.power_off);
    log!("PCI: {} configuration spaces (MCFG); AMD's IOMMUs (IVRS): {}", tables.configuration_spaces.len(), tables.ivrs.iommus.len());
    log!("console: SPCR {:?}, DBG2 {:?}, or else port 0x3f8", tables.console, tables.debug_port);
    log!("frame buffer: {}", if board.frame_buffer.is_some() { "yes" } else { "no" });
    board.ram.iter().for_each(|ram| log!("RAM: {:#x} to {:#x}", ram.start, ram.end));
    log!("Stile: {:?}, CPUs: {}", extension::LEVEL, SCHEDULE.online().len());
    log!("clock: {} Hz", timer::frequency());
    log!("counters: {}", pmu::Description);
}
