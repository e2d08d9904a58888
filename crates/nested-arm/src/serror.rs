//! Virtual SErrors: L1's own, which the hypervisor makes pending, and the one that L1 makes pending for L2 by HCR_EL2.VSE.
//! The processor has one such bit, which it clears when it takes the exception.

use crate::inject::Kind;

/// HCR_EL2.VSE.
pub const VSE: u64 = 1 << 8;
/// From HCR_EL2.AMO, which VSE needs for effect, to VSE.
const AMO_TO_VSE: u32 = 3;

/// Syndrome of an uncategorized SError: EC and IL.
pub const SYNDROME: u64 = 0x2f << 26 | 1 << 25;

/// Pending virtual SErrors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pending {
    /// In bit [`VSE`]: L1's own.
    pub own: u64,
    /// L1's HCR_EL2.
    pub hcr: u64,
}

impl Pending {
    /// Whether the processor's VSE must be set: one of them can be taken next. `in_l2`: L2 runs, else virtual EL2.
    #[inline(always)]
    pub const fn is_shown(self, in_l2: bool) -> bool {
        (self.own | if in_l2 { self.hcr & self.hcr << AMO_TO_VSE } else { 0 }) & VSE != 0
    }

    /// Those that are still pending after the guest ran: the processor has cleared VSE in its HCR_EL2, `processor`, if it has taken one.
    /// While L2 runs, that was L2's, unless HCR_EL2.AMO is clear: then L2 takes L1's own, too.
    pub const fn remaining(self, in_l2: bool, processor: u64) -> Self {
        let is_pending = processor & VSE != 0;
        if is_pending || !self.is_shown(in_l2) {
            self
        } else if in_l2 && Kind::SError.is_routed_to_el2(self.hcr) {
            Self { hcr: self.hcr & !VSE, ..self }
        } else {
            Self { own: 0, ..self }
        }
    }

    /// Whether L1's own ends L2's run.
    pub const fn ends_l2(self) -> bool {
        self.own & VSE != 0 && Kind::SError.is_routed_to_el2(self.hcr)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AMO: u64 = 1 << 5;

    #[test]
    fn one_that_was_not_taken_remains() {
        for own in [0, VSE] {
            for hcr in [0, AMO, VSE, AMO | VSE] {
                for in_l2 in [false, true] {
                    let pending = Pending { own, hcr };
                    assert_eq!(pending.remaining(in_l2, VSE), pending);
                }
            }
        }
    }

    #[test]
    fn virtual_el2_takes_l1s_own_only() {
        for hcr in [0, AMO, VSE, AMO | VSE] {
            assert_eq!(Pending { own: VSE, hcr }.remaining(false, 0), Pending { own: 0, hcr });
            assert_eq!(Pending { own: 0, hcr }.remaining(false, 0), Pending { own: 0, hcr });
        }
    }

    #[test]
    fn l2_takes_its_own_or_what_l1_leaves_to_it() {
        // L1's own is about to end L2's run.
        assert_eq!(Pending { own: VSE, hcr: AMO | VSE }.remaining(true, 0), Pending { own: VSE, hcr: AMO });
        assert_eq!(Pending { own: 0, hcr: AMO | VSE }.remaining(true, 0), Pending { own: 0, hcr: AMO });
        // Without AMO, VSE has no effect.
        assert_eq!(Pending { own: VSE, hcr: VSE }.remaining(true, 0), Pending { own: 0, hcr: VSE });
        assert_eq!(Pending { own: 0, hcr: VSE }.remaining(true, 0), Pending { own: 0, hcr: VSE });
    }

    #[test]
    fn l1s_own_ends_l2_if_l1_routes_serrors_to_itself() {
        const TGE: u64 = 1 << 27;
        for (hcr, ends) in [(0, false), (AMO, true), (TGE, true), (VSE, false)] {
            assert_eq!(Pending { own: VSE, hcr }.ends_l2(), ends);
            assert!(!Pending { own: 0, hcr }.ends_l2());
        }
    }
}
