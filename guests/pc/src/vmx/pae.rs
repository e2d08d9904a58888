//! An L2 with PAE paging outside of IA-32e mode: the PDPTEs that it and its entries load (Intel SDM volume 3, "PDPTE Registers").

use crate::exits::VMCALL;
use crate::field::{self, entry, exit, primary};
use crate::test::{Outcome, Test, check, is_guest, same};
use crate::vmcs::{BITMAP, EPT, clear, code, enable, enable_ept, fresh, get, may, page, poke, run, set};

pub const ALL: &[Test] = &[
    ("registers_of_l2_after_refused_entry", refused),
    ("cr0_loads_pdptes_through_ept", through_ept),
    ("cr0_loads_pdptes_that_ept_denies", denied),
];

const POINTERS: usize = 12;
const DIRECTORY: usize = 13;
const PRESENT: u64 = 1;
/// A reserved bit of PDPTEs.
const RESERVED: u64 = 1 << 1;
const LARGE: u64 = 1 << 21;

/// A VMCS of 32-bit code with PAE paging, which maps the first GiB where it is.
pub fn fresh_with_pae(code: u64) {
    const PRESENT_WRITABLE_LARGE: u64 = 0x83;
    clear(POINTERS);
    poke(POINTERS, 0, page(DIRECTORY) | PRESENT);
    (0..512).for_each(|word| poke(DIRECTORY, word, (word as u64) << 21 | PRESENT_WRITABLE_LARGE));
    fresh(code);
    let fields = [
        (field::ENTRY_CONTROLS, get(field::ENTRY_CONTROLS) & !u64::from(entry::IA32E_GUEST)),
        (field::GUEST_EFER, 0),
        (field::GUEST_CS_RIGHTS, 0xc09b),
        (field::GUEST_CR3, page(POINTERS)),
        (field::GUEST_PDPTE0, page(DIRECTORY) | PRESENT),
        // There are no handlers of 32-bit code.
        (field::EXCEPTION_BITMAP, u32::MAX.into()),
    ];
    fields.into_iter().for_each(|(field, value)| set(field, value));
}

/// Gives user mode the memory that [`fresh_with_pae`] maps.
pub fn let_user_in() {
    const PRESENT_WRITABLE_USER_LARGE: u64 = 0x87;
    (0..512).for_each(|word| poke(DIRECTORY, word, (word as u64) << 21 | PRESENT_WRITABLE_USER_LARGE));
}

/// Entries that load neither PAT nor debug registers, while exits save them: L2 inherits L1's. After one that fails, L1 reads what L2 had.
fn refused() -> Outcome {
    const PAT: u64 = 0x0007_0406_0007_0401;
    const DR7: u64 = 0x500;
    let start = code!("mov ecx, 0x277", "mov eax, 0x70401", "mov edx, 0x70406", "wrmsr", "mov eax, 0x500", "mov dr7, rax");
    fresh_with_pae(start);
    if !may(field::EXIT_CONTROLS, exit::SAVE_PAT | exit::LOAD_PAT) || !enable(field::PRIMARY_CONTROLS, primary::MSR_BITMAPS) {
        return Outcome::Skip("exits do not save PAT, or there is no MSR bitmap");
    }
    clear(BITMAP);
    set(field::MSR_BITMAP, page(BITMAP));
    enable(field::EXIT_CONTROLS, exit::SAVE_PAT | exit::LOAD_PAT | exit::SAVE_DEBUG);
    let loads = entry::LOAD_PAT | entry::LOAD_DEBUG;
    let must = u64::from(crate::vmcs::allowed(field::ENTRY_CONTROLS).0);
    set(field::ENTRY_CONTROLS, get(field::ENTRY_CONTROLS) & !u64::from(loads) | must);
    let has_debug = must & u64::from(entry::LOAD_DEBUG) != 0;
    same!(run(&mut [0; 8], false), VMCALL, "the exit");
    // Without reading anything else of L2's.
    poke(POINTERS, 3, page(DIRECTORY) | PRESENT | RESERVED);
    set(field::GUEST_RIP, start);
    same!(run(&mut [0; 8], true), Ok(0x8000_0021), "the exit of an entry with an invalid PDPTE");
    same!(get(field::EXIT_QUALIFICATION), 2, "the qualification");
    same!(get(field::GUEST_PAT), PAT, "L2's PAT");
    same!(get(field::GUEST_DR7), DR7, "L2's DR7");
    poke(POINTERS, 3, 0);
    let (own, next): (u64, u64) = (get(field::HOST_PAT), code!("mov ecx, 0x277", "rdmsr", "mov rbx, dr7"));
    set(field::GUEST_RIP, next);
    let mut registers = [0; 8];
    same!(run(&mut registers, true), VMCALL, "the exit of a valid one");
    same!(registers[2] << 32 | registers[0] & 0xffff_ffff, own, "PAT in L2");
    check!(has_debug || registers[3] as u32 == 0x400, "DR7 in L2");
    Outcome::Pass
}

/// Maps L2's last 2 MiB of the first GiB to those with the tests' pages, and puts CR3 there.
fn enable_ept_with_alias() -> bool {
    let can = enable_ept();
    poke(EPT + 2, 511, page(POINTERS) & !(LARGE - 1) | 0xb7);
    set(field::GUEST_CR3, 511 * LARGE + page(POINTERS) % LARGE);
    can
}

/// Sets CR0.CD.
fn disable_caching() -> u64 {
    code!("mov rax, cr0", "or eax, 0x40000000", "mov cr0, rax", "mov rbx, cr0")
}

/// CR3 is an address of L2's: L1's EPT translates it.
fn through_ept() -> Outcome {
    fresh_with_pae(disable_caching());
    if !enable_ept_with_alias() {
        return Outcome::Skip("there is no EPT");
    }
    // Memory differs from the PDPTEs that an entry loads.
    poke(POINTERS, 2, page(DIRECTORY) | PRESENT);
    let mut registers = [0; 8];
    same!(run(&mut registers, false), VMCALL, "the exit");
    same!(registers[3] & 1 << 30, 1 << 30, "CR0.CD in L2");
    same!(get(field::GUEST_PDPTE0), page(DIRECTORY) | PRESENT, "the first PDPTE");
    same!(get(field::GUEST_PDPTE0 + 4), page(DIRECTORY) | PRESENT, "the third PDPTE");
    Outcome::Pass
}

/// An EPT violation without a linear address. The instruction has no effect.
fn denied() -> Outcome {
    let start = disable_caching();
    fresh_with_pae(start);
    if !enable_ept_with_alias() {
        return Outcome::Skip("there is no EPT");
    }
    poke(EPT + 2, 511, 0);
    let mut registers = [0; 8];
    same!(run(&mut registers, false), Ok(48), "the exit");
    same!(get(field::EXIT_QUALIFICATION) & 0x1bf, 1, "the qualification");
    same!(get(field::GUEST_PHYSICAL) & !0x1f, get(field::GUEST_CR3) & !0x1f, "the address");
    // Bochs 3.0 writes CR0 before it reads the PDPTEs.
    check!(!is_guest() || get(field::GUEST_CR0) & 1 << 30 == 0, "CR0.CD");
    check!((start..start + 16).contains(&get(field::GUEST_RIP)), "RIP");
    // With accessed and dirty flags it is a read, too.
    poke(EPT + 2, 511, page(POINTERS) & !(LARGE - 1) | 0xb5);
    set(field::EPT_POINTER, get(field::EPT_POINTER) | 1 << 6);
    if crate::vmcs::capability(0x48c) & 1 << 21 != 0 {
        crate::vmcs::invept(2, [0; 2]);
        same!(run(&mut registers, true), VMCALL, "the exit with a table that can be read");
    }
    Outcome::Pass
}
