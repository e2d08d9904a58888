//! A physical CPU's block: what the exit path finds through RSP, and the CPU's stack below it.

use core::mem::offset_of;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, Ordering};

use stile_apic::HostTimer;
use stile_blob::ApicVirtualization;
use stile_bus::Slot;
use stile_ledger::Row;
use stile_trace::Recorder;

use super::instructions::{msr, wrmsr};
use super::{apic, descriptor_tables, timer};
use crate::arch::x86_64::vm::cpuid::Table;
use crate::cpu::{Block, Leave};
use crate::vm::Vcpu;

/// General registers of the vCPU that is loaded: those that the exit path saved, until entry.
#[repr(C)]
pub struct Frame {
    /// By register number; RSP's place has no meaning, for it is in the VMCS. Which are valid depends on the stub: see `exit.S`.
    pub registers: [u64; 16],
}

/// Numbers of general registers, as instructions encode them.
pub mod gpr {
    pub const RAX: usize = 0;
    pub const RCX: usize = 1;
    pub const RDX: usize = 2;
    pub const RBX: usize = 3;
    pub const RSP: usize = 4;
    pub const RSI: usize = 6;
    /// Registers that the frame has only if all were saved (RBX, RBP, R12 to R15), or never (RSP), a bit each.
    pub const NOT_SAVED: u16 = 0xf038;
}

/// Task-state segment (the manual, "64-Bit Task State Segment (TSS)"): where the emergency stack is.
#[repr(C, packed(4))]
pub struct Tss {
    reserved: u32,
    stacks: [u64; 3],
    reserved_2: u64,
    interrupt_stacks: [u64; 7],
    reserved_3: u64,
    reserved_4: u16,
    io_map: u16,
}

/// Selectors of the block's GDT.
pub const CODE: u16 = 0x08;
/// Selector of data, in the block's GDT.
pub const DATA: u16 = 0x10;
/// Selector of the TSS, in the block's GDT: it takes two entries.
pub const TASK: u16 = 0x18;
const GDT_ENTRIES: usize = 5;

/// The stack of an exception in Stile, which may have come because the usual one is full.
#[repr(C, align(16))]
struct Emergency([u8; 8192]);

/// The stack of an NMI, which may come while the emergency stack is in use. A fatal one is reported on it, and may use that, too, which is below
/// it.
#[repr(C, align(16))]
struct NmiStack([u8; 512]);

/// Words of a CPU that are reached through GS, also while its block is borrowed: shared, and not part of it.
#[repr(C)]
pub struct Local {
    /// Number of this CPU.
    pub index: usize,
    /// Where IA32_TSC_DEADLINE of the loaded vCPU is, while its deadlines go to this CPU's timer as they are; or null.
    direct_deadline: AtomicPtr<u64>,
    /// Whether the loaded vCPU exits as soon as it can take an interrupt.
    window: AtomicU8,
    /// Stile's own interrupts that were taken while it idled, a bit each.
    noted: AtomicU8,
}

impl Local {
    /// The words of CPU `index`.
    pub const fn new(index: usize) -> Local {
        Local { index, direct_deadline: AtomicPtr::new(ptr::null_mut()), window: AtomicU8::new(0), noted: AtomicU8::new(0) }
    }
}

/// How the loaded vCPU is entered: [`Cpu::launched`].
pub struct Launch;

impl Launch {
    /// By VMLAUNCH: the current VMCS is clear on this CPU.
    pub const CLEAR: u64 = 0;
    /// By VMRESUME.
    pub const LAUNCHED: u64 = 1;
    /// It is in L2, whose VMCS is to be made current.
    pub const L2: u64 = 2;
}

/// The block. Only its own CPU has a reference to it.
#[repr(C, align(64))]
pub struct Cpu {
    /// At the block's start, so that RSP points to it at an exit.
    pub frame: Frame,
    /// The counter at the exit being handled.
    pub since: u64,
    /// Rows of the loaded vCPU's ledger.
    pub rows: *mut Row,
    /// Exits that `exit.S` counted since the vCPU was loaded.
    pub taken: u64,
    /// How the loaded vCPU is entered, if not by the exit path itself: see [`Launch`].
    pub launched: u64,
    /// IA32_APIC_BASE of the loaded vCPU.
    pub apic_base: u64,
    /// The number of the page in which the loaded vCPU's local APIC has its registers, or [`NO_PAGE`].
    pub apic_page: u64,
    /// Virtualization of the loaded vCPU's APIC by the processor, at present.
    pub apic_level: ApicVirtualization,
    /// TPR threshold in the current VMCS, where the processor does no more than that for the APIC's interrupts.
    pub threshold: u8,
    /// CPUID's answers for the loaded vCPU's VM.
    cpuid: *const Table,
    /// The vCPU that is loaded.
    pub vcpu: Option<&'static Vcpu>,
    /// Why the vCPU is to be left: set by a handler that returns [`crate::arch::x86_64::exit::Outcome::leave`].
    pub leave: Leave,
    /// When the slice of the vCPU that runs ends, if the CPU is shared now.
    pub slice_end: Option<u64>,
    /// When the scheduler's timer is set to ring.
    pub deadline: Option<u64>,
    /// Programmer and present setting of this CPU's timer.
    pub timer: HostTimer,
    /// Whether the scheduler wants the instructions that wait to exit.
    pub waiting_trapped: bool,
    /// Number of this CPU.
    pub index: usize,
    /// Words that are reached through GS.
    pub local: Option<&'static Local>,
    /// The region of a VM's memory bus that was found last.
    pub last_slot: Option<Slot>,
    /// How `exit.S` delivers an interrupt of this CPU's timer to the loaded vCPU, while that is passed through.
    passed_timer: PassedTimer,
    /// Where a trace's records go.
    pub recorder: Recorder,
    gdt: [u64; GDT_ENTRIES],
    tss: Tss,
    emergency: Emergency,
    nmi_stack: NmiStack,
}

/// A timer that is passed through to a vCPU whose processor delivers interrupts. All zero: there is none.
#[repr(C)]
pub struct PassedTimer {
    /// The word of IRR that has the vector of the guest's timer. TMR's is at a fixed distance.
    irr: *const AtomicU32,
    /// The vector's bit in both.
    bit: u32,
    /// The vector.
    vector: u8,
    /// The vector of the physical interrupt; 0, which is none, if the handler is to be called.
    physical: u8,
    /// Whether an expiry leaves IA32_TSC_DEADLINE as it is.
    keeps: bool,
}

impl PassedTimer {
    const NONE: PassedTimer = PassedTimer { irr: ptr::null(), bit: 0, vector: 0, physical: 0, keeps: false };
}

/// In [`Cpu::apic_page`]: it has them in none.
pub const NO_PAGE: u64 = u64::MAX;

const LOCAL: usize = offset_of!(Block, local);
/// Offsets for `exit.S` and `idt.S`.
pub const REGISTERS: usize = offset_of!(Cpu, frame.registers);
/// Offset of `since`, for `exit.S`.
pub const SINCE: usize = offset_of!(Cpu, since);
/// Offset of `rows`, for `exit.S`.
pub const ROWS: usize = offset_of!(Cpu, rows);
/// Offset of `taken`, for `exit.S`.
pub const TAKEN: usize = offset_of!(Cpu, taken);
/// Offset of `launched`, for `exit.S`.
pub const LAUNCHED: usize = offset_of!(Cpu, launched);
/// Offset of `noted`, for `idt.S`.
pub const NOTED: usize = LOCAL + offset_of!(Local, noted);
/// Offset of `cpuid`, for `exit.S`.
pub const CPUID: usize = offset_of!(Cpu, cpuid);
/// Offset of `apic_base`, for `exit.S`.
pub const APIC_BASE: usize = offset_of!(Cpu, apic_base);
/// Offset of `window`, for `exit.S`.
pub const WINDOW: usize = LOCAL + offset_of!(Local, window);
/// Offset of the passed timer's `irr`, for `exit.S`.
pub const TIMER_IRR: usize = offset_of!(Cpu, passed_timer.irr);
/// Offset of the passed timer's `bit`, for `exit.S`.
pub const TIMER_BIT: usize = offset_of!(Cpu, passed_timer.bit);
/// Offset of the passed timer's `vector`, for `exit.S`.
pub const TIMER_VECTOR: usize = offset_of!(Cpu, passed_timer.vector);
/// Offset of the passed timer's `physical`, for `exit.S`.
pub const TIMER_PHYSICAL: usize = offset_of!(Cpu, passed_timer.physical);
/// Offset of the passed timer's `keeps`, for `exit.S`.
pub const TIMER_KEEPS: usize = offset_of!(Cpu, passed_timer.keeps);
/// Offset of `direct_deadline`, for `exit.S`.
pub const DIRECT_DEADLINE: usize = LOCAL + offset_of!(Local, direct_deadline);
/// Offset of `vcpu`, for `exit.S`.
pub const VCPU: usize = offset_of!(Cpu, vcpu);
/// Offset of the recorder's `before`, for `exit.S`.
pub const RECORDS_BEFORE: usize = offset_of!(Cpu, recorder) + stile_trace::BEFORE;
/// Offset of the recorder's `source`, for `exit.S`.
pub const RECORDS_SOURCE: usize = offset_of!(Cpu, recorder) + stile_trace::SOURCE;
/// Offset of the recorder's slot, for `exit.S`.
pub const RECORD_SLOT: usize = offset_of!(Cpu, recorder) + stile_trace::SLOT;
/// Offset of the recorder's count of dropped records, for `exit.S`.
pub const RECORDS_DROPPED: usize = offset_of!(Cpu, recorder) + stile_trace::DROPPED;
const INDEX: usize = LOCAL + offset_of!(Local, index);

const _: () = assert!(REGISTERS == 0, "exit.S relies on it");

/// Number of the CPU that asks, also while its block is borrowed.
#[inline(always)]
pub fn this_index() -> usize {
    let index: usize;
    // SAFETY: `install` comes before anything that asks. The word is constant after it, and outside of the block, which may be borrowed.
    unsafe {
        core::arch::asm!("mov {}, gs:[{INDEX}]", out(reg) index, INDEX = const INDEX, options(readonly, nostack, preserves_flags));
    }
    index
}

impl Cpu {
    /// Places the block of CPU `index` under `top`, the upper end of its stack's memory, and makes it this CPU's, with its segments,
    /// interrupts and emergency stack.
    ///
    /// # Safety
    /// `top` comes from [`crate::address_space::stack`] for this CPU, and this is called once for it.
    pub unsafe fn install(top: u64, index: usize) -> &'static mut Cpu {
        // SAFETY: the caller's promise.
        let cpu = unsafe { Cpu::place(top, index) };
        let emergency = &raw const cpu.emergency as u64 + size_of::<Emergency>() as u64;
        cpu.tss.interrupt_stacks[0] = emergency;
        cpu.tss.interrupt_stacks[1] = &raw const cpu.nmi_stack as u64 + size_of::<NmiStack>() as u64;
        cpu.tss.io_map = size_of::<Tss>() as u16;
        let tss = &raw const cpu.tss as u64;
        cpu.gdt = [
            0,
            0x00af_9b00_0000_ffff, // 64-bit code
            0x00cf_9300_0000_ffff, // data
            // An available 64-bit TSS (the manual, "TSS Descriptor in 64-bit mode").
            (size_of::<Tss>() as u64 - 1) | (tss & 0xff_ffff) << 16 | 0x89 << 40 | (tss >> 24 & 0xff) << 56,
            tss >> 32,
        ];
        let limit = size_of_val(&cpu.gdt) as u16 - 1;
        // SAFETY: the GDT lies in the block, which stays; its first descriptors are those that are loaded now.
        unsafe { descriptor_tables::load(cpu.gdt_base(), limit) };
        // SAFETY: the block's address is canonical; Stile uses GS for nothing else.
        unsafe { wrmsr(msr::GS_BASE, &raw const *cpu as u64) };
        cpu
    }

    /// Where the GDT is.
    pub fn gdt_base(&self) -> u64 {
        self.gdt.as_ptr() as u64
    }

    /// Where the TSS is.
    pub fn tss_base(&self) -> u64 {
        &raw const self.tss as u64
    }

    /// Remembers for `exit.S` whether the vCPU that is loaded on this CPU exits as soon as it can take an interrupt.
    #[inline(always)]
    pub fn note_window(on: bool) {
        // SAFETY: GS points to the block since `install`. The byte behind it is an atomic that is shared, written by this CPU alone.
        unsafe {
            core::arch::asm!("mov gs:[{WINDOW}], {}", in(reg_byte) u8::from(on), WINDOW = const WINDOW, options(nostack, preserves_flags));
        }
    }

    /// Where IA32_TSC_DEADLINE of the vCPU that is loaded on this CPU is, while `exit.S` may write it, and this CPU's timer with it; or null.
    #[inline(always)]
    pub fn direct_deadline() -> *mut u64 {
        let place: *mut u64;
        // SAFETY: GS points to the block since `install`. The word behind it is an atomic that is shared, written by this CPU alone.
        unsafe {
            core::arch::asm!("mov {}, gs:[{AT}]", out(reg) place, AT = const DIRECT_DEADLINE, options(readonly, nostack, preserves_flags));
        }
        place
    }

    /// Sets that.
    ///
    /// # Safety
    /// The place is that of the vCPU that is loaded here, and stays; or null.
    #[inline(always)]
    pub unsafe fn set_direct_deadline(place: *mut u64) {
        // SAFETY: GS points to the block since `install`. The word behind it is an atomic that is shared, written by this CPU alone.
        unsafe { core::arch::asm!("mov gs:[{AT}], {}", in(reg) place, AT = const DIRECT_DEADLINE, options(nostack, preserves_flags)) };
    }

    /// Tells `exit.S` whether it delivers the interrupts of this CPU's timer itself: while that is passed through to the loaded vCPU, and the
    /// processor delivers the vector that the guest has chosen.
    pub fn note_passed_timer(&mut self) {
        let (_, apic) = self.timer_and_apic();
        let vector = apic.and_then(|apic| apic.lent_timer());
        let passed = self.vcpu.zip(vector).and_then(|(vcpu, vector)| {
            let delivers = self.apic_level >= ApicVirtualization::Delivery;
            let irr = vcpu.arch.pages.requests_word(vector).filter(|_| delivers)?;
            Some(PassedTimer { irr, bit: 1 << (vector & 31), vector, physical: apic::vector::TIMER, keeps: timer::keeps_deadline() })
        });
        self.passed_timer = passed.unwrap_or(PassedTimer::NONE);
    }

    /// Has the leaf of `exit.S` answer CPUID from this table.
    pub fn show_cpuid(&mut self, table: &'static Table) {
        self.cpuid = table;
    }

    /// The loaded vCPU's IA32_APIC_BASE is this.
    pub fn set_apic_base(&mut self, base: u64) {
        /// Enabled, and in xAPIC mode: its registers are in its page ("Enabling or Disabling the Local APIC").
        const MODE: u64 = 0b11 << 10;
        const XAPIC: u64 = 0b10 << 10;
        self.apic_base = base;
        self.apic_page = if base & MODE == XAPIC { base >> 12 } else { NO_PAGE };
    }

    /// Whether the loaded vCPU's local APIC is in x2APIC mode.
    #[inline(always)]
    pub fn has_x2apic(&self) -> bool {
        self.apic_base & 1 << 10 != 0
    }

    /// Stile's interrupts that were taken since the last call: bit n for vector [`apic::vector::UART`] + n.
    pub fn take_noted(&self) -> u8 {
        self.local.map_or(0, |local| local.noted.swap(0, Ordering::Relaxed))
    }

    /// Whether there are any.
    pub fn has_noted(&self) -> bool {
        self.local.is_some_and(|local| local.noted.load(Ordering::Relaxed) != 0)
    }
}
