//! Records of an AArch64 virtual machine, in this order: [`Machine`], [`Spis`](crate::gic::Spis) for each block, and
//! [`Vcpu`] for each vCPU.

use serde::{Deserialize, Serialize};

use crate::device::{Pl011, Pl031};
use crate::gic::Private;

/// Number of [`Vcpu::el1`].
pub const EL1_REGISTERS: usize = 28;
/// Number of breakpoints and of watchpoints.
pub const BREAKPOINTS: usize = 16;

/// State of the virtual machine as a whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine<'a> {
    /// ID registers as the guest reads them, by CRm and op2.
    pub id_registers: [[u64; 32]; 2],
    /// Bytes of an SVE vector; 0 without SVE.
    pub vector_length: u16,
    /// CNTFRQ_EL0.
    pub frequency: u64,
    /// Time of day at the time of the snapshot, in nanoseconds since 1970.
    pub time: u64,
    /// CNTVCT_EL0 at the time of the snapshot.
    pub virtual_count: u64,
    /// GICD_CTLR's group enables.
    pub enables: u8,
    /// Console.
    pub uart: Pl011,
    /// Input that waits for the UART's FIFO, in two halves.
    #[serde(borrow)]
    pub input: [&'a [u8]; 2],
    /// Real-time clock.
    pub clock: Pl031,
}

/// State of a vCPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vcpu<'a> {
    /// Powered on (PSCI).
    pub on: bool,
    /// Program counter.
    pub pc: u64,
    /// PSTATE, in SPSR_EL2's format. Unchecked: see [`crate::pstate::allowed`].
    pub pstate: u64,
    /// A virtual SError is pending.
    pub serror: bool,
    /// Registers of EL1 and EL0 that the guest writes without a trap, in the hypervisor's order. CNTP_CVAL_EL0 is what is
    /// [`left`](crate::countdown::left) at the time of the snapshot.
    pub el1: [u64; EL1_REGISTERS],
    /// Pointer-authentication keys: APIA, APIB, APDA, APDB, APGA, low half first.
    pub keys: [u64; 10],
    /// x0 to x30.
    pub general: [u64; 31],
    /// Breakpoints and watchpoints.
    pub debug: Debug,
    /// FPCR.
    pub fpcr: u64,
    /// FPSR.
    pub fpsr: u64,
    /// ZCR_EL1.
    pub zcr: u64,
    /// Z0 to Z31, each of [`Machine::vector_length`] bytes, or V0 to V31; trailing zeros are left out.
    pub z: &'a [u8],
    /// P0 to P15 and FFR; trailing zeros are left out.
    pub p: &'a [u8],
    /// SGIs, PPIs and CPU interface.
    pub private: Private,
    /// Stolen time in ticks, if the guest has enabled it.
    pub stolen: Option<u64>,
}

/// Debug registers of a vCPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Debug {
    /// The guest has used them.
    pub in_use: bool,
    /// OSLSR_EL1.OSLK.
    pub os_lock: bool,
    /// DBGBVRn_EL1.
    pub bvr: [u64; BREAKPOINTS],
    /// DBGBCRn_EL1.
    pub bcr: [u64; BREAKPOINTS],
    /// DBGWVRn_EL1.
    pub wvr: [u64; BREAKPOINTS],
    /// DBGWCRn_EL1.
    pub wcr: [u64; BREAKPOINTS],
}
