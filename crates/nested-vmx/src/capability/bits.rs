//! Numbers and bits of the capability MSRs.

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
