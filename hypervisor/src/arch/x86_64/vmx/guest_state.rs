//! Guest-state area of a vCPU in snapshots.

use stile_nested_vmx::Vmcs12;
use stile_nested_vmx::checks::{self, Memory, Processor};
use stile_snapshot::x86_64::FIELDS;

use crate::arch::x86_64::host::instructions::cpuid;
use crate::arch::x86_64::vcpu::cr0;
use crate::arch::x86_64::vcpu::cr4::CR4_OWNED;
use crate::arch::x86_64::vcpu::inject::VALID;
use crate::arch::x86_64::vcpu::saved_fields::{self, DEBUGCTL, RFLAGS, saved_fields};
use crate::arch::x86_64::vmx::extension::{self, entry};
use crate::arch::x86_64::vmx::nested::Offer;
use crate::arch::x86_64::vmx::vmcs::{self, Field};

/// The fields. Their order is part of the format of snapshots.
const ALL: [Field; FIELDS] = saved_fields!(
    [GUEST_CR0, CR0_SHADOW, GUEST_CR3, GUEST_CR4, CR4_SHADOW, GUEST_DR7],
    [GUEST_PENDING_DEBUG, GUEST_PDPTE0, GUEST_PDPTE1, GUEST_PDPTE2, GUEST_PDPTE3, ENTRY_INTERRUPTION, ENTRY_ERROR_CODE, ENTRY_LENGTH]
);

/// SCE, LME, LMA and NXE.
const EFER: u64 = 0xd01;
const LMA: u64 = 1 << 10;
/// Blocking by STI, by MOV SS, by NMI.
const INTERRUPTIBILITY: u64 = 0b1011;
/// B0 to B3, enabled breakpoint, BS ("Pending Debug Exceptions").
const PENDING_DEBUG: u64 = 0xf | 1 << 12 | 1 << 14;

/// Values of the fields. All zero is a value.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct GuestState([u64; FIELDS]);

impl GuestState {
    /// Reads the state of a vCPU that is not loaded from its VMCS.
    pub fn read(at: u64) -> GuestState {
        let before = vmcs::current();
        vmcs::make_current(&at);
        let state = GuestState(ALL.map(vmcs::read));
        vmcs::clear(&at);
        if let Some(before) = before {
            // Its launch state is kept.
            vmcs::make_current(&before);
        }
        state
    }

    /// The values.
    pub fn words(&self) -> &[u64; FIELDS] {
        &self.0
    }

    /// Writes the state to the current VMCS, which has its controls.
    pub fn write(&self) {
        for (field, value) in ALL.into_iter().zip(self.0) {
            vmcs::write(field, value);
        }
        vmcs::write(Field::ENTRY_CONTROLS, self.entry_controls());
    }

    fn entry_controls(&self) -> u64 {
        let long = self.get(Field::GUEST_EFER) & LMA != 0;
        u64::from(extension::features().entry | if long { entry::IA32E_GUEST } else { 0 })
    }

    fn get(&self, field: Field) -> u64 {
        saved_fields::get(&ALL, &self.0, field)
    }

    fn change(&mut self, field: Field, to: impl FnOnce(u64) -> u64) {
        saved_fields::change(&ALL, &mut self.0, field, to);
    }

    /// Reduces untrusted values to those that a guest could have set. `None` if a VM entry with them would fail.
    pub fn allowed(words: &[u64; FIELDS]) -> Option<GuestState> {
        let mut state = GuestState(*words);
        for (field, value) in ALL.into_iter().zip(&mut state.0) {
            *value &= field.width().mask();
        }
        let (cr0, cr4) = (extension::features().cr0.1 & 0xffff_ffff, extension::features().cr4);
        state.change(Field::GUEST_CR0, |value| cr0::allowed(value & cr0));
        state.change(Field::CR0_SHADOW, |value| value & cr0);
        state.change(Field::GUEST_CR4, |value| value & CR4_OWNED & cr4.1 | cr4.0);
        state.change(Field::CR4_SHADOW, |value| value & CR4_OWNED);
        state.change(Field::GUEST_EFER, |value| value & EFER);
        state.change(Field::GUEST_DEBUGCTL, |value| value & DEBUGCTL);
        state.change(Field::GUEST_DR7, |value| value & 0xffff_ffff);
        state.change(Field::GUEST_RFLAGS, |value| value & RFLAGS.0 | RFLAGS.1);
        state.change(Field::GUEST_INTERRUPTIBILITY, |value| value & INTERRUPTIBILITY);
        state.change(Field::GUEST_PENDING_DEBUG, |value| value & PENDING_DEBUG);
        let event = event(state.get(Field::ENTRY_INTERRUPTION), state.get(Field::GUEST_CR0));
        state.change(Field::ENTRY_INTERRUPTION, |_| event);
        state.change(Field::ENTRY_ERROR_CODE, |code| code & 0x7fff);
        state.change(Field::ENTRY_LENGTH, |length| length.clamp(1, 15));
        state.enters().then_some(state)
    }

    /// Whether a VM entry passes the checks of guest state ("Checking and Loading Guest State").
    #[inline(never)]
    fn enters(&self) -> bool {
        let (offer, features) = (Offer::new(), extension::features());
        let sizes = cpuid(0x8000_0008, 0).eax;
        let processor = Processor {
            capabilities: &offer.capabilities,
            physical_bits: sizes as u8,
            linear_bits: (sizes >> 8) as u8,
            efer: EFER,
            debugctl: DEBUGCTL,
            is_long: true,
            current: u64::MAX,
        };
        let mut vmcs = Vmcs12::new();
        let controls = [
            (Field::PIN_CONTROLS, features.pin.into()),
            (Field::PRIMARY_CONTROLS, features.primary.into()),
            (Field::SECONDARY_CONTROLS, features.secondary.into()),
            (Field::ENTRY_CONTROLS, self.entry_controls()),
            (Field::VMCS_LINK, u64::MAX),
        ];
        for (field, value) in controls.into_iter().chain(ALL.into_iter().zip(self.0)) {
            vmcs.set(field, value);
        }
        checks::check_guest(&vmcs, &processor, &NoMemory).is_ok()
    }
}

/// Memory that the checks read only for VMCS shadowing.
struct NoMemory;

impl Memory for NoMemory {
    fn read(&self, _address: u64) -> Option<u64> {
        None
    }
}

/// Reduces an event to inject to one that VM entries deliver; none otherwise ("VM-Entry Controls for Event Injection").
fn event(event: u64, cr0: u64) -> u64 {
    /// Exceptions with an error code.
    const CODES: u64 = 1 << 8 | 1 << 10 | 1 << 11 | 1 << 12 | 1 << 13 | 1 << 14 | 1 << 17;
    const ERROR_CODE: u64 = 1 << 11;
    let (vector, kind) = (event & 0xff, event & 0x700);
    let exists = match kind >> 8 {
        // Interrupts, also by software, and exceptions of INT3 and INTO.
        0 | 4 | 6 => true,
        2 => vector == 2,
        3 => vector < 32 && vector != 2,
        _ => false,
    };
    if event & VALID == 0 || !exists {
        return 0;
    }
    let has_code = kind == 3 << 8 && cr0 & cr0::PE != 0 && CODES >> vector & 1 != 0;
    VALID | kind | vector | if has_code { ERROR_CODE } else { 0 }
}
