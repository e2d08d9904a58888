//! Table of the registers of EL1 and EL0 that move at load and put: an index, and the names by which EL2 accesses the
//! register, with VHE (`_EL12`, `_EL02`: Arm ARM, System register encoding with VHE) and without.

use stile_sysreg::operand;

/// As `read_sysreg`, but without a memory clobber, so that the compiler can pair the stores.
macro_rules! get {
    ($name:ident) => {{
        let value: u64;
        // SAFETY: reading a register that this CPU has does not affect memory.
        unsafe { core::arch::asm!(concat!("mrs {}, ", operand!($name)), out(reg) value, options(nomem, nostack, preserves_flags)) };
        value
    }};
}

/// As `write_sysreg`, without a memory clobber. EL1's registers do not affect EL2.
macro_rules! put {
    ($name:ident, $value:expr) => {{
        let value: u64 = $value;
        // SAFETY: EL1's registers do not affect EL2's memory.
        unsafe { core::arch::asm!(concat!("msr ", operand!($name), ", {}"), in(reg) value, options(nomem, nostack, preserves_flags)) };
    }};
}

macro_rules! el1_registers {
    ($($index:ident: $vhe:ident, $plain:ident, $reset:literal;)*) => {
        /// Index into [`super::context::VcpuContext::el1`].
        #[derive(Clone, Copy)]
        #[repr(usize)]
        pub enum El1 { $(#[doc = concat!("`", stringify!($plain), "`.")] $index),* }

        /// Number of registers.
        pub const EL1_REGISTERS: usize = [$(El1::$index),*].len();

        /// Values after reset: zero where the architecture says "unknown".
        pub const fn reset_values() -> [u64; EL1_REGISTERS] {
            [$($reset),*]
        }

        /// Loads the registers from memory.
        #[inline]
        pub fn load<const VHE: bool>(from: &[u64; EL1_REGISTERS]) {
            $(if VHE { put!($vhe, from[El1::$index as usize]) } else { put!($plain, from[El1::$index as usize]) })*
        }

        /// Stores the registers to memory.
        #[inline]
        pub fn save<const VHE: bool>(to: &mut [u64; EL1_REGISTERS]) {
            $(to[El1::$index as usize] = if VHE { get!($vhe) } else { get!($plain) };)*
        }
    };
}

// Timers: control after compare value, so that a timer is never enabled with another vCPU's deadline.
el1_registers! {
    Sctlr: SCTLR_EL12, SCTLR_EL1, 0x30d0_0800;
    Cpacr: CPACR_EL12, CPACR_EL1, 0;
    Ttbr0: TTBR0_EL12, TTBR0_EL1, 0;
    Ttbr1: TTBR1_EL12, TTBR1_EL1, 0;
    Tcr: TCR_EL12, TCR_EL1, 0;
    Spsr: SPSR_EL12, SPSR_EL1, 0;
    Elr: ELR_EL12, ELR_EL1, 0;
    Afsr0: AFSR0_EL12, AFSR0_EL1, 0;
    Afsr1: AFSR1_EL12, AFSR1_EL1, 0;
    Esr: ESR_EL12, ESR_EL1, 0;
    Far: FAR_EL12, FAR_EL1, 0;
    Mair: MAIR_EL12, MAIR_EL1, 0;
    Amair: AMAIR_EL12, AMAIR_EL1, 0;
    Vbar: VBAR_EL12, VBAR_EL1, 0;
    Contextidr: CONTEXTIDR_EL12, CONTEXTIDR_EL1, 0;
    Cntkctl: CNTKCTL_EL12, CNTKCTL_EL1, 0;
    CntvCval: CNTV_CVAL_EL02, CNTV_CVAL_EL0, 0;
    CntvCtl: CNTV_CTL_EL02, CNTV_CTL_EL0, 0;
    CntpCval: CNTP_CVAL_EL02, CNTP_CVAL_EL0, 0;
    CntpCtl: CNTP_CTL_EL02, CNTP_CTL_EL0, 0;
    Sp0: SP_EL0, SP_EL0, 0;
    Sp1: SP_EL1, SP_EL1, 0;
    Tpidr0: TPIDR_EL0, TPIDR_EL0, 0;
    Tpidrro0: TPIDRRO_EL0, TPIDRRO_EL0, 0;
    Tpidr1: TPIDR_EL1, TPIDR_EL1, 0;
    Par: PAR_EL1, PAR_EL1, 0;
    Csselr: CSSELR_EL1, CSSELR_EL1, 0;
    Mdscr: MDSCR_EL1, MDSCR_EL1, 0;
}

/// Halves of the keys APIA, APIB, APDA, APDB, APGA.
pub const KEYS: usize = 10;

macro_rules! keys {
    ($($index:literal: $name:ident;)*) => {
        /// Loads the keys. The CPU has FEAT_PAuth.
        pub fn load_keys(from: &[u64; KEYS]) {
            $(put!($name, from[$index]);)*
        }

        /// Stores the keys. The CPU has FEAT_PAuth.
        pub fn save_keys(to: &mut [u64; KEYS]) {
            $(to[$index] = get!($name);)*
        }
    };
}
keys! {
    0: APIAKeyLo_EL1; 1: APIAKeyHi_EL1;
    2: APIBKeyLo_EL1; 3: APIBKeyHi_EL1;
    4: APDAKeyLo_EL1; 5: APDAKeyHi_EL1;
    6: APDBKeyLo_EL1; 7: APDBKeyHi_EL1;
    8: APGAKeyLo_EL1; 9: APGAKeyHi_EL1;
}
