//! Tables of L1's registers that are kept in memory.

// Timers: control before compare value, because the former has ISTATUS, which L1 reads of its guest's timer. In
// between a timer may expire with the other's compare value: its line is a level, and is not sampled here.
/// Invokes a macro with the EL1 registers that virtual EL2 and its guest exchange: an index, EL2's name of the
/// register, and the guest's place in the VNCR_EL2 page.
macro_rules! with_switched {
    ($macro:ident) => {
        $macro! {
            Sctlr: SCTLR_EL12, SCTLR_EL1;
            Cpacr: CPACR_EL12, CPACR_EL1;
            Ttbr0: TTBR0_EL12, TTBR0_EL1;
            Ttbr1: TTBR1_EL12, TTBR1_EL1;
            Tcr: TCR_EL12, TCR_EL1;
            Spsr: SPSR_EL12, SPSR_EL1;
            Elr: ELR_EL12, ELR_EL1;
            Afsr0: AFSR0_EL12, AFSR0_EL1;
            Afsr1: AFSR1_EL12, AFSR1_EL1;
            Esr: ESR_EL12, ESR_EL1;
            Far: FAR_EL12, FAR_EL1;
            Mair: MAIR_EL12, MAIR_EL1;
            Amair: AMAIR_EL12, AMAIR_EL1;
            Vbar: VBAR_EL12, VBAR_EL1;
            Contextidr: CONTEXTIDR_EL12, CONTEXTIDR_EL1;
            Sp: SP_EL1, SP_EL1;
            CntvCtl: CNTV_CTL_EL02, CNTV_CTL_EL0;
            CntvCval: CNTV_CVAL_EL02, CNTV_CVAL_EL0;
            CntpCtl: CNTP_CTL_EL02, CNTP_CTL_EL0;
            CntpCval: CNTP_CVAL_EL02, CNTP_CVAL_EL0;
        }
    };
}
pub(super) use with_switched;

macro_rules! indices {
    ($($index:ident: $name:ident, $slot:ident;)*) => {
        /// Index into [`Nested::el2`](super::state::Nested::el2).
        #[derive(Clone, Copy)]
        #[repr(usize)]
        pub enum Switched { $(#[doc = concat!("`", stringify!($slot), "`.")] $index),* }

        /// Number of registers.
        pub const SWITCHED: usize = [$(Switched::$index),*].len();
    };
}
with_switched!(indices);

/// Registers of virtual EL2 whose accesses trap, and whose values only software uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum Own {
    /// MDCR_EL2.
    Mdcr,
    /// HPFAR_EL2.
    Hpfar,
    /// CNTHCTL_EL2 from bit 10 on: the lower bits are CNTKCTL_EL1 while virtual EL2 runs. In the layout with E2H.
    Cnthctl,
    /// CNTKCTL_EL12: the guest's CNTKCTL_EL1.
    Cntkctl,
    /// CPTR_EL2: the fields that CPACR_EL1 lacks. In the layout with E2H.
    Cptr,
    /// As written by L1 with HCR_EL2.E2H clear: SCTLR_EL2.
    PlainSctlr,
    /// TCR_EL2, in the layout without E2H.
    PlainTcr,
    /// CPTR_EL2, in the layout without E2H.
    PlainCptr,
    /// CNTHCTL_EL2, in the layout without E2H.
    PlainCnthctl,
}

/// Number of registers.
pub const OWN_REGISTERS: usize = Own::PlainCnthctl as usize + 1;
