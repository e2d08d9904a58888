//! Block of a physical CPU: at an exit RSP points to it, and the CPU's stack grows down from it.

use core::mem::offset_of;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering};

use stile_apic::HostTimer;
use stile_blob::ApicVirtualization;
use stile_bus::Slot;
use stile_ledger::Row;
use stile_sched::VcpuId;
use stile_trace::Recorder;

use super::cpuid::Table;
use super::instructions::{msr, wrmsr};
use super::{apic, descriptor_tables, timer};
use crate::arch::x86_64::virt::block::{OfCpu, OfLocal};
use crate::cpu::{Block, Leave, Pace};
use crate::vm::Vcpu;

/// General registers of the loaded vCPU, as far as the exit path saved them.
#[repr(C)]
pub struct Frame {
    /// By register number; RSP's is unused, since it is in the VMCS. The stub determines which are valid: see
    /// `exit.S`.
    pub registers: [u64; 16],
}

/// Register numbers, as instructions encode them.
pub mod gpr {
    pub const RAX: usize = 0;
    pub const RCX: usize = 1;
    pub const RDX: usize = 2;
    pub const RBX: usize = 3;
    pub const RSP: usize = 4;
    pub const RSI: usize = 6;
    /// Bit mask of registers that are valid only if all were saved (RBX, RBP, R12 to R15), or never (RSP).
    pub const NOT_SAVED: u16 = 0xf038;
}

/// Task-state segment (the manual, "64-Bit Task State Segment (TSS)"), which has the emergency stack.
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
/// Selector of the TSS in the block's GDT, where it takes two entries.
pub const TASK: u16 = 0x18;
const GDT_ENTRIES: usize = 5;

/// Stack of exceptions in Stile, which may be stack overflows.
#[repr(C, align(16))]
struct Emergency([u8; 8192]);

/// Stack of NMIs, which may arrive while the emergency stack is in use. The report of a fatal one may grow down into
/// the emergency stack.
#[repr(C, align(16))]
struct NmiStack([u8; 512]);

/// Stack of #GP, which may be an access to the APIC in the course of an exception.
#[repr(C, align(16))]
struct ProtectionStack([u8; 256]);

/// Words of the mask of noted messages.
pub const MESSAGE_WORDS: usize = (apic::vector::MESSAGES_OF_FUNCTIONS as usize).div_ceil(64);

/// Words of a CPU that are accessed through GS while its block is borrowed, and so are not part of it.
#[repr(C)]
pub struct Local {
    /// CPU number.
    pub index: usize,
    /// Address of the loaded vCPU's IA32_TSC_DEADLINE while its timer is passed through; otherwise null.
    direct_deadline: AtomicPtr<u64>,
    /// Whether interrupt-window exiting is on for the loaded vCPU.
    window: AtomicU8,
    /// Bit mask of Stile's own interrupts taken while idle.
    noted: AtomicU8,
    /// Bit mask of messages of PCI functions that interrupted this CPU: bit n for vector [`apic::vector::FIRST_MESSAGE`] + n.
    messages: [AtomicU64; MESSAGE_WORDS],
    /// Words of the virtualization extension.
    pub virt: OfLocal,
}

impl Local {
    /// Words of CPU `index`.
    pub const fn new(index: usize) -> Local {
        Local {
            index,
            direct_deadline: AtomicPtr::new(ptr::null_mut()),
            window: AtomicU8::new(0),
            noted: AtomicU8::new(0),
            messages: [const { AtomicU64::new(0) }; MESSAGE_WORDS],
            virt: OfLocal::new(),
        }
    }
}

/// Kind of entry of the loaded vCPU: [`Cpu::launched`].
pub struct Launch;

impl Launch {
    /// VMLAUNCH: the current VMCS is clear.
    pub const CLEAR: u64 = 0;
    /// VMRESUME.
    pub const LAUNCHED: u64 = 1;
    /// The vCPU is in L2, whose VMCS must be made current.
    pub const L2: u64 = 2;
}

/// The block. Only its own CPU refers to it.
#[repr(C, align(64))]
pub struct Cpu {
    /// First, so that RSP points to it at an exit.
    pub frame: Frame,
    /// TSC at the exit being handled.
    pub since: u64,
    /// Rows of the loaded vCPU's ledger.
    pub rows: *mut Row,
    /// Exits counted by `exit.S` since the vCPU was loaded.
    pub taken: u64,
    /// Kind of the next entry, if other than the exit path's own: see [`Launch`].
    pub launched: u64,
    /// IA32_APIC_BASE of the loaded vCPU.
    pub apic_base: u64,
    /// Page number of the loaded vCPU's local APIC, or [`NO_PAGE`].
    pub apic_page: u64,
    /// APIC virtualization in force for the loaded vCPU.
    pub apic_level: ApicVirtualization,
    /// TPR threshold in the current VMCS, where the processor virtualizes only the TPR.
    pub threshold: u8,
    /// CPUID table of the loaded vCPU's VM.
    cpuid: *const Table,
    /// The loaded vCPU.
    pub vcpu: Option<&'static Vcpu>,
    /// Reason for leaving the vCPU, set by a handler that returns [`crate::cpu::Outcome::leave`].
    pub leave: Leave,
    /// End of the running vCPU's slice, if the CPU is shared.
    pub slice_end: Option<u64>,
    /// Deadline of the scheduler.
    pub deadline: Option<u64>,
    /// Next time at which deadlines of sleepers may interrupt the running vCPU.
    pub pace: Pace,
    /// The vCPU that a handler woke, and when: reported to the scheduler when this CPU next leaves a vCPU.
    pub woken: Option<(VcpuId, u64)>,
    /// Owner and setting of this CPU's timer.
    pub timer: HostTimer,
    /// Whether the scheduler requests exits of waiting instructions.
    pub waiting_trapped: bool,
    /// CPU number.
    pub index: usize,
    /// Words that are accessed through GS.
    pub local: Option<&'static Local>,
    /// Region of a VM's memory bus found last.
    pub last_slot: Option<Slot>,
    /// Parameters by which `exit.S` delivers timer interrupts to the loaded vCPU while the timer is passed through.
    passed_timer: PassedTimer,
    /// IA32_SPEC_CTRL of this CPU; 0 if it has none.
    pub spec_ctrl: u64,
    /// Recorder of a trace.
    pub recorder: Recorder,
    /// State of the virtualization extension.
    pub virt: OfCpu,
    gdt: [u64; GDT_ENTRIES],
    tss: Tss,
    emergency: Emergency,
    nmi_stack: NmiStack,
    protection_stack: ProtectionStack,
}

/// A timer passed through to a vCPU with virtual-interrupt delivery. All zero: none.
#[repr(C)]
pub struct PassedTimer {
    /// Address of the IRR word with the vector of the guest's timer. TMR is at a fixed distance.
    irr: *const AtomicU32,
    /// The vector's bit in both.
    bit: u32,
    /// The vector.
    vector: u8,
    /// Vector of the physical interrupt; 0 (invalid) if the handler must be called.
    physical: u8,
    /// Whether IA32_TSC_DEADLINE keeps its value at expiry.
    keeps: bool,
}

impl PassedTimer {
    const NONE: PassedTimer = PassedTimer { irr: ptr::null(), bit: 0, vector: 0, physical: 0, keeps: false };
}

/// Value of [`Cpu::apic_page`] without a page.
pub const NO_PAGE: u64 = u64::MAX;

/// Offset of the CPU's [`Local`].
pub const LOCAL: usize = offset_of!(Block, local);
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
/// Offset of the mask of noted messages, in GS.
pub const MESSAGES: usize = LOCAL + offset_of!(Local, messages);
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
/// Offset of `spec_ctrl`, for `mitigated.S`.
pub const SPEC_CTRL: usize = offset_of!(Cpu, spec_ctrl);
/// Offset of the recorder's `before`, for `exit.S`.
pub const RECORDS_BEFORE: usize = offset_of!(Cpu, recorder) + stile_trace::BEFORE;
/// Offset of the recorder's `source`, for `exit.S`.
pub const RECORDS_SOURCE: usize = offset_of!(Cpu, recorder) + stile_trace::SOURCE;
/// Offset of the recorder's slot, for `exit.S`.
pub const RECORD_SLOT: usize = offset_of!(Cpu, recorder) + stile_trace::SLOT;
/// Offset of the recorder's count of dropped records, for `exit.S`.
pub const RECORDS_DROPPED: usize = offset_of!(Cpu, recorder) + stile_trace::DROPPED;
/// Offset of `virt`, for `exit.S`.
pub const VIRT: usize = offset_of!(Cpu, virt);
const INDEX: usize = LOCAL + offset_of!(Local, index);

const _: () = assert!(REGISTERS == 0, "exit.S relies on it");

/// Number of the calling CPU; also while its block is borrowed.
#[inline(always)]
pub fn this_index() -> usize {
    let index: usize;
    // SAFETY: `install` runs before any caller. The word is constant afterwards, and outside the block, which may be
    // borrowed.
    unsafe {
        core::arch::asm!("mov {}, gs:[{INDEX}]", out(reg) index, INDEX = const INDEX, options(readonly, nostack, preserves_flags));
    }
    index
}

impl Cpu {
    /// Installs the block of CPU `index` below `top`, the upper end of its stack's memory, with its segments,
    /// interrupt table and emergency stack.
    ///
    /// # Safety
    /// `top` was returned by [`crate::address_space::stack`] for this CPU, and the function is called once for it.
    pub unsafe fn install(top: u64, index: usize) -> &'static mut Cpu {
        // SAFETY: the caller guarantees that the memory is mapped and this CPU's alone.
        let cpu = unsafe { Cpu::place(top, index) };
        let emergency = &raw const cpu.emergency as u64 + size_of::<Emergency>() as u64;
        cpu.tss.interrupt_stacks[0] = emergency;
        cpu.tss.interrupt_stacks[1] = &raw const cpu.nmi_stack as u64 + size_of::<NmiStack>() as u64;
        cpu.tss.interrupt_stacks[2] = &raw const cpu.protection_stack as u64 + size_of::<ProtectionStack>() as u64;
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
        // SAFETY: the GDT is in the block, which is permanent; its first descriptors equal those that are loaded now.
        unsafe { descriptor_tables::load(cpu.gdt_base(), limit) };
        // SAFETY: the block's address is canonical; Stile uses GS only for this.
        unsafe { wrmsr(msr::GS_BASE, &raw const *cpu as u64) };
        cpu
    }

    /// Address of the GDT.
    pub fn gdt_base(&self) -> u64 {
        self.gdt.as_ptr() as u64
    }

    /// Address of the TSS.
    pub fn tss_base(&self) -> u64 {
        &raw const self.tss as u64
    }

    /// Publishes to `exit.S` whether interrupt-window exiting is on for the loaded vCPU.
    #[inline(always)]
    pub fn note_window(on: bool) {
        // SAFETY: GS points to the block since `install`. The byte is a shared atomic that only this CPU writes.
        unsafe {
            core::arch::asm!("mov gs:[{WINDOW}], {}", in(reg_byte) u8::from(on), WINDOW = const WINDOW, options(nostack, preserves_flags));
        }
    }

    /// Address of the loaded vCPU's IA32_TSC_DEADLINE while `exit.S` may write it together with this CPU's timer;
    /// otherwise null.
    #[inline(always)]
    pub fn direct_deadline() -> *mut u64 {
        let place: *mut u64;
        // SAFETY: GS points to the block since `install`. The word is a shared atomic that only this CPU writes.
        unsafe {
            core::arch::asm!("mov {}, gs:[{AT}]", out(reg) place, AT = const DIRECT_DEADLINE, options(readonly, nostack, preserves_flags));
        }
        place
    }

    /// Sets the address that [`Cpu::direct_deadline`] returns.
    ///
    /// # Safety
    /// The address is null, or that of the vCPU that is loaded here, and stays valid.
    #[inline(always)]
    pub unsafe fn set_direct_deadline(place: *mut u64) {
        // SAFETY: GS points to the block since `install`. The word is a shared atomic that only this CPU writes.
        unsafe { core::arch::asm!("mov gs:[{AT}], {}", in(reg) place, AT = const DIRECT_DEADLINE, options(nostack, preserves_flags)) };
    }

    /// Publishes to `exit.S` whether it delivers timer interrupts itself: while the timer is passed through to the
    /// loaded vCPU, and the processor delivers the vector that the guest has chosen.
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

    /// Sets the table from which `exit.S` answers CPUID.
    pub fn show_cpuid(&mut self, table: &'static Table) {
        self.cpuid = table;
    }

    /// Sets IA32_APIC_BASE of the loaded vCPU.
    pub fn set_apic_base(&mut self, base: u64) {
        /// Enabled and in xAPIC mode: memory-mapped ("Enabling or Disabling the Local APIC").
        const MODE: u64 = 0b11 << 10;
        const XAPIC: u64 = 0b10 << 10;
        self.apic_base = base;
        self.apic_page = if base & MODE == XAPIC { base >> 12 } else { NO_PAGE };
    }

    /// Whether the loaded vCPU's local APIC is on, in either mode.
    #[inline(always)]
    pub fn has_apic(&self) -> bool {
        self.apic_base & 1 << 11 != 0
    }

    /// Whether the loaded vCPU's local APIC is in x2APIC mode.
    #[inline(always)]
    pub fn has_x2apic(&self) -> bool {
        self.apic_base & 1 << 10 != 0
    }

    /// Takes Stile's own interrupts noted since the last call: bit n for vector [`apic::vector::POSTED`] + n.
    pub fn take_noted(&self) -> u8 {
        self.local.map_or(0, |local| local.noted.swap(0, Ordering::Relaxed))
    }

    /// Returns the noted interrupts of Stile's own, as [`take_noted`](Self::take_noted) does, without taking them.
    #[inline(always)]
    pub fn noted(&self) -> u8 {
        self.local.map_or(0, |local| local.noted.load(Ordering::Relaxed))
    }

    /// Clears the noted interrupts, which have been handled. Interrupts have been masked since they were read.
    #[inline(always)]
    #[allow(dead_code, reason = "VMX does not use it")]
    pub fn end_noted(&self) {
        if let Some(local) = self.local {
            local.noted.store(0, Ordering::Relaxed);
        }
    }

    /// Takes the messages of PCI functions noted since the last call in a word of the mask: bit n of word m is vector
    /// [`apic::vector::FIRST_MESSAGE`] + 64 * m + n.
    #[inline(always)]
    pub fn take_messages(&self, word: usize) -> u64 {
        let Some(messages) = self.local.and_then(|local| local.messages.get(word)) else { return 0 };
        // Most words are empty, and a load is cheaper than an exchange.
        if messages.load(Ordering::Relaxed) == 0 { 0 } else { messages.swap(0, Ordering::Relaxed) }
    }

    /// Returns the only noted message of a PCI function, as its vector's distance from [`apic::vector::FIRST_MESSAGE`]; `None` if there are
    /// none or several.
    #[inline(always)]
    #[allow(dead_code, reason = "VMX assigns no PCI functions")]
    pub fn only_message(&self) -> Option<usize> {
        let words = self.local?.messages.each_ref().map(|word| word.load(Ordering::Relaxed));
        let word = words.iter().position(|&word| word != 0)?;
        let is_only = words[word].is_power_of_two() && words.iter().skip(word + 1).all(|&later| later == 0);
        is_only.then_some(64 * word + words[word].trailing_zeros() as usize)
    }

    /// Clears the message that [`only_message`](Self::only_message) returned. Interrupts must have stayed masked since then.
    #[inline(always)]
    #[allow(dead_code, reason = "VMX assigns no PCI functions")]
    pub fn end_message(&self, number: usize) {
        if let Some(word) = self.local.and_then(|local| local.messages.get(number / 64)) {
            word.store(0, Ordering::Relaxed);
        }
    }

    /// Whether any interrupts are noted.
    pub fn has_noted(&self) -> bool {
        self.noted() != 0
    }
}
