//! ACPI's sleeping state S3: RAM is kept, and the rest of the machine is not (*Advanced Configuration and Power Interface*, "S3 State"). A VM
//! that sleeps wakes at once: there is nothing in it that would save power. Its devices stay as they are.

use stile_board::pc;
use stile_walk::GuestMemory;

use super::ram::Ram;
use crate::arch::x86_64::interrupts::events;
use crate::vm::{Vcpu, Vm};

/// A vCPU has asked for it. If it is the first one, and the guest has said where it wakes, it does so there, in real mode; the others are off.
pub fn sleep(vcpu: &'static Vcpu) {
    let vm = vcpu.vm();
    if vcpu.arch.index != 0 {
        return;
    }
    let Some(page) = waking_page(vm) else { return };
    for other in vm.vcpus.iter().skip(1) {
        events::init(other);
    }
    events::restart(vcpu, page);
}

/// The guest's "Firmware Waking Vector" in the FACS, if it is at the beginning of a page below 1 MiB.
fn waking_page(vm: &'static Vm) -> Option<u8> {
    const SIGNATURE: u32 = u32::from_le_bytes(*b"FACS");
    const VECTOR: u64 = 12;
    let word = |offset: u64| Ram(vm).read_u32(pc::FACS + offset);
    if word(0)? != SIGNATURE {
        return None;
    }
    let vector = word(VECTOR)?;
    (vector != 0 && vector & 0xfff == 0).then_some(vector >> 12).and_then(|page| page.try_into().ok())
}
