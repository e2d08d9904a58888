//! Control structure of a vCPU: its VMCB.

use stile_svm::intercept::{interrupt, word_3, word_4, word_5, writes_of_cr};
use stile_svm::{Asid, Field};

use super::block::OfLocal;
use super::{local, state};
use crate::address_space;
use crate::arch::x86_64::host::cpu::Cpu;
use crate::arch::x86_64::host::instructions::{rdmsr, wrmsr};
use crate::arch::x86_64::svm::place::Place;
use crate::arch::x86_64::vcpu::inject;
use crate::arch::x86_64::vcpu::moved_msrs::MSRS;

/// The VMCB.
#[repr(C)]
pub struct Structure {
    /// Physical address.
    address: u64,
    /// The CPU whose address-space identifier it has, plus 1; 0 if none.
    host: usize,
    asid: Asid,
}

/// MSRs that VMLOAD and VMSAVE move, in the order of [`MSRS`]; the last one they do not.
const MOVED: [Field; MSRS.len() - 1] = [Field::STAR, Field::LSTAR, Field::CSTAR, Field::FMASK, Field::KERNEL_GS_BASE];

impl Structure {
    /// Initializes it, with a zeroed page.
    pub fn setup(&mut self, _vpid: u16, address: u64) {
        self.address = address;
    }

    /// Physical address.
    pub fn address(&self) -> &u64 {
        &self.address
    }

    /// The next [`Structure::move_to`] invalidates translations. The vCPU is not loaded.
    pub fn forget_host(&mut self) {
        self.host = 0;
    }

    /// Makes it the one that this CPU enters.
    pub fn attach(&self) {
        // SAFETY: the vCPU is being loaded here, and its VMCB is permanent.
        unsafe { local::set_vmcb(address_space::physical(self.address)) };
    }

    /// Another CPU may load it: it is in memory already.
    pub fn detach(&self) {
        // SAFETY: no vCPU is loaded any more.
        unsafe { local::set_vmcb(OfLocal::NO_VMCB) };
    }

    /// Prepares entries on this CPU. Returns whether the vCPU comes from another one, or its translations are invalid.
    pub fn move_to(&mut self, cpu: &Cpu, _place: &Place) -> bool {
        let moves = self.host != cpu.index + 1;
        cpu.virt.loaded.set(self.address);
        cpu.virt.forget();
        let Some(mut asids) = cpu.virt.asids.get() else { return moves };
        if local::take_stale(cpu) {
            asids.forget();
        }
        if moves || !asids.is_valid(self.asid) {
            self.host = cpu.index + 1;
            let (asid, flush) = asids.give();
            self.asid = asid;
            cpu.virt.asids.set(Some(asids));
            state::write(Field::ASID, asid.number().into());
            if flush {
                state::invalidate_translations();
            }
        }
        if moves {
            // The processor may have kept parts of another vCPU's VMCB at this address.
            state::write(Field::CLEAN, 0);
        }
        moves
    }

    /// Loads MSRs: TSC_AUX, and those of the VMCB if it is a new one.
    pub fn load_msrs(&self, values: &[u64; MSRS.len()], count: usize, fresh: bool) {
        let (values, last) = (&values[..MOVED.len()], values[MOVED.len()]);
        if fresh {
            MOVED.iter().zip(values).for_each(|(&field, &value)| state::write(field, value));
        }
        if count == MSRS.len() {
            // SAFETY: the CPU has the register; the value was valid for this guest, or is zero. Stile does not use it.
            unsafe {
                if rdmsr(MSRS[MOVED.len()]) != last {
                    wrmsr(MSRS[MOVED.len()], last);
                }
            }
        }
    }

    /// Reads those MSRs.
    pub fn read_msrs(&self, values: &mut [u64; MSRS.len()], count: usize) {
        MOVED.iter().zip(values.iter_mut()).for_each(|(&field, value)| *value = state::read(field));
        if count == MSRS.len() {
            // SAFETY: CPUID enumerates the register; reads have no side effects.
            values[MOVED.len()] = unsafe { rdmsr(MSRS[MOVED.len()]) };
        }
    }

    /// Writes all controls.
    pub fn write_controls(&self, place: &Place) {
        const ALWAYS_3: u32 = word_3::INTR
            | word_3::NMI
            | word_3::INIT
            | word_3::CR0_WRITE
            | word_3::RDPMC
            | word_3::CPUID
            | word_3::RSM
            | word_3::INVD
            | word_3::HLT
            | word_3::INVLPGA
            | word_3::IO
            | word_3::MSR
            | word_3::TASK_SWITCH
            | word_3::FERR_FREEZE
            | word_3::SHUTDOWN;
        const ALWAYS_4: u32 = word_4::VMRUN
            | word_4::VMMCALL
            | word_4::VMLOAD
            | word_4::VMSAVE
            | word_4::STGI
            | word_4::CLGI
            | word_4::SKINIT
            | word_4::WBINVD
            | word_4::MONITOR
            | word_4::MWAIT
            | word_4::MWAIT_ARMED
            | word_4::XSETBV
            | word_4::RDPRU;
        const ALWAYS_5: u32 = word_5::INVLPGB | word_5::INVLPGB_ILLEGAL | word_5::MCOMMIT | word_5::TLBSYNC;
        const CONTROL_REGISTERS: u32 = writes_of_cr(4) | writes_of_cr(8);
        let fields = [
            (Field::INTERCEPTS_CR, CONTROL_REGISTERS.into()),
            (Field::INTERCEPTS_DR, 0),
            // Guests handle their own exceptions, except those that can recur endlessly.
            (Field::INTERCEPTS_EXCEPTION, inject::INTERCEPTED),
            (Field::INTERCEPTS_3, ALWAYS_3.into()),
            (Field::INTERCEPTS_4, ALWAYS_4.into()),
            (Field::INTERCEPTS_5, ALWAYS_5.into()),
            (Field::IO_MAP, place.io_map),
            (Field::MSR_MAP, place.msr_map),
            (Field::INTERRUPT_CONTROL, interrupt::V_INTR_MASKING),
            (Field::NESTED_PAGING, 1),
            (Field::NESTED_ROOT, place.root),
            (Field::ENTRY_INTERRUPTION, 0),
            // INIT or a reset may have come in the middle of a step over IRET.
            (Field::NMI_STEP, 0),
        ];
        for (field, value) in fields {
            state::write(field, value);
        }
    }
}
