//! The interrupt controller of an Arm machine, and what virtual machines can't have with a GICv2.

use stile_blob::{Gic, Interrupts, MAX_GICV2_VCPUS, Nested};

use super::draft::{Given, VmDraft};
use super::{Arch, Mistake, Place, VmConfig};

/// The configured architecture.
pub fn version(given: &Given<i64>, arch: Arch, mistakes: &mut Vec<Mistake>) -> Option<Gic> {
    let what = match (arch, given.value) {
        (Arch::Aarch64, 2) => return Some(Gic::V2),
        (Arch::Aarch64, 3) => return Some(Gic::V3),
        (Arch::Aarch64, other) => format!("there is no GIC of version {other} for Stile"),
        (Arch::X86_64, _) => "x86_64 has no GIC".to_owned(),
    };
    mistakes.push(Mistake::new(given.place.clone(), what).expected("2 or 3, with arch = \"aarch64\""));
    None
}

/// Reports what a virtual machine can't have on a machine with a GICv2.
pub fn check(draft: &VmDraft, vm: &VmConfig, mistakes: &mut Vec<Mistake>) {
    let own = &draft.place;
    let place = |given: Option<&Place>| given.unwrap_or(own).clone();
    let mut refuse = |at: Place, what: &str, expected: &str| {
        mistakes.push(Mistake::new(at, format!("{what}, which takes a GICv3: the machine has a GICv2 (gic = 2)")).expected(expected));
    };
    if vm.vcpus > MAX_GICV2_VCPUS {
        let what = format!("\"{}\" has {} vCPUs", vm.name, vm.vcpus);
        refuse(place(draft.vcpus.as_ref().map(|given| &given.place)), &what, "at most 8 vCPUs");
    }
    if vm.techniques.nested != Nested::Off {
        let what = format!("\"{}\" has an EL2 of its own", vm.name);
        refuse(place(draft.nested.as_ref().map(|given| &given.place)), &what, "nested = false");
    }
    if vm.techniques.interrupts == Interrupts::Direct {
        let what = format!("\"{}\" has direct interrupts", vm.name);
        refuse(place(draft.interrupts.as_ref().map(|given| &given.place)), &what, "interrupts = \"virtual\"");
    }
    if !vm.functions.is_empty() {
        let what = format!("\"{}\" owns PCI functions (disks, networks, shared folders), whose messages go through an ITS", vm.name);
        refuse(own.clone(), &what, "no functions");
    }
}
