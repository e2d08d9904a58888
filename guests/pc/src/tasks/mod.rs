//! A processor outside of long mode, with tasks: its tables, and the results of its programs (`tasks.s`). For
//! the first CPU only.

crate::assembly!("tasks/tasks.s");

/// Selectors.
pub mod selector {
    #![allow(missing_docs)]
    pub const DATA: u32 = 0x10;
    pub const CODE: u32 = 0x18;
    pub const MAIN: u32 = 0x20;
    pub const OTHER: u32 = 0x28;
    pub const SMALL: u32 = 0x30;
    // At 0x38 is a task gate of the other task.
    pub const USER_CODE: u32 = 0x43;
    pub const USER_DATA: u32 = 0x4b;
    pub const CONFORMING: u32 = 0x50;
    pub const LDT: u32 = 0x58;
    /// Defined by a test.
    pub const ODD: u32 = 0x60;
    pub const SMALL_CODE: u32 = 0x68;
    pub const SMALL_STACK: u32 = 0x70;
    /// A task that ends the program.
    pub const RESCUE: u32 = 0x78;
    /// Beyond the last one.
    pub const END: u32 = 0x80;
}
use selector::*;

/// Words of a 32-bit TSS.
pub mod word {
    #![allow(missing_docs)]
    pub const LINK: usize = 0;
    pub const ESP0: usize = 1;
    pub const SS0: usize = 2;
    pub const CR3: usize = 7;
    pub const EIP: usize = 8;
    pub const EFLAGS: usize = 9;
    pub const EAX: usize = 10;
    pub const ESP: usize = 14;
    pub const ES: usize = 18;
    pub const CS: usize = 19;
    pub const SS: usize = 20;
    pub const DS: usize = 21;
    pub const LDT: usize = 24;
    pub const TRAP: usize = 25;
}

/// Flags.
pub const NT: u32 = 1 << 14;

#[repr(C, align(4096))]
struct Area {
    /// In pages of their own, so that they can be missing.
    main: [u32; 1024],
    other: [u32; 1024],
    small: [u16; 2048],
    rescue: [u32; 1024],
    gdt: [u64; END as usize / 8],
    idt: [u64; 256],
    ldt: [u64; 4],
    stacks: [[u32; 1024]; 3],
}
static mut AREA: Area = Area {
    main: [0; 1024],
    other: [0; 1024],
    small: [0; 2048],
    rescue: [0; 1024],
    gdt: [0; END as usize / 8],
    idt: [0; 256],
    ldt: [0; 4],
    stacks: [[0; 1024]; 3],
};

#[repr(C)]
struct Registers {
    gdt: [u16; 4],
    idt: [u16; 4],
    cr4: u32,
    cr3: u32,
    cr0: u32,
}

macro_rules! programs {
    ($($name:ident)*) => {
        unsafe extern "C" { $(#[allow(missing_docs)] pub static $name: u8;)* }
    };
}
programs! {
    main_call main_call_twice main_call_gate main_call_small main_jump main_jump_gate main_int main_int3 main_into main_divide main_touch main_nmi
    main_interrupt main_return main_debug main_step main_ud main_odd_stack main_user_touch
    other_return other_jump other_divide other_map other_nmi other_interrupt other_debug other_tables other_small other_end tasks_faults tasks_done
}
unsafe extern "C" {
    fn tasks_run(code: u64, registers: *const Registers);
    static tasks_notes: [Note; 16];
    static mut tasks_count: u32;
    static mut tasks_end: End;
    static mut tasks_divisor: u32;
    static mut tasks_entry: [u32; 2];
    static mut tasks_seen: [u32; 4];
    static mut tasks_gdt_base: u32;
}

/// The address of a program.
#[macro_export]
macro_rules! at {
    ($name:ident) => {
        &raw const $crate::tasks::$name as u64 as u32
    };
}
pub use at;

/// The registers recorded by a program.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Note {
    pub edi: u32,
    pub esi: u32,
    pub ebp: u32,
    /// Less 8.
    pub esp: u32,
    pub ebx: u32,
    pub edx: u32,
    pub ecx: u32,
    pub eax: u32,
    pub eflags: u32,
    pub eip: u32,
    pub tr: u32,
    pub status: u32,
    pub ss: u32,
    pub ds: u32,
    pub es: u32,
    pub fs: u32,
    pub gs: u32,
    pub cs: u32,
    pub ldt: u32,
    /// The top of the stack.
    pub top: u32,
}

/// The exception that ended a program.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct End {
    pub vector: u32,
    pub code: u32,
    pub eip: u32,
    pub cs: u32,
    pub eflags: u32,
    pub tr: u32,
    pub cr2: u32,
    pub dr6: u32,
}

/// Not ended by an exception.
pub const NONE: u32 = u32::MAX;

/// A descriptor: base, limit in bytes or pages, access byte, and the flags G, D/B, L and AVL.
pub const fn descriptor(base: u32, limit: u32, access: u64, flags: u64) -> u64 {
    let (base, limit) = (base as u64, limit as u64);
    limit & 0xffff | (base & 0xff_ffff) << 16 | access << 40 | (limit >> 16 & 0xf) << 48 | flags << 52 | base >> 24 << 56
}

/// A task gate.
pub const fn task_gate(selector: u32, access: u64) -> u64 {
    (selector as u64) << 16 | access << 40
}

/// A machine being set up, with a main task that has not run and another one.
pub struct Machine {
    /// CR4, CR3, and CR0's bits beyond protected mode's.
    pub control: [u32; 3],
}

/// A part of the area.
macro_rules! part {
    ($($part:tt)+) => {{
        let area = &raw mut AREA;
        // SAFETY: only the first CPU runs these tests, and no reference is held while a program runs.
        unsafe { &mut (*area).$($part)+ }
    }};
}

impl Machine {
    /// All as it should be; the other task begins at `other`.
    pub fn new(other: u32) -> Machine {
        let area = &raw mut AREA;
        // SAFETY: only the first CPU runs these tests, and no reference is held while a program runs.
        let area = unsafe { &mut *area };
        area.main = [0; 1024];
        area.other = [0; 1024];
        area.small = [0; 2048];
        area.rescue = [0; 1024];
        let stack = |n: usize| &raw const area.stacks[n] as u32 + 4096;
        for (n, tss) in [&mut area.main, &mut area.other, &mut area.rescue].into_iter().enumerate() {
            tss[word::ESP0] = stack(2);
            tss[word::SS0] = DATA;
            tss[word::ESP] = stack(n);
            tss[word::EFLAGS] = 2;
            for segment in 0..6 {
                tss[word::ES + segment] = DATA;
            }
            tss[word::CS] = CODE;
            for register in 0..8 {
                if word::EAX + register != word::ESP {
                    tss[word::EAX + register] = 0x0101_0101 * (register as u32 + 1);
                }
            }
        }
        area.other[word::EIP] = other;
        area.rescue[word::EIP] = at!(tasks_done);
        let small = at!(other_small);
        let small_stack = &raw const area.stacks[1] as u32;
        // IP, FLAGS, AX to DI, ES, CS, SS, DS, LDT.
        area.small[7..22].copy_from_slice(&[
            0,
            2,
            0x1234,
            1,
            2,
            3,
            0x0800,
            5,
            6,
            7,
            DATA as u16,
            SMALL_CODE as u16,
            SMALL_STACK as u16,
            DATA as u16,
            0,
        ]);
        let base = |tss: u64| tss as u32;
        area.gdt = [
            0,
            0x00af_9b00_0000_ffff,
            0x00cf_9300_0000_ffff,
            0x00cf_9b00_0000_ffff,
            descriptor(base(&raw const area.main as u64), 103, 0x89, 0),
            descriptor(base(&raw const area.other as u64), 103, 0x89, 0),
            descriptor(base(&raw const area.small as u64), 43, 0x81, 0),
            task_gate(OTHER, 0x85),
            descriptor(0, 0xf_ffff, 0xfb, 0xc),
            descriptor(0, 0xf_ffff, 0xf3, 0xc),
            descriptor(0, 0xf_ffff, 0x9f, 0xc),
            descriptor(&raw const area.ldt as u32, 31, 0x82, 0),
            0,
            descriptor(small, 0xffff, 0x9b, 4),
            descriptor(small_stack, 0xffff, 0x93, 0),
            descriptor(base(&raw const area.rescue as u64), 103, 0x89, 0),
        ];
        area.ldt = [0, 0x00cf_9300_0000_ffff, 0, 0];
        area.idt = [0; 256];
        for vector in 0..32 {
            let handler = u64::from(at!(tasks_faults)) + 16 * vector;
            area.idt[vector as usize] = handler & 0xffff | u64::from(CODE) << 16 | 0x8e << 40 | handler >> 16 << 48;
        }
        Machine { control: [0; 3] }
    }

    /// The TSS of the main task or of the other one.
    pub fn main(&self) -> &'static mut [u32; 1024] {
        part!(main)
    }

    /// The TSS of the other task.
    pub fn other(&self) -> &'static mut [u32; 1024] {
        part!(other)
    }

    /// The 16-bit TSS.
    pub fn small(&self) -> &'static mut [u16; 2048] {
        part!(small)
    }

    /// A descriptor of the GDT.
    pub fn gdt(&self, selector: u32) -> &'static mut u64 {
        part!(gdt[selector as usize / 8])
    }

    /// A gate of the IDT.
    pub fn idt(&self, vector: usize) -> &'static mut u64 {
        part!(idt[vector])
    }

    /// Whether a TSS is busy.
    pub fn is_busy(&self, selector: u32) -> bool {
        *self.gdt(selector) >> 41 & 1 != 0
    }

    /// Points a vector to the other task, for user mode, too.
    pub fn lead_to_other(&self, vector: usize) {
        *self.idt(vector) = task_gate(OTHER, 0xe5);
    }

    /// Points each exception to the task that ends the program in any state.
    pub fn rescue(&self) {
        for vector in 0..32 {
            *self.idt(vector) = task_gate(RESCUE, 0xe5);
        }
    }

    /// Sets CR3 of that task.
    pub fn set_rescue_tables(&self, cr3: u32) {
        *part!(rescue[word::CR3]) = cr3;
    }

    /// The entry that `other_map` writes, and its address.
    pub fn set_entry(&self, at: u32, entry: u32) {
        // SAFETY: the program's memory is accessed by its own code only, which does not run between two calls of `run`.
        unsafe { tasks_entry = [at, entry] };
    }

    /// The values recorded by `other_small`: TR, EAX, ESP and EFLAGS.
    pub fn seen(&self) -> [u32; 4] {
        // SAFETY: the program's memory is accessed by its own code only, which does not run between two calls of `run`.
        unsafe { (&raw const tasks_seen).read_volatile() }
    }

    /// Runs a program; returns the recorded values, and how it ended.
    pub fn run(&self, program: u32) -> Run {
        let pointer = |table: u64, bytes: usize| [bytes as u16 - 1, table as u16, (table >> 16) as u16, 0];
        let [cr4, cr3, cr0] = self.control;
        let area = &raw const AREA;
        // SAFETY: the tables are complete, and the programs return to the caller.
        unsafe {
            let gdt = &raw const (*area).gdt as u64;
            let registers = Registers { gdt: pointer(gdt, END as usize), idt: pointer(&raw const (*area).idt as u64, 2048), cr4, cr3, cr0 };
            tasks_count = 0;
            tasks_end = End { vector: NONE, code: 0, eip: 0, cs: 0, eflags: 0, tr: 0, cr2: 0, dr6: 0 };
            tasks_divisor = 0;
            tasks_gdt_base = gdt as u32;
            tasks_run(program.into(), &registers);
            Run {
                notes: (&raw const tasks_notes).read_volatile(),
                count: (&raw const tasks_count).read_volatile() as usize,
                end: (&raw const tasks_end).read_volatile(),
            }
        }
    }
}

/// The result of a program.
#[allow(missing_docs)]
pub struct Run {
    pub notes: [Note; 16],
    pub count: usize,
    pub end: End,
}

impl Run {
    /// Whether it ended regularly, in the main task, after `notes` records.
    pub fn is_complete(&self, notes: usize) -> bool {
        self.end.vector == NONE && self.count == notes && self.notes[notes - 1].tr == MAIN
    }
}
