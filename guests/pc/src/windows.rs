//! Takes interrupts endlessly without executing an instruction: the 8259's line stays asserted, each acknowledgement ends
//! its interrupt, and the handler's gate leaves interrupts enabled.
#![no_std]
#![no_main]

use core::arch::{asm, naked_asm};

use machine::out8;
use pc::console::println;
use pc::{console, exception, machine};

/// The 8259's vectors, and its line.
const VECTORS: u8 = 0x20;
const LINE: u8 = 4;
/// Selectors: code, as the program's GDT has it, and the task-state segment.
const CODE: u64 = 0x08;
const TASK: u16 = 0x20;

#[repr(C, packed)]
struct Pointer {
    limit: u16,
    base: u64,
}

/// A task-state segment with the stack of each delivery (IST1).
#[repr(C, align(16))]
struct Task([u32; 26]);

static mut TABLE: [[u64; 2]; 256] = [[0; 2]; 256];
static mut SEGMENTS: [u64; 6] = [0, 0x00af_9b00_0000_ffff, 0x00cf_9300_0000_ffff, 0x00cf_9b00_0000_ffff, 0, 0];
static mut TASK_STATE: Task = Task([0; 26]);
static mut STACK: [u64; 512] = [0; 512];

pc::program!();

#[unsafe(no_mangle)]
extern "C" fn main(_magic: u32, _info: u32) -> ! {
    exception::setup();
    console::setup();
    println!("windows: no instruction from here on");
    setup_stack();
    setup_gate();
    setup_8259();
    machine::sti();
    loop {
        core::hint::spin_loop();
    }
}

/// Loads a task-state segment with a stack that each delivery begins anew.
fn setup_stack() {
    const PRESENT_TASK: u64 = 0x89 << 40;
    let task = &raw mut TASK_STATE;
    let base = task as u64;
    let stack = &raw const STACK as u64 + 4096;
    let segments = &raw mut SEGMENTS;
    let pointer = Pointer { limit: 6 * 8 - 1, base: segments as u64 };
    // SAFETY: there is one CPU, and nothing else accesses the tables. The segments in use stay as they are.
    unsafe {
        (*task).0[9] = stack as u32;
        (*task).0[10] = (stack >> 32) as u32;
        (*segments)[usize::from(TASK) / 8] = 103 | (base & 0xff_ffff) << 16 | PRESENT_TASK | (base >> 24 & 0xff) << 56;
        (*segments)[usize::from(TASK) / 8 + 1] = base >> 32;
        asm!("lgdt [{}]", "ltr {:x}", in(reg) &pointer, in(reg) TASK, options(nostack));
    }
}

/// Loads a table with a trap gate for the line.
fn setup_gate() {
    const TRAP_GATE_ON_IST1: u64 = 0x8f01 << 32;
    let table = &raw mut TABLE;
    let handler = handler as *const () as u64;
    let gate = [handler & 0xffff | CODE << 16 | TRAP_GATE_ON_IST1 | (handler >> 16 & 0xffff) << 48, handler >> 32];
    let pointer = Pointer { limit: 256 * 16 - 1, base: table as u64 };
    // SAFETY: there is one CPU, and nothing else accesses the table.
    unsafe {
        (*table)[usize::from(VECTORS + LINE)] = gate;
        asm!("lidt [{}]", in(reg) &pointer, options(nostack));
    }
}

/// Makes the line level-triggered, with automatic end of interrupt, and asserts it.
fn setup_8259() {
    const LINES: u16 = 0x2000;
    // SAFETY: the interrupt has a handler; the port asserts a line.
    unsafe {
        // ICW1 to ICW4, and the mask.
        out8(0x20, 0x11);
        out8(0x21, VECTORS);
        out8(0x21, 4);
        out8(0x21, 3);
        out8(0x21, !(1 << LINE));
        out8(0x4d0, 1 << LINE);
        out8(LINES + u16::from(LINE), 1);
    }
}

/// Is reached, and never executed: the next interrupt comes first.
#[unsafe(naked)]
extern "C" fn handler() {
    naked_asm!("2: jmp 2b")
}
