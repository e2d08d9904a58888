//! Bits of the control fields (SDM, "VM-Execution Control Fields", "VM-Exit Controls", "VM-Entry Controls").

macro_rules! bits {
    ($($name:ident = $bit:literal),+ $(,)?) => {
        $(#[doc = concat!(stringify!($name), ": bit ", stringify!($bit), ".")] pub const $name: u32 = 1 << $bit;)+
    };
}

/// Pin-based controls.
pub mod pin {
    bits! { EXTERNAL_INTERRUPTS = 0, NMIS = 3, VIRTUAL_NMIS = 5, PREEMPTION_TIMER = 6, POSTED_INTERRUPTS = 7 }
    /// Bits that are 1 where the capability MSRs do not say otherwise (the default1 class).
    pub const DEFAULT1: u32 = 0x16;
}

/// Primary processor-based controls.
pub mod primary {
    bits! {
        INTERRUPT_WINDOW = 2, TSC_OFFSET = 3, HLT = 7, INVLPG = 9, MWAIT = 10, RDPMC = 11, RDTSC = 12, CR3_LOAD = 15, CR3_STORE = 16,
        TERTIARY = 17, CR8_LOAD = 19, CR8_STORE = 20, TPR_SHADOW = 21, NMI_WINDOW = 22, MOV_DR = 23, UNCONDITIONAL_IO = 24, IO_BITMAPS = 25,
        MONITOR_TRAP = 27, MSR_BITMAPS = 28, MONITOR = 29, PAUSE = 30, SECONDARY = 31,
    }
    /// The default1 class.
    pub const DEFAULT1: u32 = 0x0401_e172;
    /// The bits of the default1 class that the true capability MSR allows to be 0.
    pub const TRUE_MAY_BE_0: u32 = CR3_LOAD | CR3_STORE;
}

/// Secondary processor-based controls.
pub mod secondary {
    bits! {
        APIC_ACCESSES = 0, EPT = 1, DESCRIPTOR_TABLES = 2, RDTSCP = 3, X2APIC_MODE = 4, VPID = 5, WBINVD = 6, UNRESTRICTED_GUEST = 7,
        APIC_REGISTERS = 8, INTERRUPT_DELIVERY = 9, PAUSE_LOOPS = 10, RDRAND = 11, INVPCID = 12, VM_FUNCTIONS = 13, VMCS_SHADOWING = 14,
        ENCLS = 15, RDSEED = 16, PAGE_MODIFICATION_LOG = 17, EPT_VIOLATION_VE = 18, CONCEAL_FROM_PT = 19, XSAVES = 20,
        MODE_BASED_EXECUTE = 22, SUB_PAGE_WRITE = 23, TSC_SCALING = 25,
    }
}

/// VM-exit controls.
pub mod exit {
    bits! {
        SAVE_DEBUG = 2, HOST_64 = 9, LOAD_PERF_GLOBAL = 12, ACKNOWLEDGE_INTERRUPT = 15, SAVE_PAT = 18, LOAD_PAT = 19, SAVE_EFER = 20,
        LOAD_EFER = 21, SAVE_PREEMPTION_TIMER = 22,
    }
    /// The default1 class.
    pub const DEFAULT1: u32 = 0x0003_6dff;
    /// The bits of the default1 class that the true capability MSR allows to be 0.
    pub const TRUE_MAY_BE_0: u32 = SAVE_DEBUG;
}

/// VM-entry controls.
pub mod entry {
    bits! {
        LOAD_DEBUG = 2, IA32E_GUEST = 9, TO_SMM = 10, NO_DUAL_MONITOR = 11, LOAD_PERF_GLOBAL = 13, LOAD_PAT = 14, LOAD_EFER = 15,
    }
    /// The default1 class.
    pub const DEFAULT1: u32 = 0x0000_11ff;
    /// The bits of the default1 class that the true capability MSR allows to be 0.
    pub const TRUE_MAY_BE_0: u32 = LOAD_DEBUG;
}
