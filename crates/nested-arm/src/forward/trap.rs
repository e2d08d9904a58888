//! Named controls: Arm ARM, the registers' pages ("HCR_EL2, Hypervisor Configuration Register", ...).

use super::{Control, Controls};

/// The accesses that a control traps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accesses {
    /// Reads.
    Reads,
    /// Writes, and instructions.
    Writes,
    /// Both.
    All,
}

/// A condition on one control register.
#[derive(Clone, Copy, Debug)]
pub struct Trap {
    /// The register.
    pub control: Control,
    /// The compared bits.
    pub mask: u64,
    /// Their value when the trap is enabled.
    pub value: u64,
    /// The trapped accesses.
    pub accesses: Accesses,
    /// The field's name.
    pub name: &'static str,
}

impl Trap {
    /// Whether L1 has enabled it.
    #[inline]
    pub fn holds(&self, controls: &impl Controls) -> bool {
        controls.get(self.control) & self.mask == self.value
    }

    /// Whether it traps reads (`is_read`), or else writes.
    #[inline]
    pub const fn covers(&self, is_read: bool) -> bool {
        match self.accesses {
            Accesses::Reads => is_read,
            Accesses::Writes => !is_read,
            Accesses::All => true,
        }
    }
}

/// Rows of [`Trap`]: the constant's name, the register, the bit (after `!` if 0 traps, and with further bits), what
/// it traps.
macro_rules! traps {
    ($($constant:ident $control:ident $(! $zero:literal)* $($one:literal)* $accesses:ident $name:literal;)*) => {
        $(
            #[doc = concat!("`", $name, "`")]
            pub const $constant: Trap = Trap {
                control: Control::$control,
                mask: 0 $(| 1 << $zero)* $(| 1 << $one)*,
                value: 0 $(| 1 << $one)*,
                accesses: Accesses::$accesses,
                name: $name,
            };
        )*

        pub(super) const ALL: &[Trap] = &[$($constant),*];
    };
}

traps! {
    FMO Hcr 3 Writes "HCR_EL2.FMO";
    IMO Hcr 4 Writes "HCR_EL2.IMO";
    TWI Hcr 13 All "HCR_EL2.TWI";
    TWE Hcr 14 All "HCR_EL2.TWE";
    TID0 Hcr 15 Reads "HCR_EL2.TID0";
    TID1 Hcr 16 Reads "HCR_EL2.TID1";
    TID2 Hcr 17 All "HCR_EL2.TID2";
    TID3 Hcr 18 Reads "HCR_EL2.TID3";
    TSC Hcr 19 All "HCR_EL2.TSC";
    TIDCP Hcr 20 All "HCR_EL2.TIDCP";
    TACR Hcr 21 All "HCR_EL2.TACR";
    TSW Hcr 22 All "HCR_EL2.TSW";
    TPCP Hcr 23 All "HCR_EL2.TPCP";
    TPU Hcr 24 All "HCR_EL2.TPU";
    TTLB Hcr 25 All "HCR_EL2.TTLB";
    TVM Hcr 26 Writes "HCR_EL2.TVM";
    TDZ Hcr 28 All "HCR_EL2.TDZ";
    HCD Hcr 29 All "HCR_EL2.HCD";
    TRVM Hcr 30 Reads "HCR_EL2.TRVM";
    TLOR Hcr 35 All "HCR_EL2.TLOR";
    TERR Hcr 36 All "HCR_EL2.TERR";
    APK Hcr !40 All "HCR_EL2.APK";
    API Hcr !41 All "HCR_EL2.API";
    NV Hcr 42 All "HCR_EL2.NV";
    NV_NOT_NV2 Hcr !45 42 All "HCR_EL2.{NV, NV2}";
    NV1 Hcr !45 42 43 All "HCR_EL2.{NV, NV1, NV2}";
    AT Hcr 44 All "HCR_EL2.AT";
    FIEN Hcr !47 All "HCR_EL2.FIEN";
    TID4 Hcr 49 All "HCR_EL2.TID4";
    TICAB Hcr 50 All "HCR_EL2.TICAB";
    TOCU Hcr 52 All "HCR_EL2.TOCU";
    EN_SCXT Hcr !53 All "HCR_EL2.EnSCXT";
    TTLBIS Hcr 54 All "HCR_EL2.TTLBIS";
    TTLBOS Hcr 55 All "HCR_EL2.TTLBOS";
    ATA Hcr !56 All "HCR_EL2.ATA";
    TID5 Hcr 58 Reads "HCR_EL2.TID5";
    MCE2 Hcrx 10 All "HCRX_EL2.MCE2";
    TCR2_EN Hcrx !14 All "HCRX_EL2.TCR2En";
    SCTLR2_EN Hcrx !15 All "HCRX_EL2.SCTLR2En";
    GCS_EN Hcrx !22 All "HCRX_EL2.GCSEn";
    ZEN Cptr !16 All "CPTR_EL2.ZEN";
    FPEN Cptr !20 All "CPTR_EL2.FPEN";
    SMEN Cptr !24 All "CPTR_EL2.SMEN";
    TTA Cptr 28 All "CPTR_EL2.TTA";
    TAM Cptr 30 All "CPTR_EL2.TAM";
    TCPAC Cptr 31 All "CPTR_EL2.TCPAC";
    TPMCR Mdcr 5 All "MDCR_EL2.TPMCR";
    TPM Mdcr 6 All "MDCR_EL2.TPM";
    TDE Mdcr 8 All "MDCR_EL2.TDE";
    TDA Mdcr 9 All "MDCR_EL2.TDA";
    TDOSA Mdcr 10 All "MDCR_EL2.TDOSA";
    TDRA Mdcr 11 All "MDCR_EL2.TDRA";
    E2PB Mdcr !12 All "MDCR_EL2.E2PB";
    TPMS Mdcr 14 All "MDCR_EL2.TPMS";
    TTRF Mdcr 19 All "MDCR_EL2.TTRF";
    E2TB Mdcr !24 All "MDCR_EL2.E2TB";
    TDCC Mdcr 27 All "MDCR_EL2.TDCC";
    EL1PCTEN Cnthctl !10 All "CNTHCTL_EL2.EL1PCTEN";
    EL1PTEN Cnthctl !11 All "CNTHCTL_EL2.EL1PTEN";
    EL1TVT Cnthctl 13 All "CNTHCTL_EL2.EL1TVT";
    EL1TVCT Cnthctl 14 All "CNTHCTL_EL2.EL1TVCT";
    FINE_ERET Hfgitr 51 All "HFGITR_EL2.ERET";
    FINE_SVC_EL0 Hfgitr 52 All "HFGITR_EL2.SVC_EL0";
    FINE_SVC_EL1 Hfgitr 53 All "HFGITR_EL2.SVC_EL1";
    TC IchHcr 10 All "ICH_HCR_EL2.TC";
    TALL0 IchHcr 11 All "ICH_HCR_EL2.TALL0";
    TALL1 IchHcr 12 All "ICH_HCR_EL2.TALL1";
    TDIR IchHcr 14 All "ICH_HCR_EL2.TDIR";
}

/// HCR_EL2.E2H: VHE, a host kernel with its processes at EL0.
pub const HCR_E2H: u64 = 1 << 34;
/// HCR_EL2.TGE: exceptions from EL0 go to EL2.
pub const HCR_TGE: u64 = 1 << 27;
/// HCRX_EL2.FGTnXS: fine-grained traps exclude TLB maintenance with the nXS qualifier.
pub(super) const HCRX_FGTNXS: u64 = 1 << 4;
