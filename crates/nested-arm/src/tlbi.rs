//! Decoding of L1's trapped TLB maintenance instructions: Arm ARM, "TLB maintenance instructions", and the
//! instructions' pages for their operands.

use stile_sysreg::SysReg;

#[cfg(test)]
mod tests;

/// The affected translation regime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Regime {
    /// EL1&0. With `op1` 0 it is EL2&0 instead if L1 executes the instruction with HCR_EL2.{E2H, TGE} = {1, 1}; with
    /// `op1` 4 (second stage, `ALLE1`, `VMALLS12E1`) it does not depend on these bits.
    El10,
    /// EL2, or EL2&0.
    El2,
}

/// The CPUs whose TLBs are affected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Domain {
    /// This CPU's.
    Local,
    /// Those of the inner shareable domain.
    Inner,
    /// Those of the outer shareable domain.
    Outer,
}

/// The invalidated entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All entries of the regime, for all VMIDs: `ALLE1`, `ALLE2`.
    All,
    /// The first stage of the current VMID: `VMALLE1`.
    Vmid,
    /// Both stages of the current VMID: `VMALLS12E1`.
    VmidBoth,
    /// An ASID: `ASIDE1`.
    Asid(u16),
    /// Virtual addresses: `VA*`, `RVA*`.
    Va {
        /// The first address.
        start: u64,
        /// Number of bytes; for a single address, the page size.
        bytes: u64,
        /// One ASID, or all.
        asid: Option<u16>,
        /// Last-level entries only.
        last_level: bool,
    },
    /// Intermediate physical addresses of the current VMID: `IPAS2*`, `RIPAS2*`.
    Ipa {
        /// The first address.
        start: u64,
        /// Number of bytes; `None` for the page or block at the address, of any size.
        bytes: Option<u64>,
        /// Last-level entries only.
        last_level: bool,
    },
}

/// A TLB maintenance instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tlbi {
    /// The regime.
    pub regime: Regime,
    /// The domain.
    pub domain: Domain,
    /// The scope.
    pub scope: Scope,
    /// Whether it has the nXS qualifier: need not wait for accesses with the XS attribute.
    pub no_xs: bool,
}

/// Decodes the instruction `reg` (`op0` 1, `CRn` 8 or 9) with operand `xt`. `None` if it doesn't exist.
///
/// `CRm` selects domain and range, `op2` the invalidated entries. Operands are without FEAT_LPA2.
pub const fn decode(reg: SysReg, xt: u64) -> Option<Tlbi> {
    let no_xs = match (reg.op0(), reg.crn()) {
        (1, 8) => false,
        (1, 9) => true,
        _ => return None,
    };
    let regime = match reg.op1() {
        0 => Regime::El10,
        4 => Regime::El2,
        _ => return None,
    };
    let (domain, scope) = match (regime, reg.crm()) {
        (Regime::El2, 0) => (Domain::Inner, second_stage(reg.op2(), xt, [1, 2, 5, 6])),
        (Regime::El2, 4) => match second_stage_local_or_outer(reg.op2(), xt) {
            Some((domain, scope)) => (domain, Some(scope)),
            None => return None,
        },
        (_, 1) => (Domain::Outer, single(regime, reg.op2(), xt)),
        (_, 3) => (Domain::Inner, single(regime, reg.op2(), xt)),
        (_, 7) => (Domain::Local, single(regime, reg.op2(), xt)),
        (_, 5) => (Domain::Outer, range(regime, reg.op2(), xt)),
        (_, 2) => (Domain::Inner, range(regime, reg.op2(), xt)),
        (_, 6) => (Domain::Local, range(regime, reg.op2(), xt)),
        _ => return None,
    };
    let Some(scope) = scope else {
        return None;
    };
    let regime = if reg.op1() == 4 && is_of_el1(reg) { Regime::El10 } else { regime };
    Some(Tlbi { regime, domain, scope, no_xs })
}

/// Whether an instruction with `op1` 4 applies to EL1&0: second-stage ones, `ALLE1` and `VMALLS12E1`.
const fn is_of_el1(reg: SysReg) -> bool {
    matches!(reg.crm(), 0 | 4) || matches!((reg.crm(), reg.op2()), (1 | 3 | 7, 4 | 6))
}

/// Decodes an instruction for a single virtual address, an ASID, a VMID or the whole regime.
const fn single(regime: Regime, op2: u8, xt: u64) -> Option<Scope> {
    let asid = Some(asid(xt));
    let (asid, last_level) = match (regime, op2) {
        (Regime::El10, 0) => return Some(Scope::Vmid),
        (Regime::El2, 0 | 4) => return Some(Scope::All),
        (Regime::El2, 6) => return Some(Scope::VmidBoth),
        (Regime::El10, 2) => return Some(Scope::Asid((xt >> 48) as u16)),
        // With E2H clear EL2 has no ASIDs, and the field is RES0.
        (_, 1) => (asid, false),
        (_, 5) => (asid, true),
        (Regime::El10, 3) => (None, false),
        (Regime::El10, 7) => (None, true),
        _ => return None,
    };
    // xt[43:0] is VA[55:12]; the bits above repeat bit 55, which selects the half of the address space.
    let start = ((xt << 20) as i64 >> 8) as u64 & !0xfff;
    Some(Scope::Va { start, bytes: 4096, asid, last_level })
}

/// Decodes an instruction for a range of virtual addresses.
const fn range(regime: Regime, op2: u8, xt: u64) -> Option<Scope> {
    let asid = Some(asid(xt));
    let (asid, last_level) = match (regime, op2) {
        (_, 1) => (asid, false),
        (_, 5) => (asid, true),
        (Regime::El10, 3) => (None, false),
        (Regime::El10, 7) => (None, true),
        _ => return None,
    };
    let Range { base, shift, bytes } = Range::of(xt);
    let start = ((base << (64 - Range::BASE_BITS)) as i64 >> (64 - Range::BASE_BITS)) as u64;
    Some(Scope::Va { start: start << shift, bytes, asid, last_level })
}

/// Decodes an instruction for intermediate physical addresses. The array has the `op2` of the four variants: single
/// address and range for all levels, then both for the last level only.
const fn second_stage(op2: u8, xt: u64, [one, range, last_one, last_range]: [u8; 4]) -> Option<Scope> {
    let last_level = op2 == last_one || op2 == last_range;
    if op2 == one || op2 == last_one {
        // xt[35:0] is IPA[47:12].
        let start = (xt & 0xf_ffff_ffff) << 12;
        return Some(Scope::Ipa { start, bytes: hinted(xt), last_level });
    }
    if op2 == range || op2 == last_range {
        let Range { base, shift, bytes } = Range::of(xt);
        return Some(Scope::Ipa { start: base << shift, bytes: Some(bytes), last_level });
    }
    None
}

/// [`second_stage`] for CRm = 4, where `op2` also selects the domain.
const fn second_stage_local_or_outer(op2: u8, xt: u64) -> Option<(Domain, Scope)> {
    if let Some(scope) = second_stage(op2, xt, [1, 2, 5, 6]) {
        return Some((Domain::Local, scope));
    }
    match second_stage(op2, xt, [0, 3, 4, 7]) {
        Some(scope) => Some((Domain::Outer, scope)),
        None => None,
    }
}

/// The operand's ASID.
const fn asid(xt: u64) -> u16 {
    (xt >> 48) as u16
}

/// The bytes that an entry covers according to the TTL hint (FEAT_TTL): granule in the upper half, level in
/// the lower. `None` without a hint.
const fn hinted(xt: u64) -> Option<u64> {
    let shift = match xt >> 44 & 0xf {
        0b0101 => 30,
        0b0110 => 21,
        0b0111 => 12,
        0b1010 => 25,
        0b1011 => 14,
        0b1110 => 29,
        0b1111 => 16,
        _ => return None,
    };
    Some(1 << shift)
}

/// The operand of a range instruction.
struct Range {
    /// BaseADDR, in granules.
    base: u64,
    /// log2 of the granule.
    shift: u32,
    /// Number of bytes; 0 if TG is reserved.
    bytes: u64,
}

impl Range {
    const BASE_BITS: u32 = 37;

    /// Decodes an operand: (NUM + 1) * 2^(5 * SCALE + 1) granules; none if TG is reserved, as nothing has to be
    /// invalidated then.
    const fn of(xt: u64) -> Self {
        let base = xt & ((1 << Self::BASE_BITS) - 1);
        let granules = ((xt >> 39 & 0x1f) + 1) << (5 * (xt >> 44 & 0b11) + 1);
        let (shift, granules) = match xt >> 46 & 0b11 {
            0b01 => (12, granules),
            0b10 => (14, granules),
            0b11 => (16, granules),
            _ => (12, 0),
        };
        Self { base, shift, bytes: granules << shift }
    }
}
