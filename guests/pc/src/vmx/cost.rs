//! For `stile bench`: the cost of an EPT violation that L1 does not see, since only the hypervisor's shadow of its tables lacks the page.

use pc::console::println;

use crate::field;
use crate::memory::{ADDRESS, INDEX, WRITE_BACK};
use crate::test::{Outcome, check};
use crate::vmcs::{EPT, Page, Registers, code, enable_ept, fresh, invept, page, poke, run, set};

/// Pages that L2 reads, in one table.
const PAGES: u64 = 64;
/// Instructions of a turn of L2's loop.
const TURN: u64 = 4;

/// Prints the cost in the probe's format, for a run with an empty shadow. L2 marks what is measured, as the probe does.
pub fn violations() -> Outcome {
    let start = code!(
        "mov eax, 0x53540001",
        "prefetchnta [rax]",
        "rdtsc",
        "shl rdx, 32",
        "or rax, rdx",
        "mov r8, rax",
        "2: mov edx, [rsi]",
        "add rsi, 4096",
        "dec rcx",
        "jnz 2b",
        "rdtsc",
        "shl rdx, 32",
        "or rax, rdx",
        "mov rdi, rax",
        "mov eax, 0x53540002",
        "prefetchnta [rax]",
    );
    fresh(start);
    check!(enable_ept(), "EPT");
    for word in 0..PAGES {
        poke(EPT + 3, word as usize, (ADDRESS + word * size_of::<Page>() as u64) | WRITE_BACK | 7);
    }
    poke(EPT + 2, INDEX, page(EPT + 3) | 7);
    // In the first round the hypervisor may find memory that it has not given to L1 yet.
    for is_measured in [false, true] {
        invept(2, [0, 0]);
        set(field::GUEST_RIP, start);
        let mut registers: Registers = [0, PAGES, 0, 0, 0, ADDRESS, 0, 0];
        check!(run(&mut registers, is_measured) == crate::exits::VMCALL, "the exit");
        let thousandths = (registers[6] - registers[7] - PAGES * TURN) * 1000 / PAGES;
        let (whole, part) = (thousandths / 1000, thousandths % 1000);
        println!("{{\"operation\":\"ept_violation\",\"instructions\":{whole}.{part:03},\"iterations\":{PAGES}}}");
    }
    Outcome::Pass
}
