//! EXITINFO1 of a nested page fault ("Nested versus Guest Page Faults, Fault Ordering").

const WRITE: u64 = 1 << 1;
const FETCH: u64 = 1 << 4;

/// Converts EXITINFO1 of a nested page fault to VMX's exit qualification of an EPT violation: the kind of access. The
/// linear address is not known: an access of the processor's walk counts as that of the instruction, whose emulation
/// walks again.
#[inline(always)]
pub const fn npf_qualification(info: u64) -> u64 {
    info & WRITE | (info & FETCH) >> 2 | if info & (WRITE | FETCH) == 0 { 1 } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_of_access_are_those_of_vmx() {
        const FINAL: u64 = 1 << 32;
        assert_eq!(npf_qualification(FINAL | 0b100), 0b001);
        assert_eq!(npf_qualification(FINAL | 0b111), 0b010);
        assert_eq!(npf_qualification(FINAL | 0b10100), 0b100);
    }
}
