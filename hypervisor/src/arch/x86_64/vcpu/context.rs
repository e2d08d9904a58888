//! Load and put: a vCPU's state going onto a CPU and coming off it. Nothing here runs at exit or entry.
//!
//! State in the VMCS moves with it. The rest (FP and SIMD registers, MSRs that neither Stile nor the VMCS uses, CR2, debug registers)
//! belongs to the vCPU that is loaded, also while Stile runs: Stile never uses them.

use stile_blob::Mode;
use stile_firmware::multiboot;

use super::debug::Debug;
use super::extended::Extended;
use super::pauses::Pauses;
use super::start_state::Start;
use super::{cr0, host_state};
use crate::arch::x86_64::host::cpu::{Cpu, Launch, gpr};
use crate::arch::x86_64::host::instructions::{cpuid, msr, rdmsr, wrmsr};
use crate::arch::x86_64::host::vmcs::{self, Field};
use crate::arch::x86_64::host::vmx;
use crate::arch::x86_64::interrupts::virtual_apic::AccessPage;

/// MSRs that move at load and put, and only if they differ.
const MSRS: [u32; 6] = [msr::STAR, msr::LSTAR, msr::CSTAR, msr::FMASK, msr::KERNEL_GS_BASE, msr::TSC_AUX];
/// TSC_AUX is the last of them, and not on all CPUs.
fn msrs() -> usize {
    let has_rdtscp = cpuid(0x8000_0001, 0).edx & 1 << 27 != 0;
    if has_rdtscp { MSRS.len() } else { MSRS.len() - 1 }
}

/// The values of a vCPU's registers while it is not loaded.
#[repr(C)]
pub struct VcpuContext {
    /// FP and SIMD registers, and XCR0.
    pub extended: Extended,
    /// General registers by number. While the vCPU is loaded they are in the guest or in the CPU's frame.
    pub general: [u64; 16],
    /// Physical address of the VMCS.
    vmcs: u64,
    /// The CPU whose block and tables the VMCS names as the host's, counted from 1; 0 for none.
    host: usize,
    /// The vCPU was reset and has not been loaded since: its VMCS is to be written anew.
    fresh: bool,
    start: Start,
    /// Offset of the guest's counter, until the VMCS has it.
    pub tsc_offset: u64,
    /// The VMCS has another value: [`VcpuContext::set_tsc_offset`].
    tsc_moved: bool,
    vpid: u16,
    msrs: [u64; MSRS.len()],
    debug: Debug,
    /// The vCPU waits by HLT, which is behind it.
    pub halted: bool,
    /// Whether it exits as it waits by PAUSE.
    pub pauses: Pauses,
    /// The secondary control of VMCS shadowing, if it has a VMCS of its own in use.
    pub shadowing: u64,
}

/// The VM's part of a VMCS.
pub struct Place {
    /// EPT pointer.
    pub ept: u64,
    /// Physical addresses of the I/O bitmaps.
    pub io_bitmaps: [u64; 2],
    /// Those of the MSR bitmaps: IA32_TSC_DEADLINE exits, and does not.
    pub msr_bitmaps: [u64; 2],
    /// Those of vCPUs in x2APIC mode, if the processor answers some of its registers.
    pub x2apic_bitmaps: [u64; 2],
    /// Where local APICs are in memory, if the processor answers for them.
    pub apic_access: Option<AccessPage>,
}

/// CR4 bits that guests have: VME, PVI, TSD, DE, PSE, PAE, MCE, PGE, PCE, OSFXSR, OSXMMEXCPT, FSGSBASE, PCIDE, OSXSAVE, SMEP, SMAP. Those that
/// the CPU does not have it refuses itself.
pub const CR4_OWNED: u64 = 0x7ff | 1 << 16 | 1 << 17 | 1 << 18 | 1 << 20 | 1 << 21;

impl VcpuContext {
    /// Gives a new vCPU its identifier and its VMCS, a zeroed page.
    pub fn setup(&mut self, vpid: u16, vmcs: u64) {
        vmx::write_revision(vmcs, vmx::features().revision);
        self.vmcs = vmcs;
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
        self.extended.reset();
        self.msrs = [0; MSRS.len()];
        self.debug.reset();
        self.halted = false;
        self.fresh = true;
        self.host = 0;
    }

    /// Changes what is added to the counter for the guest. The vCPU is not loaded.
    pub fn set_tsc_offset(&mut self, offset: u64) {
        self.tsc_offset = offset;
        self.tsc_moved = true;
        // The next load takes the way of one on another CPU, so that others need not look.
        self.host = 0;
    }

    /// Puts everything but the general registers and the interrupts onto this CPU. Returns whether the vCPU was reset since it was loaded
    /// last, so that the VMCS is a new one.
    pub fn load(&mut self, cpu: &mut Cpu, place: &Place) -> bool {
        vmcs::make_current(self.vmcs);
        cpu.launched = Launch::CLEAR;
        let fresh = core::mem::take(&mut self.fresh);
        if fresh {
            self.write_controls(place);
            self.start.write(self.tsc_offset);
            self.pauses.reset(cpu.waiting_trapped);
            self.shadowing = 0;
        } else {
            self.pauses.trap(cpu.waiting_trapped);
        }
        if self.host != cpu.index + 1 {
            self.host = cpu.index + 1;
            host_state::write(cpu);
            // Translations of the identifier on this CPU are of another time.
            vmx::forget_vpid(self.vpid.into());
            vmx::forget_ept(place.ept);
            if core::mem::take(&mut self.tsc_moved) {
                vmcs::write(Field::TSC_OFFSET, self.tsc_offset);
            }
        }
        for (&register, &value) in MSRS.iter().zip(&self.msrs).take(msrs()) {
            // SAFETY: the CPU has the register; the value is one that it had with this guest, or zero. Stile does not use it.
            unsafe {
                if rdmsr(register) != value {
                    wrmsr(register, value);
                }
            }
        }
        self.debug.load();
        self.extended.load();
        fresh
    }

    /// Undoes [`VcpuContext::load`].
    pub fn put(&mut self, cpu: &mut Cpu) {
        for (&register, value) in MSRS.iter().zip(&mut self.msrs).take(msrs()) {
            // SAFETY: the CPU has the register.
            *value = unsafe { rdmsr(register) };
        }
        self.debug.put();
        self.extended.put();
        vmcs::clear(self.vmcs);
        cpu.launched = Launch::CLEAR;
    }

    /// Clears the VMCS, which is loaded here: the next entry is to launch it.
    pub fn clear_vmcs(&self) {
        vmcs::clear(self.vmcs);
        vmcs::make_current(self.vmcs);
    }

    /// Physical address of the VMCS.
    pub fn vmcs(&self) -> u64 {
        self.vmcs
    }

    /// Takes the VMCS off this CPU, whatever becomes of the rest.
    pub fn drop_vmcs(&self) {
        vmcs::clear(self.vmcs);
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
            // Exceptions of the guest's instructions are the guest's, but for those that may recur forever.
            (Field::EXCEPTION_BITMAP, crate::arch::x86_64::handler::EXCEPTIONS),
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
}
