//! What no hypervisor would do. Only that L1 comes back from it is checked, and that its memory is as it was: L2 may read whatever it finds,
//! and writes nothing outside its own page.
//!
//! L1 spares what it needs itself: the registers of its own translations and vectors, HCR_EL2.E2H, and HCR_EL2.IMO, without which an L2 that
//! waits for ever would be right to do so.

use core::sync::atomic::{AtomicU64, Ordering::*};

use payload::encode::{NOP, Sysreg, hvc};
use payload::gic::Bits;
use payload::harness::Test;
use payload::mmu::Table;
use payload::prelude::*;
use payload::probe;
use payload::random::{Random, mix};
use payload::timer::Timer;

use crate::guest::{self, Guest, code};
use crate::stage2::{self, NORMAL, READ, Stage2};
use crate::{fine, lists, restore};

pub const TESTS: &[Test] = payload::tests![
    wild_registers,
    wild_instructions,
    wild_tables,
    wild_roots,
    wild_controls,
    wild_lists,
    wild_timers,
    wild_returns,
    changed_under_a_running_l2,
];

/// The guard that ends L2's run, in microseconds.
const GUARD: u64 = 1_000;
/// The pages that must stay as they are.
const CANARY: u64 = 16;

/// How often each CPU does something.
fn attempts(count: u64) -> core::ops::Range<u64> {
    0..count * machine::number("rounds", 1) / machine::cpus() as u64
}

/// What each phase has.
struct Wild {
    random: Random,
    canary: &'static Table,
}

/// Runs a phase on all CPUs at once.
fn on_all(work: fn() -> Outcome) -> Outcome {
    smp::on_all(|| {
        gic::reset_cpu();
        restore();
        Ok(())
    })?;
    smp::on_all(work)
}

impl Wild {
    fn new(phase: u64) -> Self {
        let seed = machine::number("seed", 1) << 16 | phase << 8 | smp::this() as u64;
        // SAFETY: pages given to nobody else; a table is made of atomics.
        let canary = unsafe { &*(stage2::pages(CANARY) as *const Table) };
        let this = Self { random: Random::new(mix(seed)), canary };
        this.words().for_each(|(index, word)| word.store(mix(index), Release));
        this
    }

    fn words(&self) -> impl Iterator<Item = (u64, &AtomicU64)> {
        let first = self.canary.0.as_ptr();
        // SAFETY: as many words as there are in these pages.
        (0..CANARY * 512).map(move |index| (index, unsafe { &*first.add(index as usize) }))
    }

    fn check(&self) -> Outcome {
        for (index, word) in self.words() {
            check_eq!(word.load(Acquire), mix(index), "word {index} of L1's memory");
        }
        Ok(())
    }

    /// An address of L1's: its memory, a device, none at all.
    fn place(&mut self) -> u64 {
        let ram = machine::ram();
        match self.random.below(6) {
            0 => payload::board::GICD + self.random.below(0x200_0000),
            1 => ram.end - 0x1000 + self.random.below(0x10_0000),
            2 => self.random.bits() & 0xFFFF_FFFF_FFFF,
            3 => self.random.below(ram.start),
            _ => ram.start + self.random.below(ram.end - ram.start),
        }
    }

    /// A descriptor of any kind. What leads to L1's memory is a table, or read-only.
    fn descriptor(&mut self, root: u64) -> u64 {
        let place = self.place();
        let low = self.random.below(4);
        match self.random.below(4) {
            // A loop.
            0 => root | 3,
            1 => place & !0xFFF | 3,
            2 => place & !0xFFF | NORMAL | READ | low,
            _ => (self.random.bits() & !(0xFFFF_FFFF_F000 | 1 << 7)) | place & 0xFFFF_FFFF_F000 | low,
        }
    }

    /// L2 runs until it exits, or until the guard ends it.
    fn run(&mut self, guest: &mut Guest) {
        let guard = Timer::Physical;
        gic::set(Bits::Enable, guard.intid());
        guard.start(GUARD);
        for _ in 0..4 {
            let exit = guest.resume();
            if exit.vector != guest::SYNCHRONOUS || exit.hvc() == Some(0) {
                break;
            }
            guest.pc += 4;
        }
        guard.stop();
        drain();
    }
}

/// Ends whatever interrupts are there.
fn drain() {
    for _ in 0..64 {
        let intid = icc::iar1();
        if intid >= 1020 {
            break;
        }
        icc::eoir1(intid);
    }
    msr!("S3_0_C12_C9_0", 0);
}

/// Loads at x1, x3, x5 and x7, and translations of the same.
fn loads() -> &'static [u32] {
    code!("ldr x0, [x1]", "at s1e1r, x3", "ldr x2, [x3]", "at s1e0w, x5", "ldrb w4, [x5]", "ldp x6, x8, [x7]", "prfm pldl1keep, [x1]")
}

/// Every register of EL2's, and those with its names for EL1's, with any value.
fn wild_registers() -> Outcome {
    on_all(|| {
        let mut wild = Wild::new(1);
        for round in 0..2 {
            for n in 0..1 << 12 {
                let register = Sysreg::new(3, 4 + (n >> 11), n >> 7 & 15, n >> 3 & 15, n & 7);
                if ruins(register) || n as usize % machine::cpus() != smp::this() {
                    continue;
                }
                let mut registers = [0; 31];
                registers[1] = if round == 0 { wild.random.odd() } else { wild.random.bits() };
                probe::run(&[register.read(0), register.write(1), register.read(2)], &mut registers);
            }
        }
        restore();
        wild.check()
    })
}

/// What L1 would not survive: its own controls, tables, memory attributes and vectors.
fn ruins(register: Sysreg) -> bool {
    let Sysreg { op1, crn, crm, op2, .. } = register;
    match (op1, crn, crm, op2) {
        // SCTLR_EL2, SCTLR2_EL2, HCR_EL2, HCRX_EL2; TTBR0_EL2, TTBR1_EL2, TCR_EL2, TCR2_EL2; its guarded control stack.
        (4, 1, 0, 0 | 3) | (4, 1, 1, 0) | (4, 1, 2, 2) | (4, 2, 0, 0..=3) | (4, 2, 5, _) => true,
        // MAIR_EL2 and its like, VBAR_EL2.
        (4, 10, 2, _) | (4, 12, 0, 0) => true,
        // On QEMU itself: VNCR_EL2 leads to memory, RVBAR and RMR to a reset.
        (4, 2, 2, 0) | (4, 12, 0, _) => !machine::is_stile(),
        _ => false,
    }
}

/// Every instruction of EL2's for TLBs and translations, and EL1's of that kind, with any operand.
fn wild_instructions() -> Outcome {
    on_all(|| {
        let mut wild = Wild::new(2);
        let stage2 = Stage2::new(20 + smp::this() as u64);
        Guest::new(stage2);
        for n in 0..1 << 11 {
            let (crn, crm, op2) = (7 + (n >> 7 & 3), n >> 3 & 15, n & 7);
            let translates = crn == 7 && matches!(crm, 8 | 9);
            // QEMU itself fails an assertion there.
            if !(translates && machine::is_stile() || matches!(crn, 8 | 9)) {
                continue;
            }
            for op1 in [0, 4] {
                let register = Sysreg::new(1, op1, crn, crm, op2);
                let mut registers = [0; 31];
                registers[1] = wild.random.odd();
                registers[2] = wild.random.bits();
                stage2::with_guest_regime(|| {
                    probe::run(&[register.write(1), register.write(2), register.write(31)], &mut registers);
                });
            }
        }
        wild.check()
    })
}

/// Tables with loops, in devices, beyond memory, and of noise, where L2's code is not.
fn wild_tables() -> Outcome {
    on_all(|| {
        let mut wild = Wild::new(3);
        let stage2 = Stage2::new(30 + smp::this() as u64);
        let mut guest = Guest::new(stage2);
        guest.pstate = guest::EL1H;
        for _ in attempts(1_000) {
            let address = wild.random.below(1 << 39);
            let level = 1 + wild.random.below(3) as u32;
            if address >> 30 == guest::CODE >> 30 {
                continue;
            }
            let entry = wild.descriptor(stage2.root);
            stage2.set_in_root(address, level, entry);
            if wild.random.below(2) == 0 {
                stage2::forget_all();
            }
            guest.x = core::array::from_fn(|_| address & !0xFFF | wild.random.below(0x1000) & !7);
            guest.write(loads());
            wild.run(&mut guest);
        }
        wild.check()
    })
}

/// Any VTTBR_EL2 and VTCR_EL2, with tables made of L1's own code and data.
fn wild_roots() -> Outcome {
    on_all(|| {
        let mut wild = Wild::new(4);
        let stage2 = Stage2::new(40 + smp::this() as u64);
        Guest::new(stage2);
        for _ in attempts(1_000) {
            let mut guest = Guest::bare();
            let root = if wild.random.below(3) == 0 { stage2.root | wild.random.below(64) } else { wild.place() };
            msr!("VTTBR_EL2", root & 0xFFFF_FFFF_FFFF | wild.random.odd() << 48);
            let vtcr = match wild.random.below(3) {
                // Any size, start and granule, the rest as it should be.
                0 => stage2::vtcr() & !0xC0FF | wild.random.bits() & 0xC0FF,
                1 => wild.random.bits(),
                _ => stage2::vtcr(),
            };
            msr!("VTCR_EL2", vtcr);
            guest.pc = if wild.random.below(2) == 0 { guest::CODE } else { wild.place() & !3 };
            guest.x = core::array::from_fn(|_| wild.random.odd());
            guest.write(loads());
            wild.run(&mut guest);
        }
        wild.check()
    })
}

/// Any HCR_EL2, MDCR_EL2, CPTR_EL2, HSTR_EL2, CNTHCTL_EL2, VPIDR_EL2, VMPIDR_EL2.
fn wild_controls() -> Outcome {
    /// HCR_EL2.{IMO, RW, E2H}.
    const KEPT: u64 = 1 << 4 | 1 << 31 | 1 << 34;
    on_all(|| {
        let mut wild = Wild::new(5);
        let stage2 = Stage2::new(50 + smp::this() as u64);
        Guest::new(stage2);
        let control = mrs!("CNTHCTL_EL2");
        for _ in attempts(2_000) {
            stage2.activate();
            let mut guest = Guest::bare();
            let flips = if wild.random.below(2) == 0 { wild.random.bits() } else { 1 << wild.random.below(64) };
            guest.hcr = (guest.hcr ^ flips) | KEPT;
            msr!("MDCR_EL2", wild.random.odd());
            msr!("CPTR_EL2", wild.random.odd());
            msr!("HSTR_EL2", wild.random.odd());
            msr!("CNTHCTL_EL2", wild.random.odd());
            msr!("VPIDR_EL2", wild.random.odd());
            msr!("VMPIDR_EL2", wild.random.odd());
            fine::wild(|| if wild.random.below(4) == 0 { wild.random.odd() } else { 0 });
            let register = Sysreg::new(2 + wild.random.below(2) as u32, 0, 0, 0, 0);
            let any = wild.random.bits() as u32 & 0xF_FFE0;
            guest.write(&[register.read(0) & !0x7_FFE0 | any & 0x7_FFE0, NOP, 0xD503_207F, 0x1E27_0000, 0xD400_0003, 0xD538_4240, hvc(0)]);
            guest.pstate = wild.random.pick(&[guest::EL1H, guest::EL0T, 0x3C4, 0x5, 0]);
            wild.run(&mut guest);
            msr!("CNTHCTL_EL2", control);
            restore();
        }
        wild.check()
    })
}

/// List registers, controls and active priorities with any bits.
fn wild_lists() -> Outcome {
    on_all(|| {
        let mut wild = Wild::new(6);
        let stage2 = Stage2::new(60 + smp::this() as u64);
        Guest::new(stage2);
        for _ in attempts(1_000) {
            let mut guest = Guest::bare();
            for n in 0..4 {
                let any = wild.random.bits();
                // Often an interrupt of L1's, or of L2's, that there is.
                let intids = wild.random.below(64) << 32 | wild.random.below(64);
                lists::write(n, if wild.random.below(3) == 0 { any } else { any & !0x1FFF_FFFF_FFFF | intids });
            }
            if wild.random.below(4) == 0 {
                let twice = lists::read(0);
                lists::write(1, twice);
            }
            msr!("S3_4_C12_C11_0", wild.random.odd() | wild.random.below(2)); // ICH_HCR_EL2, ICH_VMCR_EL2, ICH_AP0R0_EL2, ICH_AP1R0_EL2
            msr!("S3_4_C12_C11_7", wild.random.odd());
            msr!("S3_4_C12_C8_0", wild.random.odd());
            msr!("S3_4_C12_C9_0", wild.random.odd());
            guest.x = core::array::from_fn(|_| wild.random.below(1100));
            guest.pstate = wild.random.pick(&[guest::EL1H, 0x305]);
            // ICC_IAR1, ICC_EOIR1, ICC_DIR, ICC_IAR0, ICC_EOIR0, ICC_CTLR, ICC_SGI1R.
            guest.write(code!(
                "mrs x0, S3_0_C12_C12_0",
                "msr S3_0_C12_C12_1, x0",
                "msr S3_0_C12_C11_1, x0",
                "mrs x2, S3_0_C12_C8_0",
                "msr S3_0_C12_C8_1, x2",
                "msr S3_0_C12_C12_1, x3",
                "msr S3_0_C12_C12_4, x4",
                "msr S3_0_C12_C11_1, x5",
            ));
            wild.run(&mut guest);
            for status in [mrs!("S3_4_C12_C11_2"), mrs!("S3_4_C12_C11_3"), mrs!("S3_4_C12_C11_5")] {
                check!(status < 1 << 16, "a status of {status:#x}");
            }
        }
        gic::reset_cpu();
        restore();
        wild.check()
    })
}

/// Timers of both levels with any deadline, control and offset.
fn wild_timers() -> Outcome {
    on_all(|| {
        let mut wild = Wild::new(7);
        let stage2 = Stage2::new(70 + smp::this() as u64);
        Guest::new(stage2);
        for intid in [26, 27, 28, 30] {
            gic::set(Bits::Enable, intid);
        }
        for _ in attempts(1_000) {
            let mut guest = Guest::bare();
            let mut deadline = || match wild.random.below(3) {
                0 => wild.random.odd(),
                _ => wait::now().wrapping_add(wild.random.below(0x8000)),
            };
            let deadlines: [u64; 3] = core::array::from_fn(|_| deadline());
            Timer::Virtual.set_deadline(deadlines[0]);
            Timer::Virtual.set_control(wild.random.below(4));
            msr!("S3_5_C14_C3_2", deadlines[1]); // CNTV_CVAL_EL02, CNTV_CTL_EL02, CNTP_CVAL_EL02, CNTP_CTL_EL02
            msr!("S3_5_C14_C3_1", wild.random.below(8));
            msr!("S3_5_C14_C2_2", deadlines[2]);
            msr!("S3_5_C14_C2_1", wild.random.below(8));
            msr!("CNTVOFF_EL2", wild.random.odd());
            guest.x = core::array::from_fn(|_| wild.random.odd());
            guest.x[2] = wait::now().wrapping_add(wild.random.below(0x4000));
            guest.write(code!(
                "msr CNTV_TVAL_EL0, x0",
                "msr CNTP_CVAL_EL0, x2",
                "msr CNTP_CTL_EL0, x3",
                "wfi",
                "mrs x4, CNTP_TVAL_EL0",
                "wfi"
            ));
            wild.run(&mut guest);
            if wild.random.below(4) == 0 {
                // As a level that nobody takes back: it stays active.
                let _ = icc::iar1();
            }
            restore();
            drain();
        }
        gic::reset_cpu();
        restore();
        wild.check()
    })
}

/// ERET with any SPSR_EL2.
fn wild_returns() -> Outcome {
    on_all(|| {
        let mut wild = Wild::new(8);
        let stage2 = Stage2::new(80 + smp::this() as u64);
        let mut guest = Guest::new(stage2);
        for _ in attempts(2_000) {
            // Not: an SPSR_EL2 that lets EL2 itself go on, anywhere, with interrupts unmasked.
            let mode = wild.random.below(32);
            guest.pstate = wild.random.bits() & !0x1F | mode | if mode & 0xC == 8 { 0x3C0 } else { 0 };
            guest.hcr = guest::HCR | wild.random.below(2) << 27;
            guest.pc = wild.random.pick(&[guest::CODE, guest::CODE + 2, 0, 0xFFFF_0000_0000_0000]);
            guest.write(code!("nop"));
            wild.run(&mut guest);
        }
        wild.check()
    })
}

/// The tables that all CPUs' L2 use, and change.
static SHARED: AtomicU64 = AtomicU64::new(0);

/// L2 reads with tables that other CPUs change at the same time, with TLB maintenance and without.
fn changed_under_a_running_l2() -> Outcome {
    smp::need(2)?;
    let stage2 = Stage2::new(90);
    SHARED.store(stage2.root, Release);
    // What all of them run is the first CPU's page of code.
    Guest::new(stage2);
    on_all(|| {
        let mut wild = Wild::new(9);
        let stage2 = Stage2 { root: SHARED.load(Acquire), vmid: 90 };
        stage2.activate();
        for n in attempts(2_000) {
            let address = wild.random.below(64) << 30 | wild.random.below(8) << 21 | wild.random.below(8) << 12;
            if address >> 30 == guest::CODE >> 30 {
                continue;
            }
            if smp::this() % 2 == 1 {
                let entry = wild.descriptor(stage2.root);
                stage2.set_in_root(address, 1 + wild.random.below(3) as u32, if n % 3 == 0 { 0 } else { entry });
                match wild.random.below(3) {
                    0 => stage2::forget(address),
                    1 => stage2::forget_all(),
                    _ => {}
                }
                continue;
            }
            let mut guest = Guest::bare();
            guest.x = core::array::from_fn(|_| address | wild.random.below(0x1000) & !7);
            if smp::this() == 0 {
                guest.write(loads());
            }
            wild.run(&mut guest);
        }
        wild.check()
    })
}
