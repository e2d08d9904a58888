//! Intercepts: bits of the words of intercepts ("VMCB Layout, Control Area", offsets 0 to 14H).

/// Bits of [`Field::INTERCEPTS_3`](crate::Field::INTERCEPTS_3).
#[allow(missing_docs, reason = "the manual's names")]
pub mod word_3 {
    pub const INTR: u32 = 1 << 0;
    pub const NMI: u32 = 1 << 1;
    pub const SMI: u32 = 1 << 2;
    pub const INIT: u32 = 1 << 3;
    pub const VINTR: u32 = 1 << 4;
    /// Writes of CR0 that change bits other than TS and MP.
    pub const CR0_WRITE: u32 = 1 << 5;
    pub const RDPMC: u32 = 1 << 15;
    pub const CPUID: u32 = 1 << 18;
    pub const RSM: u32 = 1 << 19;
    pub const IRET: u32 = 1 << 20;
    pub const INVD: u32 = 1 << 22;
    pub const PAUSE: u32 = 1 << 23;
    pub const HLT: u32 = 1 << 24;
    pub const INVLPGA: u32 = 1 << 26;
    pub const IO: u32 = 1 << 27;
    pub const MSR: u32 = 1 << 28;
    pub const TASK_SWITCH: u32 = 1 << 29;
    pub const FERR_FREEZE: u32 = 1 << 30;
    pub const SHUTDOWN: u32 = 1 << 31;
}

/// Bits of [`Field::INTERCEPTS_4`](crate::Field::INTERCEPTS_4).
#[allow(missing_docs, reason = "the manual's names")]
pub mod word_4 {
    pub const VMRUN: u32 = 1 << 0;
    pub const VMMCALL: u32 = 1 << 1;
    pub const VMLOAD: u32 = 1 << 2;
    pub const VMSAVE: u32 = 1 << 3;
    pub const STGI: u32 = 1 << 4;
    pub const CLGI: u32 = 1 << 5;
    pub const SKINIT: u32 = 1 << 6;
    pub const WBINVD: u32 = 1 << 9;
    pub const MONITOR: u32 = 1 << 10;
    pub const MWAIT: u32 = 1 << 11;
    pub const MWAIT_ARMED: u32 = 1 << 12;
    pub const XSETBV: u32 = 1 << 13;
    pub const RDPRU: u32 = 1 << 14;
}

/// Bits of [`Field::INTERCEPTS_5`](crate::Field::INTERCEPTS_5).
#[allow(missing_docs, reason = "the manual's names")]
pub mod word_5 {
    pub const INVLPGB: u32 = 1 << 0;
    pub const INVLPGB_ILLEGAL: u32 = 1 << 1;
    pub const MCOMMIT: u32 = 1 << 3;
    pub const TLBSYNC: u32 = 1 << 4;
}

/// Bit of [`Field::INTERCEPTS_CR`](crate::Field::INTERCEPTS_CR): writes of a control register.
pub const fn writes_of_cr(number: u32) -> u32 {
    1 << (16 + number)
}

/// Bits of [`Field::INTERRUPT_CONTROL`](crate::Field::INTERRUPT_CONTROL) ("Injecting Virtual (INTR) Interrupts").
pub mod interrupt {
    /// A virtual interrupt is pending.
    pub const V_IRQ: u64 = 1 << 8;
    /// Its priority: the highest.
    pub const V_INTR_PRIORITY: u64 = 0xf << 16;
    /// Its priority is not compared with the TPR.
    pub const V_IGNORE_TPR: u64 = 1 << 20;
    /// RFLAGS.IF of the guest does not mask physical interrupts.
    pub const V_INTR_MASKING: u64 = 1 << 24;
}

/// Values of [`Field::TLB_CONTROL`](crate::Field::TLB_CONTROL) ("TLB Flush").
pub mod tlb {
    /// All translations of the CPU.
    pub const FLUSH_ALL: u64 = 1;
}
