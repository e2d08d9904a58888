//! HCR_EL2 while L2 runs.

/// HCR_EL2 of a running L2: E2H, RW, AMO, IMO, FMO, SWIO, VM. DC: cacheable memory without a first stage.
pub const HCR: u64 = 1 << 34 | 1 << 31 | 1 << 12 | 0b111 << 3 | 1 << 1 | 1;
/// HCR_EL2.TGE.
pub const TGE: u64 = 1 << 27;
