//! State-save area of a vCPU in snapshots.

use stile_snapshot::x86_64::FIELDS;
use stile_svm::{Field, clean, injectable};

use super::permitted::{self, EFER, LMA, LME, PAE, is_pat};
use super::state;
use crate::arch::x86_64::host::instructions::cpuid;
use crate::arch::x86_64::vcpu::cr0::{self, PE, PG};
use crate::arch::x86_64::vcpu::saved_fields::{self, DEBUGCTL, RFLAGS, saved_fields};

/// The fields, padded with one that is none. Their order is part of the format of snapshots.
const ALL: [Field; FIELDS] = {
    let mut all = [Field::GUEST_ACTIVITY; FIELDS];
    let mut at = 0;
    while at < SAVED.len() {
        all[at] = SAVED[at];
        at += 1;
    }
    all
};

const SAVED: [Field; 53] = saved_fields!([GUEST_CR0, GUEST_CR3, GUEST_CR4, GUEST_DR7], [NMI_STEP, ENTRY_INTERRUPTION, ENTRY_ERROR_CODE]);

/// RFLAGS.VM.
const VM: u64 = 1 << 17;
/// Blocking by STI or MOV SS, and by NMI.
const INTERRUPTIBILITY: u64 = 0b1001;

/// Values of the fields. All zero is a value.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct GuestState([u64; FIELDS]);

impl GuestState {
    /// Reads the state of a vCPU that is not loaded from its VMCB.
    pub fn read(at: u64) -> GuestState {
        state::with_vmcb(at, || GuestState(ALL.map(state::read)))
    }

    /// The values.
    pub fn words(&self) -> &[u64; FIELDS] {
        &self.0
    }

    /// Writes the state to the VMCB that is being loaded, which has its controls.
    pub fn write(&self) {
        for (field, value) in ALL.into_iter().zip(self.0) {
            state::write(field, value);
        }
        state::continue_step_over_iret();
    }

    fn get(&self, field: Field) -> u64 {
        saved_fields::get(&ALL, &self.0, field)
    }

    fn change(&mut self, field: Field, to: impl FnOnce(u64) -> u64) {
        saved_fields::change(&ALL, &mut self.0, field, to);
    }

    /// Reduces untrusted values to those that a guest could have set. `None` if VMRUN with them would fail ("Canonicalization
    /// and Consistency Checks").
    pub fn allowed(words: &[u64; FIELDS]) -> Option<GuestState> {
        const CD: u64 = 1 << 30;
        const NW: u64 = 1 << 29;
        let mut state = GuestState(*words);
        let physical = u64::MAX >> (64 - (cpuid(0x8000_0008, 0).eax & 0xff).clamp(32, 52));
        state.change(Field::GUEST_CR0, |value| cr0::allowed(value & 0xe005_003f));
        state.change(Field::GUEST_CR3, |value| value & physical);
        state.change(Field::GUEST_CR4, |value| value & permitted::cr4());
        state.change(Field::GUEST_EFER, |value| value & EFER);
        state.change(Field::GUEST_DEBUGCTL, |value| value & DEBUGCTL);
        state.change(Field::GUEST_DR7, |value| value & 0xffff_ffff);
        state.change(Field::GUEST_RFLAGS, |value| value & RFLAGS.0 | RFLAGS.1);
        state.change(Field::GUEST_INTERRUPTIBILITY, |value| value & INTERRUPTIBILITY);
        state.change(Field::NMI_STEP, |value| value & state::NMI_STEP);
        state.change(Field::ENTRY_ERROR_CODE, |code| code & 0x7fff);
        let (cr0, cr4, efer) = (state.get(Field::GUEST_CR0), state.get(Field::GUEST_CR4), state.get(Field::GUEST_EFER));
        let is_protected = cr0 & PE != 0;
        state.change(Field::ENTRY_INTERRUPTION, |event| injectable(event, is_protected));
        let is_long = efer & LME != 0 && cr0 & PG != 0;
        if is_long {
            state.change(Field::GUEST_RFLAGS, |value| value & !VM);
        }
        let fits = is_pat(state.get(Field::GUEST_PAT))
            && (cr0 & CD != 0 || cr0 & NW == 0)
            && (cr0 & PG == 0 || cr0 & PE != 0)
            && (efer & LMA != 0) == is_long
            && (!is_long || cr4 & PAE != 0 && !has_two_sizes(state.get(Field::GUEST_CS_RIGHTS)));
        fits.then_some(state)
    }
}

/// Whether both L and D are set in the access rights of CS.
const fn has_two_sizes(rights: u64) -> bool {
    const L_AND_D: u64 = 0b11 << 13;
    rights & L_AND_D == L_AND_D
}

// The padding is no field of a VMCB.
const _: () = assert!(matches!(Field::GUEST_ACTIVITY.form, stile_svm::Form::Absent) && Field::GUEST_ACTIVITY.clean == clean::NONE);
