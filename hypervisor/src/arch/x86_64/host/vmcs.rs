//! The virtual-machine control structure: its fields' encodings (the manual, "Field Encoding in VMCS"), and access to those of the VMCS
//! that is current on this CPU.

use core::arch::asm;

/// A field's encoding.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub struct Field(pub u32);

macro_rules! fields {
    ($($name:ident = $encoding:literal),+ $(,)?) => {
        impl Field {
            $(#[doc = stringify!($name)] pub const $name: Field = Field($encoding);)+
        }
    };
}

fields! {
    // 16 bits.
    VPID = 0x0000,
    POSTED_INTERRUPT_VECTOR = 0x0002,
    GUEST_ES = 0x0800,
    GUEST_CS = 0x0802,
    GUEST_SS = 0x0804,
    GUEST_DS = 0x0806,
    GUEST_FS = 0x0808,
    GUEST_GS = 0x080a,
    GUEST_LDTR = 0x080c,
    GUEST_TR = 0x080e,
    GUEST_INTERRUPT_STATUS = 0x0810,
    HOST_ES = 0x0c00,
    HOST_CS = 0x0c02,
    HOST_SS = 0x0c04,
    HOST_DS = 0x0c06,
    HOST_FS = 0x0c08,
    HOST_GS = 0x0c0a,
    HOST_TR = 0x0c0c,
    // 64 bits.
    IO_BITMAP_A = 0x2000,
    IO_BITMAP_B = 0x2002,
    MSR_BITMAP = 0x2004,
    TSC_OFFSET = 0x2010,
    VIRTUAL_APIC = 0x2012,
    APIC_ACCESS = 0x2014,
    POSTED_INTERRUPTS = 0x2016,
    EPT_POINTER = 0x201a,
    EOI_EXIT_0 = 0x201c,
    EOI_EXIT_1 = 0x201e,
    EOI_EXIT_2 = 0x2020,
    EOI_EXIT_3 = 0x2022,
    GUEST_PHYSICAL = 0x2400,
    VMCS_LINK = 0x2800,
    GUEST_DEBUGCTL = 0x2802,
    GUEST_PAT = 0x2804,
    GUEST_EFER = 0x2806,
    GUEST_PDPTE0 = 0x280a,
    GUEST_PDPTE1 = 0x280c,
    GUEST_PDPTE2 = 0x280e,
    GUEST_PDPTE3 = 0x2810,
    HOST_PAT = 0x2c00,
    HOST_EFER = 0x2c02,
    // 32 bits.
    PIN_CONTROLS = 0x4000,
    PRIMARY_CONTROLS = 0x4002,
    EXCEPTION_BITMAP = 0x4004,
    PAGE_FAULT_MASK = 0x4006,
    PAGE_FAULT_MATCH = 0x4008,
    CR3_TARGETS = 0x400a,
    EXIT_CONTROLS = 0x400c,
    EXIT_MSR_STORES = 0x400e,
    EXIT_MSR_LOADS = 0x4010,
    ENTRY_CONTROLS = 0x4012,
    ENTRY_MSR_LOADS = 0x4014,
    ENTRY_INTERRUPTION = 0x4016,
    ENTRY_ERROR_CODE = 0x4018,
    ENTRY_LENGTH = 0x401a,
    TPR_THRESHOLD = 0x401c,
    SECONDARY_CONTROLS = 0x401e,
    PAUSE_GAP = 0x4020,
    PAUSE_WINDOW = 0x4022,
    INSTRUCTION_ERROR = 0x4400,
    EXIT_REASON = 0x4402,
    EXIT_INTERRUPTION = 0x4404,
    EXIT_INTERRUPTION_CODE = 0x4406,
    VECTORING = 0x4408,
    VECTORING_CODE = 0x440a,
    EXIT_LENGTH = 0x440c,
    GUEST_ES_LIMIT = 0x4800,
    GUEST_CS_LIMIT = 0x4802,
    GUEST_SS_LIMIT = 0x4804,
    GUEST_DS_LIMIT = 0x4806,
    GUEST_FS_LIMIT = 0x4808,
    GUEST_GS_LIMIT = 0x480a,
    GUEST_LDTR_LIMIT = 0x480c,
    GUEST_TR_LIMIT = 0x480e,
    GUEST_GDTR_LIMIT = 0x4810,
    GUEST_IDTR_LIMIT = 0x4812,
    GUEST_ES_RIGHTS = 0x4814,
    GUEST_CS_RIGHTS = 0x4816,
    GUEST_SS_RIGHTS = 0x4818,
    GUEST_DS_RIGHTS = 0x481a,
    GUEST_FS_RIGHTS = 0x481c,
    GUEST_GS_RIGHTS = 0x481e,
    GUEST_LDTR_RIGHTS = 0x4820,
    GUEST_TR_RIGHTS = 0x4822,
    GUEST_INTERRUPTIBILITY = 0x4824,
    GUEST_ACTIVITY = 0x4826,
    GUEST_SYSENTER_CS = 0x482a,
    // The width of addresses.
    CR0_MASK = 0x6000,
    CR4_MASK = 0x6002,
    CR0_SHADOW = 0x6004,
    CR4_SHADOW = 0x6006,
    EXIT_QUALIFICATION = 0x6400,
    GUEST_LINEAR = 0x640a,
    GUEST_CR0 = 0x6800,
    GUEST_CR3 = 0x6802,
    GUEST_CR4 = 0x6804,
    GUEST_ES_BASE = 0x6806,
    GUEST_CS_BASE = 0x6808,
    GUEST_SS_BASE = 0x680a,
    GUEST_DS_BASE = 0x680c,
    GUEST_FS_BASE = 0x680e,
    GUEST_GS_BASE = 0x6810,
    GUEST_LDTR_BASE = 0x6812,
    GUEST_TR_BASE = 0x6814,
    GUEST_GDTR_BASE = 0x6816,
    GUEST_IDTR_BASE = 0x6818,
    GUEST_DR7 = 0x681a,
    GUEST_RSP = 0x681c,
    GUEST_RIP = 0x681e,
    GUEST_RFLAGS = 0x6820,
    GUEST_PENDING_DEBUG = 0x6822,
    GUEST_SYSENTER_ESP = 0x6824,
    GUEST_SYSENTER_EIP = 0x6826,
    HOST_CR0 = 0x6c00,
    HOST_CR3 = 0x6c02,
    HOST_CR4 = 0x6c04,
    HOST_FS_BASE = 0x6c06,
    HOST_GS_BASE = 0x6c08,
    HOST_TR_BASE = 0x6c0a,
    HOST_GDTR_BASE = 0x6c0c,
    HOST_IDTR_BASE = 0x6c0e,
    HOST_SYSENTER_ESP = 0x6c10,
    HOST_SYSENTER_EIP = 0x6c12,
    HOST_RSP = 0x6c14,
    HOST_RIP = 0x6c16,
}

/// Reads a field of the current VMCS; zero if there is none.
#[inline(always)]
pub fn read(field: Field) -> u64 {
    let value: u64;
    // SAFETY: this CPU is in VMX root operation (a vCPU's state is reached only while it is loaded); reading changes nothing else.
    unsafe { asm!("vmread {}, {}", out(reg) value, in(reg) u64::from(field.0), options(nomem, nostack)) };
    value
}

/// Writes a field of the current VMCS.
#[inline(always)]
pub fn write(field: Field, value: u64) {
    // SAFETY: as above; what a guest may not have is kept from it by the controls, which only this architecture's code chooses.
    unsafe { asm!("vmwrite {}, {}", in(reg) u64::from(field.0), in(reg) value, options(nomem, nostack)) };
}

/// Makes the VMCS at a physical address the current one.
pub fn make_current(address: u64) {
    // SAFETY: the address is of a page that is a VMCS and nothing else, and no other CPU has it.
    unsafe { asm!("vmptrld [{}]", in(reg) &address, options(nostack)) };
}

/// Writes a VMCS back to its memory and forgets it, so that another CPU can make it current. It must be launched anew.
pub fn clear(address: u64) {
    // SAFETY: as above.
    unsafe { asm!("vmclear [{}]", in(reg) &address, options(nostack)) };
}
