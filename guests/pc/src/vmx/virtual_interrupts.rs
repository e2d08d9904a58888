//! L2's virtual APIC: its other registers, virtual-interrupt delivery, and posted interrupts.

use pc::{exception, lapic};

use crate::exits::VMCALL;
use crate::field::{self, exit, pin, primary, secondary};
use crate::test::{Outcome, Test, check, same};
use crate::vmcs::{BITMAP, Done, clear, code, enable, fresh, get, page, poke, run, set};

pub const ALL: &[Test] = &[
    ("apic_registers", registers),
    ("apic_registers_in_x2apic_mode", x2apic_registers),
    ("virtual_interrupts", interrupts),
    ("virtual_interrupts_by_priority", by_priority),
    ("virtual_eoi", end),
    ("virtual_interrupts_to_self", to_self),
    ("posted_interrupts", posted),
    ("posted_interrupts_and_others", others),
];

/// The virtual-APIC page, the APIC-access page, and that of the posted-interrupt descriptor.
const VIRTUAL: usize = 12;
const ACCESS: usize = 13;
const DESCRIPTOR: usize = 14;
const ABSENT: Outcome = Outcome::Skip("there is no such control");
/// Exit reasons.
const END: Result<u64, Done> = Ok(45);
const APIC_WRITE: Result<u64, Done> = Ok(56);
pub const VECTOR: u64 = 0x61;
const LOWER: u64 = 0x41;
pub const NOTIFICATION: u64 = 0x71;
const IF: u64 = 1 << 9;
const TPR: u64 = 0x80;
const ISR: u64 = 0x100;
const IRR: u64 = 0x200;

/// A register of L2's APIC, in memory.
fn register(offset: u64) -> u64 {
    // SAFETY: the page is used by these tests alone.
    unsafe { ((page(VIRTUAL) + offset) as *const u32).read_volatile().into() }
}

/// Whether a vector's bit is set in ISR or IRR.
fn has(array: u64, vector: u64) -> bool {
    register(array + vector / 32 * 16) >> (vector % 32) & 1 != 0
}

/// A fresh VMCS with a virtual APIC, and these secondary controls. Interrupts of L2 are enabled.
fn virtualized(code: u64, controls: u32) -> bool {
    clear(VIRTUAL);
    clear(BITMAP);
    for vector in [VECTOR, LOWER, NOTIFICATION] {
        // L2 ends interrupts where the tests say so.
        exception::handle(vector as u8, Some(|_| {}));
    }
    fresh(code);
    set(field::VIRTUAL_APIC, page(VIRTUAL));
    set(field::APIC_ACCESS, page(ACCESS));
    set(field::MSR_BITMAP, page(BITMAP));
    set(field::GUEST_RFLAGS, 2 | IF);
    enable(field::PRIMARY_CONTROLS, primary::TPR_SHADOW)
        && enable(field::PRIMARY_CONTROLS, primary::MSR_BITMAPS)
        && enable(field::PIN_CONTROLS, pin::EXTERNAL_INTERRUPTS)
        && enable(field::SECONDARY_CONTROLS, controls)
}

/// Requests an interrupt of L2.
fn request(vector: u64) {
    poke(VIRTUAL, (IRR + vector / 32 * 16) as usize / 8, 1 << (vector % 32));
    set(field::GUEST_INTERRUPT_STATUS, get(field::GUEST_INTERRUPT_STATUS) & !0xff | vector);
}

fn registers() -> Outcome {
    let start = code!("mov eax, [rsi + 0x30]", "lea rbx, [rip + 3f]", "mov dword ptr [rsi + 0xd0], 0x01000000", "3: nop");
    if !virtualized(start, secondary::APIC_ACCESSES | secondary::APIC_REGISTERS) {
        return ABSENT;
    }
    poke(VIRTUAL, 0x30 / 8, 0x5_0014);
    let mut found = [0, 0, 0, 0, 0, page(ACCESS), 0, 0];
    same!((run(&mut found, false), found[0]), (APIC_WRITE, 0x5_0014), "the exit, and what is read");
    same!((get(field::EXIT_QUALIFICATION), get(field::GUEST_RIP)), (0xd0, found[3]), "the qualification, and RIP");
    same!(register(0xd0), 0x0100_0000, "the register");
    same!(run(&mut found, true), VMCALL, "the next exit");
    Outcome::Pass
}

fn x2apic_registers() -> Outcome {
    let start = code!("mov ecx, 0x803", "rdmsr");
    if !virtualized(start, secondary::X2APIC_MODE | secondary::APIC_REGISTERS) {
        return ABSENT;
    }
    poke(VIRTUAL, 0x30 / 8, 0x5_0014);
    let mut found = [0; 8];
    same!((run(&mut found, false), found[0], found[2]), (VMCALL, 0x5_0014, 0), "the exit, and what is read");
    // With other registers not virtualized, it is that of L1's APIC, which is not in x2APIC mode.
    virtualized(start, secondary::X2APIC_MODE);
    set(field::EXCEPTION_BITMAP, 1 << 13);
    same!((run(&mut found, false), get(field::EXIT_INTERRUPTION)), (Ok(0), 0x8000_0b0d), "a register of L1's APIC");
    Outcome::Pass
}

fn interrupts() -> Outcome {
    if !virtualized(code!("nop", "nop"), secondary::INTERRUPT_DELIVERY) {
        return ABSENT;
    }
    request(VECTOR);
    same!(run(&mut [0; 8], false), VMCALL, "the exit");
    same!(exception::take(VECTOR as u8), 1, "the interrupt");
    same!((has(IRR, VECTOR), has(ISR, VECTOR)), (false, true), "IRR and ISR");
    same!(get(field::GUEST_INTERRUPT_STATUS), VECTOR << 8, "the status");
    // An interrupt in service blocks others of its class. RFLAGS.IF clear blocks each.
    request(LOWER);
    set(field::GUEST_RIP, code!("nop", "nop"));
    same!((run(&mut [0; 8], true), exception::take(LOWER as u8)), (VMCALL, 0), "one of a lower priority");
    same!(get(field::GUEST_INTERRUPT_STATUS), VECTOR << 8 | LOWER, "the status");
    virtualized(code!("nop", "nop", "sti", "nop", "nop"), secondary::INTERRUPT_DELIVERY);
    set(field::GUEST_RFLAGS, 2);
    request(VECTOR);
    same!((run(&mut [0; 8], false), exception::take(VECTOR as u8)), (VMCALL, 1), "one that STI unblocks");
    Outcome::Pass
}

fn by_priority() -> Outcome {
    let start = code!("nop", "mov cr8, rcx", "nop", "nop");
    for (priority, count) in [(6, 0), (5, 1)] {
        if !virtualized(start, secondary::INTERRUPT_DELIVERY) {
            return ABSENT;
        }
        poke(VIRTUAL, TPR as usize / 8, 0xf0);
        request(VECTOR);
        let mut registers = [0, priority, 0, 0, 0, 0, 0, 0];
        same!((run(&mut registers, false), exception::take(VECTOR as u8)), (VMCALL, count), "an interrupt, by the TPR");
        same!(register(TPR), priority << 4, "the TPR");
    }
    Outcome::Pass
}

/// By the page and by the MSR: with an exit if L1 asks for it, and without.
fn end() -> Outcome {
    let page_write = code!("nop", "nop", "mov dword ptr [rsi + 0xb0], 0", "nop");
    let msr_write = code!("nop", "nop", "mov ecx, 0x80b", "xor eax, eax", "xor edx, edx", "wrmsr", "nop");
    for (start, mode) in [(page_write, secondary::APIC_ACCESSES), (msr_write, secondary::X2APIC_MODE)] {
        for exits in [false, true] {
            if !virtualized(start, mode | secondary::INTERRUPT_DELIVERY) {
                return ABSENT;
            }
            set(field::EOI_EXIT_1, if exits { 1 << (VECTOR % 64) } else { !(1 << (VECTOR % 64)) });
            request(VECTOR);
            let mut registers = [0, 0, 0, 0, 0, page(ACCESS), 0, 0];
            same!(run(&mut registers, false), if exits { END } else { VMCALL }, "the exit");
            if exits {
                same!(get(field::EXIT_QUALIFICATION), VECTOR, "the qualification");
            }
            same!((exception::take(VECTOR as u8), has(ISR, VECTOR)), (1, false), "the interrupt, and ISR");
            same!(get(field::GUEST_INTERRUPT_STATUS), 0, "the status");
        }
    }
    Outcome::Pass
}

fn to_self() -> Outcome {
    let start = code!("mov ecx, 0x83f", "mov eax, 0x61", "xor edx, edx", "wrmsr", "nop", "nop");
    if !virtualized(start, secondary::X2APIC_MODE | secondary::INTERRUPT_DELIVERY) {
        return ABSENT;
    }
    same!((run(&mut [0; 8], false), exception::take(VECTOR as u8)), (VMCALL, 1), "the exit, and the interrupt");
    same!(get(field::GUEST_INTERRUPT_STATUS), VECTOR << 8, "the status");
    // The bitmap decides first.
    virtualized(start, secondary::X2APIC_MODE | secondary::INTERRUPT_DELIVERY);
    poke(BITMAP, 256 + 0x83f / 64, u64::MAX);
    same!((run(&mut [0; 8], false), exception::take(VECTOR as u8)), (Ok(32), 0), "a write that L1 intercepts");
    Outcome::Pass
}

/// A fresh VMCS for posted interrupts, of which none is posted.
pub fn notified(code: u64) -> bool {
    (0..8).for_each(|word| poke(DESCRIPTOR, word, 0));
    virtualized(code, secondary::INTERRUPT_DELIVERY) && {
        set(field::POSTED_INTERRUPTS, page(DESCRIPTOR));
        set(field::POSTED_INTERRUPT_VECTOR, NOTIFICATION);
        enable(field::EXIT_CONTROLS, exit::ACKNOWLEDGE_INTERRUPT) && enable(field::PIN_CONTROLS, pin::POSTED_INTERRUPTS)
    }
}

/// A word of the descriptor.
fn descriptor(word: usize) -> u64 {
    // SAFETY: the page is used by these tests alone.
    unsafe { (page(DESCRIPTOR) as *const u64).add(word).read_volatile() }
}

/// Posts an interrupt, with an outstanding notification.
pub fn post(vector: u64) {
    poke(DESCRIPTOR, vector as usize / 64, descriptor(vector as usize / 64) | 1 << (vector % 64));
    poke(DESCRIPTOR, 4, 1);
}

/// Notifications that arrive at an entry and while L2 runs, which sends them itself.
fn posted() -> Outcome {
    const APIC: u64 = 0xfee0_0000;
    const COMMAND: u64 = 0x300;
    lapic::enable();
    for at_entry in [true, false] {
        let start = if at_entry { code!("nop", "nop") } else { code!("mov [rsi], eax", "nop", "nop") };
        if !notified(start) {
            return ABSENT;
        }
        post(VECTOR);
        post(LOWER);
        let mut registers = [NOTIFICATION | u64::from(lapic::command::SELF), 0, 0, 0, 0, APIC + COMMAND, 0, 0];
        if at_entry {
            lapic::send(0, NOTIFICATION as u32 | lapic::command::SELF);
        }
        same!(run(&mut registers, false), VMCALL, "the exit");
        same!((exception::take(VECTOR as u8), exception::take(LOWER as u8)), (1, 0), "the interrupts");
        same!((has(ISR, VECTOR), has(IRR, LOWER)), (true, true), "ISR and IRR");
        same!((descriptor(0), descriptor(1), descriptor(4)), (0, 0, 0), "the descriptor");
        same!(get(field::GUEST_INTERRUPT_STATUS), VECTOR << 8 | LOWER, "the status");
        same!(lapic::read(lapic::register::ISR + 0x30), 0, "L1's interrupt in service");
        same!(exception::take(NOTIFICATION as u8), 0, "the notification");
    }
    Outcome::Pass
}

/// Other interrupts of L1 exit, and without posted ones a notification has no effect.
fn others() -> Outcome {
    lapic::enable();
    let start = code!("nop", "nop");
    if !notified(start) {
        return ABSENT;
    }
    lapic::send(0, LOWER as u32 | lapic::command::SELF);
    same!((run(&mut [0; 8], false), get(field::GUEST_RIP)), (Ok(1), start), "the exit");
    lapic::end();
    same!(get(field::EXIT_INTERRUPTION), 1 << 31 | LOWER, "its information");
    lapic::send(0, NOTIFICATION as u32 | lapic::command::SELF);
    same!((run(&mut [0; 8], true), get(field::GUEST_INTERRUPT_STATUS)), (VMCALL, 0), "a notification of nothing");
    check!(lapic::read(lapic::register::ISR + 0x30) == 0, "the notification is in service");
    Outcome::Pass
}
