//! Tests of the local APIC, which are run in xAPIC mode and then in x2APIC mode, and of interrupts that end at the I/O APIC.

use core::arch::{asm, global_asm};
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};

use crate::console::println;
use crate::machine::{in8, out8, pace};
use crate::others::wait;

/// A test: its name, and the function.
type Test = (&'static str, fn() -> Result<(), &'static str>);

const TESTS: [Test; 11] = [
    ("identity", identity),
    ("self_ipi", self_ipi),
    ("by_priority", by_priority),
    ("task_priority", task_priority),
    ("in_service_blocks", in_service_blocks),
    ("nothing_comes_while_interrupts_are_off", nothing_comes_while_interrupts_are_off),
    ("deadline", deadline),
    ("count", count),
    ("errors", errors),
    ("disabled_by_software", disabled_by_software),
    ("level_interrupt", level_interrupt),
];

/// An error unless a condition holds.
macro_rules! check {
    ($condition:expr, $why:literal) => {
        if !$condition {
            return Err($why);
        }
    };
}

const LOCAL_APIC: usize = 0xfee0_0000;
const IO_APIC: usize = 0xfec0_0000;
const IA32_APIC_BASE: u32 = 0x1b;
const IA32_TSC_DEADLINE: u32 = 0x6e0;

const ID: u32 = 0x20;
const VERSION: u32 = 0x30;
const TPR: u32 = 0x80;
const PPR: u32 = 0xa0;
const EOI: u32 = 0xb0;
const SVR: u32 = 0xf0;
const ISR: u32 = 0x100;
const IRR: u32 = 0x200;
const ESR: u32 = 0x280;
const ICR: u32 = 0x300;
const ICR_HIGH: u32 = 0x310;
const LVT_TIMER: u32 = 0x320;
const LVT_ERROR: u32 = 0x370;
const INITIAL_COUNT: u32 = 0x380;
const CURRENT_COUNT: u32 = 0x390;
const DIVIDE: u32 = 0x3e0;
const SELF_IPI: u32 = 0x3f0;

const LOW: u8 = 0x41;
const HIGH: u8 = 0x62;
const TIMER: u8 = 0x53;
const SERIAL: u8 = 0x74;
const SPURIOUS: u8 = 0xff;

global_asm!(
    ".balign 16",
    "apic_stubs:",
    ".irp vector, 0x41, 0x62, 0x53, 0x74, 0xff",
    ".balign 16",
    "push \\vector",
    "jmp apic_stub_common",
    ".endr",
    "apic_stub_common:",
    "push rax; push rcx; push rdx; push rsi; push rdi; push r8; push r9; push r10; push r11",
    "mov rdi, [rsp + 72]",
    "cld",
    "call apic_interrupt",
    "pop r11; pop r10; pop r9; pop r8; pop rdi; pop rsi; pop rdx; pop rcx; pop rax",
    "add rsp, 8",
    "iretq",
);

unsafe extern "C" {
    static apic_stubs: u8;
}

/// The stubs, in their order.
const VECTORS: [u8; 5] = [LOW, HIGH, TIMER, SERIAL, SPURIOUS];

static X2: AtomicBool = AtomicBool::new(false);
/// Interrupts taken, in order.
static TAKEN: [AtomicU8; 16] = [const { AtomicU8::new(0) }; 16];
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// The handler leaves the end of the interrupt to the test.
static HOLD: AtomicBool = AtomicBool::new(false);

#[unsafe(no_mangle)]
extern "C" fn apic_interrupt(vector: u64) {
    let vector = vector as u8;
    let at = COUNT.fetch_add(1, Ordering::Relaxed);
    if let Some(place) = TAKEN.get(at) {
        place.store(vector, Ordering::Relaxed);
    }
    if vector == SERIAL {
        // SAFETY: the serial port's interrupts off: the line falls.
        unsafe { out8(0x3f9, 0) };
    }
    if vector != SPURIOUS && !HOLD.load(Ordering::Relaxed) {
        write(EOI, 0);
    }
}

/// Whether the interrupts since the last call are these, in this order.
fn taken(expected: &[u8]) -> bool {
    let count = COUNT.swap(0, Ordering::Relaxed);
    count == expected.len() && TAKEN.iter().zip(expected).all(|(vector, expected)| vector.load(Ordering::Relaxed) == *expected)
}

fn rdmsr(register: u32) -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: callers pass MSRs of the local APIC, which CPUID reported; reading them has no side effect.
    unsafe { asm!("rdmsr", in("ecx") register, out("eax") low, out("edx") high, options(nostack)) };
    u64::from(high) << 32 | u64::from(low)
}

fn wrmsr(register: u32, value: u64) {
    // SAFETY: the tests name existing registers, and their effects are tested.
    unsafe { asm!("wrmsr", in("ecx") register, in("eax") value as u32, in("edx") (value >> 32) as u32, options(nostack)) };
}

fn read(offset: u32) -> u32 {
    if X2.load(Ordering::Relaxed) {
        return rdmsr(0x800 + offset / 16) as u32;
    }
    // SAFETY: the page is mapped, and the register exists.
    unsafe { ((LOCAL_APIC + offset as usize) as *const u32).read_volatile() }
}

fn write(offset: u32, value: u32) {
    if X2.load(Ordering::Relaxed) {
        return wrmsr(0x800 + offset / 16, value.into());
    }
    // SAFETY: the page is mapped, and the register exists.
    unsafe { ((LOCAL_APIC + offset as usize) as *mut u32).write_volatile(value) };
}

fn io_apic(register: u32, value: Option<u32>) -> u32 {
    // SAFETY: the I/O APIC's page is identity-mapped, and both registers are aligned words; only these tests use it.
    unsafe {
        (IO_APIC as *mut u32).write_volatile(register);
        let window = (IO_APIC + 0x10) as *mut u32;
        match value {
            Some(value) => {
                window.write_volatile(value);
                0
            }
            None => window.read_volatile(),
        }
    }
}

fn is_set(first: u32, vector: u8) -> bool {
    read(first + u32::from(vector / 32) * 16) >> (vector % 32) & 1 != 0
}

fn now() -> u64 {
    // SAFETY: every x86-64 CPU has RDTSC, which has no side effect.
    unsafe { core::arch::x86_64::_rdtsc() }
}

fn spin(ticks: u64) {
    let start = now();
    while now() - start < ticks {
        core::hint::spin_loop();
    }
}

/// Waits for a condition: for these ticks, or where time is real, for as long as it takes.
fn spin_until(ticks: u64, condition: impl Fn() -> bool) {
    if pace() > 1 {
        wait(condition);
    } else {
        spin(ticks);
    }
}

/// Interrupts are on for a moment.
fn window() {
    // SAFETY: each vector that these tests send has a stub in the IDT, which returns to here.
    unsafe { asm!("sti", "nop", "nop", "cli") };
}

/// Sleeps until an interrupt was taken.
fn sleep() {
    // SAFETY: each vector that these tests send has a stub in the IDT, which returns to here.
    unsafe { asm!("sti", "hlt", "cli") };
}

fn send_to_self(vector: u8) {
    if X2.load(Ordering::Relaxed) {
        write(SELF_IPI, vector.into());
    } else {
        write(ICR, 1 << 18 | 1 << 14 | u32::from(vector));
    }
}

fn write_cr8(value: u64) {
    // SAFETY: the task priority is what is tested.
    unsafe { asm!("mov cr8, {}", in(reg) value, options(nostack)) };
}

/// Runs all tests in both modes. Returns the number of failures.
pub fn run() -> u32 {
    setup();
    // Off, and on again: in xAPIC mode, as after reset.
    let base = rdmsr(IA32_APIC_BASE) & !(0b11 << 10);
    wrmsr(IA32_APIC_BASE, base);
    wrmsr(IA32_APIC_BASE, base | 1 << 11);
    let mut failed = 0;
    for mode in ["xapic", "x2apic"] {
        if mode == "x2apic" {
            wrmsr(IA32_APIC_BASE, rdmsr(IA32_APIC_BASE) | 1 << 10);
            X2.store(true, Ordering::Relaxed);
        }
        write(SVR, 0x100 | u32::from(SPURIOUS));
        for (name, test) in TESTS {
            COUNT.store(0, Ordering::Relaxed);
            match test() {
                Ok(()) => println!("PASS {mode} {name}"),
                Err(why) => {
                    failed += 1;
                    println!("FAIL {mode} {name}: {why}");
                }
            }
        }
        costs(mode);
    }
    failed
}

/// Maps the APICs' registers, and installs the interrupt handlers.
fn setup() {
    static mut TABLE: Aligned = Aligned([0; 512]);
    #[repr(C, align(4096))]
    struct Aligned([u64; 512]);
    static mut IDT: [[u64; 2]; 256] = [[0; 2]; 256];
    #[repr(C, packed)]
    struct Pointer {
        limit: u16,
        base: u64,
    }

    let table = &raw mut TABLE;
    // SAFETY: there is one CPU; page tables are in the first GiB, which is identity-mapped; the IDT's first
    // 32 gates are unchanged, and the stubs exist.
    unsafe {
        for (entry, address) in (*table).0.iter_mut().zip((3 << 30..).step_by(2 << 20)) {
            // Present, writable, uncached, large.
            *entry = address | 0x93;
        }
        let level_4: u64;
        asm!("mov {}, cr3", out(reg) level_4, options(nostack));
        let level_3 = (level_4 as *const u64).read() & !0xfff;
        (level_3 as *mut u64).add(3).write(table as u64 | 3);

        let mut old = Pointer { limit: 0, base: 0 };
        asm!("sidt [{}]", in(reg) &raw mut old, options(nostack));
        let idt = &raw mut IDT;
        let base = old.base as *const [u64; 2];
        for vector in 0..32 {
            (*idt)[vector] = base.add(vector).read();
        }
        for (number, vector) in VECTORS.into_iter().enumerate() {
            let handler = &raw const apic_stubs as u64 + number as u64 * 16;
            let low = handler & 0xffff | 0x08 << 16 | 0x8e << 40 | (handler >> 16 & 0xffff) << 48;
            (*idt)[usize::from(vector)] = [low, handler >> 32];
        }
        let new = Pointer { limit: 256 * 16 - 1, base: idt as u64 };
        asm!("lidt [{}]", in(reg) &raw const new, options(nostack));
    }
}

fn identity() -> Result<(), &'static str> {
    check!(read(ID) == 0, "another ID");
    check!(read(VERSION) & 0xff == 0x14, "another version");
    check!(read(SVR) == 0x1ff, "SVR does not keep its value");
    if !X2.load(Ordering::Relaxed) {
        write(ID, 5 << 24);
        check!(read(ID) == 0, "the ID can be changed");
        write(ICR_HIGH, u32::MAX);
        check!(read(ICR_HIGH) == 0xff00_0000, "reserved bits of the ICR keep their value");
        write(ICR_HIGH, 0);
    }
    Ok(())
}

fn self_ipi() -> Result<(), &'static str> {
    send_to_self(LOW);
    check!(is_set(IRR, LOW) && !is_set(ISR, LOW), "it is not requested");
    spin(1000);
    check!(taken(&[]), "it comes while interrupts are off");
    window();
    check!(taken(&[LOW]), "it does not come once");
    check!(!is_set(IRR, LOW) && !is_set(ISR, LOW), "it is still there");
    // By the ICR, and with interrupts on.
    write(ICR, 1 << 18 | 1 << 14 | u32::from(HIGH));
    window();
    check!(taken(&[HIGH]), "the ICR's does not come");
    // SAFETY: each vector that these tests send has a stub in the IDT, which returns to here.
    unsafe { asm!("sti") };
    send_to_self(LOW);
    spin(100);
    // SAFETY: CLI changes only RFLAGS.IF, and at privilege level 0 does not fault.
    unsafe { asm!("cli") };
    check!(taken(&[LOW]), "it does not come while interrupts are on");
    send_to_self(LOW);
    sleep();
    check!(taken(&[LOW]), "it does not end a HLT");
    Ok(())
}

fn by_priority() -> Result<(), &'static str> {
    send_to_self(LOW);
    send_to_self(HIGH);
    send_to_self(LOW);
    window();
    window();
    check!(taken(&[HIGH, LOW]), "another order");
    Ok(())
}

fn task_priority() -> Result<(), &'static str> {
    write_cr8(5);
    check!(read(TPR) == 0x50 && read(PPR) == 0x50, "CR8 is not TPR");
    send_to_self(LOW);
    send_to_self(HIGH);
    window();
    window();
    check!(taken(&[HIGH]), "the low one comes, or not the high one");
    // SAFETY: each vector that these tests send has a stub in the IDT, which returns to here.
    unsafe { asm!("sti") };
    write(TPR, 0x3f);
    spin(100);
    // SAFETY: CLI changes only RFLAGS.IF, and at privilege level 0 does not fault.
    unsafe { asm!("cli") };
    check!(taken(&[LOW]), "it does not come when the priority is lowered");
    let cr8: u64;
    // SAFETY: reads a control register, which has no side effect at privilege level 0.
    unsafe { asm!("mov {}, cr8", out(reg) cr8, options(nostack)) };
    check!(cr8 == 3, "CR8 is not TPR's upper half");
    write_cr8(0);
    Ok(())
}

fn in_service_blocks() -> Result<(), &'static str> {
    HOLD.store(true, Ordering::Relaxed);
    send_to_self(HIGH);
    window();
    check!(taken(&[HIGH]) && is_set(ISR, HIGH), "it is not in service");
    check!(read(PPR) == 0x60, "PPR does not follow");
    send_to_self(LOW);
    window();
    check!(taken(&[]), "a lower one comes");
    HOLD.store(false, Ordering::Relaxed);
    write(EOI, 0);
    window();
    check!(taken(&[LOW]), "the lower one does not come after the end");
    check!(read(PPR) == 0, "PPR does not fall");
    Ok(())
}

/// Physical interrupts reach the hypervisor meanwhile.
fn nothing_comes_while_interrupts_are_off() -> Result<(), &'static str> {
    write(LVT_TIMER, 2 << 17 | u32::from(TIMER));
    send_to_self(LOW);
    wrmsr(IA32_TSC_DEADLINE, now() + 20_000 * pace());
    spin_until(100_000, || is_set(IRR, TIMER));
    check!(taken(&[]), "something comes");
    check!(is_set(IRR, TIMER) && is_set(IRR, LOW), "the requests are not seen");
    window();
    window();
    check!(taken(&[TIMER, LOW]), "they do not come in order");
    Ok(())
}

fn deadline() -> Result<(), &'static str> {
    write(LVT_TIMER, 2 << 17 | u32::from(TIMER));
    let then = now() + 200_000 * pace();
    wrmsr(IA32_TSC_DEADLINE, then);
    check!(rdmsr(IA32_TSC_DEADLINE) == then, "the deadline is not kept");
    sleep();
    check!(taken(&[TIMER]) && now() >= then, "it comes early or not at all");
    check!(rdmsr(IA32_TSC_DEADLINE) == 0, "the deadline is kept");
    wrmsr(IA32_TSC_DEADLINE, now() + 20_000 * pace());
    // SAFETY: each vector that these tests send has a stub in the IDT, which returns to here.
    unsafe { asm!("sti") };
    spin_until(100_000, || COUNT.load(Ordering::Relaxed) != 0);
    // SAFETY: CLI changes only RFLAGS.IF, and at privilege level 0 does not fault.
    unsafe { asm!("cli") };
    check!(taken(&[TIMER]), "it does not come to a guest that runs");
    wrmsr(IA32_TSC_DEADLINE, now() + 20_000 * pace());
    wrmsr(IA32_TSC_DEADLINE, 0);
    spin(60_000 * pace());
    window();
    check!(taken(&[]), "it comes though it was disarmed");
    Ok(())
}

fn count() -> Result<(), &'static str> {
    write(LVT_TIMER, 1 << 17 | u32::from(TIMER));
    write(DIVIDE, 0b1011);
    check!(read(DIVIDE) == 0b1011, "the divisor is not kept");
    let count = 100_000 * pace() as u32;
    write(INITIAL_COUNT, count);
    check!(read(INITIAL_COUNT) == count, "the count is not kept");
    let first = read(CURRENT_COUNT);
    check!(first != 0 && first > read(CURRENT_COUNT), "it does not count");
    sleep();
    sleep();
    check!(taken(&[TIMER, TIMER]), "it is not periodic");
    write(INITIAL_COUNT, 0);
    check!(read(CURRENT_COUNT) == 0, "it does not stop");
    Ok(())
}

fn errors() -> Result<(), &'static str> {
    write(LVT_ERROR, HIGH.into());
    send_to_self(5);
    window();
    check!(taken(&[HIGH]), "no interrupt tells");
    write(ESR, 0);
    check!(read(ESR) == 1 << 5, "another error");
    write(ESR, 0);
    check!(read(ESR) == 0, "it stays");
    write(LVT_ERROR, 1 << 16);
    Ok(())
}

fn disabled_by_software() -> Result<(), &'static str> {
    write(LVT_TIMER, TIMER.into());
    write(SVR, SPURIOUS.into());
    check!(read(LVT_TIMER) == 1 << 16 | u32::from(TIMER), "its vectors are not masked");
    write(LVT_TIMER, TIMER.into());
    check!(read(LVT_TIMER) == 1 << 16 | u32::from(TIMER), "they can be unmasked");
    write(SVR, 0x100 | u32::from(SPURIOUS));
    Ok(())
}

/// The serial port's interrupt, by a level-triggered pin: the I/O APIC must learn of each end.
fn level_interrupt() -> Result<(), &'static str> {
    const ENTRY: u32 = 0x10 + 2 * 4;
    const REMOTE_IRR: u32 = 1 << 14;
    io_apic(ENTRY + 1, Some(0));
    io_apic(ENTRY, Some(1 << 15 | u32::from(SERIAL)));
    // OUT2 enables the interrupt; printed text must be sent first.
    // SAFETY: only the interrupt depends on it.
    unsafe { out8(0x3fc, 1 << 3) };
    // SAFETY: reads COM1's line status, which clears no error that anything here looks at.
    while unsafe { in8(0x3fd) } & 1 << 5 == 0 {}
    for _ in 0..3 {
        // SAFETY: raises an interrupt because the transmitter is empty.
        unsafe { out8(0x3f9, 1 << 1) };
        spin(2000);
        check!(io_apic(ENTRY, None) & REMOTE_IRR != 0, "it is not on its way");
        window();
        check!(taken(&[SERIAL]), "it does not come once");
        check!(io_apic(ENTRY, None) & REMOTE_IRR == 0, "its end is not told");
        // SAFETY: reading the register ends the UART's interrupt.
        unsafe { in8(0x3fa) };
    }
    io_apic(ENTRY, Some(1 << 16));
    Ok(())
}

/// Cost of operations in ticks, and whether they exit: an exit takes at least 30 instructions.
fn costs(mode: &str) {
    const TIMES: u64 = 32;
    const ROUNDS: u64 = 8;
    let operations: [(&str, fn()); 4] = [
        ("lapic_id_read", || {
            core::hint::black_box(read(ID));
        }),
        ("task_priority_write", || write(TPR, 0)),
        ("self_ipi", || {
            send_to_self(LOW);
            window();
        }),
        ("tscdeadline", || wrmsr(IA32_TSC_DEADLINE, 0)),
    ];
    crate::tests::stop_pit();
    // So that deadlines are the guest's own, where it may have the timer.
    write(LVT_TIMER, 2 << 17 | u32::from(TIMER));
    for (name, operation) in operations {
        let round = || {
            let start = now();
            (0..TIMES).for_each(|_| operation());
            (now() - start) / TIMES
        };
        // The hypervisor's own interrupts, such as the serial line's, fall into some rounds.
        let cost = (0..ROUNDS).map(|_| round()).min().unwrap_or(u64::MAX);
        // The handler and the loop of an interrupt to oneself are some 60 of the guest's own.
        let own = if name == "self_ipi" { 100 } else { 30 };
        println!("{mode} {name}: {}, {cost} ticks", if cost > own { "exits" } else { "no exit" });
    }
    write(LVT_TIMER, 1 << 16 | u32::from(TIMER));
}
