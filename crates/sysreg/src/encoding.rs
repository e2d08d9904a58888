//! Encodings of system registers in instructions and syndromes.

/// A system register or system instruction: `op0`, `op1`, `CRn`, `CRm` and `op2`.
///
/// They are packed as in bits `[20:5]` of an `MRS`, `MSR` or `SYS` instruction (Arm ARM, "System
/// instruction class encoding overview"), so registers sort in the manual's order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SysReg(u16);

const OP2_SHIFT: u32 = 0;
const CRM_SHIFT: u32 = 3;
const CRN_SHIFT: u32 = 7;
const OP1_SHIFT: u32 = 11;
const OP0_SHIFT: u32 = 14;

/// The ISS of exception class 0x18: Arm ARM, "ISS encoding for an exception from MSR, MRS, or
/// System instruction execution in AArch64 state". `Op1` and `CRn` are adjacent there, as here.
mod iss {
    pub const CRM_SHIFT: u32 = 1;
    pub const CRN_SHIFT: u32 = 10;
    pub const OP2_SHIFT: u32 = 17;
    pub const OP0_SHIFT: u32 = 20;
}

impl SysReg {
    /// The register with these numbers, each truncated to its field's width (2, 3, 4, 4 and 3 bits).
    pub const fn new(op0: u8, op1: u8, crn: u8, crm: u8, op2: u8) -> Self {
        Self(
            (op0 as u16 & 3) << OP0_SHIFT
                | (op1 as u16 & 7) << OP1_SHIFT
                | (crn as u16 & 15) << CRN_SHIFT
                | (crm as u16 & 15) << CRM_SHIFT
                | (op2 as u16 & 7) << OP2_SHIFT,
        )
    }

    /// Decodes the register of a trapped access from the ISS of exception class 0x18.
    #[inline]
    pub const fn from_iss(iss: u32) -> Self {
        let op0 = iss >> iss::OP0_SHIFT & 3;
        let op1_crn = iss >> iss::CRN_SHIFT & 0x7f;
        let crm = iss >> iss::CRM_SHIFT & 15;
        let op2 = iss >> iss::OP2_SHIFT & 7;
        Self((op0 << OP0_SHIFT | op1_crn << CRN_SHIFT | crm << CRM_SHIFT | op2 << OP2_SHIFT) as u16)
    }

    /// Encodes the ISS of exception class 0x18 for this register, with `Rt` and `Direction` zero.
    pub const fn to_iss(self) -> u32 {
        let op1_crn = (self.0 >> CRN_SHIFT & 0x7f) as u32;
        (self.op0() as u32) << iss::OP0_SHIFT
            | (self.op2() as u32) << iss::OP2_SHIFT
            | op1_crn << iss::CRN_SHIFT
            | (self.crm() as u32) << iss::CRM_SHIFT
    }

    /// `op0`: 1 for system instructions, 2 for debug and trace registers, 3 for the others.
    #[inline]
    pub const fn op0(self) -> u8 {
        (self.0 >> OP0_SHIFT) as u8
    }

    /// `op1`.
    #[inline]
    pub const fn op1(self) -> u8 {
        (self.0 >> OP1_SHIFT & 7) as u8
    }

    /// `CRn`.
    #[inline]
    pub const fn crn(self) -> u8 {
        (self.0 >> CRN_SHIFT & 15) as u8
    }

    /// `CRm`.
    #[inline]
    pub const fn crm(self) -> u8 {
        (self.0 >> CRM_SHIFT & 15) as u8
    }

    /// `op2`.
    #[inline]
    pub const fn op2(self) -> u8 {
        (self.0 >> OP2_SHIFT & 7) as u8
    }

    /// The packed form: bits `[20:5]` of the instruction.
    #[inline]
    pub const fn bits(self) -> u16 {
        self.0
    }

    /// `CRm << 3 | op2` of a register in the ID space: `op0` 3, `op1` 0, `CRn` 0, `CRm` 0 to 7. The
    /// ID registers that [`crate::id`] knows are those from 8 up.
    #[inline]
    pub const fn id_index(self) -> Option<usize> {
        const SPACE: u16 = SysReg::new(3, 0, 0, 0, 0).0;
        // CRm above 7 is outside of the space, so its top bit must be 0, too.
        const INDEX: u16 = 63;
        if self.0 & !INDEX == SPACE { Some((self.0 & INDEX) as usize) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn unpacks_a_trapped_access() {
        // `mrs x3, id_aa64pfr0_el1` gives this ISS.
        let iss = 3 << 20 | 3 << 5 | 4 << 1 | 1;
        let reg = SysReg::from_iss(iss);
        assert_eq!(reg, SysReg::new(3, 0, 0, 4, 0));
        assert_eq!(reg.to_string(), "ID_AA64PFR0_EL1");
        assert_eq!(reg.id_index(), Some(4 << 3));
    }

    #[test]
    fn packed_form_matches_the_instruction() {
        // `msr icc_sgi1r_el1, x0` is 0xd518cba0.
        let instruction: u32 = 0xd518_cba0;
        let bits = SysReg::ICC_SGI1R_EL1.bits();
        // Bit 20 of the instruction is op0's high bit, always 1 for registers.
        assert_eq!(u32::from(bits), instruction >> 5 & 0xffff);
    }

    #[test]
    fn syndrome_round_trip() {
        for bits in 0..=u16::MAX {
            let reg = SysReg(bits);
            assert_eq!(SysReg::from_iss(reg.to_iss()), reg);
            let rebuilt = SysReg::new(reg.op0(), reg.op1(), reg.crn(), reg.crm(), reg.op2());
            assert_eq!(rebuilt, reg);
            // Rt and Direction are ignored.
            assert_eq!(SysReg::from_iss(reg.to_iss() | 0x3e1), reg);
        }
    }

    #[test]
    fn only_the_id_space_has_an_index() {
        assert_eq!(SysReg::new(3, 0, 0, 7, 7).id_index(), Some(63));
        assert_eq!(SysReg::new(3, 0, 0, 0, 0).id_index(), Some(0));
        for other in [SysReg::new(3, 0, 0, 8, 0), SysReg::new(3, 0, 1, 4, 0), SysReg::new(3, 1, 0, 4, 0), SysReg::new(2, 0, 0, 4, 0)] {
            assert_eq!(other.id_index(), None, "{other}");
        }
    }

    #[test]
    fn registers_print_their_names() {
        // Of the identification registers, of those that trap, and of those that Stile accesses by their names.
        for (reg, name) in [((3, 0, 0, 7, 0), "ID_AA64MMFR0_EL1"), ((3, 0, 1, 0, 1), "ACTLR_EL1"), ((3, 0, 2, 1, 0), "APIAKeyLo_EL1")] {
            assert_eq!(SysReg::new(reg.0, reg.1, reg.2, reg.3, reg.4).to_string(), name);
        }
    }

    #[test]
    fn unnamed_registers_print_their_encoding() {
        assert_eq!(SysReg::new(3, 4, 1, 2, 3).to_string(), "S3_4_C1_C2_3");
    }
}
