//! Accesses to control registers ("Instructions That Cause VM Exits Conditionally", "Exit Qualification for Control-Register Accesses").

use crate::controls::primary;
use crate::field::Field;
use crate::vmcs12::Vmcs12;

const TARGETS: [Field; 4] = [Field::CR3_TARGET_0, Field::CR3_TARGET_1, Field::CR3_TARGET_2, Field::CR3_TARGET_3];

/// Whether L1 intercepts the access. `register` returns a general register of L2.
pub fn intercepts_control_register(vmcs: &Vmcs12, qualification: u64, register: impl FnOnce(usize) -> u64) -> bool {
    const PE: u64 = 1 << 0;
    const TS: u64 = 1 << 3;
    /// PE, MP, EM, TS: the bits that LMSW writes.
    const LMSW: u64 = 0xf;
    let has = |bits| vmcs.get32(Field::PRIMARY_CONTROLS) & bits != 0;
    let value = || register(qualification as usize >> 8 & 0xf);
    // Bits that L1 holds and that would differ from what L2 reads.
    let changes = |mask, shadow, value| vmcs.get(mask) & (vmcs.get(shadow) ^ value);
    match (qualification & 0xf, qualification >> 4 & 0b11) {
        (0, 0) => changes(Field::CR0_MASK, Field::CR0_SHADOW, value()) != 0,
        (0, 2) => changes(Field::CR0_MASK, Field::CR0_SHADOW, 0) & TS != 0,
        (0, 3) => {
            // LMSW sets PE, but does not clear it.
            let source = qualification >> 16 & LMSW;
            let kept = vmcs.get(Field::CR0_SHADOW) & PE;
            changes(Field::CR0_MASK, Field::CR0_SHADOW, source | kept) & LMSW != 0
        }
        (3, 0) => {
            let (value, count) = (value(), vmcs.get(Field::CR3_TARGETS) as usize);
            has(primary::CR3_LOAD) && !TARGETS.iter().take(count).any(|&target| vmcs.get(target) == value)
        }
        (3, 1) => has(primary::CR3_STORE),
        (4, 0) => changes(Field::CR4_MASK, Field::CR4_SHADOW, value()) != 0,
        (8, 0) => has(primary::CR8_LOAD),
        (8, 1) => has(primary::CR8_STORE),
        // Exits that the processor does not have.
        _ => false,
    }
}
