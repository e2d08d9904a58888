//! CR4 of guests.

/// CR4 bits that guests may set, if the CPU has them: VME, PVI, TSD, DE, PSE, PAE, MCE, PGE, PCE, OSFXSR, OSXMMEXCPT,
/// FSGSBASE, PCIDE, OSXSAVE, SMEP, SMAP.
pub const CR4_OWNED: u64 = 0x7ff | 1 << 16 | 1 << 17 | 1 << 18 | 1 << 20 | 1 << 21;
