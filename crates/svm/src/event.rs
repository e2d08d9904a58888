//! Events: the formats of EVENTINJ and EXITINTINFO are the same (the manual, "Event Injection"), and but for types 5
//! and 6 those of VMX's fields.

const VALID: u64 = 1 << 31;
const ERROR_CODE: u64 = 1 << 11;
const EXCEPTION: u64 = 3 << 8;
/// Exceptions with an error code: #DF, #TS, #NP, #SS, #GP, #PF, #AC.
const CODES: u64 = 1 << 8 | 1 << 10 | 1 << 11 | 1 << 12 | 1 << 13 | 1 << 14 | 1 << 17;

/// The event of an intercepted exception.
pub const fn exception(vector: u8) -> u64 {
    VALID | EXCEPTION | vector as u64 | if CODES >> (vector & 31) & 1 != 0 { ERROR_CODE } else { 0 }
}

/// Whether an event is of an INT instruction, INT3 or INTO: re-executing it raises it again.
pub const fn is_of_software(event: u64) -> bool {
    const KIND: u64 = 7 << 8;
    const SOFTWARE: u64 = 4 << 8;
    const BREAKPOINT: u64 = 3;
    const OVERFLOW: u64 = 4;
    let vector = event & 0xff;
    event & KIND == SOFTWARE || event & KIND == EXCEPTION && (vector == BREAKPOINT || vector == OVERFLOW)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exceptions_have_their_error_codes() {
        assert_eq!(exception(1), 0x8000_0301);
        assert_eq!(exception(17), 0x8000_0b11);
    }

    #[test]
    fn instructions_raise_their_events_again() {
        assert!(is_of_software(0x8000_0480), "INT 0x80");
        assert!(is_of_software(0x8000_0303), "INT3");
        assert!(!is_of_software(0x8000_0301) && !is_of_software(0x8000_0080) && !is_of_software(0x8000_0202));
    }
}
