//! The registers of EL1 and EL0 that move at load and put, as one table: an index, and the two names under which EL2 reaches the
//! register, with VHE (`_EL12`, `_EL02`: Arm ARM, System register encoding with VHE) and without it.

/// As `read_sysreg`; but these registers have nothing to do with memory, so that what is moved may be moved in pairs.
macro_rules! get {
    ($name:expr) => {{
        let value: u64;
        // SAFETY: reading a register that this CPU has changes no memory.
        unsafe { core::arch::asm!(concat!("mrs {}, ", $name), out(reg) value, options(nomem, nostack, preserves_flags)) };
        value
    }};
}

/// As `write_sysreg`, with the same difference. They are EL1's, and EL2 does not use them.
macro_rules! put {
    ($name:expr, $value:expr) => {{
        let value: u64 = $value;
        // SAFETY: see above.
        unsafe { core::arch::asm!(concat!("msr ", $name, ", {}"), in(reg) value, options(nomem, nostack, preserves_flags)) };
    }};
}

macro_rules! el1_registers {
    ($($index:ident: $vhe:literal, $plain:literal, $reset:literal;)*) => {
        /// Index into [`super::context::VcpuContext::el1`].
        #[derive(Clone, Copy)]
        #[repr(usize)]
        pub enum El1 { $(#[doc = concat!("`", $plain, "`.")] $index),* }

        /// How many there are.
        pub const EL1_REGISTERS: usize = [$(El1::$index),*].len();

        /// Their values after a reset: zero where the architecture says "unknown".
        pub const fn reset_values() -> [u64; EL1_REGISTERS] {
            [$($reset),*]
        }

        /// Memory to registers.
        #[inline]
        pub fn load<const VHE: bool>(from: &[u64; EL1_REGISTERS]) {
            $(if VHE { put!($vhe, from[El1::$index as usize]) } else { put!($plain, from[El1::$index as usize]) })*
        }

        /// Registers to memory.
        #[inline]
        pub fn save<const VHE: bool>(to: &mut [u64; EL1_REGISTERS]) {
            $(to[El1::$index as usize] = if VHE { get!($vhe) } else { get!($plain) };)*
        }
    };
}

// Timers: the control register comes after the compare value, so that a timer is not on with another vCPU's deadline.
el1_registers! {
    Sctlr: "S3_5_C1_C0_0", "sctlr_el1", 0x30d0_0800;
    Cpacr: "S3_5_C1_C0_2", "cpacr_el1", 0;
    Ttbr0: "S3_5_C2_C0_0", "ttbr0_el1", 0;
    Ttbr1: "S3_5_C2_C0_1", "ttbr1_el1", 0;
    Tcr: "S3_5_C2_C0_2", "tcr_el1", 0;
    Spsr: "S3_5_C4_C0_0", "spsr_el1", 0;
    Elr: "S3_5_C4_C0_1", "elr_el1", 0;
    Afsr0: "S3_5_C5_C1_0", "afsr0_el1", 0;
    Afsr1: "S3_5_C5_C1_1", "afsr1_el1", 0;
    Esr: "S3_5_C5_C2_0", "esr_el1", 0;
    Far: "S3_5_C6_C0_0", "far_el1", 0;
    Mair: "S3_5_C10_C2_0", "mair_el1", 0;
    Amair: "S3_5_C10_C3_0", "amair_el1", 0;
    Vbar: "S3_5_C12_C0_0", "vbar_el1", 0;
    Contextidr: "S3_5_C13_C0_1", "contextidr_el1", 0;
    Cntkctl: "S3_5_C14_C1_0", "cntkctl_el1", 0;
    CntvCval: "S3_5_C14_C3_2", "cntv_cval_el0", 0;
    CntvCtl: "S3_5_C14_C3_1", "cntv_ctl_el0", 0;
    CntpCval: "S3_5_C14_C2_2", "cntp_cval_el0", 0;
    CntpCtl: "S3_5_C14_C2_1", "cntp_ctl_el0", 0;
    Sp0: "sp_el0", "sp_el0", 0;
    Sp1: "sp_el1", "sp_el1", 0;
    Tpidr0: "tpidr_el0", "tpidr_el0", 0;
    Tpidrro0: "tpidrro_el0", "tpidrro_el0", 0;
    Tpidr1: "tpidr_el1", "tpidr_el1", 0;
    Par: "par_el1", "par_el1", 0;
    Csselr: "csselr_el1", "csselr_el1", 0;
    Mdscr: "mdscr_el1", "mdscr_el1", 0;
}

/// Half keys: two for each of APIA, APIB, APDA, APDB, APGA.
pub const KEYS: usize = 10;

macro_rules! keys {
    ($($index:literal: $name:literal;)*) => {
        /// Memory to registers. The CPU must have pointer authentication.
        pub fn load_keys(from: &[u64; KEYS]) {
            $(put!($name, from[$index]);)*
        }

        /// Registers to memory. The CPU must have pointer authentication.
        pub fn save_keys(to: &mut [u64; KEYS]) {
            $(to[$index] = get!($name);)*
        }
    };
}
keys! {
    0: "S3_0_C2_C1_0"; 1: "S3_0_C2_C1_1"; // APIAKey
    2: "S3_0_C2_C1_2"; 3: "S3_0_C2_C1_3"; // APIBKey
    4: "S3_0_C2_C2_0"; 5: "S3_0_C2_C2_1"; // APDAKey
    6: "S3_0_C2_C2_2"; 7: "S3_0_C2_C2_3"; // APDBKey
    8: "S3_0_C2_C3_0"; 9: "S3_0_C2_C3_1"; // APGAKey
}
