//! ACPI's sleep state S3, which keeps RAM only (*Advanced Configuration and Power Interface*, "S3 State"). A VM that
//! sleeps wakes immediately, since there is no power to save. Its devices keep their state.

use stile_board::pc;
use stile_x86_walk::GuestMemory;

use crate::arch::x86_64::interrupts::events;
use crate::arch::x86_64::vm::guest_memory::Ram;
use crate::vm::{Vcpu, Vm};

/// Handles a request for S3. If the first vCPU makes it and the guest has set a waking vector, it wakes there in real
/// mode; the others are off.
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

/// The guest's "Firmware Waking Vector" in the FACS, if it is page-aligned and below 1 MiB.
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
