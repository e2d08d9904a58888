//! The VMX capability MSRs that L1 reads (SDM, appendix "VMX Capability Reporting Facility"): what Stile implements, reduced to what the
//! processor can do.

use crate::controls::{entry, exit, pin, primary, secondary};
use crate::fields::FIELDS;

/// Numbers of the capability MSRs.
pub mod msr {
    /// The first: IA32_VMX_BASIC.
    pub const BASIC: u32 = 0x480;
    /// IA32_VMX_PINBASED_CTLS.
    pub const PIN: u32 = 0x481;
    /// IA32_VMX_PROCBASED_CTLS.
    pub const PRIMARY: u32 = 0x482;
    /// IA32_VMX_EXIT_CTLS.
    pub const EXIT: u32 = 0x483;
    /// IA32_VMX_ENTRY_CTLS.
    pub const ENTRY: u32 = 0x484;
    /// IA32_VMX_MISC.
    pub const MISC: u32 = 0x485;
    /// IA32_VMX_CR0_FIXED0.
    pub const CR0_FIXED0: u32 = 0x486;
    /// IA32_VMX_CR0_FIXED1.
    pub const CR0_FIXED1: u32 = 0x487;
    /// IA32_VMX_CR4_FIXED0.
    pub const CR4_FIXED0: u32 = 0x488;
    /// IA32_VMX_CR4_FIXED1.
    pub const CR4_FIXED1: u32 = 0x489;
    /// IA32_VMX_VMCS_ENUM.
    pub const VMCS_ENUM: u32 = 0x48a;
    /// IA32_VMX_PROCBASED_CTLS2.
    pub const SECONDARY: u32 = 0x48b;
    /// IA32_VMX_EPT_VPID_CAP.
    pub const EPT_VPID: u32 = 0x48c;
    /// IA32_VMX_TRUE_PINBASED_CTLS.
    pub const TRUE_PIN: u32 = 0x48d;
    /// IA32_VMX_TRUE_PROCBASED_CTLS.
    pub const TRUE_PRIMARY: u32 = 0x48e;
    /// IA32_VMX_TRUE_EXIT_CTLS.
    pub const TRUE_EXIT: u32 = 0x48f;
    /// IA32_VMX_TRUE_ENTRY_CTLS.
    pub const TRUE_ENTRY: u32 = 0x490;
    /// IA32_VMX_VMFUNC.
    pub const VM_FUNCTIONS: u32 = 0x491;
}

/// Bits of IA32_VMX_MISC.
pub mod misc {
    /// The rate of the preemption timer: it counts at each change of this bit of the time-stamp counter.
    pub const TIMER_RATE: u64 = 0x1f;
    /// VM exits store EFER.LMA in the "IA-32e mode guest" control.
    pub const STORES_LMA: u64 = 1 << 5;
    /// The activity state HLT.
    pub const HLT: u64 = 1 << 6;
    /// The activity state shutdown.
    pub const SHUTDOWN: u64 = 1 << 7;
    /// The activity state wait-for-SIPI.
    pub const WAIT_FOR_SIPI: u64 = 1 << 8;
    /// The number of CR3-target values.
    pub const CR3_TARGETS: u64 = 4 << 16;
    /// VMWRITE to read-only fields.
    pub const WRITE_ANY: u64 = 1 << 29;
    /// Injection with an instruction length of 0.
    pub const ZERO_LENGTH: u64 = 1 << 30;
}

/// Bits of IA32_VMX_EPT_VPID_CAP.
pub mod ept_vpid {
    /// Execute-only translations.
    pub const EXECUTE_ONLY: u64 = 1 << 0;
    /// Page walks of 4 levels.
    pub const WALK_4: u64 = 1 << 6;
    /// Uncacheable paging structures.
    pub const UNCACHEABLE: u64 = 1 << 8;
    /// Write-back paging structures.
    pub const WRITE_BACK: u64 = 1 << 14;
    /// Pages of 2 MiB.
    pub const PAGES_2M: u64 = 1 << 16;
    /// Pages of 1 GiB.
    pub const PAGES_1G: u64 = 1 << 17;
    /// INVEPT.
    pub const INVEPT: u64 = 1 << 20;
    /// Accessed and dirty flags.
    pub const ACCESSED_DIRTY: u64 = 1 << 21;
    /// Advanced VM-exit information for EPT violations.
    pub const ADVANCED_EXIT: u64 = 1 << 22;
    /// INVEPT of a single context.
    pub const INVEPT_SINGLE: u64 = 1 << 25;
    /// INVEPT of all contexts.
    pub const INVEPT_ALL: u64 = 1 << 26;
    /// INVVPID.
    pub const INVVPID: u64 = 1 << 32;
    /// INVVPID of an individual address, a single context, all contexts, a single context except global translations.
    pub const INVVPID_TYPES: u64 = 0xf << 40;
}

/// Identifies the layout of [`crate::Vmcs12`] in memory: to be changed with it.
pub const REVISION: u32 = 0x5356_0001;

/// Controls that Stile implements for L1, where the processor has them.
mod offered {
    use super::*;

    pub const PIN: u32 = pin::EXTERNAL_INTERRUPTS | pin::NMIS | pin::VIRTUAL_NMIS | pin::PREEMPTION_TIMER | pin::POSTED_INTERRUPTS;
    pub const PRIMARY: u32 = primary::INTERRUPT_WINDOW
        | primary::TSC_OFFSET
        | primary::HLT
        | primary::INVLPG
        | primary::MWAIT
        | primary::RDPMC
        | primary::RDTSC
        | primary::CR3_LOAD
        | primary::CR3_STORE
        | primary::CR8_LOAD
        | primary::CR8_STORE
        | primary::TPR_SHADOW
        | primary::NMI_WINDOW
        | primary::MOV_DR
        | primary::UNCONDITIONAL_IO
        | primary::IO_BITMAPS
        | primary::MONITOR_TRAP
        | primary::MSR_BITMAPS
        | primary::MONITOR
        | primary::PAUSE
        | primary::SECONDARY;
    pub const SECONDARY: u32 = secondary::APIC_ACCESSES
        | secondary::EPT
        | secondary::DESCRIPTOR_TABLES
        | secondary::RDTSCP
        | secondary::X2APIC_MODE
        | secondary::VPID
        | secondary::WBINVD
        | secondary::UNRESTRICTED_GUEST
        | secondary::APIC_REGISTERS
        | secondary::INTERRUPT_DELIVERY
        | secondary::PAUSE_LOOPS
        | secondary::RDRAND
        | secondary::INVPCID
        | secondary::RDSEED;
    pub const EXIT: u32 = exit::SAVE_DEBUG
        | exit::HOST_64
        | exit::ACKNOWLEDGE_INTERRUPT
        | exit::SAVE_PAT
        | exit::LOAD_PAT
        | exit::SAVE_EFER
        | exit::LOAD_EFER
        | exit::SAVE_PREEMPTION_TIMER;
    pub const ENTRY: u32 = entry::LOAD_DEBUG | entry::IA32E_GUEST | entry::LOAD_PAT | entry::LOAD_EFER;
    pub const MISC: u64 = misc::TIMER_RATE | misc::STORES_LMA | misc::HLT | misc::WAIT_FOR_SIPI | misc::ZERO_LENGTH;
    /// Stile's own code implements these, whatever the processor has.
    pub const EMULATED_MISC: u64 = misc::CR3_TARGETS | misc::WRITE_ANY;
    pub const EPT_VPID: u64 = ept_vpid::EXECUTE_ONLY | ept_vpid::ADVANCED_EXIT;
    /// Shadow tables and their invalidation are Stile's own: page sizes and flags of L1's tables need nothing of the processor.
    pub const EMULATED_EPT: u64 = ept_vpid::WALK_4
        | ept_vpid::UNCACHEABLE
        | ept_vpid::WRITE_BACK
        | ept_vpid::PAGES_2M
        | ept_vpid::PAGES_1G
        | ept_vpid::INVEPT
        | ept_vpid::ACCESSED_DIRTY
        | ept_vpid::INVEPT_SINGLE
        | ept_vpid::INVEPT_ALL;
    pub const EMULATED_VPID: u64 = ept_vpid::INVVPID | ept_vpid::INVVPID_TYPES;
    pub const VM_FUNCTIONS: u64 = 0;
}

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

    /// The offered controls that the processor has, and those that must be 1: the default1 class but for the bits that the true capability
    /// MSRs allow to be 0, and the processor's own.
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

    /// The capabilities offered to L1 on a processor with these. `cr4` has the bits of CR4 that the VM's CPUID reports.
    #[must_use]
    pub fn offered(&self, cr4: u64) -> Self {
        let secondary_may = offered::SECONDARY & self.secondary.may;
        let mut ept_vpid = offered::EPT_VPID & self.ept_vpid;
        if secondary_may & secondary::EPT != 0 {
            ept_vpid |= offered::EMULATED_EPT;
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

    /// L1's RDMSR of a capability MSR. `None` if there is no such register, which raises #GP. All are read-only: WRMSR raises #GP.
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

    /// The highest index of a field.
    fn highest_index(&self) -> u32 {
        let existing = crate::fields::existing(self);
        existing.slots().filter_map(|slot| FIELDS.get(slot)).map(|row| row.field.index()).max().unwrap_or(0)
    }
}
