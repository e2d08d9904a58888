//! Segment registers for memory operands.

/// The descriptor part of a segment register.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    /// Base address.
    pub base: u64,
    /// Limit in bytes.
    pub limit: u32,
    /// Data may be read.
    pub readable: bool,
    /// Data may be written.
    pub writable: bool,
    /// Expand-down: offsets above the limit are valid, those up to it are not.
    pub expand_down: bool,
    /// D/B flag: 32-bit offsets and stack pointer.
    pub big: bool,
}

impl Segment {
    /// Converts fields of the VMCS's guest-state area; `access_rights` as in "Guest Register State". In real and virtual-8086 mode
    /// (`protected` is false) the type is ignored.
    pub const fn from_vmcs(base: u64, limit: u32, access_rights: u32, protected: bool) -> Self {
        const UNUSABLE: u32 = 1 << 16;
        let code = access_rights & 8 != 0;
        let bit1 = access_rights & 2 != 0;
        let usable = access_rights & UNUSABLE == 0;
        Self {
            base,
            limit,
            readable: !protected || usable && (!code || bit1),
            writable: !protected || usable && !code && bit1,
            expand_down: protected && !code && access_rights & 4 != 0,
            big: access_rights & 1 << 14 != 0,
        }
    }

    /// Whether an access of `bytes` bytes at `offset` is within limit and rights.
    pub const fn admits(&self, offset: u64, bytes: u64, write: bool) -> bool {
        let last = offset.wrapping_add(bytes - 1);
        let limit = self.limit as u64;
        let inside = if self.expand_down {
            let top = if self.big { 0xffff_ffff } else { 0xffff };
            offset > limit && last <= top
        } else {
            last <= limit
        };
        inside && if write { self.writable } else { self.readable }
    }
}
