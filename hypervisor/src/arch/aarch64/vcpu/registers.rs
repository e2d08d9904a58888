//! Table of the registers of EL1 and EL0 that move at load and put: an index, and the names by which EL2 accesses the
//! register, with VHE (`_EL12`, `_EL02`: Arm ARM, System register encoding with VHE) and without.

use stile_sysreg::operand;

use crate::arch::aarch64::host::features;
use crate::arch::aarch64::host::sysreg::isb;

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

        /// Writes the registers.
        #[inline]
        fn write<const VHE: bool>(from: &[u64; EL1_REGISTERS]) {
            $(if VHE { put!($vhe, from[El1::$index as usize]) } else { put!($plain, from[El1::$index as usize]) })*
        }

        /// Reads the registers.
        #[inline]
        fn read<const VHE: bool>(to: &mut [u64; EL1_REGISTERS]) {
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

/// Loads the registers, after [`put`].
#[inline(always)]
pub fn load(from: &[u64; EL1_REGISTERS]) {
    if features::moves_el1_plainly() { write::<true>(from) } else { load_otherwise(from) }
}

/// Stores the registers, which are another vCPU's or a VM's from here on.
#[inline(always)]
pub fn put(to: &mut [u64; EL1_REGISTERS]) {
    if features::moves_el1_plainly() { read::<true>(to) } else { put_otherwise(to) }
}

/// Closes EL1's translation regime on this CPU, if that needs it between two vCPUs. [`put`] does so as well.
pub fn close() {
    match (features::closes_el1(), features::get().vhe) {
        (true, true) => close_regime::<true>(),
        (true, false) => close_regime::<false>(),
        (false, _) => {}
    }
}

#[cold]
#[inline(never)]
fn load_otherwise(from: &[u64; EL1_REGISTERS]) {
    match (features::closes_el1(), features::get().vhe) {
        (true, true) => load_closed::<true>(from),
        (true, false) => load_closed::<false>(from),
        (false, true) => write::<true>(from),
        (false, false) => write::<false>(from),
    }
}

#[cold]
#[inline(never)]
fn put_otherwise(to: &mut [u64; EL1_REGISTERS]) {
    if features::get().vhe {
        read::<true>(to)
    } else {
        read::<false>(to)
    }
    close();
}

/// TCR_EL1.EPD0 and EPD1: no walks from TTBR0_EL1 and TTBR1_EL1.
const TCR_NO_WALKS: u64 = 1 << 7 | 1 << 23;
/// SCTLR_EL1.M.
const SCTLR_MMU: u64 = 1;

/// Makes all addresses of EL1's regime fault at level 0, so that nothing of it gets into the TLB while its registers are of
/// several vCPUs: walks are forbidden first, and then the MMU is on.
fn close_regime<const VHE: bool>() {
    write_tcr::<VHE>(if VHE { get!(TCR_EL12) } else { get!(TCR_EL1) } | TCR_NO_WALKS);
    isb();
    write_sctlr::<VHE>(if VHE { get!(SCTLR_EL12) } else { get!(SCTLR_EL1) } | SCTLR_MMU);
    isb();
}

/// Loads the registers behind a regime that stays closed meanwhile, and opens it in the opposite order.
fn load_closed<const VHE: bool>(from: &[u64; EL1_REGISTERS]) {
    let [sctlr, tcr] = [El1::Sctlr, El1::Tcr].map(|register| from[register as usize]);
    let mut closed = *from;
    closed[El1::Sctlr as usize] = sctlr | SCTLR_MMU;
    closed[El1::Tcr as usize] = tcr | TCR_NO_WALKS;
    write::<VHE>(&closed);
    isb();
    write_sctlr::<VHE>(sctlr);
    isb();
    write_tcr::<VHE>(tcr);
}

fn write_tcr<const VHE: bool>(value: u64) {
    if VHE { put!(TCR_EL12, value) } else { put!(TCR_EL1, value) }
}

fn write_sctlr<const VHE: bool>(value: u64) {
    if VHE { put!(SCTLR_EL12, value) } else { put!(SCTLR_EL1, value) }
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
