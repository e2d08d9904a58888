//! NMIs of L2 and L1: exits, and blocking across levels.

use core::sync::atomic::Ordering;

use pc::catch;
use pc::exception::{self, PLACES};
use pc::lapic;
use pc::machine::{cli, sti};

use crate::exits::VMCALL;
use crate::field::{self, pin};
use crate::test::{Outcome, Test, check, same};
use crate::vmcs::{Done, VIRTUAL_NMIS, code, enable, fresh, get, run, set};

pub const ALL: &[Test] = &[
    ("nmis_that_exit", nmi_exits),
    ("nmis_that_exit_from_blocked_code", nmi_exits_while_blocked),
    ("nmis_of_l2_that_iret_unblocks", nmi_unblocked),
    ("nmis_that_iret_of_l2_leaves_blocked", nmi_left_blocked),
    ("nmi_behind_sti_and_cli", nmi_behind_sti),
    ("nmis_that_l2_blocks_hide_no_interrupt", interrupt_beside_blocked_nmi),
];

const VALID: u64 = 1 << 31;

/// L2 sends its processor an NMI by the APIC's page. Returns the exit, and RIP.
fn send_nmi(launched: bool, start: u64) -> (Result<u64, Done>, u64) {
    const PAGE: u64 = 0xfee0_0000;
    set(field::GUEST_RIP, start);
    let mut registers = [u64::from(lapic::command::NMI | lapic::command::ASSERT), 0, u64::from(lapic::id()) << 24, 0, 0, PAGE, 0, 0];
    (run(&mut registers, launched), get(field::GUEST_RIP) - registers[3])
}

const NMI_EXIT: (Result<u64, Done>, u64) = (Ok(0), 0);

/// Takes an NMI that L1 sends itself. IRET ends blocking by NMI.
fn takes_nmi() -> bool {
    lapic::send(lapic::id(), lapic::command::NMI | lapic::command::ASSERT);
    for _ in 0..100_000 {
        if exception::take(2) != 0 {
            return true;
        }
    }
    false
}

/// An exit of an NMI blocks further ones, until an entry to L2 determines that anew.
fn nmi_exits() -> Outcome {
    let start = code!("mov [rsi + 0x310], edx", "lea rbx, [rip + 3f]", "mov [rsi + 0x300], eax", "3: nop", "nop");
    lapic::enable();
    exception::take(2);
    fresh(start);
    check!(enable(field::PIN_CONTROLS, pin::NMIS), "exits by NMIs");
    for launched in [false, true, true] {
        same!(send_nmi(launched, start), NMI_EXIT, "the exit, and RIP");
        same!((get(field::EXIT_INTERRUPTION), get(field::VECTORING) >> 31), (VALID | 2 << 8 | 2, 0), "the NMI, and IDT vectoring");
        same!(get(field::GUEST_INTERRUPTIBILITY), 0, "L2's blocking");
    }
    // L1 executes no IRET before this.
    check!(!takes_nmi(), "an NMI is not blocked after the exit of another");
    set(field::GUEST_RIP, code!("nop"));
    same!(run(&mut [0; 8], true), Ok(0), "the NMI that was blocked");
    set(field::GUEST_RIP, code!("nop"));
    same!(run(&mut [0; 8], true), VMCALL, "the next exit");
    check!(takes_nmi(), "an NMI is blocked after an exit for another reason");
    check!(takes_nmi(), "an NMI is blocked after IRET");
    Outcome::Pass
}

/// Blocking of virtual NMIs does not block NMIs.
fn nmi_exits_while_blocked() -> Outcome {
    const BLOCKED: u64 = 1 << 3;
    let start = code!("mov [rsi + 0x310], edx", "lea rbx, [rip + 3f]", "mov [rsi + 0x300], eax", "3: nop", "nop");
    lapic::enable();
    exception::take(2);
    fresh(start);
    if !enable(field::PIN_CONTROLS, VIRTUAL_NMIS) {
        return Outcome::Skip("there are no virtual NMIs");
    }
    set(field::GUEST_INTERRUPTIBILITY, BLOCKED);
    for launched in [false, true] {
        same!(send_nmi(launched, start), NMI_EXIT, "the exit, and RIP");
        same!(get(field::GUEST_INTERRUPTIBILITY), BLOCKED, "L2's blocking");
    }
    set(field::GUEST_RIP, code!("nop"));
    same!(run(&mut [0; 8], true), VMCALL, "the next exit");
    check!(takes_nmi(), "an NMI is blocked after an exit for another reason");
    // Without virtual NMIs, L2's blocking is that of NMIs, after the exit as well.
    fresh(code!("nop"));
    check!(enable(field::PIN_CONTROLS, pin::NMIS), "exits by NMIs");
    set(field::GUEST_INTERRUPTIBILITY, BLOCKED);
    same!(run(&mut [0; 8], false), VMCALL, "an exit while NMIs are blocked");
    check!(!takes_nmi(), "an NMI is not blocked");
    set(field::GUEST_INTERRUPTIBILITY, 0);
    set(field::GUEST_RIP, code!("nop"));
    same!(run(&mut [0; 8], true), Ok(0), "the NMI that was blocked");
    set(field::GUEST_RIP, code!("nop"));
    same!(run(&mut [0; 8], true), VMCALL, "the last exit");
    Outcome::Pass
}

/// Code of L2 that sends its processor an NMI, and executes IRET.
macro_rules! nmi_and_iret {
    () => {
        code!(
            "mov [rsi + 0x310], edx",
            "mov [rsi + 0x300], eax",
            "mov rcx, rsp",
            "push 0x10",
            "push rcx",
            "pushfq",
            "push 8",
            "lea rbx, [rip + 3f]",
            "push rbx",
            "iretq",
            "3: nop",
            "nop",
        )
    };
}

/// Without exits by NMIs, L2 takes one that was blocked after IRET.
fn nmi_unblocked() -> Outcome {
    let start = nmi_and_iret!();
    lapic::enable();
    exception::take(2);
    fresh(start);
    set(field::GUEST_INTERRUPTIBILITY, 1 << 3);
    let mut registers = [u64::from(lapic::command::NMI | lapic::command::ASSERT), 0, u64::from(lapic::id()) << 24, 0, 0, 0xfee0_0000, 0, 0];
    same!(run(&mut registers, false), VMCALL, "the exit");
    same!(exception::take(2), 1, "the number of NMIs");
    same!(PLACES[2].load(Ordering::SeqCst), registers[3], "where it interrupted");
    Outcome::Pass
}

/// With exits by NMIs and without virtual NMIs, IRET of L2 does not affect blocking by NMI, which the exit leaves to L1.
fn nmi_left_blocked() -> Outcome {
    const BLOCKED: u64 = 1 << 3;
    let start = nmi_and_iret!();
    lapic::enable();
    exception::take(2);
    for injected in [false, true] {
        fresh(start);
        check!(enable(field::PIN_CONTROLS, pin::NMIS), "exits by NMIs");
        if injected {
            // L1's handler of NMIs returns, in L2.
            set(field::ENTRY_INTERRUPTION, VALID | 2 << 8 | 2);
        } else {
            set(field::GUEST_INTERRUPTIBILITY, BLOCKED);
        }
        let mut registers =
            [u64::from(lapic::command::NMI | lapic::command::ASSERT), 0, u64::from(lapic::id()) << 24, 0, 0, 0xfee0_0000, 0, 0];
        same!(run(&mut registers, false), VMCALL, "the exit");
        same!(get(field::GUEST_INTERRUPTIBILITY), BLOCKED, "L2's blocking");
        same!(exception::take(2), u64::from(injected), "the number of NMIs while they are blocked");
        // The handler returns by IRET.
        check!(catch!("ud2").is_some(), "UD2");
        same!(exception::take(2), 1, "the number of NMIs after IRET of L1");
    }
    Outcome::Pass
}

/// An NMI that STI blocks at the entry to L2 comes after the next instruction, even if that disables interrupts.
fn nmi_behind_sti() -> Outcome {
    const STI: u64 = 1 << 0;
    const IF: u64 = 1 << 9;
    // L1 is left with NMIs blocked, and one pending.
    let start = code!("mov [rsi + 0x310], edx", "lea rbx, [rip + 3f]", "mov [rsi + 0x300], eax", "3: nop", "nop");
    lapic::enable();
    exception::take(2);
    fresh(start);
    check!(enable(field::PIN_CONTROLS, pin::NMIS), "exits by NMIs");
    same!(send_nmi(false, start), NMI_EXIT, "the exit, and RIP");
    check!(!takes_nmi(), "an NMI is not blocked after the exit of another");
    // Code that does not exit, for a while.
    let start = code!("cli", "4: loop 4b");
    fresh(start);
    set(field::GUEST_RFLAGS, 2 | IF);
    set(field::GUEST_INTERRUPTIBILITY, STI);
    same!(run(&mut [0, 10_000, 0, 0, 0, 0, 0, 0], false), VMCALL, "the exit");
    same!(exception::take(2), 1, "the number of NMIs");
    let place = PLACES[2].load(Ordering::SeqCst);
    check!((start..start + 3).contains(&place), "L2's end comes first");
    Outcome::Pass
}

/// An interrupt exits from L2, which blocks a pending NMI.
fn interrupt_beside_blocked_nmi() -> Outcome {
    const VECTOR: u8 = 0x61;
    const EXTERNAL_INTERRUPT: Result<u64, Done> = Ok(1);
    let start = code!("mov [rsi + 0x310], edx", "mov [rsi + 0x300], eax", "mov [rsi + 0x300], ecx", "nop", "nop");
    lapic::enable();
    exception::take(2);
    exception::handle(VECTOR, None);
    fresh(start);
    check!(enable(field::PIN_CONTROLS, pin::NMIS | pin::EXTERNAL_INTERRUPTS), "exits by NMIs and interrupts");
    set(field::GUEST_INTERRUPTIBILITY, 1 << 3);
    let mut registers = [u64::from(lapic::command::NMI | lapic::command::ASSERT), 0, u64::from(lapic::id()) << 24, 0, 0, 0xfee0_0000, 0, 0];
    registers[1] = u64::from(lapic::command::SELF | u32::from(VECTOR));
    same!(run(&mut registers, false), EXTERNAL_INTERRUPT, "the exit");
    same!((exception::take(2), exception::take(VECTOR)), (0, 0), "the numbers of NMIs and interrupts in L1 before");
    sti();
    cli();
    same!((exception::take(2), exception::take(VECTOR)), (1, 1), "the numbers of NMIs and interrupts in L1");
    exception::handle(VECTOR, None);
    Outcome::Pass
}
