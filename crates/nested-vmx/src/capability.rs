//! The VMX capability MSRs that L1 reads (SDM, appendix "VMX Capability Reporting Facility"): the features that Stile
//! implements and the processor has.

use crate::controls::{entry, exit, pin, primary, secondary};
use crate::fields::{FIELDS, Needs};
use crate::set::FieldSet;

mod bits;
pub mod offered;

pub use bits::{ept_vpid, misc, msr};

/// VMCS revision identifier that L1 sees. Must change whenever the layout of [`crate::Vmcs12`] in memory does.
pub const REVISION: u32 = 0x5356_0001;

/// The settings of a control field that a capability MSR allows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Allowed {
    /// Bits that must be 1.
    pub must: u32,
    /// Bits that may be 1.
    pub may: u32,
}

impl Allowed {
    /// Decodes a capability MSR.
    pub const fn from_msr(value: u64) -> Self {
        Self { must: value as u32, may: (value >> 32) as u32 }
    }

    /// The capability MSR.
    pub const fn msr(self) -> u64 {
        self.must as u64 | (self.may as u64) << 32
    }

    /// Whether all of these bits may be 1.
    pub const fn allows(self, bits: u32) -> bool {
        bits & !self.may == 0
    }

    /// Whether a value of the control field is allowed.
    #[inline(always)]
    pub const fn accepts(self, value: u32) -> bool {
        value & !self.may == 0 && self.must & !value == 0
    }

    /// Reduces the `offered` controls to those that `processor` has. Bits that must be 1: those that `processor` requires, and
    /// the `default1` class except `may_be_0`, which the true capability MSRs allow to be 0.
    const fn offer(offered: u32, processor: Self, default1: u32, may_be_0: u32) -> Self {
        let must = default1 & !may_be_0 | processor.must;
        Self { must, may: must | offered & processor.may }
    }
}

/// The capabilities of a virtual processor, or of the machine's.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Capabilities {
    /// IA32_VMX_BASIC.
    pub basic: u64,
    /// Pin-based controls.
    pub pin: Allowed,
    /// Primary processor-based controls.
    pub primary: Allowed,
    /// Secondary processor-based controls.
    pub secondary: Allowed,
    /// VM-exit controls.
    pub exit: Allowed,
    /// VM-entry controls.
    pub entry: Allowed,
    /// IA32_VMX_MISC.
    pub misc: u64,
    /// Bits of CR0 that must be 1, and those that may be.
    pub cr0: (u64, u64),
    /// Bits of CR4 that must be 1, and those that may be.
    pub cr4: (u64, u64),
    /// IA32_VMX_EPT_VPID_CAP.
    pub ept_vpid: u64,
    /// IA32_VMX_VMFUNC.
    pub vm_functions: u64,
}

/// Bits of IA32_VMX_BASIC.
mod basic {
    /// The size of a region, in bytes.
    pub const SIZE: u64 = 4096 << 32;
    /// Write-back is the memory type of VMCSs.
    pub const WRITE_BACK: u64 = 6 << 50;
    /// VM exits report information about INS and OUTS.
    pub const STRING_INFORMATION: u64 = 1 << 54;
    /// The true capability MSRs exist.
    pub const TRUE_CONTROLS: u64 = 1 << 55;
}

impl Capabilities {
    /// Reads the capabilities of a processor with true controls and secondary controls.
    pub fn read(mut rdmsr: impl FnMut(u32) -> u64) -> Self {
        let secondary = Allowed::from_msr(rdmsr(msr::SECONDARY));
        // The MSRs of these features exist with them only.
        let has_ept_vpid = secondary.may & (secondary::EPT | secondary::VPID) != 0;
        let has_functions = secondary.allows(secondary::VM_FUNCTIONS);
        Self {
            basic: rdmsr(msr::BASIC),
            pin: Allowed::from_msr(rdmsr(msr::TRUE_PIN)),
            primary: Allowed::from_msr(rdmsr(msr::TRUE_PRIMARY)),
            secondary,
            exit: Allowed::from_msr(rdmsr(msr::TRUE_EXIT)),
            entry: Allowed::from_msr(rdmsr(msr::TRUE_ENTRY)),
            misc: rdmsr(msr::MISC),
            cr0: (rdmsr(msr::CR0_FIXED0), rdmsr(msr::CR0_FIXED1)),
            cr4: (rdmsr(msr::CR4_FIXED0), rdmsr(msr::CR4_FIXED1)),
            ept_vpid: if has_ept_vpid { rdmsr(msr::EPT_VPID) } else { 0 },
            vm_functions: if has_functions { rdmsr(msr::VM_FUNCTIONS) } else { 0 },
        }
    }

    /// Returns the capabilities offered to L1 on a processor with these. `cr4` has the bits of CR4 that the VM's CPUID reports.
    #[must_use]
    pub fn offered(&self, cr4: u64) -> Self {
        let secondary_may = offered::SECONDARY & self.secondary.may;
        let mut ept_vpid = 0;
        if secondary_may & secondary::EPT != 0 {
            ept_vpid |= offered::EMULATED_EPT | offered::EPT & self.ept_vpid;
        }
        if secondary_may & secondary::VPID != 0 {
            ept_vpid |= offered::EMULATED_VPID;
        }
        Self {
            basic: u64::from(REVISION) | basic::SIZE | basic::WRITE_BACK | basic::TRUE_CONTROLS | self.basic & basic::STRING_INFORMATION,
            pin: Allowed::offer(offered::PIN, self.pin, pin::DEFAULT1, 0),
            primary: Allowed::offer(offered::PRIMARY, self.primary, primary::DEFAULT1, primary::TRUE_MAY_BE_0),
            secondary: Allowed { must: 0, may: secondary_may },
            exit: Allowed::offer(offered::EXIT, self.exit, exit::DEFAULT1, exit::TRUE_MAY_BE_0),
            entry: Allowed::offer(offered::ENTRY, self.entry, entry::DEFAULT1, entry::TRUE_MAY_BE_0),
            misc: offered::MISC & self.misc | offered::EMULATED_MISC,
            cr0: self.cr0,
            cr4: (self.cr4.0, self.cr4.1 & (cr4 | self.cr4.0)),
            ept_vpid,
            vm_functions: offered::VM_FUNCTIONS & self.vm_functions,
        }
    }

    /// The revision identifier of VMCSs.
    pub const fn revision(&self) -> u32 {
        self.basic as u32 & 0x7fff_ffff
    }

    /// Whether VMWRITE may write read-only fields.
    pub const fn has_write_any(&self) -> bool {
        self.misc & misc::WRITE_ANY != 0
    }

    /// Returns the value for L1's RDMSR of a capability MSR. `None` if the MSR does not exist, which raises #GP. All are
    /// read-only: WRMSR raises #GP.
    pub fn msr(&self, number: u32) -> Option<u64> {
        let plain = |allowed: Allowed, default1: u32| Allowed { must: allowed.must | default1, may: allowed.may }.msr();
        Some(match number {
            msr::BASIC => self.basic,
            msr::PIN => plain(self.pin, pin::DEFAULT1),
            msr::PRIMARY => plain(self.primary, primary::DEFAULT1),
            msr::EXIT => plain(self.exit, exit::DEFAULT1),
            msr::ENTRY => plain(self.entry, entry::DEFAULT1),
            msr::MISC => self.misc,
            msr::CR0_FIXED0 => self.cr0.0,
            msr::CR0_FIXED1 => self.cr0.1,
            msr::CR4_FIXED0 => self.cr4.0,
            msr::CR4_FIXED1 => self.cr4.1,
            msr::VMCS_ENUM => u64::from(self.highest_index()) << 1,
            msr::SECONDARY if self.primary.allows(primary::SECONDARY) => self.secondary.msr(),
            msr::EPT_VPID if self.secondary.may & (secondary::EPT | secondary::VPID) != 0 => self.ept_vpid,
            msr::TRUE_PIN => self.pin.msr(),
            msr::TRUE_PRIMARY => self.primary.msr(),
            msr::TRUE_EXIT => self.exit.msr(),
            msr::TRUE_ENTRY => self.entry.msr(),
            msr::VM_FUNCTIONS if self.secondary.allows(secondary::VM_FUNCTIONS) => self.vm_functions,
            _ => return None,
        })
    }

    /// The fields that exist with these capabilities.
    pub fn existing_fields(&self) -> FieldSet {
        let mut set = FieldSet::EMPTY;
        for (slot, row) in FIELDS.iter().enumerate() {
            let exists = match row.needs {
                Needs::Nothing => true,
                Needs::Pin(bit) => self.pin.allows(bit),
                Needs::Primary(bit) => self.primary.allows(bit),
                Needs::Secondary(bit) => self.secondary.allows(bit),
            };
            if exists {
                set.insert(slot);
            }
        }
        set
    }

    /// Returns the highest index of an existing field (bits 9:1 of its encoding), for IA32_VMX_VMCS_ENUM.
    fn highest_index(&self) -> u32 {
        let existing = self.existing_fields();
        existing.slots().filter_map(|slot| FIELDS.get(slot)).map(|row| row.field.index()).max().unwrap_or(0)
    }
}
