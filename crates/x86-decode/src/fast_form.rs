//! The precomputed form of instructions that are eligible for the fast path.

/// The precomputed form: a 64-bit address of a displacement and an optional register, in a segment without a base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Form {
    /// Direction and source of the move.
    pub kind: Kind,
    /// The base register; without one, `base_mask` is 0.
    pub base: u8,
    /// The register loaded or stored.
    pub register: u8,
    /// All ones if there is a base register.
    pub base_mask: u64,
    /// Bitmap of the registers used; or [`NO_FORM`].
    pub registers: u32,
}

/// In `registers`: the instruction is not eligible for the fast path.
pub(crate) const NO_FORM: u32 = 1 << 16;

/// A load, a store of a register, or a store of an immediate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Load,
    Store,
    StoreImmediate,
}

impl Form {
    /// The form of an instruction that is not eligible.
    pub(crate) const NONE: Self = Self { kind: Kind::Load, base: 0, register: 0, base_mask: 0, registers: NO_FORM };
}
