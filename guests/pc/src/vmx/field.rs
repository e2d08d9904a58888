//! Encodings of VMCS fields, and bits of controls (Intel SDM volume 3, appendix "Field Encoding in VMCS").

pub const VPID: u64 = 0x0000;
pub const POSTED_INTERRUPT_VECTOR: u64 = 0x0002;
pub const GUEST_ES: u64 = 0x0800;
pub const GUEST_CS: u64 = 0x0802;
pub const GUEST_SS: u64 = 0x0804;
pub const GUEST_DS: u64 = 0x0806;
pub const GUEST_LDTR: u64 = 0x080c;
pub const GUEST_TR: u64 = 0x080e;
pub const GUEST_INTERRUPT_STATUS: u64 = 0x0810;
pub const HOST_ES: u64 = 0x0c00;
pub const HOST_CS: u64 = 0x0c02;
pub const HOST_SS: u64 = 0x0c04;
pub const HOST_DS: u64 = 0x0c06;
pub const HOST_GS: u64 = 0x0c0a;
pub const HOST_TR: u64 = 0x0c0c;
pub const IO_BITMAP_A: u64 = 0x2000;
pub const IO_BITMAP_B: u64 = 0x2002;
pub const MSR_BITMAP: u64 = 0x2004;
pub const EXIT_MSR_STORE_AREA: u64 = 0x2006;
pub const EXIT_MSR_LOAD_AREA: u64 = 0x2008;
pub const ENTRY_MSR_LOAD_AREA: u64 = 0x200a;
pub const TSC_OFFSET: u64 = 0x2010;
pub const VIRTUAL_APIC: u64 = 0x2012;
pub const APIC_ACCESS: u64 = 0x2014;
pub const POSTED_INTERRUPTS: u64 = 0x2016;
pub const EPT_POINTER: u64 = 0x201a;
pub const EOI_EXIT_1: u64 = 0x201e;
pub const GUEST_PHYSICAL: u64 = 0x2400;
pub const VMCS_LINK: u64 = 0x2800;
pub const GUEST_DEBUGCTL: u64 = 0x2802;
pub const GUEST_PAT: u64 = 0x2804;
pub const GUEST_EFER: u64 = 0x2806;
pub const GUEST_PDPTE0: u64 = 0x280a;
pub const HOST_PAT: u64 = 0x2c00;
pub const HOST_EFER: u64 = 0x2c02;
pub const PIN_CONTROLS: u64 = 0x4000;
pub const PRIMARY_CONTROLS: u64 = 0x4002;
pub const EXCEPTION_BITMAP: u64 = 0x4004;
pub const PAGE_FAULT_MASK: u64 = 0x4006;
pub const PAGE_FAULT_MATCH: u64 = 0x4008;
pub const CR3_TARGETS: u64 = 0x400a;
pub const EXIT_CONTROLS: u64 = 0x400c;
pub const EXIT_MSR_STORES: u64 = 0x400e;
pub const EXIT_MSR_LOADS: u64 = 0x4010;
pub const ENTRY_CONTROLS: u64 = 0x4012;
pub const ENTRY_MSR_LOADS: u64 = 0x4014;
pub const ENTRY_INTERRUPTION: u64 = 0x4016;
pub const ENTRY_ERROR_CODE: u64 = 0x4018;
pub const ENTRY_LENGTH: u64 = 0x401a;
pub const TPR_THRESHOLD: u64 = 0x401c;
pub const SECONDARY_CONTROLS: u64 = 0x401e;
pub const INSTRUCTION_ERROR: u64 = 0x4400;
pub const EXIT_REASON: u64 = 0x4402;
pub const EXIT_INTERRUPTION: u64 = 0x4404;
pub const EXIT_INTERRUPTION_CODE: u64 = 0x4406;
pub const VECTORING: u64 = 0x4408;
pub const EXIT_LENGTH: u64 = 0x440c;
pub const EXIT_INSTRUCTION: u64 = 0x440e;
pub const GUEST_ES_LIMIT: u64 = 0x4800;
pub const GUEST_DS_LIMIT: u64 = 0x4806;
pub const GUEST_GDTR_LIMIT: u64 = 0x4810;
pub const GUEST_IDTR_LIMIT: u64 = 0x4812;
pub const GUEST_ES_RIGHTS: u64 = 0x4814;
pub const GUEST_CS_RIGHTS: u64 = 0x4816;
pub const GUEST_SS_RIGHTS: u64 = 0x4818;
pub const GUEST_DS_RIGHTS: u64 = 0x481a;
pub const GUEST_FS_RIGHTS: u64 = 0x481c;
pub const GUEST_GS_RIGHTS: u64 = 0x481e;
pub const GUEST_LDTR_RIGHTS: u64 = 0x4820;
pub const GUEST_TR_RIGHTS: u64 = 0x4822;
pub const GUEST_INTERRUPTIBILITY: u64 = 0x4824;
pub const GUEST_ACTIVITY: u64 = 0x4826;
pub const PREEMPTION_TIMER: u64 = 0x482e;
pub const CR0_MASK: u64 = 0x6000;
pub const CR4_MASK: u64 = 0x6002;
pub const CR0_SHADOW: u64 = 0x6004;
pub const CR4_SHADOW: u64 = 0x6006;
pub const CR3_TARGET_0: u64 = 0x6008;
pub const EXIT_QUALIFICATION: u64 = 0x6400;
pub const GUEST_LINEAR: u64 = 0x640a;
pub const GUEST_CR0: u64 = 0x6800;
pub const GUEST_CR3: u64 = 0x6802;
pub const GUEST_CR4: u64 = 0x6804;
pub const GUEST_ES_BASE: u64 = 0x6806;
pub const GUEST_DS_BASE: u64 = 0x680c;
pub const GUEST_LDTR_BASE: u64 = 0x6812;
pub const GUEST_TR_BASE: u64 = 0x6814;
pub const GUEST_GDTR_BASE: u64 = 0x6816;
pub const GUEST_IDTR_BASE: u64 = 0x6818;
pub const GUEST_DR7: u64 = 0x681a;
pub const GUEST_RSP: u64 = 0x681c;
pub const GUEST_RIP: u64 = 0x681e;
pub const GUEST_RFLAGS: u64 = 0x6820;
pub const GUEST_PENDING_DEBUG: u64 = 0x6822;
pub const GUEST_SYSENTER_ESP: u64 = 0x6824;
pub const HOST_CR0: u64 = 0x6c00;
pub const HOST_CR3: u64 = 0x6c02;
pub const HOST_CR4: u64 = 0x6c04;
pub const HOST_GDTR_BASE: u64 = 0x6c0c;
pub const HOST_IDTR_BASE: u64 = 0x6c0e;
pub const HOST_SYSENTER_ESP: u64 = 0x6c10;
pub const HOST_SYSENTER_EIP: u64 = 0x6c12;
pub const HOST_RIP: u64 = 0x6c16;

/// Pin-based controls.
pub mod pin {
    pub const EXTERNAL_INTERRUPTS: u32 = 1 << 0;
    pub const NMIS: u32 = 1 << 3;
    pub const VIRTUAL_NMIS: u32 = 1 << 5;
    pub const PREEMPTION_TIMER: u32 = 1 << 6;
    pub const POSTED_INTERRUPTS: u32 = 1 << 7;
}

/// Primary processor-based controls.
pub mod primary {
    pub const INTERRUPT_WINDOW: u32 = 1 << 2;
    pub const TSC_OFFSET: u32 = 1 << 3;
    pub const HLT: u32 = 1 << 7;
    pub const INVLPG: u32 = 1 << 9;
    pub const RDPMC: u32 = 1 << 11;
    pub const RDTSC: u32 = 1 << 12;
    pub const CR3_LOAD: u32 = 1 << 15;
    pub const CR3_STORE: u32 = 1 << 16;
    pub const CR8_LOAD: u32 = 1 << 19;
    pub const CR8_STORE: u32 = 1 << 20;
    pub const TPR_SHADOW: u32 = 1 << 21;
    pub const NMI_WINDOW: u32 = 1 << 22;
    pub const MOV_DR: u32 = 1 << 23;
    pub const UNCONDITIONAL_IO: u32 = 1 << 24;
    pub const IO_BITMAPS: u32 = 1 << 25;
    pub const MONITOR_TRAP: u32 = 1 << 27;
    pub const MSR_BITMAPS: u32 = 1 << 28;
    pub const PAUSE: u32 = 1 << 30;
    pub const SECONDARY: u32 = 1 << 31;
}

/// Secondary processor-based controls.
pub mod secondary {
    pub const APIC_ACCESSES: u32 = 1 << 0;
    pub const EPT: u32 = 1 << 1;
    pub const DESCRIPTOR_TABLES: u32 = 1 << 2;
    pub const X2APIC_MODE: u32 = 1 << 4;
    pub const VPID: u32 = 1 << 5;
    pub const WBINVD: u32 = 1 << 6;
    pub const UNRESTRICTED_GUEST: u32 = 1 << 7;
    pub const APIC_REGISTERS: u32 = 1 << 8;
    pub const INTERRUPT_DELIVERY: u32 = 1 << 9;
}

/// VM-exit controls.
pub mod exit {
    pub const SAVE_DEBUG: u32 = 1 << 2;
    pub const HOST_64: u32 = 1 << 9;
    pub const ACKNOWLEDGE_INTERRUPT: u32 = 1 << 15;
    pub const SAVE_PAT: u32 = 1 << 18;
    pub const LOAD_PAT: u32 = 1 << 19;
    pub const SAVE_EFER: u32 = 1 << 20;
    pub const LOAD_EFER: u32 = 1 << 21;
    pub const SAVE_PREEMPTION_TIMER: u32 = 1 << 22;
}

/// VM-entry controls.
pub mod entry {
    pub const LOAD_DEBUG: u32 = 1 << 2;
    pub const IA32E_GUEST: u32 = 1 << 9;
    pub const TO_SMM: u32 = 1 << 10;
    pub const LOAD_PAT: u32 = 1 << 14;
    pub const LOAD_EFER: u32 = 1 << 15;
}
