//! INS and OUTS of L2: at ports that L1 leaves to L2 they move L2's memory, and fault as other accesses do.

use pc::exception;
use pc::machine::{in8, out8};

use crate::events::resume_at;
use crate::exits::VMCALL;
use crate::field::{self, primary};
use crate::memory::{ADDRESS, INDEX, LARGE, LINEAR_VALID, QUALIFICATION, TRANSLATION, WRITE_BACK};
use crate::test::{Outcome, Test, is_guest, same};
use crate::vmcs::{BITMAP, BITMAP_B, Done, EPT, Registers, code, enable, enable_ept, fresh, get, invept, page, poke, run, set};

pub const ALL: &[Test] =
    &[("strings_of_ports", elements), ("strings_that_exit", exits), ("strings_that_fault", faults), ("strings_and_ept", second_stage)];

/// The scratch register of the serial port: what is written is read.
const PORT: u16 = 0x3ff;
/// The register of the hypervisor's test device, of 32 bits.
const WORD: u64 = 0xe0;
const ABSENT: Outcome = Outcome::Skip("there are no I/O bitmaps, or no EPT");

/// RCX and RDX; RSI and RDI.
fn registers(count: u64, port: u64, at: u64) -> Registers {
    [0, count, port, 0, 0, at, at, 0]
}

/// RCX, RSI and RDI.
fn after(registers: &Registers) -> (u64, u64, u64) {
    (registers[1], registers[5], registers[6])
}

/// A fresh VMCS whose I/O bitmaps are clear.
fn open_ports(code: u64) -> bool {
    fresh(code);
    for (field, bitmap) in [(field::IO_BITMAP_A, BITMAP), (field::IO_BITMAP_B, BITMAP_B)] {
        for word in 0..512 {
            poke(bitmap, word, 0);
        }
        set(field, page(bitmap));
    }
    enable(field::PRIMARY_CONTROLS, primary::IO_BITMAPS)
}

fn fill(at: u64, bytes: &[u8]) {
    for (n, &byte) in bytes.iter().enumerate() {
        // SAFETY: an aligned address of RAM that the loader left free, identity-mapped and used by this test only.
        unsafe { (at as *mut u8).add(n).write_volatile(byte) };
    }
}

fn bytes<const N: usize>(at: u64) -> [u8; N] {
    // SAFETY: an address of the same RAM, which is initialized: the loader cleared it or a test wrote it.
    core::array::from_fn(|n| unsafe { (at as *const u8).add(n).read_volatile() })
}

fn scratch() -> u8 {
    port(PORT)
}

fn port(port: u16) -> u8 {
    // SAFETY: callers pass COM1's scratch register or the test device's word: a read of either has no side effect.
    unsafe { in8(port) }
}

fn set_scratch(value: u8) {
    // SAFETY: COM1's scratch register has no effect on anything.
    unsafe { out8(PORT, value) };
}

fn elements() -> Outcome {
    const AT: u64 = ADDRESS + 4;
    let with = |code, mut registers: Registers| {
        if !open_ports(code) {
            return (Err(Done::Succeed), registers);
        }
        let exit = run(&mut registers, false);
        (exit, registers)
    };
    let port = u64::from(PORT);
    fill(AT, &[1, 2, 3, 4]);
    let (exit, found) = with(code!("outsb"), registers(9, port, AT));
    if exit == Err(Done::Succeed) {
        return ABSENT;
    }
    same!((exit, after(&found), scratch()), (VMCALL, (9, AT + 1, AT), 1), "OUTSB");
    let (exit, found) = with(code!("rep outsb"), registers(3, port, AT));
    same!((exit, after(&found), scratch()), (VMCALL, (0, AT + 3, AT), 3), "REP OUTSB");
    let (exit, found) = with(code!("rep outsb"), registers(0, port, AT));
    same!((exit, after(&found), scratch()), (VMCALL, (0, AT, AT), 3), "REP OUTSB of none");
    set_scratch(0x77);
    let (exit, found) = with(code!("rep insb"), registers(3, port, AT));
    same!((exit, after(&found), bytes(AT)), (VMCALL, (0, AT, AT + 3), [0x77, 0x77, 0x77, 4]), "REP INSB");
    set_scratch(0x88);
    let (exit, found) = with(code!("std", "rep insb", "cld"), registers(2, port, AT));
    same!((exit, after(&found), bytes(AT - 2)), (VMCALL, (0, AT, AT - 2), [0, 0x88, 0x88, 0x77]), "REP INSB, backwards");
    // Registers of 32 bits count, and their upper halves are cleared.
    let high = 5 << 32;
    let (exit, found) = with(code!(".byte 0x67", "rep insb"), registers(high | 2, port, high | AT));
    same!((exit, after(&found), bytes(AT)), (VMCALL, (0, high | AT, AT + 2), [0x88, 0x88, 0x77, 4]), "REP INSB by EDI");
    if !is_guest() {
        return Outcome::Pass;
    }
    let (exit, found) = with(code!("rep outsd", "mov ecx, 3", "mov edx, 0xe2", "rep insw"), registers(1, WORD, AT));
    same!((exit, after(&found), bytes(AT)), (VMCALL, (0, AT + 4, AT + 6), [0x77, 4, 0x77, 4, 0x77, 4]), "REP OUTSD, REP INSW");
    Outcome::Pass
}

fn exits() -> Outcome {
    const ADDRESSES_64_DS: u64 = 2 << 7 | 3 << 15;
    if !open_ports(code!("rep outsb")) {
        return ABSENT;
    }
    poke(BITMAP, usize::from(PORT) / 64, 1 << (PORT % 64));
    let mut registers = registers(2, PORT.into(), ADDRESS);
    same!(run(&mut registers, false), Ok(30), "a port with its bit");
    same!(get(field::EXIT_QUALIFICATION) & 0xffff_ffff, u64::from(PORT) << 16 | 1 << 5 | 1 << 4, "the qualification");
    same!(get(field::EXIT_INSTRUCTION) & (7 << 7 | 7 << 15), ADDRESSES_64_DS, "the instruction information");
    same!(get(field::GUEST_LINEAR), ADDRESS, "the linear address");
    same!(after(&registers), (2, ADDRESS, ADDRESS), "registers");
    Outcome::Pass
}

fn faults() -> Outcome {
    const NOWHERE: u64 = 0x1234_5678_9000;
    const NOT_CANONICAL: u64 = 1 << 63;
    let with = |code, bitmap: u64, at: u64| {
        if !open_ports(code) {
            return Err(Done::Succeed);
        }
        set(field::EXCEPTION_BITMAP, bitmap);
        run(&mut registers(2, PORT.into(), at), false)
    };
    let write = code!("insb");
    let first = with(write, 1 << 14, NOWHERE);
    if first == Err(Done::Succeed) {
        return ABSENT;
    }
    same!(first, Ok(0), "INSB to nowhere");
    same!((get(field::EXIT_INTERRUPTION), get(field::EXIT_INTERRUPTION_CODE)), (0x8000_0b0e, 2), "its information");
    same!((get(field::EXIT_QUALIFICATION), get(field::GUEST_RIP)), (NOWHERE, write), "its address, and RIP");
    same!(with(code!("rep outsb"), 1 << 14, NOWHERE), Ok(0), "OUTSB from nowhere");
    same!(get(field::EXIT_INTERRUPTION_CODE), 0, "its error code");
    same!(with(code!("insb"), 1 << 13, NOT_CANONICAL), Ok(0), "INSB to no address");
    same!((get(field::EXIT_INTERRUPTION), get(field::EXIT_QUALIFICATION)), (0x8000_0b0d, 0), "its information");
    // Without the bits L2 handles them: it goes on at the end of the code.
    for (at, expected) in [(NOWHERE, (14, 2)), (NOT_CANONICAL, (13, 0))] {
        let end = code!("nop");
        let mut exit = VMCALL;
        let found = exception::run(|| {
            resume_at(end);
            exit = with(code!("insb"), 0, at);
        });
        same!((exit, found), (VMCALL, Some(expected)), "an exception of L2");
    }
    Outcome::Pass
}

/// Has L1's tables map the test's large pages. Returns false if there are none.
fn map(entries: [u64; 2]) -> bool {
    if !enable_ept() {
        return false;
    }
    poke(EPT + 2, INDEX, entries[0]);
    poke(EPT + 2, INDEX + 1, entries[1]);
    invept(1, [page(EPT) | 6 | 3 << 3, 0]);
    true
}

fn second_stage() -> Outcome {
    const SIZE: u64 = 2 << 20;
    const FIRST: u64 = ADDRESS | LARGE | WRITE_BACK;
    const SECOND: u64 = (ADDRESS + SIZE) | LARGE | WRITE_BACK;
    const READ_WRITE: u64 = 3;
    let port = u64::from(PORT);
    // L2's pages are L1's in the other order.
    if !open_ports(code!("rep insb")) || !map([SECOND | READ_WRITE, FIRST | READ_WRITE]) {
        return ABSENT;
    }
    set_scratch(0x5a);
    fill(ADDRESS, &[0; 2]);
    fill(ADDRESS + 2 * SIZE - 2, &[0; 2]);
    let mut found = registers(4, port, ADDRESS + SIZE - 2);
    same!((run(&mut found, false), found[1]), (VMCALL, 0), "REP INSB across pages");
    same!((bytes(ADDRESS + 2 * SIZE - 2), bytes(ADDRESS)), ([0x5a; 2], [0x5a; 2]), "L1's memory");
    // A repetition ends at a page that is absent, and goes on when it is there.
    open_ports(code!("rep insb"));
    map([FIRST | READ_WRITE, SECOND | 1]);
    let mut found = registers(4, port, ADDRESS + SIZE - 2);
    same!((run(&mut found, false), after(&found)), (Ok(48), (2, ADDRESS + SIZE - 2, ADDRESS + SIZE)), "a page that may be read");
    same!(get(field::EXIT_QUALIFICATION) & QUALIFICATION, 2 | 1 << 3 | LINEAR_VALID | TRANSLATION, "its qualification");
    same!((get(field::GUEST_PHYSICAL), get(field::GUEST_LINEAR)), (ADDRESS + SIZE, ADDRESS + SIZE), "its addresses");
    map([FIRST | READ_WRITE, SECOND | READ_WRITE]);
    same!((run(&mut found, true), after(&found)), (VMCALL, (0, ADDRESS + SIZE - 2, ADDRESS + SIZE + 2)), "the rest");
    open_ports(code!("outsb"));
    map([0, 0]);
    same!(run(&mut registers(1, port, ADDRESS + 5), false), Ok(48), "OUTSB from an absent page");
    same!(get(field::EXIT_QUALIFICATION) & QUALIFICATION, 1 | LINEAR_VALID | TRANSLATION, "its qualification");
    open_ports(code!("outsb"));
    map([FIRST | 2, 0]);
    same!(run(&mut registers(1, port, ADDRESS + 5), false), Ok(49), "OUTSB from a misconfigured page");
    same!(get(field::GUEST_PHYSICAL), ADDRESS + 5, "its address");
    if is_guest() {
        // A device of L1's: its local APIC.
        const APIC: u64 = 0xfee0_0000;
        const VERSION: u64 = 0x30;
        open_ports(code!("outsd"));
        map([APIC | LARGE | READ_WRITE, 0]);
        same!(run(&mut registers(1, WORD, ADDRESS + VERSION), false), VMCALL, "OUTSD from a device");
        // SAFETY: the local APIC's page is identity-mapped; reading the version register has no side effect.
        let version = unsafe { ((APIC + VERSION) as *const u32).read_volatile() };
        same!(self::port(WORD as u16), version as u8, "the device's register");
    }
    tables(port)
}

/// L1's tables lack one of L2's own.
fn tables(port: u64) -> Outcome {
    const ROOT: usize = 11;
    const POINTERS: usize = 12;
    const PRESENT_WRITABLE: u64 = 3;
    open_ports(code!("outsb"));
    map([0, 0]);
    let entry = |table: u64| {
        // SAFETY: it is a table of this program's, which is mapped where it is.
        unsafe { *((table & 0x000f_ffff_ffff_f000) as *const u64) }
    };
    for page in [ROOT, POINTERS] {
        for word in 0..512 {
            poke(page, word, 0);
        }
    }
    // The first GiB as L1 has it, and a second one.
    poke(ROOT, 0, page(POINTERS) | PRESENT_WRITABLE);
    poke(POINTERS, 0, entry(entry(get(field::GUEST_CR3))));
    poke(POINTERS, 1, ADDRESS | PRESENT_WRITABLE);
    set(field::GUEST_CR3, page(ROOT));
    same!(run(&mut registers(1, port, 0x4020_0005), false), Ok(48), "a table that is absent");
    same!(get(field::EXIT_QUALIFICATION) & (QUALIFICATION & !2), 1 | LINEAR_VALID, "its qualification");
    same!((get(field::GUEST_PHYSICAL), get(field::GUEST_LINEAR)), (ADDRESS + 8, 0x4020_0005), "its addresses");
    Outcome::Pass
}
