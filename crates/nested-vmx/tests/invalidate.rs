//! Operands of INVEPT and INVVPID.

use stile_nested_vmx::InstructionError::InvalidateOperand;
use stile_nested_vmx::invalidate::{Invept, Invvpid, invept, invvpid};
use stile_nested_vmx::model::{featured, processor};

/// Write-back, four levels.
const POINTER: u64 = 0x601e;

#[test]
fn operands_of_invept() {
    let mut capabilities = featured();
    assert_eq!(invept(1, [POINTER, 0], &processor(&capabilities)), Ok(Invept::Single(POINTER)));
    assert_eq!(invept(2, [u64::MAX; 2], &processor(&capabilities)), Ok(Invept::All));
    for kind in [0, 3, 1 << 32 | 1, u64::MAX] {
        assert_eq!(invept(kind, [POINTER, 0], &processor(&capabilities)), Err(InvalidateOperand));
    }
    // Memory type, length, reserved bits, width.
    for wrong in [POINTER ^ 1, POINTER ^ 1 << 3, POINTER | 1 << 7, POINTER | 1 << 40] {
        assert_eq!(invept(1, [wrong, 0], &processor(&capabilities)), Err(InvalidateOperand), "{wrong:#x}");
    }
    capabilities.ept_vpid &= !(1 << 25);
    assert_eq!(invept(1, [POINTER, 0], &processor(&capabilities)), Err(InvalidateOperand));
}

#[test]
fn operands_of_invvpid() {
    let mut capabilities = featured();
    let address = 0xffff_8000_0000_1000;
    let all = [Invvpid::Address(7, address), Invvpid::Single(7), Invvpid::All, Invvpid::SingleExceptGlobal(7)];
    for (kind, expected) in (0..).zip(all) {
        assert_eq!(invvpid(kind, [7, address], &processor(&capabilities)), Ok(expected));
        let zero = invvpid(kind, [0, address], &processor(&capabilities));
        assert_eq!(zero, if expected == Invvpid::All { Ok(expected) } else { Err(InvalidateOperand) });
        assert_eq!(invvpid(kind, [7 | 1 << 16, address], &processor(&capabilities)), Err(InvalidateOperand));
        assert_eq!(invvpid(kind, [7, 1 << 47], &processor(&capabilities)).is_ok(), kind != 0);
    }
    for kind in [4, 64, u64::MAX] {
        assert_eq!(invvpid(kind, [7, 0], &processor(&capabilities)), Err(InvalidateOperand));
    }
    capabilities.ept_vpid &= !(1 << 42);
    assert_eq!(invvpid(2, [7, 0], &processor(&capabilities)), Err(InvalidateOperand));
}
