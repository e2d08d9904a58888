//! Traps that L1 sets for L2 are taken to L1, with the syndrome of the access; without them L2 executes the
//! access.

use payload::encode::{Sysreg, hvc};
use payload::harness::Test;
use payload::prelude::*;

use crate::enter::{check_end, check_own, guest};
use crate::guest::{EL0T, Exit, Guest, code};

pub const TESTS: &[Test] =
    payload::tests![by_hcr, by_mdcr, by_cptr, fp, waits, id_registers, cache, counters, exceptions_of_el0, virtual_counter, by_number];

/// SCTLR_EL1, CONTEXTIDR_EL1.
const SCTLR_EL1: Sysreg = Sysreg::new(3, 0, 1, 0, 0);
const CONTEXTIDR_EL1: Sysreg = Sysreg::new(3, 0, 13, 0, 1);

/// The ISS of an access to a register with x5.
fn iss(register: Sysreg, read: bool) -> u64 {
    let Sysreg { op0, op1, crn, crm, op2 } = register;
    u64::from(op0 << 20 | op2 << 17 | op1 << 14 | crn << 10 | 5 << 5 | crm << 1 | u32::from(read))
}

pub fn access(guest: &mut Guest, register: Sysreg, read: bool) -> Exit {
    guest.run(&[if read { register.read(5) } else { register.write(5) }, hvc(0)])
}

/// The access exits with its syndrome, and L2 continues after it.
pub fn check_trapped(guest: &mut Guest, register: Sysreg, read: bool) -> Outcome {
    let exit = access(guest, register, read);
    check_eq!(exit.esr, 0x18 << 26 | 1 << 25 | iss(register, read), "ESR_EL2 of {register}, vector {}", exit.vector);
    check_eq!(guest.pc, crate::guest::CODE, "ELR_EL2");
    check_end(guest.skip())
}

/// Bits of HCR_EL2, and an access that each traps.
fn by_hcr() -> Outcome {
    let rows: [(&str, u32, Sysreg, bool); 10] = [
        ("TVM", 26, CONTEXTIDR_EL1, false),
        ("TRVM", 30, SCTLR_EL1, true),
        ("TID3", 18, Sysreg::new(3, 0, 0, 4, 0), true),
        ("TID2", 17, Sysreg::new(3, 1, 0, 0, 1), true),
        ("TID1", 16, Sysreg::new(3, 0, 0, 0, 6), true),
        ("TACR", 21, Sysreg::new(3, 0, 1, 0, 1), true),
        ("TSW", 22, Sysreg::new(1, 0, 7, 10, 2), false),
        ("TPCP", 23, Sysreg::new(1, 3, 7, 10, 1), false),
        ("TPU", 24, Sysreg::new(1, 0, 7, 5, 0), false),
        ("TTLB", 25, Sysreg::new(1, 0, 8, 7, 0), false),
    ];
    for (name, bit, register, read) in rows {
        let mut guest = guest();
        // A write does not change the register.
        guest.x[5] = 0;
        let exit = access(&mut guest, register, read);
        check!(exit.hvc() == Some(0), "without {name}: {exit:x?}");
        guest.hcr |= 1 << bit;
        check_trapped(&mut guest, register, read)?;
    }
    Ok(())
}

/// MDCR_EL2.{TPM, TDA, TDOSA, TDRA}.
fn by_mdcr() -> Outcome {
    let rows = [
        ("TPM", 6, Sysreg::new(3, 3, 9, 12, 0)),
        ("TDA", 9, Sysreg::new(2, 0, 0, 2, 2)),
        ("TDOSA", 10, Sysreg::new(2, 0, 1, 1, 4)),
        ("TDRA", 11, Sysreg::new(2, 0, 1, 0, 0)),
    ];
    for (name, bit, register) in rows {
        if name == "TPM" && mrs!("ID_AA64DFR0_EL1") >> 8 & 15 == 0 {
            continue;
        }
        let mut guest = guest();
        // TDA and TDE as well: otherwise the effect is CONSTRAINED UNPREDICTABLE.
        msr!("MDCR_EL2", 1 << bit);
        check_trapped(&mut guest, register, true)?;
        msr!("MDCR_EL2", 0);
    }
    Ok(())
}

/// CPTR_EL2.TCPAC.
fn by_cptr() -> Outcome {
    let mut guest = guest();
    msr!("CPTR_EL2", 3 << 20 | 1 << 31);
    check_trapped(&mut guest, Sysreg::new(3, 0, 1, 0, 2), true)
}

/// CPTR_EL2.FPEN: L2's first FP instruction traps to EL2; later ones don't.
fn fp() -> Outcome {
    let mut guest = guest();
    msr!("CPTR_EL2", 0);
    let exit = guest.run(&[0x1E27_0000, hvc(0)]); // fmov s0, w0
    check_eq!(exit.esr >> 26, 7, "EC: ESR_EL2 {:#x}", exit.esr);
    check_eq!(guest.pc, crate::guest::CODE, "ELR_EL2");
    msr!("CPTR_EL2", 3 << 20);
    check_end(guest.resume())
}

/// HCR_EL2.TWI. (TWE is not tested: a WFE may complete immediately.)
fn waits() -> Outcome {
    let mut guest = guest();
    guest.hcr |= 1 << 13;
    let exit = guest.run(code!("wfi"));
    // CV and COND, and a register that only WFIT has, may be anything.
    check_eq!(exit.esr & !(0x1F << 20 | 0x3E0), 1 << 26 | 1 << 25, "ESR_EL2");
    check_eq!(guest.pc, crate::guest::CODE, "ELR_EL2");
    check_end(guest.skip())
}

/// L2 reads L1's VPIDR_EL2 and VMPIDR_EL2.
fn id_registers() -> Outcome {
    let mut guest = guest();
    msr!("VPIDR_EL2", 0x1234_5678);
    msr!("VMPIDR_EL2", 1 << 31 | 0x55);
    check_end(guest.run(code!("mrs x0, MIDR_EL1", "mrs x1, MPIDR_EL1", "mrs x2, ID_AA64PFR0_EL1")))?;
    check_eq!(guest.x[0], 0x1234_5678, "MIDR_EL1");
    check_eq!(guest.x[1], 1 << 31 | 0x55, "MPIDR_EL1");
    check_eq!(guest.x[2], mrs!("ID_AA64PFR0_EL1"), "ID_AA64PFR0_EL1, as L1 has it");
    Ok(())
}

/// L2's own cache and TLB maintenance doesn't involve L1.
fn cache() -> Outcome {
    let mut guest = guest();
    guest.x[1] = crate::guest::DATA;
    check_end(guest.run(code!(
        "dc cvac, x1",
        "dc civac, x1",
        "ic iallu",
        "ic ivau, x1",
        "tlbi vmalle1",
        "tlbi vmalle1is",
        "tlbi vaae1is, x1",
        "dsb sy",
        "isb",
    )))
}

/// CNTHCTL_EL2: EL1's access to the physical counter and timer.
fn counters() -> Outcome {
    let mut guest = guest();
    let control = mrs!("CNTHCTL_EL2");
    check_end(access(&mut guest, Sysreg::new(3, 3, 14, 0, 1), true))?;
    check_end(access(&mut guest, Sysreg::new(3, 3, 14, 2, 1), true))?;
    msr!("CNTHCTL_EL2", control & !(0b11 << 10));
    let result = check_trapped(&mut guest, Sysreg::new(3, 3, 14, 0, 1), true)
        .and_then(|()| check_trapped(&mut guest, Sysreg::new(3, 3, 14, 2, 1), true));
    msr!("CNTHCTL_EL2", control);
    result
}

/// HCR_EL2.TGE clear: exceptions of L2's EL0 are taken to L2's EL1, or to EL2 if L1 traps them.
fn exceptions_of_el0() -> Outcome {
    let mut guest = guest();
    let exit = guest.run_at(EL0T, &[SCTLR_EL1.read(5), hvc(0)]);
    check!(exit.own_vector() == Some(8), "{exit:x?}");
    guest.hcr |= 1 << 30; // TRVM: EL1's only
    let exit = guest.run_at(EL0T, &[SCTLR_EL1.read(5), hvc(0)]);
    check!(exit.own_vector() == Some(8), "with TRVM: {exit:x?}");
    Ok(())
}

/// CNTHCTL_EL2.{EL1TVT, EL1TVCT}, with FEAT_ECV: the virtual timer and counter.
fn virtual_counter() -> Outcome {
    if mrs!("ID_AA64MMFR0_EL1") >> 60 & 15 == 0 {
        skip!("no FEAT_ECV");
    }
    let mut guest = guest();
    let control = mrs!("CNTHCTL_EL2");
    for (bit, register) in [(13, Sysreg::new(3, 3, 14, 3, 1)), (14, Sysreg::new(3, 3, 14, 0, 2))] {
        check_end(access(&mut guest, register, true))?;
        msr!("CNTHCTL_EL2", control | 1 << bit);
        let result = check_trapped(&mut guest, register, true);
        msr!("CNTHCTL_EL2", control);
        result?;
    }
    Ok(())
}

/// HSTR_EL2.T13, of L2's programs in AArch32 state.
fn by_number() -> Outcome {
    let mut guest = guest();
    check_own(guest.run_at(EL0T32, &READ_TPIDRURW), 12, "L2's vector for its SVC")?;
    msr!("HSTR_EL2", 1 << 13);
    let exit = guest.run_at(EL0T32, &READ_TPIDRURW);
    check_eq!(exit.class(), 3, "EC: {exit:x?}");
    check_eq!(guest.pc, crate::guest::CODE, "ELR_EL2");
    msr!("HSTR_EL2", 1 << 9);
    check_own(guest.run_at(EL0T32, &READ_TPIDRURW), 12, "L2's vector with T9")?;
    Ok(())
}

/// SPSR_EL2: User mode in AArch32 state, all masked.
pub const EL0T32: u64 = 0x1D0;
/// MRC p15, 0, r0, c13, c0, 2; SVC 0.
pub const READ_TPIDRURW: [u32; 2] = [0xEE1D_0F50, 0xEF00_0000];
