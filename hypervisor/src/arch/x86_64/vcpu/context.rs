//! Load and put of a vCPU's registers. Nothing here runs at exit or entry.
//!
//! State in the control structure moves with it. The rest (FP and SIMD registers, MSRs that neither Stile nor that structure uses, CR2,
//! debug registers) stays that of the loaded vCPU while Stile runs, because Stile does not use it.

use stile_blob::Mode;
use stile_firmware::multiboot;
use stile_snapshot::x86_64::{FIELDS, State, Vcpu};

use super::debug::Debug;
use super::extended::Extended;
use super::moved_msrs::{MSRS, count as msrs};
use super::start_state::{Kept, Start};
use crate::arch::x86_64::host::cpu::{Cpu, Launch, gpr};
use crate::arch::x86_64::host::instructions::cpuid;
use crate::arch::x86_64::virt::guest_state::GuestState;
use crate::arch::x86_64::virt::pauses::Pauses;
use crate::arch::x86_64::virt::place::Place;
use crate::arch::x86_64::virt::state::{self, Field};
use crate::arch::x86_64::virt::structure::Structure;

/// Register values of a vCPU that is not loaded.
#[repr(C)]
pub struct VcpuContext {
    /// FP and SIMD registers, and XCR0.
    pub extended: Extended,
    /// General registers by number. While the vCPU is loaded they are in the CPU, or in its frame.
    pub general: [u64; 16],
    /// The control structure.
    structure: Structure,
    /// The vCPU was reset and not loaded since: its control structure must be initialized.
    fresh: bool,
    /// Started by SIPI, and not loaded since: [`begin`](crate::arch::x86_64::vm::Vcpu::begin) is still due.
    pub begins: bool,
    start: Start,
    kept: Kept,
    /// TSC offset, while the control structure does not have it.
    pub tsc_offset: u64,
    /// The control structure's TSC offset is stale: [`VcpuContext::set_tsc_offset`].
    tsc_moved: bool,
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

impl VcpuContext {
    /// Initializes a new vCPU with its VPID and its control structure, a zeroed page.
    pub fn setup(&mut self, vpid: u16, page: u64) {
        self.structure.setup(vpid, page);
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
        self.structure.forget_host();
    }

    /// Exports the guest-state area. The vCPU is not loaded. One that is off has no state.
    pub fn save_state(&self, on: bool) -> State {
        let state = match self.start {
            _ if !on => return State::Real(0),
            _ if !self.fresh => GuestState::read(*self.structure.address()),
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
        self.structure.forget_host();
    }

    /// Loads all registers but the general ones and the interrupt state. Returns whether the vCPU was reset since its
    /// last load, which makes its VMCS a new one.
    pub fn load(&mut self, cpu: &Cpu, place: &Place) -> bool {
        self.structure.attach();
        let fresh = core::mem::take(&mut self.fresh);
        if fresh {
            self.structure.write_controls(place);
            self.start.write(self.tsc_offset, &self.kept);
            if matches!(self.start, Start::Saved) {
                self.saved.write();
            }
            self.pauses.reset(cpu.waiting_trapped);
            self.shadowing = 0;
        } else {
            self.pauses.trap(cpu.waiting_trapped);
        }
        if self.structure.move_to(cpu, place) && core::mem::take(&mut self.tsc_moved) {
            state::write(Field::TSC_OFFSET, self.tsc_offset);
        }
        self.structure.load_msrs(&self.msrs, msrs(), fresh);
        self.debug.load();
        self.extended.load();
        fresh
    }

    /// Puts the registers that [`VcpuContext::load`] loaded.
    pub fn put(&mut self, cpu: &mut Cpu) {
        self.structure.read_msrs(&mut self.msrs, msrs());
        self.debug.put();
        self.extended.put();
        self.structure.detach();
        cpu.launched = Launch::CLEAR;
    }

    /// Detaches the control structure, which is loaded here, and attaches it again: with VMX the next entry is VMLAUNCH.
    pub fn attach_again(&self) {
        self.structure.detach();
        self.structure.attach();
    }

    /// Physical address of the control structure.
    pub fn control_structure(&self) -> &u64 {
        self.structure.address()
    }

    /// Saves the state that INIT preserves, and drops the other registers. The vCPU is loaded here.
    pub fn power_down(&mut self) {
        self.structure.attach();
        self.kept = Kept::read();
        self.structure.read_msrs(&mut self.msrs, msrs());
        self.extended.put();
        self.structure.detach();
    }
}
