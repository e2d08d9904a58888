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

/// Reduces an untrusted event to one that VMRUN injects, or none: interrupts, NMIs, and faults and traps of any mode. Faults
/// that are left out recur with their instruction.
pub const fn injectable(event: u64, is_protected: bool) -> u64 {
    const TYPE: u64 = 7 << 8;
    const NMI: u64 = 2 << 8;
    /// #DE, #DB, #UD, #NM, #MF, #XM beside those with an error code.
    const EXCEPTIONS: u64 = CODES | 1 << 0 | 1 << 1 | 1 << 6 | 1 << 7 | 1 << 16 | 1 << 19;
    let (vector, kind) = (event & 0xff, event & TYPE);
    let exists = match kind {
        0 => true,
        NMI => vector == 2,
        EXCEPTION => vector < 32 && EXCEPTIONS >> vector & 1 != 0,
        _ => false,
    };
    if event & VALID == 0 || !exists {
        return 0;
    }
    // In real mode none has an error code.
    let has_code = kind == EXCEPTION && is_protected && CODES >> vector & 1 != 0;
    VALID | kind | vector | if has_code { ERROR_CODE } else { 0 }
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
    fn only_events_that_vmrun_takes_are_injected() {
        for event in [0x8000_0030, 0x8000_0202, 0x8000_0301, exception(14)] {
            assert_eq!(injectable(event, true), event);
        }
        assert_eq!(injectable(exception(13), false), 0x8000_030d, "real mode");
        assert_eq!(injectable(0x8000_0b06, true), 0x8000_0306, "#UD has no error code");
        assert_eq!(injectable(0xffff_f030 & !(7 << 8), true), 0x8000_0030, "reserved bits");
        for event in [0, 0x30, 0x8000_0130, 0x8000_0203, 0x8000_0302, 0x8000_0320, 0x8000_0480, 0x8000_0600] {
            assert_eq!(injectable(event, true), 0, "{event:#x}");
        }
    }

    #[test]
    fn instructions_raise_their_events_again() {
        assert!(is_of_software(0x8000_0480), "INT 0x80");
        assert!(is_of_software(0x8000_0303), "INT3");
        assert!(!is_of_software(0x8000_0301) && !is_of_software(0x8000_0080) && !is_of_software(0x8000_0202));
    }
}
