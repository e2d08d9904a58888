//! L2's virtual APIC: the TPR shadow and its threshold, accesses to the APIC page, x2APIC mode.

use pc::{exception, lapic};

use crate::exits::VMCALL;
use crate::field::{self, primary, secondary};
use crate::test::{Outcome, Test, check, is_guest, same};
use crate::vmcs::{BITMAP, Done, EPT, Registers, code, enable, enable_ept, fresh, get, invept, page, poke, run, set};

pub const ALL: &[Test] = &[
    ("tpr_shadow", shadow),
    ("tpr_threshold", threshold),
    ("tpr_threshold_at_entries", threshold_at_entry),
    ("tpr_threshold_after_hidden_exits", threshold_after_hidden_exit),
    ("tpr_threshold_and_delivery", threshold_and_delivery),
    ("apic_accesses", accesses),
    ("apic_accesses_by_ept", accesses_by_ept),
    ("apic_accesses_by_fetches", fetches),
    ("apic_accesses_by_fetches_by_ept", fetches_by_ept),
    ("apic_accesses_to_the_tpr", accesses_to_tpr),
    ("apic_accesses_outside_memory", outside_memory),
    ("virtual_x2apic_mode", x2apic),
];

/// The virtual-APIC page, and the APIC-access page.
const VIRTUAL: usize = 12;
const ACCESS: usize = 13;
/// An EPT table of small pages.
const SMALL: usize = 11;
const TPR: u64 = 0x80;
const VERSION: u64 = 0x30;
const ABSENT: Outcome = Outcome::Skip("there is no such control");
/// Exit reasons.
const BELOW: Result<u64, Done> = Ok(43);
const APIC_ACCESS: Result<u64, Done> = Ok(44);
/// Kinds of accesses in exit qualifications.
const READ: u64 = 0 << 12;
const WRITE: u64 = 1 << 12;

/// L2's TPR, in memory.
fn tpr() -> u64 {
    // SAFETY: the page is used by these tests alone.
    unsafe { ((page(VIRTUAL) + TPR) as *const u32).read_volatile().into() }
}

fn set_tpr(value: u64) {
    poke(VIRTUAL, TPR as usize / 8, value);
}

/// A fresh VMCS with a TPR shadow.
fn shadowed(code: u64) -> bool {
    (0..512).for_each(|word| poke(VIRTUAL, word, 0));
    fresh(code);
    set(field::VIRTUAL_APIC, page(VIRTUAL));
    enable(field::PRIMARY_CONTROLS, primary::TPR_SHADOW)
}

/// Makes accesses to a page exit.
fn access_page(address: u64) -> bool {
    set(field::APIC_ACCESS, address);
    enable(field::SECONDARY_CONTROLS, secondary::APIC_ACCESSES)
}

/// General registers with RSI.
fn registers(rsi: u64) -> Registers {
    [0, 0, 0, 0, 0, rsi, 0, 0]
}

fn shadow() -> Outcome {
    let start = code!("mov ecx, 5", "mov cr8, rcx", "mov rax, cr8");
    if !shadowed(start) {
        return ABSENT;
    }
    let mut found = [0; 8];
    same!((run(&mut found, false), found[0], tpr()), (VMCALL, 5, 0x50), "the exit, CR8, the virtual TPR");
    let own: u64;
    // SAFETY: reads CR8, which has no side effect at privilege level 0.
    unsafe { core::arch::asm!("mov {}, cr8", out(reg) own) };
    same!(own, 0, "L1's CR8");
    enable(field::PRIMARY_CONTROLS, primary::CR8_LOAD);
    set(field::GUEST_RIP, start);
    same!(run(&mut [0; 8], true), Ok(28), "MOV to CR8 that L1 intercepts");
    // The page is another one, which has another value.
    set(field::PRIMARY_CONTROLS, get(field::PRIMARY_CONTROLS) & !u64::from(primary::CR8_LOAD));
    poke(ACCESS, TPR as usize / 8, 0x70);
    set(field::VIRTUAL_APIC, page(ACCESS));
    set(field::GUEST_RIP, code!("mov rax, cr8"));
    same!((run(&mut found, true), found[0]), (VMCALL, 7), "another page");
    poke(ACCESS, TPR as usize / 8, 0);
    Outcome::Pass
}

fn threshold() -> Outcome {
    let start = code!("mov ecx, 4", "mov cr8, rcx", "lea rbx, [rip + 3f]", "mov ecx, 3", "mov cr8, rcx", "3: nop");
    if !shadowed(start) {
        return ABSENT;
    }
    set_tpr(0x50);
    set(field::TPR_THRESHOLD, 4);
    let mut found = [0; 8];
    same!(run(&mut found, false), BELOW, "the exit");
    same!((get(field::GUEST_RIP), tpr()), (found[3], 0x30), "RIP, and the virtual TPR");
    same!(run(&mut found, true), Err(Done::Fail(7)), "an entry below the threshold");
    set_tpr(0x40);
    same!(run(&mut found, true), VMCALL, "an entry at the threshold");
    // No field has changed since.
    set_tpr(0x3f);
    same!(run(&mut found, true), Err(Done::Fail(7)), "a TPR that has changed in memory");
    set_tpr(0x5f);
    set(field::GUEST_RIP, start);
    same!(run(&mut found, true), BELOW, "the next exit");
    Outcome::Pass
}

/// With APIC accesses, an entry below the threshold exits at once.
fn threshold_at_entry() -> Outcome {
    let start = code!("nop");
    if !shadowed(start) || !access_page(page(ACCESS)) {
        return ABSENT;
    }
    set_tpr(0x30);
    set(field::TPR_THRESHOLD, 4);
    for launched in [false, true] {
        same!((run(&mut [0; 8], launched), get(field::GUEST_RIP)), (BELOW, start), "an entry below the threshold");
    }
    set_tpr(0x40);
    same!(run(&mut [0; 8], true), VMCALL, "an entry at the threshold");
    Outcome::Pass
}

/// L2 lowers the virtual TPR in memory, which no processor notices. A hypervisor enters L2 again after an exit that L1 does not see, and
/// the entry compares the TPR: L1 sees the exit that MOV to CR8 would have caused.
fn threshold_after_hidden_exit() -> Outcome {
    let start = code!("mov dword ptr [rsi + 0x80], 0x20", "out 0x80, al", "lea rbx, [rip]");
    let next = code!("nop");
    if !shadowed(start) {
        return ABSENT;
    }
    set(field::TPR_THRESHOLD, 4);
    for launched in [false, true] {
        set_tpr(0x40);
        set(field::GUEST_RIP, start);
        let mut found = registers(page(VIRTUAL));
        let exit = run(&mut found, launched);
        if !is_guest() {
            same!(exit, VMCALL, "the exit");
            continue;
        }
        same!((exit, found[3]), (BELOW, 0), "the exit, and the instruction that follows");
        check!(get(field::GUEST_RIP) > start, "no instruction is done");
        same!((get(field::EXIT_QUALIFICATION), get(field::VECTORING) >> 31), (0, 0), "the qualification, and IDT-vectoring information");
    }
    set_tpr(0x40);
    set(field::GUEST_RIP, next);
    same!(run(&mut [0; 8], true), VMCALL, "the next exit");
    Outcome::Pass
}

/// The hidden exit interrupts the delivery of an exception, since a hypervisor has to map the stack.
fn threshold_and_delivery() -> Outcome {
    const BREAKPOINT: u64 = 0x8000_0603;
    /// The end of a large page that nothing else uses.
    const ELSEWHERE: u64 = (48 << 20) + 0x1000;
    let start = code!("mov dword ptr [rsi + 0x80], 0x20", "lea rbx, [rip + 3f]", "mov rsp, rdi", "3: int3", "nop");
    if !shadowed(start) {
        return ABSENT;
    }
    exception::take(3);
    invept(2, [0, 0]);
    set_tpr(0x40);
    set(field::TPR_THRESHOLD, 4);
    let mut found = [0, 0, 0, 0, 0, page(VIRTUAL), ELSEWHERE, 0];
    let exit = run(&mut found, false);
    if is_guest() {
        same!((exit, get(field::GUEST_RIP)), (BELOW, found[3]), "the exit, and RIP");
        same!((get(field::VECTORING), get(field::EXIT_LENGTH)), (BREAKPOINT, 1), "IDT-vectoring information, and the length");
        same!((get(field::EXIT_INTERRUPTION) >> 31, exception::take(3)), (0, 0), "an event, and the number of exceptions");
        set_tpr(0x40);
        set(field::ENTRY_INTERRUPTION, BREAKPOINT);
        set(field::ENTRY_LENGTH, 1);
        same!(run(&mut found, true), VMCALL, "the exit after it is injected");
    } else {
        same!(exit, VMCALL, "the exit");
    }
    same!(exception::take(3), 1, "the number of exceptions");
    Outcome::Pass
}

/// Fetches exit, after `enter` has made a fresh VMCS. Bochs 3.0 ends at one, unless a hypervisor's EPT denies it.
fn fetch(enter: fn(u64) -> bool) -> Outcome {
    const FETCH: u64 = 2 << 12;
    if !is_guest() {
        return Outcome::Skip("Bochs ends");
    }
    let (start, offset) = (code!("jmp rsi"), 0x10);
    if !enter(start) {
        return ABSENT;
    }
    let at = page(ACCESS) + offset;
    for launched in [false, true] {
        set(field::GUEST_RIP, start);
        same!((run(&mut registers(at), launched), get(field::EXIT_QUALIFICATION)), (APIC_ACCESS, FETCH | offset), "the exit");
        same!((get(field::GUEST_RIP), get(field::VECTORING)), (at, 0), "RIP, and IDT-vectoring information");
        set(field::GUEST_RIP, code!("mov eax, [rsi]"));
        same!((run(&mut registers(at), true), get(field::EXIT_QUALIFICATION)), (APIC_ACCESS, READ | offset), "the exit of a read");
    }
    // Code beside the page runs.
    poke(ACCESS + 1, 0, 0xc1_010f);
    set(field::GUEST_RIP, start);
    same!((run(&mut registers(page(ACCESS + 1)), true), get(field::GUEST_RIP)), (VMCALL, page(ACCESS + 1)), "the next page");
    poke(ACCESS + 1, 0, 0);
    Outcome::Pass
}

fn fetches() -> Outcome {
    fetch(|start| {
        fresh(start);
        access_page(page(ACCESS))
    })
}

fn fetches_by_ept() -> Outcome {
    fetch(small_pages)
}

/// Reads and writes exit, after which `enter` has made a fresh VMCS.
fn exits(enter: fn(u64) -> bool) -> Outcome {
    let rows = [(code!("mov eax, [rsi + 0x30]"), VERSION | READ), (code!("mov [rsi + 0xb0], eax"), 0xb0 | WRITE)];
    for (start, qualification) in rows {
        if !enter(start) {
            return ABSENT;
        }
        same!(run(&mut registers(page(ACCESS)), false), APIC_ACCESS, "the exit");
        same!(get(field::EXIT_QUALIFICATION), qualification, "the qualification");
        same!((get(field::GUEST_RIP), get(field::VECTORING)), (start, 0), "RIP, and IDT-vectoring information");
    }
    // Without the control, it is memory.
    poke(ACCESS, VERSION as usize / 8, 0x1234_5678);
    enter(code!("mov eax, [rsi + 0x30]"));
    set(field::SECONDARY_CONTROLS, get(field::SECONDARY_CONTROLS) & !u64::from(secondary::APIC_ACCESSES));
    invept(2, [0, 0]);
    let mut found = registers(page(ACCESS));
    same!((run(&mut found, false), found[0]), (VMCALL, 0x1234_5678), "an access to memory");
    poke(ACCESS, VERSION as usize / 8, 0);
    Outcome::Pass
}

fn accesses() -> Outcome {
    exits(|start| {
        fresh(start);
        access_page(page(ACCESS))
    })
}

fn accesses_by_ept() -> Outcome {
    exits(small_pages)
}

/// A fresh VMCS with an APIC-access page. L1's EPT maps it, and those around it, as small ones.
fn small_pages(start: u64) -> bool {
    const WRITE_BACK: u64 = 6 << 3;
    fresh(start);
    if !enable_ept() {
        return false;
    }
    let large = page(ACCESS) >> 21;
    for word in 0..512 {
        poke(SMALL, word, large << 21 | (word as u64) << 12 | WRITE_BACK | 7);
    }
    poke(EPT + 2, large as usize, page(SMALL) | 7);
    invept(1, [page(EPT) | 6 | 3 << 3, 0]);
    access_page(page(ACCESS))
}

/// With a TPR shadow, accesses to the TPR do not exit.
fn accesses_to_tpr() -> Outcome {
    let start = code!("mov eax, [rsi + 0x80]", "mov dword ptr [rsi + 0x80], 0x20", "mov edx, [rsi + 0x80]");
    if !shadowed(start) || !access_page(page(ACCESS)) {
        return ABSENT;
    }
    set_tpr(0x60);
    let mut found = registers(page(ACCESS));
    same!((run(&mut found, false), found[0], found[2], tpr()), (VMCALL, 0x60, 0x20, 0x20), "the exit, what is read, the virtual TPR");
    // A write below the threshold exits after it.
    set_tpr(0x60);
    set(field::TPR_THRESHOLD, 3);
    let start = code!("lea rbx, [rip + 3f]", "mov dword ptr [rsi + 0x80], 0x20", "3: nop");
    set(field::GUEST_RIP, start);
    same!((run(&mut found, true), get(field::GUEST_RIP)), (BELOW, found[3]), "a write below the threshold");
    fresh(code!("mov eax, [rsi + 0x80]"));
    access_page(page(ACCESS));
    same!((run(&mut found, false), get(field::EXIT_QUALIFICATION)), (APIC_ACCESS, TPR | READ), "an access without a TPR shadow");
    Outcome::Pass
}

/// The page is that of L1's own APIC.
fn outside_memory() -> Outcome {
    const APIC: u64 = 0xfee0_0000;
    lapic::enable();
    fresh(code!("mov eax, [rsi + 0x30]"));
    if !access_page(APIC) {
        return ABSENT;
    }
    same!((run(&mut registers(APIC), false), get(field::EXIT_QUALIFICATION)), (APIC_ACCESS, VERSION | READ), "the exit");
    Outcome::Pass
}

/// The TPR by its MSR.
fn x2apic() -> Outcome {
    const WORD: usize = 0x808 / 64;
    const BIT: u64 = 1 << (0x808 % 64);
    const WRITES: usize = 256;
    let start = code!("mov ecx, 0x808", "xor edx, edx", "wrmsr", "lea rbx, [rip]", "xor eax, eax", "rdmsr");
    let with = |writes: u64, value: u64| {
        let can = shadowed(start);
        (0..512).for_each(|word| poke(BITMAP, word, u64::MAX));
        poke(BITMAP, WORD, !BIT);
        poke(BITMAP, WRITES + WORD, !writes);
        set(field::MSR_BITMAP, page(BITMAP));
        set(field::EXCEPTION_BITMAP, 1 << 13);
        let can = can && enable(field::PRIMARY_CONTROLS, primary::MSR_BITMAPS) && enable(field::SECONDARY_CONTROLS, secondary::X2APIC_MODE);
        can.then_some([value, 0, 0, 0, 0, 0, 0, 0])
    };
    let Some(mut found) = with(BIT, 0x40) else { return ABSENT };
    same!((run(&mut found, false), found[0], tpr()), (VMCALL, 0x40, 0x40), "the exit, what is read, the virtual TPR");
    let Some(mut found) = with(0, 0x40) else { return ABSENT };
    same!((run(&mut found, false), tpr()), (Ok(32), 0), "a write that L1 intercepts");
    let Some(mut found) = with(BIT, 0x140) else { return ABSENT };
    same!((run(&mut found, false), get(field::EXIT_INTERRUPTION), tpr()), (Ok(0), 0x8000_0b0d, 0), "a write of reserved bits");
    let Some(mut found) = with(BIT, 0x30) else { return ABSENT };
    set_tpr(0x50);
    set(field::TPR_THRESHOLD, 4);
    same!((run(&mut found, false), tpr()), (BELOW, 0x30), "a write below the threshold");
    // Without the control, it is the register of L1's APIC, which is not in x2APIC mode.
    let Some(mut found) = with(BIT, 0x40) else { return ABSENT };
    set(field::SECONDARY_CONTROLS, get(field::SECONDARY_CONTROLS) & !u64::from(secondary::X2APIC_MODE));
    check!(lapic::base() & lapic::X2 == 0, "L1's APIC is in x2APIC mode");
    same!((run(&mut found, false), get(field::EXIT_INTERRUPTION), tpr()), (Ok(0), 0x8000_0b0d, 0), "a write without the control");
    Outcome::Pass
}
