//! Choice of the mode of the CPUs' APICs, by the configuration of the image's VMs.

use stile_blob::{ApicVirtualization, Blob, IpiAccess};

use super::{extension, gate};
use crate::address_space::{self, Span};
use crate::arch::x86_64::host::board::Board;
use crate::arch::x86_64::host::{speculation, xapic};

/// Chooses xAPIC mode if a VM of the image is to have a gate. Called on the first CPU, before its APIC is initialized.
pub fn choose(board: &Board, blob: &Span) {
    if wants_gate(board, blob) {
        xapic::choose();
    }
}

/// Checks that this CPU is one for which the mode was chosen.
///
/// # Errors
/// A description of why it cannot be used.
pub fn check_cpu() -> Result<(), &'static str> {
    if xapic::is_on()
        && let Some(why) = gate::refusal_of_cpu()
    {
        return Err(why);
    }
    Ok(())
}

/// Whether a VM of the image is to have a gate, for which all APICs must be in xAPIC mode, and will get one.
fn wants_gate(board: &Board, blob: &Span) -> bool {
    // SAFETY: the range was loaded with the image, and is mapped read-only in the direct map, so that nothing writes to it.
    let bytes = unsafe { core::slice::from_raw_parts(address_space::physical(blob.start), (blob.end - blob.start) as usize) };
    // APIC ID 255 is all CPUs.
    let gets_one = |blob: Blob<'_>| {
        let level = extension::features().apic;
        let mut vms = blob.vms.clone().map(|vm| vm.techniques);
        !speculation::needs_at_exits(blob.settings.mitigations)
            && vms.any(|vm| vm.ipi == IpiAccess::Gate && vm.apic_virtualization.min(level) == ApicVirtualization::Posted)
    };
    gate::refusal_of_cpu().is_none() && board.tables.cpus.iter().all(|&apic| apic < 255) && Blob::parse(bytes).is_ok_and(gets_one)
}
