//! An L1 that accesses the same fields at each entry. A hypervisor below may answer the later accesses otherwise than the first ones, and
//! each must be right.

use crate::exits::VMCALL;
use crate::field;
use crate::test::{Outcome, Test, same};
use crate::vmcs::{Done, code, fresh, get, page, run, set, vmclear, vmptrld, vmptrst};

pub const ALL: &[Test] = &[("fields_that_are_accessed_at_each_entry", each_entry)];

/// Entries, and those of them after which the VMCS is cleared and made current again.
const ENTRIES: u64 = 2600;
const CLEAR: u64 = 300;
/// Entries after which L1 writes a field that it otherwise reads.
const WRITE: u64 = 100;

fn each_entry() -> Outcome {
    let again = code!("lgdt [rsi]", "add rsp, rdx");
    fresh(again);
    let mut is_launched = false;
    for entry in 1..=ENTRIES {
        let (stack, limit, base) = (0x10_0000 + entry * 16, entry & 0xffff, entry << 12);
        // The operand of LGDT.
        let descriptor = [limit as u16, base as u16, (base >> 16) as u16, (base >> 32) as u16, 0];
        set(field::GUEST_RIP, again);
        set(field::GUEST_RSP, stack);
        same!(get(field::GUEST_RSP), stack, "RSP as L1 wrote it");
        let mut registers = [0, 0, 8, 0, 0, (&raw const descriptor).addr() as u64, 0, 0];
        same!(run(&mut registers, is_launched), VMCALL, "the exit");
        is_launched = true;
        same!(get(field::GUEST_RSP), stack + 8, "RSP as L2 left it");
        same!(get(field::GUEST_GDTR_LIMIT), limit, "a limit as L2 set it");
        same!(get(field::GUEST_GDTR_BASE), base, "a base as L2 set it");
        if entry % WRITE == 0 {
            set(field::GUEST_GDTR_LIMIT, limit + 1);
            same!(get(field::GUEST_GDTR_LIMIT), limit + 1, "a limit as L1 wrote it");
            same!(get(field::GUEST_GDTR_BASE), base, "the base beside it");
        }
        if entry % CLEAR == 0 {
            let region = vmptrst();
            same!(region, page(crate::vmcs::FIRST), "the VMCS");
            same!((vmclear(region), vmptrld(region)), (Done::Succeed, Done::Succeed), "clearing the VMCS and making it current");
            is_launched = false;
            same!(get(field::GUEST_RSP), stack + 8, "RSP in a VMCS that was cleared");
            let expected = if entry % WRITE == 0 { limit + 1 } else { limit };
            same!(get(field::GUEST_GDTR_LIMIT), expected, "a limit in a VMCS that was cleared");
        }
    }
    Outcome::Pass
}
