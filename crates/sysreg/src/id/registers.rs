//! All tables, and their compile-time check.

use super::table::{Register, check_fields};
use super::{aarch32, aarch64};

/// All ID registers that have a name, sorted by encoding.
pub static REGISTERS: &[Register] = &ALL;

const ALL: [Register; aarch32::REGISTERS.len() + aarch64::REGISTERS.len()] = {
    let mut all = [aarch32::REGISTERS[0]; aarch32::REGISTERS.len() + aarch64::REGISTERS.len()];
    let mut at = 0;
    while at < all.len() {
        all[at] = if at < aarch32::REGISTERS.len() { aarch32::REGISTERS[at] } else { aarch64::REGISTERS[at - aarch32::REGISTERS.len()] };
        at += 1;
    }
    check(&all);
    all
};

/// Fails the build unless registers are in the ID space, sorted and unique.
const fn check(registers: &[Register]) {
    let mut at = 0;
    while at < registers.len() {
        let register = &registers[at];
        assert!(register.reg.id_index().is_some(), "not an ID register");
        assert!(register.reg.crm() > 0, "not trapped with the ID registers");
        if at > 0 {
            let before = registers[at - 1].reg.bits();
            assert!(before < register.reg.bits(), "double or misplaced register");
        }
        check_fields(register.fields);
        at += 1;
    }
}
