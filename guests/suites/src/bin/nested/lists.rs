//! List registers: L2's interrupts, as L1 gives them.

use payload::board::MAINTENANCE_INTID;
use payload::gic::Bits;
use payload::harness::Test;
use payload::prelude::*;

use crate::enter::{check_end, guest};
use crate::guest::{self, Guest, code};

pub const TESTS: &[Test] = payload::tests![
    taken,
    acknowledged_and_ended,
    priorities,
    maintenance_at_end,
    maintenance_underflow,
    status_registers,
    many,
    physical_interrupt,
    deactivates_hardware,
    deactivates_spi,
    masked,
];

/// ICH_LRn_EL2: pending, active, HW, group 1, EOI.
const PENDING: u64 = 1 << 62;
const ACTIVE: u64 = 1 << 63;
const HW: u64 = 1 << 61;
const GROUP1: u64 = 1 << 60;
const EOI: u64 = 1 << 41;
/// An SPI of L2's.
const INTID: u64 = 77;

macro_rules! list_registers {
    ($($n:literal: $name:literal),*) => {
        /// Writes ICH_LRn_EL2.
        pub fn write(n: usize, value: u64) {
            match n { $($n => msr!($name, value),)* _ => {} }
        }

        /// Reads ICH_LRn_EL2.
        pub fn read(n: usize) -> u64 {
            match n { $($n => mrs!($name),)* _ => 0 }
        }
    };
}
list_registers! {
    0: "S3_4_C12_C12_0", 1: "S3_4_C12_C12_1", 2: "S3_4_C12_C12_2", 3: "S3_4_C12_C12_3"
}

/// Number of list registers used by this suite.
fn count() -> usize {
    (mrs!("S3_4_C12_C11_1") as usize & 31).min(3) + 1
}

fn set_control(value: u64) {
    msr!("S3_4_C12_C11_0", value);
}

fn misr() -> u64 {
    mrs!("S3_4_C12_C11_2")
}

fn eisr() -> u64 {
    mrs!("S3_4_C12_C11_3")
}

fn elrsr() -> u64 {
    mrs!("S3_4_C12_C11_5")
}

/// No list register in use; L2's interface enabled: ICH_VMCR_EL2 with both groups, no mask.
pub fn reset() {
    (0..count()).for_each(|n| write(n, 0));
    msr!("S3_4_C12_C11_7", 0xFF << 24 | 0b11);
    msr!("S3_4_C12_C8_0", 0); // ICH_AP0R0_EL2, ICH_AP1R0_EL2
    msr!("S3_4_C12_C9_0", 0);
    set_control(1);
}

fn lr(intid: u64, priority: u64) -> u64 {
    PENDING | GROUP1 | priority << 48 | intid
}

/// L2 unmasks, and takes the exception.
fn taken() -> Outcome {
    let mut guest = guest();
    write(0, lr(INTID, 0x80));
    let exit = guest.run(code!("nop", "msr DAIFClr, #2", "isb", "nop"));
    check!(exit.own_vector() == Some(5), "{exit:x?}");
    Ok(())
}

/// The states of a list register: pending, active, invalid, as L2 acknowledges and ends it.
fn acknowledged_and_ended() -> Outcome {
    let mut guest = guest();
    write(0, lr(INTID, 0x80));
    check_end(guest.run(code!("mrs x0, S3_0_C12_C12_0", "mrs x1, S3_0_C12_C11_3")))?;
    check_eq!(guest.x[0], INTID, "ICC_IAR1_EL1");
    check_eq!(guest.x[1], 0x80, "ICC_RPR_EL1");
    check_eq!(read(0), lr(INTID, 0x80) & !PENDING | ACTIVE, "ICH_LR0_EL2 after the acknowledgement");
    guest.x[0] = INTID;
    check_end(guest.run(code!("msr S3_0_C12_C12_1, x0", "isb", "mrs x1, S3_0_C12_C11_3")))?;
    check_eq!(guest.x[1], 0xFF, "ICC_RPR_EL1");
    check_eq!(read(0) >> 62, 0, "the state in ICH_LR0_EL2 after the end");
    Ok(())
}

/// The highest priority is delivered first, in whichever list register it is.
fn priorities() -> Outcome {
    let mut guest = guest();
    for (n, priority) in [0xA0, 0x40, 0x80].into_iter().enumerate() {
        write(n, lr(INTID + n as u64, priority));
    }
    check_end(guest.run(code!("mrs x0, S3_0_C12_C12_0", "mrs x1, S3_0_C12_C12_0")))?;
    check_eq!(guest.x[0], INTID + 1, "the first acknowledgement");
    check_eq!(guest.x[1], 1023, "the second: nothing is more important");
    Ok(())
}

/// EOI in a list register: L1 gets the maintenance interrupt immediately.
fn maintenance_at_end() -> Outcome {
    gic::set(Bits::Enable, MAINTENANCE_INTID);
    let mut guest = guest();
    write(0, lr(INTID, 0x80) | EOI);
    let exit = guest.run(code!("mrs x0, S3_0_C12_C12_0", "msr S3_0_C12_C12_1, x0", "isb", "772: b 772b"));
    check_eq!(exit.vector, guest::IRQ, "the exit");
    check_eq!(misr(), 1, "ICH_MISR_EL2");
    check_eq!(eisr(), 1, "ICH_EISR_EL2");
    check_eq!(icc::iar1(), MAINTENANCE_INTID, "ICC_IAR1_EL1 of L1");
    write(0, 0);
    check_eq!(eisr(), 0, "ICH_EISR_EL2 without the list register");
    icc::eoir1(MAINTENANCE_INTID);
    check!(wait::until(|| !gic::get(Bits::Pending, MAINTENANCE_INTID)), "the maintenance interrupt stays");
    Ok(())
}

/// ICH_HCR_EL2.UIE: at most one list register is valid.
fn maintenance_underflow() -> Outcome {
    gic::set(Bits::Enable, MAINTENANCE_INTID);
    let mut guest = guest();
    write(0, lr(INTID, 0x80));
    write(1, lr(INTID + 1, 0x90));
    check_eq!(misr(), 0, "ICH_MISR_EL2 without UIE");
    set_control(1 | 1 << 1);
    check_eq!(misr(), 0, "ICH_MISR_EL2 with two list registers in use");
    let exit = guest.run(code!("mrs x0, S3_0_C12_C12_0", "msr S3_0_C12_C12_1, x0", "isb", "772: b 772b"));
    check_eq!(exit.vector, guest::IRQ, "the exit");
    check_eq!(misr(), 1 << 1, "ICH_MISR_EL2");
    check_eq!(icc::iar1(), MAINTENANCE_INTID, "ICC_IAR1_EL1 of L1");
    set_control(1);
    icc::eoir1(MAINTENANCE_INTID);
    Ok(())
}

/// ICH_ELRSR_EL2 and ICH_EISR_EL2 reflect list registers, without an L2 entry in between.
fn status_registers() -> Outcome {
    let all = (1 << (mrs!("S3_4_C12_C11_1") & 31) << 1) - 1;
    check_eq!(elrsr(), all, "ICH_ELRSR_EL2 of none in use");
    write(0, lr(INTID, 0));
    write(1, INTID | EOI);
    check_eq!(elrsr(), all & !3, "ICH_ELRSR_EL2");
    check_eq!(eisr(), 2, "ICH_EISR_EL2");
    Ok(())
}

/// More interrupts than list registers, one after the other.
fn many() -> Outcome {
    let mut guest = guest();
    for round in 0..64_u64 {
        let n = round as usize % count();
        write(n, lr(INTID + round, 0x80));
        check_end(guest.run(code!("mrs x0, S3_0_C12_C12_0", "msr S3_0_C12_C12_1, x0", "isb")))?;
        check_eq!(guest.x[0], INTID + round, "ICC_IAR1_EL1");
    }
    Ok(())
}

/// An interrupt of L1 exits from L2, although L2 masks all interrupts.
fn physical_interrupt() -> Outcome {
    let sgi = 3;
    gic::set(Bits::Enable, sgi);
    let mut guest = guest();
    icc::sgi(sgi, 1 << smp::this());
    let exit = guest.run(code!("772: b 772b"));
    check_eq!(exit.vector, guest::IRQ, "the exit");
    check_eq!(guest.pc, guest::CODE, "ELR_EL2");
    check_eq!(icc::iar1(), sgi, "ICC_IAR1_EL1 of L1");
    icc::eoir1(sgi);
    check!(guest.run(code!("hvc #1")).hvc() == Some(1), "the next exit");
    Ok(())
}

/// HW: the end of L2's interrupt deactivates L1's own.
fn deactivates_hardware() -> Outcome {
    const PPI: u32 = payload::board::VIRTUAL_TIMER_INTID;
    icc::set_ctlr(icc::CTLR_EOIMODE);
    gic::set(Bits::Active, PPI);
    let mut guest = guest();
    write(0, lr(PPI.into(), 0x80) | HW | u64::from(PPI) << 32);
    let result = check_end(guest.run(code!("mrs x0, S3_0_C12_C12_0", "msr S3_0_C12_C12_1, x0", "isb")));
    icc::set_ctlr(0);
    result?;
    check_eq!(guest.x[0], u64::from(PPI), "ICC_IAR1_EL1");
    check!(wait::until(|| !gic::get(Bits::Active, PPI)), "L1's interrupt is still active");
    Ok(())
}

/// HW with an SPI of L1: the end of L2's interrupt deactivates it.
fn deactivates_spi() -> Outcome {
    let spi = gic::spare_spis().start;
    for round in 0..3 {
        icc::set_ctlr(icc::CTLR_EOIMODE);
        gic::set(Bits::Enable, spi);
        gic::set(Bits::Pending, spi);
        check!(wait::until(|| icc::hppir1() == spi), "round {round}: SPI {spi} does not come");
        check_eq!(icc::iar1(), spi, "round {round}: ICC_IAR1_EL1 of L1");
        icc::eoir1(spi);
        let mut guest = guest();
        write(0, lr(INTID, 0x80) | HW | u64::from(spi) << 32);
        let result = check_end(guest.run(code!("mrs x0, S3_0_C12_C12_0", "msr S3_0_C12_C12_1, x0", "isb")));
        icc::set_ctlr(0);
        result?;
        check_eq!(guest.x[0], INTID, "ICC_IAR1_EL1");
        check!(wait::until(|| !gic::get(Bits::Active, spi)), "round {round}: L1's interrupt is still active");
    }
    Ok(())
}

/// Interrupts that L2 masks by priority or group are not delivered.
fn masked() -> Outcome {
    let mut guest = guest();
    write(0, lr(INTID, 0x80));
    check_end(guest.run(code!("mov x0, #0x80", "msr S3_0_C4_C6_0, x0", "isb", "mrs x0, S3_0_C12_C12_0", "msr DAIFClr, #2", "isb")))?;
    check_eq!(guest.x[0], 1023, "ICC_IAR1_EL1");
    // ICH_VMCR_EL2.VPMR.
    check_eq!(mrs!("S3_4_C12_C11_7") >> 24 & 0xFF, 0x80, "ICH_VMCR_EL2.VPMR");
    wake(&mut guest)
}

/// Unmasks the interrupt, which is taken.
fn wake(guest: &mut Guest) -> Outcome {
    let exit = guest.run(code!("mov x0, #0xF0", "msr S3_0_C4_C6_0, x0", "msr DAIFClr, #2", "isb"));
    check!(exit.own_vector() == Some(5), "{exit:x?}");
    Ok(())
}
