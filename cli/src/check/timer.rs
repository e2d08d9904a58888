//! Explains whether the deadline timer of a PC's local APICs is passed through.

use stile_blob::{IpiAccess, TimerAccess};

use super::affinity::rivals;
use crate::config::MachineConfig;

/// Explains which of Stile and the guest programs the timers of the `index`th virtual machine, and why.
pub fn explain(config: &MachineConfig, index: usize) -> String {
    let vm = &config.vms[index];
    if config.arch.has_amd_v(&config.cpu_model) {
        return "trapped: with AMD-V Stile programs the CPU's timer".to_owned();
    }
    if vm.techniques.timer == TimerAccess::Trapped {
        return "trapped, as configured: each write of IA32_TSC_DEADLINE exits".to_owned();
    }
    if vm.share.cap.is_some() {
        return "trapped: Stile needs the CPU's timer for the cap".to_owned();
    }
    let others = rivals(config, index);
    let passed = match others.is_empty() {
        true => "passed through: nothing else may run on its CPUs".to_owned(),
        false => format!("passed through while a vCPU has its CPU for itself; those that may share it: {}", others.join(", ")),
    };
    match (vm.techniques.timer, vm.techniques.ipi) {
        (TimerAccess::Direct, IpiAccess::Direct) => {
            format!("{passed}; expiries take no exit, once the guest asks for that (docs/x86-ipi.md)")
        }
        (TimerAccess::Direct, _) => format!("{passed}; expiries exit: timer = \"direct\" needs ipi = \"direct\""),
        _ => passed,
    }
}
