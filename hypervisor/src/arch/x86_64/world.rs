//! Load and put: a vCPU's state going onto a CPU and coming off it. Nothing here runs at exit or entry.
//!
//! What is in the VMCS moves with it. The rest (FP and SIMD registers, MSRs that neither Stile nor the VMCS uses, CR2, debug registers)
//! belongs to the vCPU that is loaded, also while Stile runs: Stile never uses them.

use core::arch::asm;

use stile_blob::Mode;
use stile_firmware::multiboot;

use super::cpu::{Cpu, gpr};
use super::cr0::{self, ET, NE, PE, PG};
use super::instructions::{CpuidResult, cpuid, msr, rdmsr, read_cr, wrmsr};
use super::virtual_apic::AccessPage;
use super::vmcs::{self, Field};
use super::{exit, idt, vmx};

/// How a vCPU starts.
#[derive(Clone, Copy)]
enum Start {
    /// In real mode, at the beginning of a page below 1 MiB.
    Real { page: u8 },
    /// In protected mode without paging.
    Protected { pc: u64 },
    /// In 64-bit mode.
    Long { pc: u64, tables: u64 },
}

/// MSRs that move at load and put, and only if they differ.
const MSRS: [u32; 6] = [msr::STAR, msr::LSTAR, msr::CSTAR, msr::FMASK, msr::KERNEL_GS_BASE, msr::TSC_AUX];
/// TSC_AUX is the last of them, and not on all CPUs.
fn msrs() -> usize {
    let has_rdtscp = cpuid(0x8000_0001, 0).edx & 1 << 27 != 0;
    if has_rdtscp { MSRS.len() } else { MSRS.len() - 1 }
}

/// Bytes for FP, SIMD and other state that XSAVE knows: x87, SSE, AVX, AVX-512, and room.
const XSAVE: usize = 4096;

/// The values of a vCPU's registers while it is not loaded.
#[repr(C, align(64))]
pub struct World {
    /// XSAVE's area; at the start, because it must be aligned.
    extended: [u8; XSAVE],
    /// General registers by number. While the vCPU is loaded they are in the guest or in the CPU's frame.
    pub general: [u64; 16],
    /// Physical address of the VMCS.
    vmcs: u64,
    /// The CPU whose block and tables the VMCS names as the host's, counted from 1; 0 for none.
    host: usize,
    /// The vCPU was reset and has not been loaded since: its VMCS is to be written anew.
    fresh: bool,
    start: Start,
    /// What is added to the counter for the guest. After that the VMCS keeps it.
    pub tsc_offset: u64,
    vpid: u16,
    msrs: [u64; MSRS.len()],
    cr2: u64,
    debug: [u64; 4],
    dr6: u64,
    /// XCR0 as the guest has it.
    pub xcr0: u64,
    /// The vCPU waits by HLT, which is behind it.
    pub halted: bool,
}

/// What a VMCS needs to know of its VM.
pub struct Place {
    /// EPT pointer.
    pub ept: u64,
    /// Physical addresses of the I/O bitmaps and the MSR bitmap.
    pub io_bitmaps: [u64; 2],
    /// As above.
    pub msr_bitmap: u64,
    /// The MSR bitmap of vCPUs in x2APIC mode, if the processor answers some of its registers.
    pub x2apic_bitmap: u64,
    /// Where local APICs are in memory, if the processor answers for them.
    pub apic_access: Option<AccessPage>,
}

/// Access rights of segments (the manual, "Format of Access Rights").
mod rights {
    pub const CODE_32: u64 = 0xc09b;
    pub const CODE_64: u64 = 0xa09b;
    pub const CODE_16: u64 = 0x9b;
    pub const DATA_16: u64 = 0x93;
    pub const DATA: u64 = 0xc093;
    pub const TASK: u64 = 0x8b;
    pub const LDT: u64 = 0x82;
}

/// CR4 bits that guests have: VME, PVI, TSD, DE, PSE, PAE, MCE, PGE, PCE, OSFXSR, OSXMMEXCPT, FSGSBASE, PCIDE, OSXSAVE, SMEP, SMAP. Those that
/// the CPU does not have it refuses itself.
const CR4_OWNED: u64 = 0x7ff | 1 << 16 | 1 << 17 | 1 << 18 | 1 << 20 | 1 << 21;
const PAE: u64 = 1 << 5;
const LME_LMA: u64 = 1 << 8 | 1 << 10;
/// The PAT after reset.
const PAT_RESET: u64 = 0x0007_0406_0007_0406;

impl World {
    /// Gives a new vCPU its VMCS and its identifier.
    pub fn setup(&mut self, vpid: u16) {
        self.vmcs = vmx::page_with_revision(vmx::features().revision);
        self.vpid = vpid;
        vmcs::clear(self.vmcs);
    }

    /// The state after reset, started in the given way.
    pub fn reset(&mut self, start: &crate::vm::Start) {
        self.reset_to(match start.mode {
            Mode::Long { tables } => Start::Long { pc: start.pc, tables },
            _ => Start::Protected { pc: start.pc },
        });
        match start.mode {
            Mode::Protected => {
                self.general[gpr::RAX] = multiboot::MAGIC.into();
                self.general[gpr::RBX] = start.info;
            }
            _ => self.general[gpr::RSI] = start.info,
        }
    }

    /// The state after INIT, started in real mode at a page.
    pub fn reset_to_page(&mut self, page: u8) {
        self.reset_to(Start::Real { page });
    }

    fn reset_to(&mut self, start: Start) {
        self.general = [0; 16];
        // After INIT and reset: family, model and stepping.
        self.general[gpr::RDX] = cpuid(1, 0).eax.into();
        self.start = start;
        self.extended.fill(0);
        // FCW and MXCSR as FNINIT and a reset leave them (the manual, "Processor State Following Power-up"); legacy area.
        self.extended[0..2].copy_from_slice(&0x37fu16.to_le_bytes());
        self.extended[24..28].copy_from_slice(&0x1f80u32.to_le_bytes());
        // XSTATE_BV: x87 and SSE are there.
        self.extended[512] = 0b11;
        self.msrs = [0; MSRS.len()];
        self.cr2 = 0;
        self.debug = [0; 4];
        self.dr6 = 0xffff_0ff0;
        self.xcr0 = 1;
        self.halted = false;
        self.fresh = true;
        self.host = 0;
    }

    /// Puts everything but the general registers and the interrupts onto this CPU. Returns whether the vCPU was reset since it was loaded
    /// last, so that the VMCS is a new one.
    pub fn load(&mut self, cpu: &mut Cpu, place: &Place) -> bool {
        vmcs::make_current(self.vmcs);
        cpu.launched = 0;
        let fresh = core::mem::take(&mut self.fresh);
        if fresh {
            self.write_controls(place);
            self.write_guest();
        }
        if self.host != cpu.index + 1 {
            self.host = cpu.index + 1;
            write_host(cpu);
            // What this CPU remembers of the identifier is from another time.
            vmx::forget_vpid(self.vpid.into());
            vmx::forget_ept(place.ept);
        }
        for (&register, &value) in MSRS.iter().zip(&self.msrs).take(msrs()) {
            // SAFETY: the CPU has the register; the value is one that it had with this guest, or zero. Stile does not use it.
            unsafe {
                if rdmsr(register) != value {
                    wrmsr(register, value);
                }
            }
        }
        self.load_debug();
        self.load_extended();
        fresh
    }

    /// The reverse of [`World::load`].
    pub fn put(&mut self, cpu: &mut Cpu) {
        for (&register, value) in MSRS.iter().zip(&mut self.msrs).take(msrs()) {
            // SAFETY: the CPU has the register.
            *value = unsafe { rdmsr(register) };
        }
        self.cr2 = read_cr!("cr2");
        self.save_debug();
        self.save_extended();
        vmcs::clear(self.vmcs);
        cpu.launched = 0;
    }

    /// The next entry is to launch the VMCS, which is loaded here.
    pub fn launch_anew(&self, cpu: &mut Cpu) {
        vmcs::clear(self.vmcs);
        vmcs::make_current(self.vmcs);
        cpu.launched = 0;
    }

    /// Takes the VMCS off this CPU, whatever becomes of the rest.
    pub fn drop_vmcs(&self) {
        vmcs::clear(self.vmcs);
    }

    fn load_debug(&self) {
        let [a, b, c, d] = self.debug;
        // SAFETY: debug registers and CR2 are the guest's; without DR7, which the VMCS has, they do nothing.
        unsafe {
            asm!(
                "mov cr2, {cr2}", "mov dr0, {a}", "mov dr1, {b}", "mov dr2, {c}", "mov dr3, {d}", "mov dr6, {dr6}",
                cr2 = in(reg) self.cr2, a = in(reg) a, b = in(reg) b, c = in(reg) c, d = in(reg) d, dr6 = in(reg) self.dr6,
                options(nostack, preserves_flags)
            );
        }
    }

    fn save_debug(&mut self) {
        let [a, b, c, d]: [u64; 4];
        // SAFETY: reading changes nothing.
        unsafe {
            asm!(
                "mov {a}, dr0", "mov {b}, dr1", "mov {c}, dr2", "mov {d}, dr3", "mov {dr6}, dr6",
                a = out(reg) a, b = out(reg) b, c = out(reg) c, d = out(reg) d, dr6 = out(reg) self.dr6,
                options(nostack, preserves_flags)
            );
        }
        self.debug = [a, b, c, d];
    }

    fn load_extended(&mut self) {
        let area = self.extended.as_ptr();
        // SAFETY: the area is aligned, of the size that `fits` has checked, and was written by XSAVE or `reset`; XCR0 takes what CPUID
        // says is there, and what the guest could set.
        unsafe {
            if has_xsave() {
                write_xcr0(supported_xcr0());
                asm!("xrstor64 [{}]", in(reg) area, in("eax") u32::MAX, in("edx") u32::MAX, options(nostack));
                write_xcr0(self.xcr0);
            } else {
                asm!("fxrstor64 [{}]", in(reg) area, options(nostack));
            }
        }
    }

    fn save_extended(&mut self) {
        let area = self.extended.as_mut_ptr();
        // SAFETY: as above.
        unsafe {
            if has_xsave() {
                write_xcr0(supported_xcr0());
                asm!("xsave64 [{}]", in(reg) area, in("eax") u32::MAX, in("edx") u32::MAX, options(nostack));
            } else {
                asm!("fxsave64 [{}]", in(reg) area, options(nostack));
            }
        }
    }

    /// All controls but those that depend on the local APIC: see `virtual_apic.rs`.
    fn write_controls(&self, place: &Place) {
        let features = vmx::features();
        let fields = [
            (Field::EXIT_CONTROLS, features.exit.into()),
            (Field::VPID, self.vpid.into()),
            (Field::EPT_POINTER, place.ept),
            (Field::IO_BITMAP_A, place.io_bitmaps[0]),
            (Field::IO_BITMAP_B, place.io_bitmaps[1]),
            // What the guest's instructions cause is the guest's, but for what may never end.
            (Field::EXCEPTION_BITMAP, super::handler::EXCEPTIONS),
            (Field::PAGE_FAULT_MASK, 0),
            (Field::PAGE_FAULT_MATCH, 0),
            (Field::CR3_TARGETS, 0),
            (Field::EXIT_MSR_STORES, 0),
            (Field::EXIT_MSR_LOADS, 0),
            (Field::ENTRY_MSR_LOADS, 0),
            (Field::ENTRY_INTERRUPTION, 0),
            (Field::VMCS_LINK, u64::MAX),
            (Field::CR0_MASK, cr0::HELD),
            (Field::CR4_MASK, !CR4_OWNED),
        ];
        for (field, value) in fields {
            vmcs::write(field, value);
        }
    }

    /// The guest's part of the VMCS at its start (the manual, "Processor State Following Power-up, Reset, or INIT", and for modes other
    /// than that the boot protocols).
    fn write_guest(&self) {
        let (pc, cr0, cr3, cr4, efer) = match self.start {
            Start::Real { .. } => (0, ET | NE, 0, 0, 0),
            Start::Protected { pc } => (pc, PE | ET | NE, 0, 0, 0),
            Start::Long { pc, tables } => (pc, PE | ET | NE | PG, tables, PAE, LME_LMA),
        };
        let long = efer != 0;
        match self.start {
            Start::Real { page } => write_segments((u64::from(page) << 8, rights::CODE_16), (0, rights::DATA_16), 0xffff),
            Start::Protected { .. } => write_segments((CODE, rights::CODE_32), (DATA, rights::DATA), u32::MAX.into()),
            Start::Long { .. } => write_segments((CODE, rights::CODE_64), (DATA, rights::DATA), u32::MAX.into()),
        }
        let fields = [
            (Field::ENTRY_CONTROLS, u64::from(vmx::features().entry | if long { vmx::entry::IA32E_GUEST } else { 0 })),
            (Field::GUEST_CR0, cr0),
            (Field::CR0_SHADOW, cr0),
            (Field::GUEST_CR3, cr3),
            (Field::GUEST_CR4, cr4 | vmx::features().cr4.0),
            (Field::CR4_SHADOW, cr4),
            (Field::GUEST_EFER, efer),
            (Field::GUEST_PAT, PAT_RESET),
            (Field::GUEST_RIP, pc),
            (Field::GUEST_RSP, 0),
            (Field::GUEST_RFLAGS, 1 << 1),
            (Field::GUEST_DR7, 0x400),
            (Field::GUEST_DEBUGCTL, 0),
            (Field::GUEST_INTERRUPTIBILITY, 0),
            (Field::GUEST_ACTIVITY, 0),
            (Field::GUEST_PENDING_DEBUG, 0),
            (Field::TSC_OFFSET, self.tsc_offset),
            (Field::GUEST_SYSENTER_CS, 0),
            (Field::GUEST_SYSENTER_ESP, 0),
            (Field::GUEST_SYSENTER_EIP, 0),
        ];
        for (field, value) in fields {
            vmcs::write(field, value);
        }
    }
}

/// Selectors as the boot protocols have them.
const CODE: u64 = 0x10;
/// As above.
const DATA: u64 = 0x18;

/// Segments: selector and access rights of code and of data. Only a code segment of real mode, whose selector is its base, is not flat.
fn write_segments(code: (u64, u64), data: (u64, u64), limit: u64) {
    let data_segments = [
        (Field::GUEST_ES, Field::GUEST_ES_BASE, Field::GUEST_ES_LIMIT, Field::GUEST_ES_RIGHTS),
        (Field::GUEST_SS, Field::GUEST_SS_BASE, Field::GUEST_SS_LIMIT, Field::GUEST_SS_RIGHTS),
        (Field::GUEST_DS, Field::GUEST_DS_BASE, Field::GUEST_DS_LIMIT, Field::GUEST_DS_RIGHTS),
        (Field::GUEST_FS, Field::GUEST_FS_BASE, Field::GUEST_FS_LIMIT, Field::GUEST_FS_RIGHTS),
        (Field::GUEST_GS, Field::GUEST_GS_BASE, Field::GUEST_GS_LIMIT, Field::GUEST_GS_RIGHTS),
    ];
    for (selector, base, size, access) in data_segments {
        vmcs::write(selector, data.0);
        vmcs::write(base, 0);
        vmcs::write(size, limit);
        vmcs::write(access, data.1);
    }
    let fields = [
        (Field::GUEST_CS, code.0),
        (Field::GUEST_CS_BASE, if limit == 0xffff { code.0 << 4 } else { 0 }),
        (Field::GUEST_CS_LIMIT, limit),
        (Field::GUEST_CS_RIGHTS, code.1),
        (Field::GUEST_TR, 0),
        (Field::GUEST_TR_BASE, 0),
        (Field::GUEST_TR_LIMIT, 0xffff),
        (Field::GUEST_TR_RIGHTS, rights::TASK),
        (Field::GUEST_LDTR, 0),
        (Field::GUEST_LDTR_BASE, 0),
        (Field::GUEST_LDTR_LIMIT, 0xffff),
        (Field::GUEST_LDTR_RIGHTS, rights::LDT),
        (Field::GUEST_GDTR_BASE, 0),
        (Field::GUEST_GDTR_LIMIT, 0xffff),
        (Field::GUEST_IDTR_BASE, 0),
        (Field::GUEST_IDTR_LIMIT, 0xffff),
    ];
    for (field, value) in fields {
        vmcs::write(field, value);
    }
}

/// The host's part of the VMCS: written when a vCPU comes to a CPU, and not again while it stays.
fn write_host(cpu: &Cpu) {
    let fields = [
        (Field::HOST_CR0, read_cr!("cr0")),
        (Field::HOST_CR3, read_cr!("cr3")),
        (Field::HOST_CR4, read_cr!("cr4")),
        (Field::HOST_CS, super::cpu::CODE.into()),
        (Field::HOST_SS, super::cpu::DATA.into()),
        (Field::HOST_DS, super::cpu::DATA.into()),
        (Field::HOST_ES, super::cpu::DATA.into()),
        (Field::HOST_FS, 0),
        (Field::HOST_GS, 0),
        (Field::HOST_TR, super::cpu::TASK.into()),
        (Field::HOST_FS_BASE, 0),
        (Field::HOST_GS_BASE, &raw const *cpu as u64),
        (Field::HOST_TR_BASE, cpu.tss_base()),
        (Field::HOST_GDTR_BASE, cpu.gdt_base()),
        (Field::HOST_IDTR_BASE, idt::base()),
        (Field::HOST_SYSENTER_ESP, 0),
        (Field::HOST_SYSENTER_EIP, 0),
        // SAFETY: every CPU in 64-bit mode has these two.
        (Field::HOST_EFER, unsafe { rdmsr(msr::IA32_EFER) }),
        // SAFETY: as above.
        (Field::HOST_PAT, unsafe { rdmsr(msr::IA32_PAT) }),
        (Field::HOST_RSP, &raw const *cpu as u64),
        (Field::HOST_RIP, exit::entry_point()),
    ];
    for (field, value) in fields {
        vmcs::write(field, value);
    }
}

fn has_xsave() -> bool {
    cpuid(1, 0).ecx & 1 << 26 != 0
}

/// The state components that guests may have: those in XCR0 that the area has room for.
pub fn supported_xcr0() -> u64 {
    /// x87, SSE, AVX; the three of AVX-512.
    const KNOWN: u64 = 0b1110_0111;
    let leaf = cpuid(0xd, 0);
    (u64::from(leaf.edx) << 32 | u64::from(leaf.eax)) & KNOWN
}

/// Bytes that the standard form of XSAVE's area takes for these components.
pub fn xsave_size(components: u64) -> u32 {
    /// Legacy area and header.
    const LEAST: u32 = 576;
    let end = |component: u32| {
        let CpuidResult { eax: size, ebx: offset, .. } = cpuid(0xd, component);
        size + offset
    };
    (2..63).filter(|component| components >> component & 1 != 0).map(end).fold(LEAST, u32::max)
}

/// Writes XCR0.
///
/// # Safety
/// This CPU has XSAVE, and the value is one that XCR0 takes.
pub unsafe fn write_xcr0(value: u64) {
    // SAFETY: the caller's promise.
    unsafe { asm!("xsetbv", in("ecx") 0, in("eax") value as u32, in("edx") (value >> 32) as u32, options(nostack, preserves_flags)) };
}
