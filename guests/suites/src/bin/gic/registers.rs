//! Registers of the distributor, the redistributors and the CPU interface.

use payload::board::{GICD, GICR};
use payload::exception::catch;
use payload::gic::{Bits, gicd, gicr};
use payload::harness::Test;
use payload::prelude::*;
use payload::tests;

use crate::expect;

pub const TESTS: &[Test] = tests![
    distributor_identification,
    distributor_control,
    distributor_read_only,
    distributor_banked_is_reserved,
    distributor_reserved,
    distributor_set_and_clear,
    priority_bytes,
    priority_unimplemented_bits,
    configuration,
    router,
    access_sizes,
    redistributor_identification,
    redistributor_waker,
    redistributor_configuration,
    redistributor_of_others,
    cpu_interface,
    binary_point_minimum,
];

fn load64(address: u64) -> u64 {
    let value: u64;
    // SAFETY: the address is that of a device register; no Rust object lies there.
    unsafe { core::arch::asm!("ldr {}, [{}]", out(reg) value, in(reg) address, options(nostack)) };
    value
}

fn store64(address: u64, value: u64) {
    // SAFETY: the address is that of a device register; no Rust object lies there.
    unsafe { core::arch::asm!("str {}, [{}]", in(reg) value, in(reg) address, options(nostack)) };
}

fn distributor_identification() -> Outcome {
    expect::gicv3()?;
    check_eq!(gicd(0xFFE8).read() >> 4 & 0xF, 3, "GICD_PIDR2.ArchRev");
    let typer = gicd(0x4).read();
    check!(typer & 0x1F >= 1, "GICD_TYPER {typer:#x}: no SPIs");
    check!(typer >> 10 & 1 == 0, "GICD_TYPER {typer:#x}: two security states");
    check!(typer >> 19 & 0x1F >= 9, "GICD_TYPER {typer:#x}: IDbits too few");
    // Any value, but constant.
    check_eq!(gicd(0x8).read(), gicd(0x8).read(), "GICD_IIDR");
    Ok(())
}

fn distributor_control() -> Outcome {
    expect::gicv3()?;
    let value = gic::GICD_CTLR.read();
    check!(value & gic::CTLR_ARE != 0, "GICD_CTLR {value:#x}: ARE is 0");
    check!(value & gic::CTLR_DS != 0, "GICD_CTLR {value:#x}: DS is 0");
    check!(value & gic::CTLR_GROUP1 != 0, "GICD_CTLR {value:#x}: EnableGrp1 is 0 after it was set");
    gic::GICD_CTLR.write(0);
    check!(wait::until(|| gic::GICD_CTLR.read() & gic::CTLR_RWP == 0), "GICD_CTLR.RWP stays 1");
    check_eq!(gic::GICD_CTLR.read() & 3, 0, "GICD_CTLR group enables");
    Ok(())
}

fn distributor_read_only() -> Outcome {
    expect::gicv3()?;
    for offset in [0x4, 0x8, 0xFFE8] {
        let before = gicd(offset).read();
        gicd(offset).write(!before);
        check_eq!(gicd(offset).read(), before, "GICD + {offset:#x} after a write");
    }
    Ok(())
}

/// With affinity routing, SGIs and PPIs are not in the distributor.
fn distributor_banked_is_reserved() -> Outcome {
    expect::gicv3()?;
    let banked = [0x080, 0x100, 0x180, 0x200, 0x280, 0x300, 0x380, 0xC00, 0xC04, 0x400, 0x41C];
    let targets_and_sgis = [0x800, 0x840, 0xF00, 0xF10, 0xF20];
    for offset in banked.into_iter().chain(targets_and_sgis) {
        gicd(offset).write(!0);
        check_eq!(gicd(offset).read(), 0, "GICD + {offset:#x}");
    }
    Ok(())
}

fn distributor_reserved() -> Outcome {
    expect::gicv3()?;
    // Past the SPIs that exist, the registers of security, and holes.
    let words = u64::from(gic::limit()).div_ceil(32);
    let past = if words < 32 { [0x080, 0x100, 0x200, 0x300].map(|base| base + 4 * words) } else { [0xD00; 4] };
    for offset in past.into_iter().chain([0xD00, 0xD04, 0xE00, 0xE04, 0x014, 0x5000, 0xC000]) {
        gicd(offset).write(!0);
        check_eq!(gicd(offset).read(), 0, "GICD + {offset:#x}");
    }
    Ok(())
}

fn distributor_set_and_clear() -> Outcome {
    let intid = gic::spare_spis().start;
    for bits in [Bits::Enable, Bits::Pending, Bits::Active] {
        let offset = bits as u64 + u64::from(intid / 32 * 4);
        gic::set(bits, intid);
        check!(gic::get(bits, intid), "{offset:#x}: bit is 0 after it was set");
        check_eq!(gicd(offset + 0x80).read(), gicd(offset).read(), "clear register against set register {offset:#x}");
        gicd(offset).write(0);
        gicd(offset + 0x80).write(0);
        check!(gic::get(bits, intid), "{offset:#x}: writing zeroes cleared the bit");
        gic::clear(bits, intid);
        check!(!gic::get(bits, intid), "{offset:#x}: bit is 1 after it was cleared");
    }
    Ok(())
}

fn priority_bytes() -> Outcome {
    expect::gicv3()?;
    let spi = u64::from(gic::spare_spis().start);
    for register in [gicd(0x400 + spi), gicr(smp::this(), 0x1_0400), gicr(smp::this(), 0x1_0410)] {
        register.write(0x4030_2010);
        check_eq!(register.read(), 0x4030_2010, "IPRIORITYR {:#x}", register.0);
    }
    for intid in [spi as u32, 0, 16] {
        gic::set_priority(intid + 1, 0xB0);
        check_eq!(gic::priority(intid), 0x10, "priority of {intid}, its neighbour changed");
        check_eq!(gic::priority(intid + 1), 0xB0, "priority of {}", intid + 1);
        check_eq!(gic::priority(intid + 2), 0x30, "priority of {}, its neighbour changed", intid + 2);
    }
    Ok(())
}

fn priority_unimplemented_bits() -> Outcome {
    let bits = icc::priority_bits();
    check!((4..=8).contains(&bits), "ICC_CTLR_EL1.PRIbits says {bits} bits");
    let mask = 0xFF_u64 << (8 - bits) & 0xFF;
    for intid in [0, 16, gic::spare_spis().start] {
        gic::set_priority(intid, 0xFF);
        // A distributor may implement more bits than the CPU interface (QEMU's does).
        check_eq!(u64::from(gic::priority(intid)) & mask, mask, "priority 0xFF of {intid}, bits that are used");
    }
    icc::set_pmr(0xFF);
    check!(icc::pmr() & mask == mask, "ICC_PMR_EL1 {:#x} after 0xFF", icc::pmr());
    icc::set_pmr(0);
    check_eq!(icc::pmr(), 0, "ICC_PMR_EL1 after 0");
    Ok(())
}

fn configuration() -> Outcome {
    let intid = gic::spare_spis().start;
    let offset = 0xC00 + u64::from(intid / 16 * 4);
    gicd(offset).write(0);
    check_eq!(gicd(offset).read(), 0, "ICFGR, all level");
    gicd(offset).write(!0);
    check_eq!(gicd(offset).read() & 0xAAAA_AAAA, 0xAAAA_AAAA, "ICFGR, all edge");
    Ok(())
}

fn router() -> Outcome {
    expect::gicv3()?;
    let intid = gic::spare_spis().start;
    let address = GICD + 0x6000 + 8 * u64::from(intid);
    for cpu in 0..machine::cpus() {
        gic::route(intid, cpu);
        check_eq!(gic::routed(intid), cpu as u64, "IROUTER");
        // Both halves are words of their own.
        check_eq!(gicd(address - GICD).read(), cpu as u32, "IROUTER, low word");
        check_eq!(gicd(address - GICD + 4).read(), 0, "IROUTER, high word");
    }
    gicd(address - GICD).write(0);
    check_eq!(gic::routed(intid), 0, "IROUTER after a write to its low word");
    Ok(())
}

/// Unsupported access sizes are UNPREDICTABLE: they must return, with or without an abort.
fn access_sizes() -> Outcome {
    use payload::encode::{load, store};
    use payload::probe;

    for base in [GICD, GICR, GICR + 0x1_0000] {
        for offset in [0, 0x4, 0x8, 0x80, 0x100, 0x200, 0x400, 0xC00, 0x6100, 0xFFE8] {
            for size in 0..4 {
                let mut registers = [0; 31];
                registers[1] = base + offset;
                // Zeros: they have no effect, except on GICD_CTLR.
                probe::run(&[load(size, 2, 1), store(size, 3, 1)], &mut registers);
            }
        }
    }
    gic::reset();
    let spi = gic::spare_spis().start;
    let address = GICD + 0x400 + u64::from(spi);
    gicd(address - GICD).write(0x4030_2010);
    // A doubleword access of IPRIORITYR is UNPREDICTABLE, too: it must not hang.
    catch(|| {
        store64(address, load64(address));
    });
    Ok(())
}

fn redistributor_identification() -> Outcome {
    expect::gicv3()?;
    let cpus = machine::cpus();
    for cpu in 0..cpus {
        check_eq!(gicr(cpu, 0xFFE8).read() >> 4 & 0xF, 3, "GICR_PIDR2.ArchRev of CPU {cpu}");
        let typer = load64(gicr(cpu, 0x8).0);
        check_eq!(typer >> 32, cpu as u64, "GICR_TYPER.Affinity_Value of CPU {cpu}");
        check_eq!(typer >> 8 & 0xFFFF, cpu as u64, "GICR_TYPER.Processor_Number of CPU {cpu}");
        check_eq!(typer >> 4 & 1, u64::from(cpu + 1 == cpus), "GICR_TYPER.Last of CPU {cpu}");
        check_eq!(u64::from(gicr(cpu, 0x8).read()), typer & 0xFFFF_FFFF, "GICR_TYPER, low word");
        check_eq!(u64::from(gicr(cpu, 0xC).read()), typer >> 32, "GICR_TYPER, high word");
        check_eq!(gicr(cpu, 0x4).read(), gicr(cpu, 0x4).read(), "GICR_IIDR");
        check_eq!(gicr(cpu, 0).read() & 1 << 3, 0, "GICR_CTLR.RWP of CPU {cpu}");
    }
    Ok(())
}

fn redistributor_waker() -> Outcome {
    expect::gicv3()?;
    const PROCESSOR_SLEEP: u32 = 1 << 1;
    const CHILDREN_ASLEEP: u32 = 1 << 2;
    let waker = gicr(smp::this(), 0x14);
    check_eq!(waker.read() & (PROCESSOR_SLEEP | CHILDREN_ASLEEP), 0, "GICR_WAKER awake");
    // The CPU interface must be off before it sleeps.
    icc::set_group1(false);
    waker.write(PROCESSOR_SLEEP);
    check!(wait::until(|| waker.read() & CHILDREN_ASLEEP != 0), "GICR_WAKER.ChildrenAsleep does not become 1");
    check!(waker.read() & PROCESSOR_SLEEP != 0, "GICR_WAKER.ProcessorSleep is 0 after it was set");
    waker.write(0);
    check!(wait::until(|| waker.read() & CHILDREN_ASLEEP == 0), "GICR_WAKER.ChildrenAsleep does not become 0");
    Ok(())
}

fn redistributor_configuration() -> Outcome {
    expect::gicv3()?;
    let sgis = gicr(smp::this(), 0x1_0C00);
    check_eq!(sgis.read(), 0xAAAA_AAAA, "GICR_ICFGR0: SGIs are edge-triggered");
    sgis.write(0);
    check_eq!(sgis.read(), 0xAAAA_AAAA, "GICR_ICFGR0 after a write");
    for offset in [0x1_0D00, 0x1_0E00] {
        gicr(smp::this(), offset).write(!0);
        check_eq!(gicr(smp::this(), offset).read(), 0, "GICR SGI_base + {offset:#x}, a register of security");
    }
    Ok(())
}

/// One CPU may use another's redistributor.
fn redistributor_of_others() -> Outcome {
    expect::gicv3()?;
    smp::need(2)?;
    const PPI: u32 = 21;
    let other = machine::cpus() - 1;
    for bits in [Bits::Enable, Bits::Pending] {
        gic::clear_on(other, bits, PPI);
        gic::clear(bits, PPI);
        gic::set_on(other, bits, PPI);
        check!(gic::get_on(other, bits, PPI), "the other's bit is 0 after it was set");
        check!(!gic::get(bits, PPI), "the bit was set for this CPU");
        gic::clear_on(other, bits, PPI);
        check!(!gic::get_on(other, bits, PPI), "the other's bit is 1 after it was cleared");
    }
    Ok(())
}

fn cpu_interface() -> Outcome {
    if !machine::is_gicv2() {
        check!(icc::sre() & 1 == 1, "ICC_SRE_EL1.SRE is 0");
    }
    check_eq!(icc::group1(), 1, "ICC_IGRPEN1_EL1 after 1");
    icc::set_group1(false);
    check_eq!(icc::group1(), 0, "ICC_IGRPEN1_EL1 after 0");
    icc::set_ctlr(0);
    // CBPR may be fixed to one, as with two security states.
    let fixed = icc::ctlr() & icc::CTLR_CBPR;
    for bit in [icc::CTLR_EOIMODE, icc::CTLR_CBPR] {
        icc::set_ctlr(bit);
        check_eq!(icc::ctlr() & (icc::CTLR_EOIMODE | icc::CTLR_CBPR), bit | fixed, "ICC_CTLR_EL1 after {bit:#x}");
    }
    icc::set_ctlr(0);
    for mask in [0x80, 0xF0, 0xFF] {
        icc::set_pmr(mask);
        check_eq!(icc::pmr(), mask & 0xFF << (8 - icc::priority_bits()) & 0xFF, "ICC_PMR_EL1 after {mask:#x}");
    }
    check_eq!(icc::rpr(), icc::IDLE, "ICC_RPR_EL1 with nothing active");
    check_eq!(icc::hppir1(), icc::SPURIOUS, "ICC_HPPIR1_EL1 with nothing pending");
    check_eq!(icc::iar1(), icc::SPURIOUS, "ICC_IAR1_EL1 with nothing pending");
    // An EOI of a special INTID is ignored.
    icc::eoir1(icc::SPURIOUS);
    check_eq!(icc::rpr(), icc::IDLE, "ICC_RPR_EL1 after the end of 1023");
    Ok(())
}

fn binary_point_minimum() -> Outcome {
    icc::set_bpr1(0);
    let least = icc::bpr1();
    // Of group 0 it is one less.
    check!(
        least + u64::from(machine::is_gicv2()) >= 8 - icc::priority_bits(),
        "ICC_BPR1_EL1 is {least} after 0, with {} bits",
        icc::priority_bits()
    );
    icc::set_bpr1(7);
    check_eq!(icc::bpr1(), 7, "ICC_BPR1_EL1 after 7");
    icc::set_bpr1(0);
    check_eq!(icc::bpr1(), least, "ICC_BPR1_EL1 after 0 again");
    Ok(())
}
