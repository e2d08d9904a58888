//! Attributes of segments ("Segment Registers in the VMCB"): the descriptor's bits 55:52 and 47:40 in 12 bits. Other code of Stile has
//! them in the format of descriptors, with a gap, and a bit for unusable segments, as VMX has.

/// Segment is present.
const PRESENT: u64 = 1 << 7;
/// In access rights: the segment cannot be used.
pub(crate) const UNUSABLE: u64 = 1 << 16;

/// Converts attributes to access rights.
#[inline(always)]
pub const fn unpack(attributes: u16) -> u64 {
    let attributes = attributes as u64;
    let rights = attributes & 0xff | (attributes & 0xf00) << 4;
    if attributes & PRESENT == 0 { rights | UNUSABLE } else { rights }
}

/// Converts access rights to attributes.
#[inline(always)]
pub const fn pack(rights: u64) -> u16 {
    let attributes = rights & 0xff | rights >> 4 & 0xf00;
    (if rights & UNUSABLE != 0 { attributes & !PRESENT } else { attributes }) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn rights_are_those_of_descriptors() {
        // A 64-bit code segment: G, L, P, code, readable, accessed.
        assert_eq!(unpack(0xa9b), 0xa09b);
        assert_eq!(pack(0xa09b), 0xa9b);
        // A null selector.
        assert_eq!(unpack(0), UNUSABLE);
        assert_eq!(pack(UNUSABLE | 0x93), 0x13);
    }

    proptest! {
        #[test]
        fn attributes_survive(attributes in 0..0x1000_u16) {
            prop_assert_eq!(pack(unpack(attributes)), attributes);
        }
    }
}
