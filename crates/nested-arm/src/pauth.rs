//! Authentication of the return address of ERETAA and ERETAB, for an exception return that is emulated.
//!
//! The processor's own AUTIA can't be used at EL2: it would take the position of the code from EL2's translation controls, and with
//! FEAT_FPAC a failure would be an exception of EL2. PACGA computes the same function, of which it returns the upper half. Source: Arm ARM
//! pseudocode, `AuthIA`, `Auth`, `AddPAC`, `CalculateBottomPACBit`.

/// The controls of an authentication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Controls {
    /// TCR_EL1 of the regime, in EL1's layout.
    pub tcr: u64,
    /// The level of FEAT_PAuth: the value of the field APA, API or APA3 of the ID registers.
    pub level: u8,
}

/// FEAT_PAuth2: the code is combined with the address's upper bits by exclusive OR.
const PAUTH2: u8 = 3;
/// FEAT_FPACCOMBINE: a failure of a combined instruction, such as ERETAA, is an exception.
const FPAC_COMBINE: u8 = 5;

/// Bit 55 selects the address range.
const SELECT: u32 = 55;

/// Result of an authentication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Authenticated {
    /// The address to return to: after a failure one that faults.
    Address(u64),
    /// The instruction takes an exception, with this syndrome.
    Fails(u64),
}

/// Bits of an address, by what they hold.
struct Layout {
    /// The code.
    code: u64,
    /// Value of those bits in a canonical address: copies of bit 55.
    extension: u64,
    has_tag: bool,
}

impl Controls {
    fn layout(self, address: u64) -> Layout {
        let is_upper = address >> SELECT & 1 != 0;
        let (size, tbi, tbid) = if is_upper { (16, 38, 52) } else { (0, 37, 51) };
        // An instruction's address has a tag only if TBID does not confine tags to data.
        let has_tag = self.tcr >> tbi & 1 != 0 && self.tcr >> tbid & 1 == 0;
        let bottom = 64 - (self.tcr >> size & 0x3f).clamp(16, 48) as u32;
        let below_select = (1 << SELECT) - (1 << bottom);
        let code = below_select | if has_tag { 0 } else { 0xff << 56 };
        Layout { code, extension: if is_upper { code } else { 0 }, has_tag }
    }

    /// Authenticates `address` with the key A or B of instructions. `pacga` computes the code of an address with that key; its lower
    /// half is 0.
    pub fn authenticate(self, address: u64, is_key_b: bool, pacga: impl FnOnce(u64) -> u64) -> Authenticated {
        let layout = self.layout(address);
        let original = address & !layout.code | layout.extension;
        let code = pacga(original);
        let expected = if self.level >= PAUTH2 { code ^ layout.extension } else { code };
        // The lower half of the code is unknown: with an address range below 32 bits, the rest of it decides.
        if (address ^ expected) & layout.code & !0xffff_ffff == 0 {
            return Authenticated::Address(original);
        }
        if self.level >= FPAC_COMBINE {
            // Arm ARM, ISS encoding for a PAC Fail exception: bit 0 is the key, bit 1 is 0 for an instruction's key.
            return Authenticated::Fails(0x1c << 26 | 1 << 25 | u64::from(is_key_b));
        }
        if self.level >= PAUTH2 {
            return Authenticated::Address(address ^ code & layout.code);
        }
        let error = if is_key_b { 0b10 } else { 0b01 };
        let at = if layout.has_tag { 53 } else { 61 };
        Authenticated::Address(original & !(0b11 << at) | error << at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Any function will do for the code.
    fn code_of(address: u64) -> u64 {
        address.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31).wrapping_mul(0xd6e8_feb8_6659_fd93) & !0xffff_ffff
    }

    /// `AddPAC` for a canonical address.
    fn sign(controls: Controls, address: u64) -> u64 {
        let layout = controls.layout(address);
        let code = code_of(address);
        let code = if controls.level >= PAUTH2 { code ^ layout.extension } else { code };
        address & !layout.code | code & layout.code
    }

    fn canonical(controls: Controls, address: u64) -> u64 {
        let layout = controls.layout(address);
        address & !layout.code | layout.extension
    }

    fn controls() -> impl Strategy<Value = Controls> {
        let ranges = (16..=32u64, 16..=32u64, 0..4u64, 0..4u64);
        (ranges, 1..=5u8).prop_map(|((t0, t1, tbi, tbid), level)| Controls { tcr: t0 | t1 << 16 | tbi << 37 | tbid << 51, level })
    }

    #[test]
    fn positions_of_the_code() {
        let tcr = 16 | 25 << 16;
        let layout = |tcr, address| Controls { tcr, level: 1 }.layout(address).code;
        assert_eq!(layout(tcr, 0), 0xff7f_0000_0000_0000, "48 bits");
        assert_eq!(layout(tcr, u64::MAX), 0xff7f_ff80_0000_0000, "39 bits");
        assert_eq!(layout(tcr | 1 << 37, 0), 0x007f_0000_0000_0000, "TBI0");
        assert_eq!(layout(tcr | 1 << 37 | 1 << 51, 0), 0xff7f_0000_0000_0000, "TBID0");
        assert_eq!(layout(tcr | 1 << 38, 0), 0xff7f_0000_0000_0000, "TBI1 is the other range's");
    }

    #[test]
    fn failures_by_level() {
        let result = |level, is_key_b| Controls { tcr: 16 | 16 << 16, level }.authenticate(0x1000, is_key_b, |_| 0xffff << 48);
        assert_eq!(result(1, false), Authenticated::Address(1 << 61 | 0x1000));
        assert_eq!(result(1, true), Authenticated::Address(2 << 61 | 0x1000));
        assert_eq!(result(3, false), Authenticated::Address(0xff7f_0000_0000_1000));
        assert_eq!(result(5, true), Authenticated::Fails(0x7200_0001));
    }

    proptest! {
        #[test]
        fn a_signed_address_is_authentic(controls in controls(), address: u64, is_key_b: bool) {
            let address = canonical(controls, address);
            let result = controls.authenticate(sign(controls, address), is_key_b, code_of);
            prop_assert_eq!(result, Authenticated::Address(address));
        }

        /// A failure never returns to the address that was signed.
        #[test]
        fn a_changed_code_is_not(controls in controls(), address: u64, bit in 33..64u32) {
            let address = canonical(controls, address);
            prop_assume!(controls.layout(address).code >> bit & 1 != 0);
            let result = controls.authenticate(sign(controls, address) ^ 1 << bit, false, code_of);
            prop_assert_ne!(result, Authenticated::Address(address));
            prop_assert_eq!(matches!(result, Authenticated::Fails(_)), controls.level == 5);
        }
    }
}
