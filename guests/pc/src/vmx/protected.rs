//! An L1 in protected mode with PAE paging: exits load its PDPTEs (Intel SDM volume 3, "Checking and Loading Host
//! Page-Directory-Pointer-Table Entries").

use pc::console::{self, println};

use crate::exits::VMCALL;
use crate::field::{self, entry, exit};
use crate::test::{Outcome, Test, check, same};
use crate::vmcs::{Done, EPT, FIRST, VMXON, code, fresh, get, page, poke, set, vmclear, vmxoff, vmxon};

pub const ALL: &[Test] = &[("host_with_pae_paging", valid)];

/// Tables, and PDPTEs of which one has a reserved bit.
const POINTERS: usize = EPT;
const DIRECTORY: usize = EPT + 1;
const INVALID: usize = EPT + 2;

unsafe extern "C" {
    fn vmx_in_protected_mode(vmxon: u64, vmcs: u64, pointers: u64) -> u32;
    static vmx_exit_protected: u8;
}

/// Runs an L2 of 32-bit code with PAE paging, by an L1 like that whose exits load the PDPTEs of a page. Returns the exit.
fn exit_to(host: usize) -> Result<u64, Done> {
    const LARGE: u64 = 0x83;
    for word in 0..512 {
        poke(DIRECTORY, word, (word as u64) << 21 | LARGE);
        poke(POINTERS, word, 0);
        poke(INVALID, word, 0);
    }
    for pointers in [POINTERS, INVALID] {
        poke(pointers, 0, page(DIRECTORY) | 1);
    }
    // Present, with a reserved bit.
    poke(INVALID, 3, page(DIRECTORY) | 3);
    fresh(code!("nop"));
    let clear = |control, bits: u32| set(control, get(control) & !u64::from(bits));
    clear(field::ENTRY_CONTROLS, entry::IA32E_GUEST);
    clear(field::EXIT_CONTROLS, exit::HOST_64);
    let fields = [
        (field::GUEST_EFER, 0),
        (field::GUEST_CS_RIGHTS, 0xc09b),
        (field::GUEST_CR3, page(POINTERS)),
        (field::HOST_EFER, 0),
        (field::HOST_CR3, page(host)),
        (field::HOST_CS, 0x18),
        (field::HOST_RIP, &raw const vmx_exit_protected as u64),
    ];
    fields.into_iter().for_each(|(field, value)| set(field, value));
    vmclear(page(FIRST));
    vmxoff();
    // SAFETY: the tables map the program where it is.
    let reason = unsafe { vmx_in_protected_mode(page(VMXON), page(FIRST), page(POINTERS)) };
    vmxon(page(VMXON));
    if reason == u32::MAX { Err(Done::Fail(0)) } else { Ok(reason.into()) }
}

fn valid() -> Outcome {
    same!(exit_to(POINTERS), VMCALL, "the exit");
    Outcome::Pass
}

/// Invalid PDPTEs of the host: a VMX abort, which ends the VM.
pub fn abort() -> Outcome {
    check!(matches!(valid(), Outcome::Pass), "valid PDPTEs");
    println!("abort from here on");
    console::drain();
    same!(exit_to(INVALID), VMCALL, "the exit");
    Outcome::Fail("the exit loads invalid PDPTEs")
}
