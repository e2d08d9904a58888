//! Load and put of a vCPU's registers. Nothing here runs at exit or entry.
//!
//! State in the VMCS moves with it. The rest (FP and SIMD registers, MSRs that neither Stile nor the VMCS uses, CR2,
//! debug registers) stays that of the loaded vCPU while Stile runs, because Stile does not use it.

use stile_blob::Mode;
use stile_firmware::multiboot;
use stile_snapshot::x86_64::{self as saved, FIELDS, State, Vcpu};

use super::cr4::CR4_OWNED;
use super::debug::Debug;
use super::extended::Extended;
use super::guest_state::GuestState;
use super::pauses::Pauses;
use super::start_state::{Kept, Start};
use super::{cr0, host_state, inject};
use crate::arch::x86_64::host::cpu::{Cpu, Launch, gpr};
use crate::arch::x86_64::host::instructions::{cpuid, msr, rdmsr, wrmsr};
use crate::arch::x86_64::host::vmcs::{self, Field};
use crate::arch::x86_64::host::vmx;
use crate::arch::x86_64::vm::access_page::AccessPage;

/// MSRs that load and put move, if their values differ.
const MSRS: [u32; 6] = [msr::STAR, msr::LSTAR, msr::CSTAR, msr::FMASK, msr::KERNEL_GS_BASE, msr::TSC_AUX];
const _: () = assert!(MSRS.len() == saved::MSRS);
/// TSC_AUX, the last one, does not exist on all CPUs.
fn msrs() -> usize {
    let has_rdtscp = cpuid(0x8000_0001, 0).edx & 1 << 27 != 0;
    if has_rdtscp { MSRS.len() } else { MSRS.len() - 1 }
}

/// Register values of a vCPU that is not loaded.
#[repr(C)]
pub struct VcpuContext {
    /// FP and SIMD registers, and XCR0.
    pub extended: Extended,
    /// General registers by number. While the vCPU is loaded they are in the CPU, or in its frame.
    pub general: [u64; 16],
    /// Physical address of the VMCS.
    vmcs: u64,
    /// The CPU whose block and tables are in the VMCS's host state, plus 1; 0 if none.
    host: usize,
    /// The vCPU was reset and not loaded since: its VMCS must be initialized.
    fresh: bool,
    /// Started by SIPI, and not loaded since: [`begin`](crate::arch::x86_64::vm::Vcpu::begin) is still due.
    pub begins: bool,
    start: Start,
    kept: Kept,
    /// TSC offset, while the VMCS does not have it.
    pub tsc_offset: u64,
    /// The VMCS's TSC offset is stale: [`VcpuContext::set_tsc_offset`].
    tsc_moved: bool,
    vpid: u16,
    msrs: [u64; MSRS.len()],
    debug: Debug,
    /// The vCPU waits in HLT, which was skipped.
    pub halted: bool,
    /// Whether its PAUSE loops exit.
    pub pauses: Pauses,
    /// Secondary control of VMCS shadowing, if L1 has a current VMCS.
    pub shadowing: u64,
    /// Guest state of [`Start::Saved`].
    saved: GuestState,
}

/// Fields of a VMCS that are common to a VM.
pub struct Place {
    /// EPT pointer.
    pub ept: u64,
    /// Physical addresses of the I/O bitmaps.
    pub io_bitmaps: [u64; 2],
    /// Physical addresses of the MSR bitmaps, with and without exits for IA32_TSC_DEADLINE.
    pub msr_bitmaps: [u64; 2],
    /// MSR bitmaps of vCPUs in x2APIC mode, if the processor virtualizes some of its registers.
    pub x2apic_bitmaps: [u64; 2],
    /// APIC-access page, if the processor virtualizes it.
    pub apic_access: Option<AccessPage>,
}

impl VcpuContext {
    /// Initializes a new vCPU with its VPID and its VMCS, a zeroed page.
    pub fn setup(&mut self, vpid: u16, vmcs: u64) {
        vmx::write_revision(vmcs, vmx::features().revision);
        self.vmcs = vmcs;
        self.vpid = vpid;
        vmcs::clear(&self.vmcs);
    }

    /// Resets the state that INIT preserves, when the VM is reset.
    pub fn power_up(&mut self) {
        self.extended.reset();
        self.msrs = [0; MSRS.len()];
        self.kept = Kept::RESET;
    }

    /// Reset state, for the given kind of start. [`VcpuContext::power_up`] has reset the rest.
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

    /// State after INIT and a SIPI with the given page. Keeps FP and SIMD registers, XCR0 and most MSRs ("Processor
    /// State Following Power-up, Reset, or INIT").
    pub fn reset_to_page(&mut self, page: u8) {
        self.reset_to(Start::Real { page });
    }

    fn reset_to(&mut self, start: Start) {
        self.general = [0; 16];
        // EDX after INIT and reset: family, model and stepping.
        self.general[gpr::RDX] = cpuid(1, 0).eax.into();
        self.start = start;
        self.debug.reset();
        self.halted = false;
        self.begins = false;
        self.fresh = true;
        self.host = 0;
    }

    /// Exports the guest-state area. The vCPU is not loaded. One that is off has no state.
    pub fn save_state(&self, on: bool) -> State {
        let state = match self.start {
            _ if !on => return State::Real(0),
            _ if !self.fresh => GuestState::read(self.vmcs),
            Start::Saved => self.saved,
            Start::Real { page } => return State::Real(page),
            Start::Protected { pc } => return State::Protected(pc),
            Start::Long { pc, tables } => return State::Long(pc, tables),
        };
        let mut fields = [[0; FIELDS / 2]; 2];
        fields.as_flattened_mut().copy_from_slice(state.words());
        State::Fields(fields)
    }

    /// Exports the debug registers, and MSRs.
    pub fn save_registers(&self) -> ([u64; 6], [u64; MSRS.len()]) {
        (self.debug.saved(), self.msrs)
    }

    /// Imports a state, untrusted input, into a vCPU that has not run since its reset. False if a VM entry with it would
    /// fail.
    pub fn restore(&mut self, from: &Vcpu<'_>) -> bool {
        let canonical = |address: u64| ((address << 16) as i64 >> 16) as u64;
        self.reset_to(match from.state {
            State::Real(page) => Start::Real { page },
            State::Protected(pc) => Start::Protected { pc: pc & 0xffff_ffff },
            State::Long(pc, tables) => Start::Long { pc: canonical(pc), tables: tables & 0xffff_f000 },
            State::Fields(_) => Start::Saved,
        });
        if let State::Fields(fields) = &from.state {
            let words = fields.as_flattened().try_into().ok();
            let Some(state) = words.and_then(GuestState::allowed) else { return false };
            self.saved = state;
        }
        self.general = from.general;
        self.halted = from.halted;
        self.debug.restore(&from.debug);
        let [star, lstar, cstar, fmask, kernel_gs_base, tsc_aux] = from.msrs;
        self.msrs = [star, canonical(lstar), canonical(cstar), fmask & 0xffff_ffff, canonical(kernel_gs_base), tsc_aux & 0xffff_ffff];
        self.extended.restore(from.extended, from.xcr0)
    }

    /// Changes the TSC offset. The vCPU is not loaded.
    pub fn set_tsc_offset(&mut self, offset: u64) {
        self.tsc_offset = offset;
        self.tsc_moved = true;
        self.forget_host();
    }

    /// The next load takes the path for another CPU, which invalidates translations, so that ordinary loads need no check. The
    /// vCPU is not loaded.
    pub fn forget_host(&mut self) {
        self.host = 0;
    }

    /// Loads all registers but the general ones and the interrupt state. Returns whether the vCPU was reset since its
    /// last load, which makes its VMCS a new one.
    pub fn load(&mut self, cpu: &Cpu, place: &Place) -> bool {
        vmcs::make_current(&self.vmcs);
        let fresh = core::mem::take(&mut self.fresh);
        if fresh {
            self.write_controls(place);
            self.start.write(self.tsc_offset, &self.kept);
            if matches!(self.start, Start::Saved) {
                self.saved.write();
            }
            self.pauses.reset(cpu.waiting_trapped);
            self.shadowing = 0;
        } else {
            self.pauses.trap(cpu.waiting_trapped);
        }
        if self.host != cpu.index + 1 {
            self.host = cpu.index + 1;
            host_state::write(cpu);
            // This CPU's translations for the VPID are stale.
            vmx::invalidate_vpid(self.vpid.into());
            vmx::invalidate_ept(place.ept);
            if core::mem::take(&mut self.tsc_moved) {
                vmcs::write(Field::TSC_OFFSET, self.tsc_offset);
            }
        }
        for (&register, &value) in MSRS.iter().zip(&self.msrs).take(msrs()) {
            // SAFETY: the CPU has the register; the value was valid for this guest, or is zero. Stile does not use
            // the register.
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

    /// Puts the registers that [`VcpuContext::load`] loaded.
    pub fn put(&mut self, cpu: &mut Cpu) {
        self.read_msrs();
        self.debug.put();
        self.extended.put();
        vmcs::clear(&self.vmcs);
        cpu.launched = Launch::CLEAR;
    }

    /// Clears the VMCS (VMCLEAR), which is loaded here: the next entry is VMLAUNCH.
    pub fn clear_vmcs(&self) {
        vmcs::clear(&self.vmcs);
        vmcs::make_current(&self.vmcs);
    }

    /// Physical address of the VMCS.
    pub fn vmcs(&self) -> &u64 {
        &self.vmcs
    }

    fn read_msrs(&mut self) {
        for (&register, value) in MSRS.iter().zip(&mut self.msrs).take(msrs()) {
            // SAFETY: the list has only registers that CPUID enumerates on this CPU; reads have no side effects.
            *value = unsafe { rdmsr(register) };
        }
    }

    /// Saves the state that INIT preserves, and drops the other registers. The vCPU is loaded here.
    pub fn power_down(&mut self) {
        vmcs::make_current(&self.vmcs);
        self.kept = Kept::read();
        self.read_msrs();
        self.extended.put();
        vmcs::clear(&self.vmcs);
    }

    /// Writes all controls except those of the local APIC: see `virtual_apic.rs`.
    fn write_controls(&self, place: &Place) {
        let features = vmx::features();
        let fields = [
            (Field::EXIT_CONTROLS, features.exit.into()),
            (Field::VPID, self.vpid.into()),
            (Field::EPT_POINTER, place.ept),
            (Field::IO_BITMAP_A, place.io_bitmaps[0]),
            (Field::IO_BITMAP_B, place.io_bitmaps[1]),
            // Guests handle their own exceptions, except those that can recur endlessly.
            (Field::EXCEPTION_BITMAP, inject::INTERCEPTED),
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
