//! Other CPUs: started, stopped, and spoken to.

use core::arch::asm;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::firmware::{self, cpus};
use super::test::check;
use crate::console::println;
use crate::exception::{self, COUNTS};
use crate::lapic::{self as apic, command, register};
use crate::machine::{out8, rdmsr, wrmsr};
use crate::others::{self, BEATS, DONE, SEEN, UP, pass, wait};

/// Whether they run: on a shared CPU they run alternately, which may take a while.
fn beat() -> bool {
    let before = BEATS.load(Ordering::SeqCst);
    wait(|| BEATS.load(Ordering::SeqCst) != before)
}

/// Ticks in which others that run have been seen to.
const WHILE: u64 = 3_000_000;

/// Whether they run within a short time.
fn beat_soon() -> bool {
    let before = BEATS.load(Ordering::SeqCst);
    pass(WHILE);
    BEATS.load(Ordering::SeqCst) != before
}

pub fn start(_: u64) -> Result<(), &'static str> {
    let others = cpus() - 1;
    if others == 0 {
        return Ok(());
    }
    apic::enable();
    others::start();
    check!(wait(|| UP.load(Ordering::SeqCst) == others), "they do not come up");
    check!(SEEN.load(Ordering::SeqCst) == (1 << (others + 1)) - 2, "other identifiers");
    // SIPI is ignored unless the CPU is in wait-for-SIPI.
    apic::send(0, command::OTHERS | command::STARTUP | command::ASSERT | 0x10);
    check!(beat() && UP.load(Ordering::SeqCst) == others, "a second startup message starts them again");
    Ok(())
}

/// INIT stops running CPUs, and SIPI restarts them.
pub fn init(_: u64) -> Result<(), &'static str> {
    let others = cpus() - 1;
    if others == 0 {
        return Ok(());
    }
    apic::enable();
    for _ in 0..3 {
        check!(beat(), "they do not run");
        apic::send(0, command::OTHERS | command::INIT | command::ASSERT);
        // Each handles it when it next runs.
        check!(wait(|| !beat_soon()), "INIT does not stop them");
        others::start();
        check!(wait(|| UP.load(Ordering::SeqCst) == others), "they do not come up again");
        // INIT immediately followed by SIPI.
        others::start();
        check!(wait(|| UP.load(Ordering::SeqCst) == others), "they do not come up at once");
    }
    Ok(())
}

/// After INIT an APIC accepts nothing, and does not take part in arbitration; after SIPI its CPU takes the interrupt of a
/// line that was asserted meanwhile.
pub fn interrupts_after_init(_: u64) -> Result<(), &'static str> {
    const VECTOR: u8 = 0x57;
    const LINE: u8 = 15;
    const ANY: u32 = 0xff;
    const LOWEST: u32 = 1 << 8;
    let others = cpus() - 1;
    if others == 0 {
        return Ok(());
    }
    apic::enable();
    others::start();
    check!(wait(|| UP.load(Ordering::SeqCst) == others), "they do not run");
    apic::send(0, command::OTHERS | command::INIT | command::ASSERT);
    exception::handle(
        VECTOR,
        Some(|_| {
            firmware::set_test_line(LINE, false);
            apic::end();
        }),
    );
    let is_remote = || apic::io_read(0x10 + 2 * u32::from(LINE)) & apic::IO_REMOTE != 0;
    // The others' priorities were lower.
    apic::write(register::TPR, 0x10);
    apic::io_route(LINE.into(), ANY, LOWEST | u32::from(VECTOR));
    // Each handles INIT when it next runs. One that has not is of lower priority, and the interrupt is lost by its INIT.
    let arbitrated = wait(|| {
        firmware::set_test_line(LINE, false);
        firmware::set_test_line(LINE, true);
        crate::machine::sti();
        crate::machine::cli();
        exception::take(VECTOR) == 1
    });
    apic::write(register::TPR, 0);
    firmware::set_test_line(LINE, false);
    apic::io_route(LINE.into(), 1, apic::IO_LEVEL | u32::from(VECTOR));
    firmware::set_test_line(LINE, true);
    let refused = !is_remote();
    others::forget();
    others::start();
    check!(wait(|| UP.load(Ordering::SeqCst) == others), "they do not come up again");
    others::give(crate::machine::sti);
    check!(wait(|| DONE.load(Ordering::SeqCst) == others), "they do nothing");
    firmware::set_test_line(LINE, false);
    firmware::set_test_line(LINE, true);
    let came = wait(|| exception::COUNTS[usize::from(VECTOR)].load(Ordering::SeqCst) == 1);
    firmware::set_test_line(LINE, false);
    others::give(crate::machine::cli);
    check!(wait(|| DONE.load(Ordering::SeqCst) == others), "they do not end");
    apic::io_route(LINE.into(), 0, apic::IO_MASKED);
    check!(arbitrated, "one that is off arbitrates");
    check!(refused, "one that is off accepts an interrupt");
    check!(came, "the line is blocked");
    Ok(())
}

/// INIT keeps SYSCALL's and SYSENTER's MSRs, the PAT, and FP and SIMD registers. CR0 after it has no bit but ET: programs
/// have caches on.
pub fn kept(_: u64) -> Result<(), &'static str> {
    /// In real mode: `xor ax, ax; mov ds, ax; mov eax, cr0; mov [0x3000], eax; cli; hlt; jmp $-1`.
    const CODE: [u8; 15] = [0x31, 0xc0, 0x8e, 0xd8, 0x0f, 0x20, 0xc0, 0x66, 0xa3, 0x00, 0x30, 0xfa, 0xf4, 0xeb, 0xfd];
    const CR0: *mut u32 = 0x3000 as *mut u32;
    /// STAR, LSTAR, FMASK, KERNEL_GS_BASE, IA32_SYSENTER_CS, ESP and EIP, IA32_PAT.
    const MSRS: [u32; 8] = [0xc000_0081, 0xc000_0082, 0xc000_0084, 0xc000_0102, 0x174, 0x175, 0x176, 0x277];
    static RIGHT: AtomicU32 = AtomicU32::new(0);
    static FIRST: [AtomicU64; MSRS.len()] = [const { AtomicU64::new(0) }; MSRS.len()];
    /// Another PAT on each CPU: those of vCPUs that share a CPU are theirs.
    fn value(n: usize) -> u64 {
        const TYPES: [u64; 4] = [0, 1, 4, 6];
        if n == MSRS.len() - 1 { 0x0001_0406_0007_0400 | TYPES[apic::id() as usize % TYPES.len()] } else { 0x1000 + n as u64 }
    }
    let others = cpus() - 1;
    if others == 0 {
        return Ok(());
    }
    apic::enable();
    RIGHT.store(0, Ordering::SeqCst);
    others::give(|| {
        // SAFETY: these CPUs use neither the instructions nor the registers.
        unsafe {
            for (n, &register) in MSRS.iter().enumerate() {
                FIRST[n].store(rdmsr(register), Ordering::SeqCst);
                wrmsr(register, value(n));
            }
            asm!("mov rax, cr4", "or eax, 0x200", "mov cr4, rax", "movq xmm7, {}", in(reg) value(0), out("rax") _, options(nostack));
        }
    });
    check!(wait(|| DONE.load(Ordering::SeqCst) == others), "they do nothing");
    // SAFETY: the page is for this, and the word is not in use.
    unsafe {
        CR0.write_volatile(0);
        ((others::PAGE << 12) as *mut [u8; CODE.len()]).write_volatile(CODE);
    }
    apic::send(0, command::OTHERS | command::INIT | command::ASSERT);
    apic::send(0, command::OTHERS | command::STARTUP | command::ASSERT | others::PAGE);
    // SAFETY: an aligned word of RAM that the started CPU writes; volatile, because that CPU's code is not Rust's.
    let cr0 = || unsafe { CR0.read_volatile() };
    let seen = wait(|| cr0() != 0);
    others::forget();
    others::start();
    check!(wait(|| UP.load(Ordering::SeqCst) == others), "they do not come up again");
    others::give(|| {
        let low: u64;
        // SAFETY: these CPUs use neither the instructions nor the registers.
        let all = unsafe {
            asm!("mov rax, cr4", "or eax, 0x200", "mov cr4, rax", "movq {}, xmm7", out(reg) low, out("rax") _, options(nostack));
            MSRS.iter().enumerate().fold(low == value(0), |all, (n, &register)| {
                let same = rdmsr(register) == value(n);
                wrmsr(register, FIRST[n].load(Ordering::SeqCst));
                all && same
            })
        };
        RIGHT.fetch_add(u32::from(all), Ordering::SeqCst);
    });
    check!(wait(|| DONE.load(Ordering::SeqCst) == others), "they do nothing after INIT");
    check!(seen && cr0() == 0x10, "CR0");
    check!(RIGHT.load(Ordering::SeqCst) == others, "a register that INIT does not change");
    Ok(())
}

pub fn broadcasts(_: u64) -> Result<(), &'static str> {
    const VECTOR: u8 = 0xcf;
    let all = u64::from(cpus());
    apic::enable();
    others::give(crate::machine::sti);
    check!(wait(|| DONE.load(Ordering::SeqCst) == cpus() - 1), "they do nothing");
    exception::handle(VECTOR, None);
    crate::machine::sti();
    let came =
        |expected: u64| wait(|| COUNTS[usize::from(VECTOR)].load(Ordering::SeqCst) >= expected) && exception::take(VECTOR) == expected;
    apic::send(0xff, command::ASSERT | u32::from(VECTOR));
    let address = came(all);
    apic::send(0, command::ALL | command::ASSERT | u32::from(VECTOR));
    let shorthand = came(all);
    apic::send(0, command::OTHERS | command::ASSERT | u32::from(VECTOR));
    let rest = came(all - 1);
    // Flat logical identifiers: this CPU's is 1.
    apic::write(0xe0, u32::MAX);
    apic::write(0xd0, 1 << 24);
    apic::send(1, command::LOGICAL | command::ASSERT | u32::from(VECTOR));
    let logical = came(1);
    crate::machine::cli();
    check!(address, "to the address of all");
    check!(shorthand && rest, "to all, or to all others");
    check!(logical, "to a logical address");
    Ok(())
}

/// An NMI wakes a CPU that waits with interrupts off.
pub fn nmi_wakes(_: u64) -> Result<(), &'static str> {
    let others = cpus() - 1;
    if others == 0 {
        return Ok(());
    }
    static WOKEN: AtomicU32 = AtomicU32::new(0);
    static WAITING: AtomicU32 = AtomicU32::new(0);
    WOKEN.store(0, Ordering::SeqCst);
    exception::handle(2, None);
    others::give(|| {
        // SAFETY: the sender's NMI ends the wait, and its handler returns to here.
        unsafe {
            asm!("cli", options(nostack));
            WAITING.fetch_add(1, Ordering::SeqCst);
            asm!("hlt", options(nostack));
        }
        WOKEN.fetch_add(1, Ordering::SeqCst);
    });
    check!(wait(|| WAITING.load(Ordering::SeqCst) == others), "they do not wait");
    pass(WHILE);
    check!(WOKEN.load(Ordering::SeqCst) == 0, "they do not wait with interrupts off");
    apic::send(0, command::OTHERS | command::ASSERT | 0xcf);
    pass(WHILE);
    check!(WOKEN.load(Ordering::SeqCst) == 0, "an interrupt wakes them that they can't take");
    apic::send(0, command::OTHERS | command::NMI | command::ASSERT);
    check!(wait(|| WOKEN.load(Ordering::SeqCst) == others), "they do not wake");
    Ok(())
}

/// The hypercall that sends an interrupt to a set of APICs.
pub fn called(_: u64) -> Result<(), &'static str> {
    const VECTOR: u64 = 0xce;
    let all = u64::from(cpus());
    let call = |set: u64, first: u64, icr: u64| {
        let sent: u64;
        // SAFETY: the interrupt has a handler; RBX is saved.
        unsafe {
            asm!(
                "xchg rbx, {set}", pc::hypercall!(), "mov rbx, {set}",
                set = inout(reg) set => _, inout("rax") 10u64 => sent, inout("rcx") 0u64 => _, inout("rdx") first => _, inout("rsi") icr => _,
                options(nostack)
            );
        }
        sent
    };
    let came = |expected: u64| {
        let count = || COUNTS[VECTOR as usize].load(Ordering::SeqCst);
        wait(|| count() >= expected) && exception::take(VECTOR as u8) == expected
    };
    apic::enable();
    others::give(crate::machine::sti);
    check!(wait(|| DONE.load(Ordering::SeqCst) == cpus() - 1), "they do nothing");
    exception::handle(VECTOR as u8, None);
    crate::machine::sti();
    let to_all = call((1 << all) - 1, 0, VECTOR) == all && came(all);
    let to_first = call(1, 0, VECTOR) == 1 && came(1);
    let to_none = call(u64::MAX, 0xffff_ffff, 0) == 0 && call(u64::MAX, all, VECTOR) == 0 && call(1, 0, 3) == 0;
    crate::machine::cli();
    check!(to_all && to_first, "it does not come to those that are named");
    check!(to_none && exception::take(VECTOR as u8) == 0, "it comes to others");
    Ok(())
}

/// Of two NMIs sent to a CPU at once, by itself and by another CPU, none is lost.
pub fn nmis_at_once(_: u64) -> Result<(), &'static str> {
    const FLUSH: u8 = 0x44;
    const ROUNDS: u32 = 200;
    static GO: AtomicU32 = AtomicU32::new(0);
    static MAIN: AtomicU32 = AtomicU32::new(0);
    if cpus() == 1 {
        return Ok(());
    }
    apic::enable();
    MAIN.store(apic::id(), Ordering::SeqCst);
    exception::handle(2, None);
    exception::handle(FLUSH, None);
    GO.store(0, Ordering::SeqCst);
    others::give(|| {
        if apic::id() != 1 {
            return;
        }
        for round in 1..=ROUNDS {
            while GO.load(Ordering::SeqCst) != round {
                core::hint::spin_loop();
            }
            apic::send(MAIN.load(Ordering::SeqCst), command::NMI | command::ASSERT);
            // A later interrupt shows that the NMI has been delivered.
            apic::send(MAIN.load(Ordering::SeqCst), command::ASSERT | u32::from(FLUSH));
        }
    });
    crate::machine::sti();
    let mut whole = 0;
    for round in 1..=ROUNDS {
        exception::take(2);
        GO.store(round, Ordering::SeqCst);
        apic::send(apic::id(), command::NMI | command::ASSERT);
        if !wait(|| COUNTS[usize::from(FLUSH)].load(Ordering::SeqCst) == u64::from(round)) {
            break;
        }
        whole += u32::from(exception::take(2) == 2);
    }
    crate::machine::cli();
    check!(whole == ROUNDS, "one is lost");
    Ok(())
}

/// Interrupts from another CPU that arrive while writes to this CPU's APIC exit: the exit may have taken the
/// posted interrupts when the notification reaches the guest, which then finds none.
pub fn amid_exits(_: u64) -> Result<(), &'static str> {
    const VECTOR: u8 = 0xcd;
    const SPURIOUS: u8 = 0xff;
    const ROUNDS: u64 = 200;
    /// An unused identifier.
    const NOBODY: u32 = 0x7f;
    static MAIN: AtomicU32 = AtomicU32::new(0);
    let count = || COUNTS[usize::from(VECTOR)].load(Ordering::SeqCst);
    if cpus() == 1 {
        return Ok(());
    }
    apic::enable();
    MAIN.store(apic::id(), Ordering::SeqCst);
    exception::handle(VECTOR, None);
    exception::handle(SPURIOUS, None);
    others::give(|| {
        if apic::id() != 1 {
            return;
        }
        for round in 0..ROUNDS {
            apic::send(MAIN.load(Ordering::SeqCst), command::ASSERT | u32::from(VECTOR));
            if !wait(|| COUNTS[usize::from(VECTOR)].load(Ordering::SeqCst) > round) {
                return;
            }
        }
    });
    crate::machine::sti();
    let all = wait(|| {
        for _ in 0..16 {
            apic::send(NOBODY, command::ASSERT | u32::from(VECTOR));
        }
        // If the other CPU shares this one, it runs now, not only after the slice.
        pass(8192);
        DONE.load(Ordering::SeqCst) == cpus() - 1
    });
    crate::machine::cli();
    let in_service = apic::read(register::ISR + 0x70);
    check!(all && count() == ROUNDS, "one is lost");
    check!(exception::take(SPURIOUS) == 0 && in_service == 0, "one comes that nobody sent");
    Ok(())
}

/// A count of the 8254 that another CPU sets ends the HLT of the first one, which has no other deadline.
pub fn timer_of_another(_: u64) -> Result<(), &'static str> {
    const VECTOR: u8 = 0x53;
    const RESCUE: u8 = 0x54;
    static MAIN: AtomicU32 = AtomicU32::new(0);
    if cpus() == 1 {
        return Ok(());
    }
    super::deadline::stop_pit();
    apic::enable();
    apic::write(register::TIMER, apic::IO_MASKED);
    MAIN.store(apic::id(), Ordering::SeqCst);
    exception::handle(VECTOR, None);
    exception::handle(RESCUE, None);
    apic::io_route(2, apic::id(), u32::from(VECTOR));
    others::give(|| {
        if apic::id() != 1 {
            return;
        }
        // The first CPU is in HLT by then.
        pass(WHILE);
        // SAFETY: the vector that the timer sends has a handler in the IDT, which returns to here.
        unsafe {
            out8(0x40, 0x40);
            out8(0x40, 0);
        }
        if !wait(|| COUNTS[usize::from(VECTOR)].load(Ordering::SeqCst) != 0) {
            apic::send(MAIN.load(Ordering::SeqCst), command::ASSERT | u32::from(RESCUE));
        }
    });
    // SAFETY: one of the interrupts ends the wait.
    unsafe { asm!("sti", "hlt", "cli", options(nostack)) };
    apic::io_route(2, 0, apic::IO_MASKED);
    check!(wait(|| DONE.load(Ordering::SeqCst) == cpus() - 1), "they do not end");
    check!(exception::take(VECTOR) == 1 && exception::take(RESCUE) == 0, "it does not come");
    Ok(())
}

/// A line of the 8259s that another CPU raises and lowers again does not end the HLT of the first one without an interrupt.
pub fn fallen_line(_: u64) -> Result<(), &'static str> {
    const LINE: u8 = 3;
    const BASE: u8 = 0x50;
    const VECTOR: u8 = BASE + LINE;
    /// Vector that the 8259 supplies if the line has fallen before the acknowledgement.
    const SPURIOUS: u8 = BASE + 7;
    const RESCUE: u8 = 0x5f;
    const EXTERNAL: u32 = 7 << 8;
    static MAIN: AtomicU32 = AtomicU32::new(0);
    static WOKEN: AtomicU32 = AtomicU32::new(0);
    static TOO_EARLY: AtomicU32 = AtomicU32::new(0);
    let count = |vector: u8| COUNTS[usize::from(vector)].load(Ordering::SeqCst);
    if cpus() == 1 {
        return Ok(());
    }
    super::deadline::stop_pit();
    apic::enable();
    apic::write(register::TIMER, apic::IO_MASKED);
    apic::write(register::LINT0, EXTERNAL);
    MAIN.store(apic::id(), Ordering::SeqCst);
    WOKEN.store(0, Ordering::SeqCst);
    TOO_EARLY.store(0, Ordering::SeqCst);
    firmware::start_8259s(BASE);
    firmware::mask_8259(!(1 << LINE));
    // SAFETY: an end of interrupt, to the first 8259.
    exception::handle(VECTOR, Some(|_| unsafe { out8(0x20, 0x20) }));
    exception::handle(SPURIOUS, Some(|_| {}));
    exception::handle(RESCUE, None);
    others::give(|| {
        if apic::id() != 1 {
            return;
        }
        for _ in 0..4 {
            // The first CPU is in HLT by then.
            pass(WHILE);
            firmware::pulse_test_line(LINE);
        }
        pass(WHILE);
        TOO_EARLY.store(WOKEN.load(Ordering::SeqCst), Ordering::SeqCst);
        apic::send(MAIN.load(Ordering::SeqCst), command::ASSERT | u32::from(RESCUE));
    });
    // SAFETY: one of the interrupts ends the wait.
    unsafe { asm!("sti", "hlt", "cli", options(nostack)) };
    WOKEN.store(1, Ordering::SeqCst);
    let ended = wait(|| DONE.load(Ordering::SeqCst) == cpus() - 1);
    crate::machine::sti();
    crate::machine::cli();
    firmware::mask_8259(0xff);
    apic::write(register::LINT0, apic::IO_MASKED);
    let interrupts = count(VECTOR) + count(SPURIOUS);
    exception::handle(VECTOR, None);
    exception::handle(SPURIOUS, None);
    check!(ended, "they do not end");
    check!(exception::take(RESCUE) == 1, "the interrupt at the end does not come");
    check!(TOO_EARLY.load(Ordering::SeqCst) == 0 || interrupts != 0, "HLT ends without an interrupt");
    Ok(())
}

/// Lowest-priority delivery passes over an APIC that software has disabled.
pub fn lowest_priority(_: u64) -> Result<(), &'static str> {
    const VECTOR: u8 = 0x55;
    const LOWEST: u32 = 1 << 8;
    const LDR: u32 = 0xd0;
    const DFR: u32 = 0xe0;
    static OFF: AtomicU32 = AtomicU32::new(0);
    static STAY: AtomicU32 = AtomicU32::new(0);
    if cpus() == 1 {
        return Ok(());
    }
    apic::enable();
    exception::handle(VECTOR, None);
    OFF.store(0, Ordering::SeqCst);
    STAY.store(1, Ordering::SeqCst);
    others::give(|| {
        if apic::id() != 1 {
            return;
        }
        apic::write(DFR, u32::MAX);
        apic::write(LDR, 2 << 24);
        apic::write(register::SPURIOUS, 0xff);
        OFF.store(1, Ordering::SeqCst);
        while STAY.load(Ordering::SeqCst) != 0 {
            core::hint::spin_loop();
        }
        apic::write(LDR, 0);
        apic::enable();
    });
    let off = wait(|| OFF.load(Ordering::SeqCst) != 0);
    apic::write(DFR, u32::MAX);
    apic::write(LDR, 1 << 24);
    // The other's priority is lower.
    apic::write(register::TPR, 0x10);
    apic::send(3, command::LOGICAL | command::ASSERT | LOWEST | u32::from(VECTOR));
    crate::machine::sti();
    crate::machine::cli();
    let came = exception::take(VECTOR) == 1;
    apic::write(register::TPR, 0);
    STAY.store(0, Ordering::SeqCst);
    check!(wait(|| DONE.load(Ordering::SeqCst) == cpus() - 1), "they do not end");
    check!(off && came, "it does not come");
    Ok(())
}

/// An xAPIC takes and ends interrupts while other CPUs' APICs are in x2APIC mode.
pub fn mixed_modes(_: u64) -> Result<(), &'static str> {
    /// In different words of IRR and ISR.
    const VECTORS: [u8; 2] = [0x51, 0xca];
    const ROUNDS: u64 = 4;
    static SWITCHED: AtomicU32 = AtomicU32::new(0);
    static STAY: AtomicU32 = AtomicU32::new(0);
    let others = cpus() - 1;
    if others == 0 {
        return Ok(());
    }
    apic::enable();
    for vector in VECTORS {
        exception::handle(vector, None);
    }
    SWITCHED.store(0, Ordering::SeqCst);
    STAY.store(1, Ordering::SeqCst);
    others::give(|| {
        let base = apic::base();
        apic::set_base(base | apic::X2);
        SWITCHED.fetch_add(1, Ordering::SeqCst);
        while STAY.load(Ordering::SeqCst) != 0 {
            core::hint::spin_loop();
        }
        // From x2APIC mode, xAPIC mode is reached only by disabling the APIC ("x2APIC State Transitions").
        apic::set_base(base & !apic::ENABLED);
        apic::set_base(base);
        apic::enable();
    });
    let switched = wait(|| SWITCHED.load(Ordering::SeqCst) == others);
    crate::machine::sti();
    let all = (1..=ROUNDS).all(|round| {
        VECTORS.into_iter().all(|vector| {
            apic::send(0, command::SELF | u32::from(vector));
            wait(|| COUNTS[usize::from(vector)].load(Ordering::SeqCst) == round)
        })
    });
    crate::machine::cli();
    let in_service = (0..8).any(|word| apic::read(register::ISR + 16 * word) != 0);
    STAY.store(0, Ordering::SeqCst);
    check!(switched && wait(|| DONE.load(Ordering::SeqCst) == others), "the others do not change modes");
    check!(!in_service, "an interrupt stays in service after its end");
    check!(all, "an interrupt is lost");
    Ok(())
}

/// Two CPUs that spin for each other with PAUSE: on one physical CPU, the spinning one yields long before its
/// slice expires.
pub fn turns(_: u64) -> Result<(), &'static str> {
    const ROUNDS: u32 = 100;
    /// A tenth of a slice, for each turn.
    const MOST: u64 = 50_000;
    static TURN: AtomicU32 = AtomicU32::new(0);
    fn wait_for(turn: u32) {
        while TURN.load(Ordering::SeqCst) != turn {
            core::hint::spin_loop();
        }
    }
    if cpus() == 1 {
        return Ok(());
    }
    apic::enable();
    TURN.store(0, Ordering::SeqCst);
    others::give(|| {
        if apic::id() != 1 {
            // The remaining CPUs do not interfere.
            crate::machine::sti();
            while TURN.load(Ordering::SeqCst) < 2 * ROUNDS {
                // SAFETY: HLT accesses no memory; the NMI that signals the end has a handler.
                unsafe { asm!("hlt", options(nostack)) };
            }
            crate::machine::cli();
            return;
        }
        for round in 0..ROUNDS {
            wait_for(2 * round + 1);
            TURN.store(2 * round + 2, Ordering::SeqCst);
        }
    });
    let mut start = 0;
    for round in 0..ROUNDS {
        if round == 1 {
            start = crate::machine::ticks();
        }
        TURN.store(2 * round + 1, Ordering::SeqCst);
        wait_for(2 * round + 2);
    }
    let took = crate::machine::ticks() - start;
    exception::handle(2, None);
    apic::send(0, command::OTHERS | command::NMI | command::ASSERT);
    let all = || DONE.load(Ordering::SeqCst) == cpus() - 1 && COUNTS[2].load(Ordering::SeqCst) == u64::from(cpus() - 1);
    check!(wait(all), "they do not end");
    check!(took < u64::from(2 * ROUNDS) * MOST, "who waits keeps the CPU");
    Ok(())
}

fn sleep_for_ever() {
    loop {
        // SAFETY: stops this CPU for good, which the test wants: it needs no memory any more.
        unsafe { asm!("cli", "hlt", options(nostack)) };
    }
}

/// All CPUs wait with interrupts off. An NMI wakes the others once more. This one handles an NMI, and another one is
/// pending, which that blocks.
pub fn deadlock() -> ! {
    let others = cpus() - 1;
    apic::enable();
    exception::handle(
        2,
        Some(|_| {
            if apic::id() == 0 {
                apic::send(0, command::NMI | command::ASSERT);
                println!("deadlock from here on: {}", UP.load(Ordering::SeqCst) == cpus() - 1);
                sleep_for_ever();
            }
        }),
    );
    others::start();
    wait(|| UP.load(Ordering::SeqCst) == others);
    others::give(sleep_for_ever);
    apic::send(0, command::OTHERS | command::NMI | command::ASSERT);
    apic::send(0, command::NMI | command::ASSERT);
    loop {
        sleep_for_ever();
    }
}

/// An NMI is not delivered between STI and the next instruction, even if that exits.
pub fn nmis_in_a_shadow(_: u64) -> Result<(), &'static str> {
    const NMIS: u64 = 40;
    static GOES_ON: AtomicU32 = AtomicU32::new(0);
    static SHADOW: AtomicU64 = AtomicU64::new(0);
    static WRONG: AtomicU32 = AtomicU32::new(0);
    if cpus() == 1 {
        return Ok(());
    }
    apic::enable();
    GOES_ON.store(1, Ordering::SeqCst);
    exception::handle(
        2,
        Some(|place| WRONG.store(WRONG.load(Ordering::SeqCst) + u32::from(place == SHADOW.load(Ordering::SeqCst)), Ordering::SeqCst)),
    );
    others::give(|| {
        if apic::id() != 1 {
            return;
        }
        while GOES_ON.load(Ordering::SeqCst) != 0 {
            // SAFETY: the instruction reads COM1's line status into AL, and accesses no memory.
            unsafe {
                asm!(
                    "lea {place}, [rip + 2f]", "mov [{shadow}], {place}", "sti", "2: in al, dx", "nop", "cli",
                    place = out(reg) _, shadow = in(reg) SHADOW.as_ptr(), out("al") _, in("dx") 0x3f8u16 + 5,
                );
            }
        }
    });
    let mut come = 0;
    while come < NMIS {
        apic::send(1, command::NMI | command::ASSERT);
        if !wait(|| COUNTS[2].load(Ordering::SeqCst) > come) {
            break;
        }
        come += 1;
    }
    GOES_ON.store(0, Ordering::SeqCst);
    check!(wait(|| DONE.load(Ordering::SeqCst) == cpus() - 1), "they do not end");
    check!(come == NMIS && COUNTS[2].load(Ordering::SeqCst) == NMIS, "one does not come, or twice");
    check!(WRONG.load(Ordering::SeqCst) == 0, "one comes right after STI");
    Ok(())
}
