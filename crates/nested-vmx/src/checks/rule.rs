//! The form of rules, and the state that they look at.

use crate::capability::{Capabilities, ept_vpid};
use crate::field::Field;
use crate::group::{Group, Groups};
use crate::result::InstructionError;
use crate::vmcs12::Vmcs12;

/// L1's memory.
pub trait Memory {
    /// Reads the eight bytes at an L1 physical address, a multiple of 8. `None` if that is not memory of the VM.
    fn read(&self, address: u64) -> Option<u64>;
}

/// The virtual processor that L1 runs on.
#[derive(Clone, Copy, Debug)]
pub struct Processor<'a> {
    /// The features offered to L1.
    pub capabilities: &'a Capabilities,
    /// Bits of a physical address.
    pub physical_bits: u8,
    /// Bits of a linear address.
    pub linear_bits: u8,
    /// Bits of IA32_EFER that are not reserved.
    pub efer: u64,
    /// Bits of IA32_DEBUGCTL that are not reserved.
    pub debugctl: u64,
    /// Whether L1 is in IA-32e mode.
    pub is_long: bool,
    /// L1's current-VMCS pointer.
    pub current: u64,
}

impl Processor<'_> {
    /// Whether a physical address has no bits beyond the processor's width.
    pub fn is_physical(&self, address: u64) -> bool {
        address.checked_shr(self.physical_bits.into()).unwrap_or(0) == 0
    }

    /// Whether a linear address is canonical.
    pub fn is_canonical(&self, address: u64) -> bool {
        sign_extend(address, u32::from(self.linear_bits).saturating_sub(1)) == address
    }

    /// Whether an EPT pointer is valid (SDM, "Extended-Page-Table Pointer (EPTP)").
    pub fn accepts_ept_pointer(&self, pointer: u64) -> bool {
        const ACCESSED_DIRTY: u64 = 1 << 6;
        const RESERVED: u64 = 0xf80;
        let has = |capability| self.capabilities.ept_vpid & capability != 0;
        let is_memory_type = match pointer & 7 {
            0 => has(ept_vpid::UNCACHEABLE),
            6 => has(ept_vpid::WRITE_BACK),
            _ => false,
        };
        let is_length = pointer >> 3 & 7 == 3 && has(ept_vpid::WALK_4);
        let are_flags = pointer & ACCESSED_DIRTY == 0 || has(ept_vpid::ACCESSED_DIRTY);
        is_memory_type && is_length && are_flags && pointer & RESERVED == 0 && self.is_physical(pointer)
    }
}

/// The result of a VM entry that fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EntryFailure {
    /// VMLAUNCH or VMRESUME fails.
    Instruction(InstructionError),
    /// A VM exit with the basic reason 33, invalid guest state, and this exit qualification.
    GuestState(u64),
    /// A VM exit with the basic reason 34, MSR loading. The qualification is the entry's number, from 1.
    MsrLoading(u64),
}

impl EntryFailure {
    const ENTRY_FAILED: u32 = 1 << 31;

    /// The exit reason and the exit qualification; `None` if the instruction fails.
    pub const fn exit(self) -> Option<(u32, u64)> {
        match self {
            Self::Instruction(_) => None,
            Self::GuestState(qualification) => Some((Self::ENTRY_FAILED | 33, qualification)),
            Self::MsrLoading(number) => Some((Self::ENTRY_FAILED | 34, number)),
        }
    }
}

/// A rule.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// The condition that has to hold, in words.
    pub text: &'static str,
    pub(super) holds: fn(&State<'_>) -> bool,
}

pub(super) const fn rule(text: &'static str, holds: fn(&State<'_>) -> bool) -> Rule {
    Rule { text, holds }
}

/// Rules of one section of the SDM.
#[derive(Clone, Copy, Debug)]
pub struct Section {
    /// The section's number in the SDM, volume 3.
    pub number: &'static str,
    /// The result if a rule does not hold.
    pub failure: EntryFailure,
    /// The groups of fields that the rules read.
    pub(super) reads: Groups,
    /// The rules.
    pub rules: &'static [Rule],
}

/// Groups that most rules depend on: the controls.
pub(super) const CONTROLS: Groups = Groups::of(&[Group::Execution, Group::Exit, Group::Entry]);

/// The state that rules look at.
pub(super) struct State<'a> {
    pub vmcs: &'a Vmcs12,
    pub processor: &'a Processor<'a>,
    pub memory: &'a dyn Memory,
    pub pin: u32,
    pub primary: u32,
    /// Zero unless activated.
    pub secondary: u32,
    pub exit: u32,
    pub entry: u32,
}

impl<'a> State<'a> {
    pub fn new(vmcs: &'a Vmcs12, processor: &'a Processor<'a>, memory: &'a dyn Memory) -> Self {
        let primary = vmcs.get32(Field::PRIMARY_CONTROLS);
        Self {
            vmcs,
            processor,
            memory,
            pin: vmcs.get32(Field::PIN_CONTROLS),
            primary,
            secondary: vmcs.secondary(),
            exit: vmcs.get32(Field::EXIT_CONTROLS),
            entry: vmcs.get32(Field::ENTRY_CONTROLS),
        }
    }

    pub fn get(&self, field: Field) -> u64 {
        self.vmcs.get(field)
    }

    pub const fn has_pin(&self, bits: u32) -> bool {
        self.pin & bits != 0
    }

    pub const fn has_primary(&self, bits: u32) -> bool {
        self.primary & bits != 0
    }

    pub const fn has_secondary(&self, bits: u32) -> bool {
        self.secondary & bits != 0
    }

    pub const fn has_exit(&self, bits: u32) -> bool {
        self.exit & bits != 0
    }

    pub const fn has_entry(&self, bits: u32) -> bool {
        self.entry & bits != 0
    }

    pub fn is_physical(&self, address: u64) -> bool {
        self.processor.is_physical(address)
    }

    /// Whether a field has the physical address of a page.
    pub fn is_page(&self, field: Field) -> bool {
        self.get(field).is_multiple_of(4096) && self.is_physical(self.get(field))
    }

    pub fn is_canonical(&self, address: u64) -> bool {
        self.processor.is_canonical(address)
    }

    pub fn are_canonical(&self, fields: &[Field]) -> bool {
        fields.iter().all(|&field| self.is_canonical(self.get(field)))
    }

    /// Whether each of the eight entries of a PAT is a memory type.
    pub fn is_pat(value: u64) -> bool {
        value.to_le_bytes().iter().all(|entry| matches!(entry, 0 | 1 | 4..=7))
    }

    /// The event to inject, if there is one.
    pub fn event(&self) -> Option<Event> {
        let value = self.vmcs.get32(Field::ENTRY_INTERRUPTION);
        (value >> 31 != 0).then_some(Event(value))
    }
}

/// Extends bit `sign` of a value to the bits above it.
pub(super) const fn sign_extend(value: u64, sign: u32) -> u64 {
    let shift = 63u32.saturating_sub(sign);
    ((value << shift) as i64 >> shift) as u64
}

/// A valid VM-entry interruption-information field.
#[derive(Clone, Copy)]
pub(super) struct Event(pub u32);

impl Event {
    pub const EXTERNAL: u32 = 0;
    pub const NMI: u32 = 2;
    pub const HARDWARE_EXCEPTION: u32 = 3;
    pub const OTHER: u32 = 7;

    pub const fn vector(self) -> u32 {
        self.0 & 0xff
    }

    pub const fn kind(self) -> u32 {
        self.0 >> 8 & 7
    }

    /// A software interrupt, privileged software exception or software exception.
    pub const fn is_software(self) -> bool {
        matches!(self.kind(), 4..=6)
    }

    pub const fn delivers_code(self) -> bool {
        self.0 >> 11 & 1 != 0
    }
}
