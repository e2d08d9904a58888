//! A CPU that survives arbitrary code: exceptions return to the phase that ran it.

use core::cell::UnsafeCell;
use core::mem::offset_of;
use core::sync::atomic::{AtomicU64, Ordering};

use common::check;
use common::fail::Outcome;
use pc::machine::{rdmsr, wrmsr};
use pc::{lapic, others};

use crate::layout;

/// Maximum number of CPUs used.
pub const MAX_CPUS: usize = 16;
/// Bytes of a CPU's block, and its alignment.
const BLOCK: usize = 1 << 16;
/// Offsets in the block: the tops of the stacks of exceptions, NMIs, interrupts, and the code under test. The
/// CPU's own stack is at the end.
const EXCEPTIONS: u64 = 16 << 10;
const NMIS: u64 = 20 << 10;
const INTERRUPTS: u64 = 24 << 10;
const TRIED: u64 = 32 << 10;

/// The vector of the watchdog timer, which ends infinite loops.
pub const WATCHDOG: u8 = 0x40;

/// Selectors.
pub mod selector {
    #![allow(missing_docs)]
    pub const CODE: u64 = 0x08;
    pub const DATA: u64 = 0x10;
    pub const CODE_32: u64 = 0x18;
    pub const USER_CODE_32: u64 = 0x23;
    pub const USER_DATA: u64 = 0x2b;
    pub const USER_CODE: u64 = 0x33;
    pub const TASK: u16 = 0x38;
}

pc::assembly!(
    "hostile/cpu.s",
    LANDING = const offset_of!(Block, landing),
    VECTOR = const offset_of!(Block, vector),
    CODE = const offset_of!(Block, code),
    RIP = const offset_of!(Block, rip),
    BLOCK = const BLOCK,
    WATCHDOG = const WATCHDOG,
);

/// A CPU's block, found by its stack pointer.
#[repr(C, align(65536))]
struct Block {
    /// The stack pointer to return with; 0 if no code is under test.
    landing: u64,
    vector: u64,
    code: u64,
    rip: u64,
    number: u64,
    gdt: [u64; 9],
    task: [u32; 26],
    code_page: UnsafeCell<Page>,
}

/// A page.
#[repr(C, align(4096))]
pub struct Page(pub [u8; 4096]);

#[repr(C)]
struct Pointer {
    unused: [u16; 3],
    limit: u16,
    base: u64,
}

static mut IDT: [[u64; 2]; 256] = [[0; 2]; 256];

#[repr(C, align(65536))]
struct Blocks(UnsafeCell<[[u8; BLOCK]; MAX_CPUS]>);
// SAFETY: each CPU accesses only its own block, which `own` finds by the CPU's stack.
unsafe impl Sync for Blocks {}
static ALL: Blocks = Blocks(UnsafeCell::new([[0; BLOCK]; MAX_CPUS]));

unsafe extern "C" {
    static stubs: u8;
    fn probe_enter(block: *mut Block, frame: *const Frame);
    fn call_on(stack: u64, function: extern "C" fn());
}

/// The registers that code starts with.
#[repr(C)]
#[derive(Clone)]
pub struct Frame {
    /// RAX, RCX, RDX, RBX, (RSP), RBP, RSI, RDI, R8 to R15.
    pub registers: [u64; 16],
    pub rip: u64,
    pub cs: u64,
    pub flags: u64,
    pub rsp: u64,
    pub ss: u64,
}

/// End of code: an exception's vector and error code, and its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    pub vector: u64,
    pub code: u64,
    pub rip: u64,
}

fn block(number: usize) -> *mut Block {
    // SAFETY: computes only an address, of one of the blocks.
    unsafe { ALL.0.get().cast::<u8>().add(number % MAX_CPUS * BLOCK).cast() }
}

/// The range that all blocks are in.
pub fn blocks() -> core::ops::Range<u64> {
    let start = ALL.0.get() as u64;
    start..start + (BLOCK * MAX_CPUS) as u64
}

fn own() -> *mut Block {
    let pointer: u64;
    // SAFETY: copies RSP, without access to memory.
    unsafe { core::arch::asm!("mov {}, rsp", out(reg) pointer, options(nomem, nostack, preserves_flags)) };
    (pointer & !(BLOCK as u64 - 1)) as *mut Block
}

/// The number of this CPU.
pub fn this() -> usize {
    // SAFETY: the caller runs on the stack of a block.
    unsafe { (*own()).number as usize }
}

/// Number of CPUs.
pub fn count() -> usize {
    (core::arch::x86_64::__cpuid(1).ebx >> 16 & 0xff).clamp(1, MAX_CPUS as u32) as usize
}

/// Makes the exceptions' table, on the first CPU.
pub fn setup() {
    let table = &raw mut IDT;
    for vector in 0..256u64 {
        let stack: u64 = match vector {
            2 => 4,
            0..32 => 1,
            _ => 2,
        };
        let handler = &raw const stubs as u64 + vector * 16;
        // INT3 is allowed in user mode, to signal the end of code.
        let rights = if vector == 3 { 0xee } else { 0x8e };
        let low = handler & 0xffff | selector::CODE << 16 | stack << 32 | rights << 40 | (handler >> 16 & 0xffff) << 48;
        // SAFETY: there is one CPU, and nothing else accesses the table.
        unsafe { (*table)[vector as usize] = [low, handler >> 32] };
    }
}

/// Makes this CPU use its block.
fn adopt(number: usize) {
    let block = block(number);
    let address = block as u64;
    let task = address + offset_of!(Block, task) as u64;
    // SAFETY: the block belongs to this CPU.
    unsafe {
        (*block).landing = 0;
        (*block).number = number as u64;
        (*block).task = [0; 26];
        // Interrupt stacks 1, 2 and 4, of exceptions, interrupts and NMIs; and no bitmap of ports.
        let stack = |at: u64| ((address + at) as u32, ((address + at) >> 32) as u32);
        (((*block).task)[1], ((*block).task)[2]) = stack(EXCEPTIONS);
        (((*block).task)[9], ((*block).task)[10]) = stack(EXCEPTIONS);
        (((*block).task)[11], ((*block).task)[12]) = stack(INTERRUPTS);
        (((*block).task)[15], ((*block).task)[16]) = stack(NMIS);
        ((*block).task)[25] = 104 << 16;
        (*block).gdt = [
            0,
            0x00af_9b00_0000_ffff,
            0x00cf_9300_0000_ffff,
            0x00cf_9b00_0000_ffff,
            0x00cf_fb00_0000_ffff,
            0x00cf_f300_0000_ffff,
            0x00af_fb00_0000_ffff,
            103 | (task & 0xff_ffff) << 16 | 0x89 << 40 | (task >> 24 & 0xff) << 56,
            task >> 32,
        ];
    }
    load_tables(block);
}

fn load_tables(block: *mut Block) {
    // SAFETY: takes addresses of fields; nothing is read or written.
    let (gdt, idt) = unsafe { (&raw const (*block).gdt as u64, &raw const IDT as u64) };
    let gdt = Pointer { unused: [0; 3], limit: 9 * 8 - 1, base: gdt };
    let idt = Pointer { unused: [0; 3], limit: 256 * 16 - 1, base: idt };
    // SAFETY: the tables are complete, and never freed; code and data selectors are unchanged. The TSS is
    // made available first.
    unsafe {
        (*block).gdt[7] &= !(2 << 40);
        core::arch::asm!(
            "lgdt [{gdt}]", "lidt [{idt}]", "mov ss, {data:x}", "mov ds, {data:x}", "mov es, {data:x}", "xor eax, eax", "mov fs, eax",
            "mov gs, eax", "lldt ax", "ltr {task:x}",
            gdt = in(reg) &raw const gdt.limit, idt = in(reg) &raw const idt.limit, data = in(reg) selector::DATA,
            task = in(reg) selector::TASK, out("eax") _,
        );
    }
}

/// Restores this CPU to a state in which it can continue.
pub fn restore() {
    const CR0: u64 = 1 << 31 | 1 << 16 | 1 << 5 | 1 << 4 | 1 << 1 | 1;
    // PAE, OSFXSR, OSXMMEXCPT.
    const CR4: u64 = 1 << 5 | 1 << 9 | 1 << 10;
    const EFER: u32 = 0xc000_0080;
    // SAFETY: the state that this program runs in.
    unsafe {
        core::arch::asm!("cli", "mov dr7, {}", in(reg) 0x400u64, options(nostack));
        core::arch::asm!("mov cr0, {}", in(reg) CR0, options(nostack));
        // First without global pages and PCIDs, to flush their TLB entries.
        core::arch::asm!("mov cr3, {}", in(reg) layout::root(), options(nostack));
        core::arch::asm!("mov cr4, {}", in(reg) CR4, options(nostack));
        wrmsr(EFER, rdmsr(EFER) & !1 | 1 << 11);
        core::arch::asm!("mov cr8, {}", in(reg) 0u64, options(nostack));
    }
    load_tables(own());
    // Its APIC, at the default address, in xAPIC mode, with all sources off.
    const PAGE: u64 = 0xfee0_0000;
    let first = if this() == 0 { 1 << 8 } else { 0 };
    if lapic::base() != PAGE | lapic::ENABLED | first {
        lapic::set_base(PAGE | first);
        lapic::set_base(PAGE | lapic::ENABLED | first);
    }
    lapic::enable();
    for register in [0x320, 0x330, 0x340, 0x350, 0x360, 0x370] {
        lapic::write(register, 1 << 16);
    }
    lapic::write(lapic::register::INITIAL, 0);
    // Pending interrupts are taken and ended now.
    drain();
    // SAFETY: resets IA32_TSC_ADJUST to its initial value.
    unsafe { wrmsr(0x3b, 0) };
}

/// Takes all pending interrupts.
pub fn drain() {
    for _ in 0..4 {
        pc::machine::sti();
        for _ in 0..20 {
            core::hint::spin_loop();
        }
        pc::machine::cli();
        lapic::end_all(8);
    }
}

/// Number of interrupts taken by all CPUs.
pub static CAME: AtomicU64 = AtomicU64::new(0);

#[unsafe(no_mangle)]
extern "C" fn interrupted(_vector: u64) {
    // A line that stays high would interrupt forever.
    if CAME.fetch_add(1, Ordering::Relaxed) % 32 == 31 {
        for input in 0..24 {
            lapic::io_write(0x10 + 2 * input, lapic::IO_MASKED);
        }
    }
    lapic::end();
}

/// An event with the vector of an exception from 16 on, where nothing was tried. The program's own code causes none of
/// these exceptions, but their vectors are an APIC's, too: a phase has made an entry of the I/O APIC, an LVT or an IPI
/// of random bits. Returns whether it was such an interrupt, which is ended then.
#[unsafe(no_mangle)]
extern "C" fn stray(vector: u64) -> u32 {
    const PAGE: u64 = 0xfee0_0000;
    let base = lapic::base();
    // Where the APIC is off or elsewhere, it can't be asked.
    let is_there = base & lapic::ENABLED != 0 && (base & lapic::X2 != 0 || base & !0xfff == PAGE);
    let is_spurious = || u64::from(lapic::read(lapic::register::SPURIOUS) & 0xff) == vector;
    if is_there && lapic::read(lapic::register::ISR) >> (vector & 31) & 1 == 0 && !is_spurious() {
        return 0;
    }
    interrupted(vector);
    1
}

/// Runs code with these registers until an exception ends it.
pub fn enter(frame: &Frame) -> End {
    let block = own();
    // SAFETY: the block belongs to this CPU; the phase is responsible for the code's effects on the rest of
    // the program.
    unsafe {
        probe_enter(block, frame);
        core::arch::asm!("cli", options(nostack));
        if (&raw const (*block).vector).read_volatile() == WATCHDOG.into() {
            lapic::end();
        }
        End { vector: (&raw const (*block).vector).read_volatile(), code: (*block).code, rip: (*block).rip }
    }
}

/// Copies code to this CPU's code page, followed by INT3. Returns its address.
fn place(code: &[u8]) -> u64 {
    // SAFETY: the page belongs to this CPU.
    let page = unsafe { &mut *(*own()).code_page.get() };
    page.0.fill(0xcc);
    page.0[..code.len()].copy_from_slice(code);
    page.0.as_ptr() as u64
}

/// The page that [`place`] writes.
pub fn code_page() -> u64 {
    // SAFETY: takes the address of a static; nothing is read or written.
    unsafe { (*own()).code_page.get() as u64 }
}

/// The frame of the kernel's code of 64 bits.
pub fn kernel(code: &[u8], registers: [u64; 16]) -> Frame {
    let rsp = own() as u64 + TRIED;
    Frame { registers, rip: place(code), cs: selector::CODE, flags: 2, rsp, ss: selector::DATA }
}

/// The frame of user code, at the same offset, in the window visible to user mode. Interrupts are enabled.
pub fn user(code: &[u8], registers: [u64; 16]) -> Frame {
    place(code);
    let (rip, rsp) = (layout::user_code(this()), layout::user_data(this()) + 4096);
    Frame { registers, rip, cs: selector::USER_CODE, flags: 0x202, rsp, ss: selector::USER_DATA }
}

/// The frame with interrupts enabled, and the watchdog armed.
pub fn watched(mut frame: Frame) -> Frame {
    frame.flags |= 0x200;
    lapic::write(lapic::register::TIMER, WATCHDOG.into());
    lapic::write(lapic::register::DIVIDE, 0xb);
    lapic::write(lapic::register::INITIAL, 200_000);
    frame
}

/// Runs code of the kernel.
pub fn run(code: &[u8], registers: [u64; 16]) -> End {
    enter(&kernel(code, registers))
}

/// Runs code with other tables; they map the CPU's block where it is.
pub fn enter_in(root: u64, frame: Frame) -> End {
    // SAFETY: the program's code and stack are in both address spaces.
    unsafe { core::arch::asm!("mov cr3, {}", in(reg) root, options(nostack)) };
    let end = enter(&frame);
    // SAFETY: the root is the program's own, which maps all of it.
    unsafe { core::arch::asm!("mov cr3, {}", in(reg) layout::root(), options(nostack)) };
    end
}

/// Sets this CPU's interrupt stack of a number from 1 to 7.
pub fn set_stack(number: usize, to: u64) {
    // SAFETY: the block belongs to this CPU.
    unsafe {
        (*own()).task[7 + 2 * number] = to as u32;
        (*own()).task[8 + 2 * number] = (to >> 32) as u32;
    }
}

/// Chooses the interrupt stack of a vector, on all CPUs.
pub fn set_gate_stack(vector: usize, stack: u64) {
    let gate = (&raw mut IDT).cast::<[u64; 2]>().wrapping_add(vector & 0xff);
    // SAFETY: an entry of the table; the IST number is written atomically.
    unsafe { (*gate)[0] = (*gate)[0] & !(7 << 32) | stack << 32 };
}

/// The upper end of this CPU's stack of exceptions.
pub fn exception_stack() -> u64 {
    own() as u64 + EXCEPTIONS
}

/// The function for all other CPUs.
static WORK: AtomicU64 = AtomicU64::new(0);
/// Number of other CPUs that failed.
static FAILED: AtomicU64 = AtomicU64::new(0);

extern "C" fn work() {
    // SAFETY: `on_all` stored a function of this type.
    let work: fn() -> Outcome = unsafe { core::mem::transmute(WORK.load(Ordering::Acquire) as usize) };
    if work().is_err() {
        FAILED.fetch_add(1, Ordering::Relaxed);
    }
}

fn work_elsewhere() {
    let number = lapic::id() as usize;
    adopt(number);
    // SAFETY: the stack is the upper half of the block, and belongs to this CPU.
    unsafe { call_on(block(number) as u64 + BLOCK as u64, work) };
}

/// Gives all other CPUs a function; those that are restarted begin it again.
pub fn give_others(function: fn() -> Outcome) {
    WORK.store(function as usize as u64, Ordering::Release);
    FAILED.store(0, Ordering::Relaxed);
    if count() > 1 {
        others::give(work_elsewhere);
    }
}

/// Runs a function on all CPUs at once, including this one.
pub fn on_all(function: fn() -> Outcome) -> Outcome {
    give_others(function);
    let others = count() as u32 - 1;
    let outcome = function();
    if others > 0 {
        let done = wait(|| others::DONE.load(Ordering::SeqCst) == others);
        check!(done, "a CPU does not come back");
    }
    outcome?;
    check!(FAILED.load(Ordering::Relaxed) == 0, "another CPU failed");
    Ok(())
}

/// The function that only the last CPU does.
static LAST: AtomicU64 = AtomicU64::new(0);

extern "C" fn work_last() {
    // SAFETY: `give_last` stored a function of this type.
    let work: fn() -> Outcome = unsafe { core::mem::transmute(LAST.load(Ordering::Acquire) as usize) };
    let _ = work();
}

/// Gives the last CPU a function without waiting for it.
pub fn give_last(function: fn() -> Outcome) {
    LAST.store(function as usize as u64, Ordering::Release);
    others::give(|| {
        let number = lapic::id() as usize;
        if number + 1 == count() {
            adopt(number);
            // SAFETY: the block is this CPU's own, and nothing else uses the stack below its end.
            unsafe { call_on(block(number) as u64 + BLOCK as u64, work_last) };
        }
    });
}

/// Waits for something, for long.
pub fn wait(condition: impl Fn() -> bool) -> bool {
    for _ in 0..400_000_000u64 {
        if condition() {
            return true;
        }
        core::hint::spin_loop();
    }
    false
}

/// Restarts all other CPUs.
pub fn start_others() -> Outcome {
    let others = count() as u32 - 1;
    if others > 0 {
        others::forget();
        others::start();
        check!(wait(|| others::UP.load(Ordering::SeqCst) == others), "a CPU does not start");
    }
    Ok(())
}

/// Continues with a function on the first CPU's own stack.
pub fn begin(function: extern "C" fn()) -> ! {
    adopt(0);
    // SAFETY: the stack is the upper half of the block.
    unsafe { call_on(block(0) as u64 + BLOCK as u64, function) };
    unreachable!("the program ends itself")
}
