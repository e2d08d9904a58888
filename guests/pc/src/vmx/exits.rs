//! Entries and exits: instructions that always exit, state that is saved and loaded, MSR areas.

use core::arch::asm;

use pc::machine::rdmsr;

use crate::field::{self, entry, exit, primary};
use crate::instructions::{SCRATCH_MSR, set_scratch};
use crate::test::{Outcome, Test, check, is_guest, same};
use crate::vmcs::{
    self, AREA, BITMAP, Done, EPT, Registers, allowed, clear, code, enable, enable_ept, fresh, get, page, poke, run, set, vmread,
};

pub const ALL: &[Test] = &[
    ("registers_cross", registers_cross),
    ("cpuid_exits", cpuid_exits),
    ("unconditional_exits", unconditional),
    ("vmx_instructions_of_l2", vmx_instructions),
    ("operands_of_vmx_instructions", operands),
    ("triple_fault", triple_fault),
    ("host_state", host_state),
    ("guest_state", guest_state),
    ("failed_entries_change_nothing", failed_entry),
    ("efer_of_l2", efer),
    ("msr_areas", msr_areas),
    ("msr_areas_that_fail", msr_areas_fail),
    ("msr_areas_that_fail_undo", msr_areas_undo),
    ("time_stamp_in_msr_area", time_stamp),
    ("segments_that_l2_changed", changed_segments),
    ("instruction_pointer_that_wraps", wraps),
    ("many_entries", many),
];

/// Runs code from its start, with a fresh VMCS.
pub fn go(code: u64) -> Result<u64, Done> {
    fresh(code);
    run(&mut [0; 8], false)
}

pub const VMCALL: Result<u64, Done> = Ok(18);

fn registers_cross() -> Outcome {
    fresh(code!("add rax, 1", "add rcx, 2", "add rdx, 3", "add rbx, 4", "add rbp, 5", "add rsi, 6", "add rdi, 7", "add r8, 8"));
    let mut registers: Registers = core::array::from_fn(|n| n as u64 * 0x0101_0101_0101_0101);
    let before = registers;
    same!(run(&mut registers, false), VMCALL, "the exit");
    for (n, (after, before)) in (1..).zip(registers.into_iter().zip(before)) {
        same!(after, before + n, "a register");
    }
    Outcome::Pass
}

fn cpuid_exits() -> Outcome {
    let start = code!("cpuid");
    fresh(start);
    let mut registers = [1, 2, 3, 4, 5, 6, 7, 8];
    same!(run(&mut registers, false), Ok(10), "the exit");
    same!(registers, [1, 2, 3, 4, 5, 6, 7, 8], "registers");
    same!(get(field::GUEST_RIP), start, "RIP");
    same!(get(field::EXIT_LENGTH), 2, "the length");
    same!(get(field::EXIT_QUALIFICATION), 0, "the qualification");
    same!(get(field::VECTORING), 0, "IDT-vectoring information");
    set(field::GUEST_RIP, start + 2);
    same!(run(&mut registers, true), VMCALL, "after the instruction");
    same!(get(field::GUEST_RIP), start + 2, "RIP of VMCALL");
    // Prefixes are part of the instruction.
    let start = code!(".byte 0x66, 0x0f, 0xa2");
    same!(go(start), Ok(10), "CPUID with a prefix");
    same!(get(field::EXIT_LENGTH), 3, "the length with a prefix");
    Outcome::Pass
}

fn unconditional() -> Outcome {
    same!(go(code!("invd")), Ok(13), "INVD");
    same!(get(field::EXIT_LENGTH), 2, "the length of INVD");
    same!(go(code!("nop")), VMCALL, "VMCALL");
    same!(get(field::EXIT_LENGTH), 3, "the length of VMCALL");
    // Without MSR bitmaps, each access exits.
    same!(go(code!("mov ecx, 0xc0000102", "rdmsr")), Ok(31), "RDMSR");
    same!(go(code!("mov ecx, 0xc0000102", "wrmsr")), Ok(32), "WRMSR");
    Outcome::Pass
}

fn vmx_instructions() -> Outcome {
    same!(go(code!("vmlaunch")), Ok(20), "VMLAUNCH");
    same!(go(code!("vmresume")), Ok(24), "VMRESUME");
    same!(go(code!("vmxoff")), Ok(26), "VMXOFF");
    same!(go(code!("vmread rax, rcx")), Ok(23), "VMREAD");
    same!(go(code!("vmwrite rax, rcx")), Ok(25), "VMWRITE");
    same!(go(code!("vmptrst [rsp]")), Ok(22), "VMPTRST");
    same!(go(code!("vmptrld [rsp]")), Ok(21), "VMPTRLD");
    same!(go(code!("vmclear [rsp]")), Ok(19), "VMCLEAR");
    same!(go(code!("vmxon [rsp]")), Ok(27), "VMXON");
    if vmcs::may(field::SECONDARY_CONTROLS, field::secondary::EPT) {
        same!(go(code!("invept rax, [rsp]")), Ok(50), "INVEPT");
    }
    if vmcs::may(field::SECONDARY_CONTROLS, field::secondary::VPID) {
        same!(go(code!("invvpid rax, [rsp]")), Ok(53), "INVVPID");
    }
    Outcome::Pass
}

fn operands() -> Outcome {
    /// Address size of 64 bits, and segment DS.
    const DS_64: u64 = 2 << 7 | 3 << 15;
    const NO_INDEX: u64 = 1 << 22;
    const NO_BASE: u64 = 1 << 27;
    // Bits that the SDM leaves undefined depend on the instruction.
    const MEMORY: u64 = 0x3 | 7 << 7 | 1 << 10 | 7 << 15 | 0xf << 18 | 1 << 22 | 0xf << 23 | 1 << 27;
    same!(go(code!("vmptrld [rbx + 4 * rcx + 0x120]")), Ok(21), "VMPTRLD");
    same!(get(field::EXIT_INSTRUCTION) & MEMORY, 2 | DS_64 | 1 << 18 | 3 << 23, "base, index and scale");
    same!(get(field::EXIT_QUALIFICATION), 0x120, "the displacement");
    same!(go(code!("vmptrld [rbx - 8]")), Ok(21), "VMPTRLD");
    same!(get(field::EXIT_QUALIFICATION), (-8i64) as u64, "a negative displacement");
    same!(get(field::EXIT_INSTRUCTION) & (NO_INDEX | NO_BASE), NO_INDEX, "no index");
    same!(go(code!("vmread [r9], r10")), Ok(23), "VMREAD");
    let information = get(field::EXIT_INSTRUCTION);
    same!(information >> 28 & 0xf, 10, "the field's register");
    same!(information & 1 << 10, 0, "a memory operand");
    same!(information >> 23 & 0xf, 9, "the base");
    same!(go(code!("vmread r14, r15")), Ok(23), "VMREAD");
    let information = get(field::EXIT_INSTRUCTION);
    same!(information >> 10 & 1, 1, "a register operand");
    same!(information >> 3 & 0xf, 14, "the register");
    same!(information >> 28 & 0xf, 15, "the field's register");
    same!(go(code!("vmclear fs:[eax]")), Ok(19), "VMCLEAR");
    same!(get(field::EXIT_INSTRUCTION) >> 7 & 7, 1, "32-bit addresses");
    same!(get(field::EXIT_INSTRUCTION) >> 15 & 7, 4, "the segment");
    Outcome::Pass
}

fn triple_fault() -> Outcome {
    fresh(code!("ud2"));
    set(field::GUEST_IDTR_LIMIT, 0);
    same!(run(&mut [0; 8], false), Ok(2), "the exit");
    Outcome::Pass
}

fn host_state() -> Outcome {
    fresh(code!("nop"));
    set(field::HOST_GS, 0x10);
    set(0x6c08, 0x1234_5678_9abc);
    set(field::HOST_SYSENTER_EIP, 0xffff_8000_0000_1000);
    set(0x4c00, 0x55);
    let cr3: u64;
    // SAFETY: reading changes nothing; the debug registers are not in use.
    unsafe { asm!("mov {}, cr3", "mov {1}, 0x401", "mov dr7, {1}", out(reg) cr3, out(reg) _) };
    same!(run(&mut [0; 8], false), VMCALL, "the exit");
    let (mut gdt, mut idt) = ([0u16; 5], [0u16; 5]);
    let (dr7, cr3_after, gs, flags): (u64, u64, u64, u64);
    // SAFETY: SGDT and SIDT store ten bytes each into the arrays; the other instructions only read registers.
    unsafe {
        asm!("sgdt [{}]", "sidt [{}]", in(reg) &mut gdt, in(reg) &mut idt);
        asm!("mov {}, dr7", "mov {}, cr3", "mov {2:e}, gs", "pushfq", "pop {3}", out(reg) dr7, out(reg) cr3_after, out(reg) gs, out(reg) flags);
    }
    check!(gdt[0] == 0xffff && idt[0] == 0xffff, "limits of GDTR and IDTR");
    same!(dr7, 0x400, "DR7");
    same!(cr3_after, cr3, "CR3");
    same!(gs, 0x10, "GS");
    same!(flags & 0x3f_7700, 0, "RFLAGS");
    // SAFETY: all x86-64 CPUs have these MSRs, and reading them has no side effect.
    let (base, eip, cs) = unsafe { (rdmsr(0xc000_0101), rdmsr(0x176), rdmsr(0x174)) };
    same!(base, 0x1234_5678_9abc, "GS's base");
    same!(eip, 0xffff_8000_0000_1000, "IA32_SYSENTER_EIP");
    same!(cs, 0x55, "IA32_SYSENTER_CS");
    Outcome::Pass
}

fn guest_state() -> Outcome {
    let start = code!("mov eax, 0x10", "mov fs, eax", "mov rsp, 0x123456", "std", "mov eax, 0x401", "mov dr7, rax");
    fresh(start);
    set(0x680e, 0x7777);
    set(0x6810, 0x1_2345_6789);
    same!(run(&mut [0; 8], false), VMCALL, "the exit");
    same!(get(field::GUEST_RSP), 0x12_3456, "RSP");
    same!(get(field::GUEST_RFLAGS) & 1 << 10, 1 << 10, "RFLAGS.DF");
    same!(get(0x808), 0x10, "FS");
    same!(get(field::GUEST_FS_RIGHTS), 0xc093, "FS's access rights");
    same!(get(0x680e), 0, "FS's base");
    same!(get(0x6810), 0x1_2345_6789, "GS's base");
    same!(get(field::GUEST_CS_RIGHTS), 0xa09b, "CS's access rights");
    same!(get(field::GUEST_ACTIVITY), 0, "the activity state");
    same!(get(field::GUEST_INTERRUPTIBILITY), 0, "the interruptibility state");
    if allowed(field::EXIT_CONTROLS).0 & 1 << 2 != 0 {
        same!(get(field::GUEST_DR7), 0x401, "DR7");
    }
    Outcome::Pass
}

fn failed_entry() -> Outcome {
    fresh(code!("nop"));
    set(field::GUEST_TR_RIGHTS, 0);
    set(field::GUEST_RSP, 0x1234);
    set(field::ENTRY_INTERRUPTION, 0x8000_0306);
    let before = get(field::GUEST_RIP);
    let mut registers = [9; 8];
    same!(run(&mut registers, false), Ok(0x8000_0021), "the exit");
    same!(get(field::EXIT_QUALIFICATION), 0, "the qualification");
    same!((get(field::GUEST_RIP), get(field::GUEST_RSP)), (before, 0x1234), "guest state");
    same!(get(field::ENTRY_INTERRUPTION), 0x8000_0306, "the event to inject");
    same!(registers, [9; 8], "registers");
    Outcome::Pass
}

fn efer() -> Outcome {
    const EFER: u32 = 0xc000_0080;
    const SCE: u64 = 1 << 0;
    // SAFETY: all x86-64 CPUs have this MSR, and reading it has no side effect.
    let of_l1 = unsafe { rdmsr(EFER) };
    fresh(code!("nop"));
    if !vmcs::may(field::ENTRY_CONTROLS, entry::LOAD_EFER) || !vmcs::may(field::EXIT_CONTROLS, exit::SAVE_EFER | exit::LOAD_EFER) {
        return Outcome::Skip("EFER is not loaded and stored");
    }
    set(field::GUEST_EFER, of_l1 ^ SCE);
    same!(run(&mut [0; 8], false), VMCALL, "the exit");
    same!(get(field::GUEST_EFER), of_l1 ^ SCE, "the stored EFER");
    // SAFETY: all x86-64 CPUs have this MSR, and reading it has no side effect.
    same!(unsafe { rdmsr(EFER) }, of_l1, "L1's EFER");
    Outcome::Pass
}

/// Writes an entry of an MSR area.
pub fn area(number: usize, msr: u64, value: u64) {
    poke(AREA, 2 * number, msr);
    poke(AREA, 2 * number + 1, value);
}

fn area_value(number: usize) -> u64 {
    // SAFETY: an aligned word of the MSR area, a page of which `number` is an entry; L2 does not run now.
    unsafe { (page(AREA) as *const u64).add(2 * number + 1).read_volatile() }
}

const MSR: u64 = SCRATCH_MSR as u64;

/// A list that stores the time of an exit.
fn time_stamp() -> Outcome {
    const TSC: u64 = 0x10;
    // SAFETY: the instruction has no effect on memory.
    let now = || unsafe { core::arch::x86_64::_rdtsc() };
    fresh(code!("nop"));
    area(0, TSC, 0);
    set(field::EXIT_MSR_STORES, 1);
    set(field::EXIT_MSR_STORE_AREA, page(AREA));
    let before = now();
    same!(run(&mut [0; 8], false), VMCALL, "the exit");
    check!((before..now()).contains(&area_value(0)), "the stored time");
    Outcome::Pass
}

/// L2 loads a stack segment with byte granularity. L1, which has not read its limit, changes a control, and then CR0.
fn changed_segments() -> Outcome {
    const SS_LIMIT: u64 = field::GUEST_ES_LIMIT + 4;
    let (start, next) = (code!("mov eax, 8", "mov ss, eax"), code!("nop"));
    fresh(start);
    poke(EPT, 0, 0);
    poke(EPT, 1, 0x0000_9300_0000_ffff);
    set(field::GUEST_GDTR_BASE, page(EPT));
    set(field::GUEST_GDTR_LIMIT, 15);
    same!(run(&mut [0; 8], false), VMCALL, "the first exit");
    set(field::GUEST_RIP, next);
    check!(enable(field::PRIMARY_CONTROLS, primary::HLT), "exits by HLT");
    same!(run(&mut [0; 8], true), VMCALL, "the exit after a change of a control");
    set(field::GUEST_RIP, next);
    set(field::GUEST_CR0, get(field::GUEST_CR0));
    same!(run(&mut [0; 8], true), VMCALL, "the exit after a write of CR0");
    same!((get(SS_LIMIT), get(field::GUEST_SS)), (0xffff, 8), "the stack segment");
    Outcome::Pass
}

fn msr_areas() -> Outcome {
    fresh(code!("swapgs", "swapgs"));
    area(0, MSR, 0x1111);
    area(1, 0xc000_0082, 0x2222);
    area(2, MSR, 0x4444);
    area(4, MSR, 0x3333);
    set(field::ENTRY_MSR_LOADS, 3);
    set(field::ENTRY_MSR_LOAD_AREA, page(AREA));
    // The exit stores the values that an entry loaded, and loads another one.
    set(field::EXIT_MSR_STORES, 2);
    set(field::EXIT_MSR_STORE_AREA, page(AREA) + 5 * 16);
    area(5, MSR, 0);
    area(6, 0xc000_0082, 0);
    set(field::EXIT_MSR_LOADS, 1);
    set(field::EXIT_MSR_LOAD_AREA, page(AREA) + 4 * 16);
    set_scratch(0x9999);
    same!(run(&mut [0; 8], false), VMCALL, "the exit");
    same!(area_value(5), 0x4444, "the last value that the entry loaded");
    same!(area_value(6), 0x2222, "another MSR that the entry loaded");
    // SAFETY: all x86-64 CPUs have this MSR, and reading it has no side effect.
    same!(unsafe { rdmsr(SCRATCH_MSR) }, 0x3333, "what the exit loaded");
    Outcome::Pass
}

fn msr_areas_fail() -> Outcome {
    // IA32_FS_BASE, IA32_GS_BASE, a reserved bit, a value that is not canonical, the microcode's, an MSR that does not exist.
    let wrong = [(0xc000_0100, 0), (0xc000_0101, 0), (1 << 32 | MSR, 0), (MSR, 1 << 63), (0x79, 0), (0x4000_0000, 0)];
    // Bochs ignores writes to MSRs that it does not know.
    let count = if is_guest() { wrong.len() } else { 4 };
    for (msr, value) in wrong.into_iter().take(count) {
        fresh(code!("nop"));
        area(0, MSR, 5);
        area(1, msr, value);
        set(field::ENTRY_MSR_LOADS, 2);
        set(field::ENTRY_MSR_LOAD_AREA, page(AREA));
        let before = get(field::GUEST_RIP);
        same!(run(&mut [0; 8], false), Ok(0x8000_0022), "the exit");
        same!(get(field::EXIT_QUALIFICATION), 2, "the number of the entry");
        same!(get(field::GUEST_RIP), before, "RIP");
        // It is not launched.
        set(field::ENTRY_MSR_LOADS, 0);
        same!(run(&mut [0; 8], true), Err(Done::Fail(5)), "VMRESUME after an entry that failed");
    }
    Outcome::Pass
}

/// A list that fails at a later entry leaves no value of its first entries to L2.
fn msr_areas_undo() -> Outcome {
    const SYSENTER_ESP: u64 = 0x175;
    const OLD: u64 = 0x1111;
    let start = code!("mov ecx, 0x175", "rdmsr");
    fresh(code!("nop"));
    if !enable(field::PRIMARY_CONTROLS, primary::MSR_BITMAPS) {
        return Outcome::Skip("there is no MSR bitmap");
    }
    clear(BITMAP);
    set(field::MSR_BITMAP, page(BITMAP));
    set(field::GUEST_SYSENTER_ESP, OLD);
    same!(run(&mut [0; 8], false), VMCALL, "the first exit");
    area(0, SYSENTER_ESP, 0x2222);
    area(1, 1 << 32 | MSR, 0);
    set(field::ENTRY_MSR_LOADS, 2);
    set(field::ENTRY_MSR_LOAD_AREA, page(AREA));
    same!(run(&mut [0; 8], true), Ok(0x8000_0022), "the exit");
    set(field::ENTRY_MSR_LOADS, 0);
    set(field::GUEST_RIP, start);
    let mut registers = [0; 8];
    same!((run(&mut registers, true), registers[0]), (VMCALL, OLD), "what L2 reads");
    same!(get(field::GUEST_SYSENTER_ESP), OLD, "the field");
    Outcome::Pass
}

/// An instruction of 32-bit code ends at 4 GiB: the next one is at 0.
fn wraps() -> Outcome {
    const MEMORY: u64 = 32 << 20;
    const LAST: u64 = 0xffff_ffff;
    const LARGE_ALL: u64 = 1 << 7 | 6 << 3 | 7;
    /// Code of 32 bits.
    const CODE_32: u64 = 0xc09b;
    const TABLE: usize = EPT + 3;
    fresh(code!("nop"));
    if !enable_ept() {
        return Outcome::Skip("there is no EPT");
    }
    // The last large page below 4 GiB is memory.
    clear(TABLE);
    poke(TABLE, 511, MEMORY | LARGE_ALL);
    poke(EPT + 1, 3, page(TABLE) | 7);
    // SAFETY: the memory, and that at 0, is otherwise unused: `in al, dx`, and `vmcall`.
    unsafe {
        asm!("mov byte ptr [{}], 0xec", "mov dword ptr [{}], 0xc1010f", in(reg) MEMORY + (2 << 20) - 1, in(reg) 0_u64);
    }
    set(field::GUEST_CS_RIGHTS, CODE_32);
    set(field::GUEST_RIP, LAST);
    let mut registers = [0, 0, 0x80, 0, 0, 0, 0, 0];
    // Bochs 3.0 stores RIP with the carry into bit 32, which the next entry would refuse.
    let mask = if is_guest() { u64::MAX } else { 0xffff_ffff };
    let found = (run(&mut registers, false), get(field::GUEST_RIP) & mask);
    poke(EPT + 1, 3, 0);
    vmcs::invept(1, [get(field::EPT_POINTER), 0]);
    same!(found, (VMCALL, 0), "the exit, and RIP");
    Outcome::Pass
}

fn many() -> Outcome {
    let start = code!("inc rax");
    fresh(start);
    let mut registers = [0; 8];
    for n in 0..2000 {
        set(field::GUEST_RIP, start);
        same!(run(&mut registers, n != 0), VMCALL, "an exit");
    }
    same!(registers[0], 2000, "the number of entries");
    check!(vmread(field::EXIT_REASON) == Ok(18), "the reason");
    Outcome::Pass
}
