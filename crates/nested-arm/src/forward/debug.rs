//! Debug and trace registers: `op0` 2. Breakpoints and watchpoints have one row for all `CRm`.

use super::row::{Row, rows};

pub(super) const ROWS: &[Row] = rows! {
    2 0 0 0 2 "OSDTRRX_EL1" [TDE TDA TDCC];
    2 0 0 0 4 "DBGBVR<n>_EL1" [TDE TDA] debug 1;
    2 0 0 0 5 "DBGBCR<n>_EL1" [TDE TDA] debug 0;
    2 0 0 0 6 "DBGWVR<n>_EL1" [TDE TDA] debug 3;
    2 0 0 0 7 "DBGWCR<n>_EL1" [TDE TDA] debug 2;
    2 0 0 2 0 "MDCCINT_EL1" [TDE TDA TDCC];
    2 0 0 2 2 "MDSCR_EL1" [TDE TDA] debug 4;
    2 0 0 3 2 "OSDTRTX_EL1" [TDE TDA TDCC];
    2 0 0 6 2 "OSECCR_EL1" [TDE TDA] debug 10;
    2 0 1 0 0 "MDRAR_EL1" [TDE TDRA];
    2 0 1 0 4 "OSLAR_EL1" [TDE TDOSA] debug 8;
    2 0 1 1 4 "OSLSR_EL1" [TDE TDOSA] debug 9;
    2 0 1 3 4 "OSDLR_EL1" [TDE TDOSA] debug 11;
    2 0 1 4 4 "DBGPRCR_EL1" [TDE TDOSA] debug 7;
    2 0 7 8 6 "DBGCLAIMSET_EL1" [TDE TDA] debug 5;
    2 0 7 9 6 "DBGCLAIMCLR_EL1" [TDE TDA] debug 5;
    2 0 7 14 6 "DBGAUTHSTATUS_EL1" [TDE TDA] debug 6;
    2 1 0 0 0 to 7 15 7 "TRC<*>" [TTA];
    2 1 8 0 0 to 8 15 7 "BRBINF<n>_EL1, BRBSRC<n>_EL1, BRBTGT<n>_EL1" [] debug !61;
    2 1 9 0 0 "BRBCR_EL1" [] debug !60;
    2 1 9 0 1 "BRBFCR_EL1" [] debug !60;
    2 1 9 0 2 "BRBTS_EL1" [] debug !61;
    2 1 9 1 0 "BRBINFINJ_EL1" [] debug !61;
    2 1 9 1 1 "BRBSRCINJ_EL1" [] debug !61;
    2 1 9 1 2 "BRBTGTINJ_EL1" [] debug !61;
    2 1 9 2 0 "BRBIDR0_EL1" [] debug !59;
    2 3 0 1 0 "MDCCSR_EL0" [TDE TDA TDCC];
    2 3 0 4 0 "DBGDTR_EL0" [TDE TDA TDCC];
    2 3 0 5 0 "DBGDTRRX_EL0" [TDE TDA TDCC];
};
