//! Programs that no hypervisor would run. Checks only that control returns to L1 with its memory unchanged: L2 may read
//! anything that it finds, and writes nothing outside its own page.
//!
//! Registers that L1 itself needs are excluded: those of its translations and vectors, HCR_EL2.E2H, and HCR_EL2.IMO,
//! without which an L2 may wait forever.

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
use crate::restore::restore;
use crate::stage2::{self, NORMAL, READ, Stage2};
use crate::{fine, lists};

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
const GUARD: u64 = 500;
/// The pages that must stay as they are.
const CANARY: u64 = 16;

/// Numbers of a CPU's attempts.
fn attempts(count: u64) -> core::ops::Range<u64> {
    0..count * machine::number("rounds", 1) / machine::cpus() as u64
}

/// State that all phases share.
pub struct Wild {
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
    /// A CPU's numbers of a phase, and its private memory.
    pub fn new(phase: u64) -> Self {
        let seed = machine::number("seed", 1) << 16 | phase << 8 | smp::this() as u64;
        // SAFETY: pages that no other CPU has; a table consists of atomics.
        let canary = unsafe { &*(stage2::pages(CANARY) as *const Table) };
        let this = Self { random: Random::new(mix(seed)), canary };
        this.words().for_each(|(index, word)| word.store(mix(index), Release));
        this
    }

    fn words(&self) -> impl Iterator<Item = (u64, &AtomicU64)> {
        let first = self.canary.0.as_ptr();
        // SAFETY: the number of words is that of these pages.
        (0..CANARY * 512).map(move |index| (index, unsafe { &*first.add(index as usize) }))
    }

    /// Compares that memory.
    pub fn check(&self) -> Outcome {
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

/// The operations of the phases, one at a time: a soak mixes them.
impl Wild {
    /// With these random numbers, and memory that [`Wild::new`] or another one has filled.
    pub fn with(random: Random, canary: &'static Table) -> Self {
        Self { random, canary }
    }

    /// Memory that must not change.
    pub fn canary(&self) -> &'static Table {
        self.canary
    }

    /// A register of EL2's.
    pub fn register(&mut self) {
        let n = self.random.below(1 << 12) as u32;
        let register = Sysreg::new(3, 4 + (n >> 11), n >> 7 & 15, n >> 3 & 15, n & 7);
        // ICV_BPR<n>_EL1's values that crash QEMU can't be detected here: VMCR's writes correct them.
        if !ruins(register) {
            access(register, self.random.odd());
        }
    }

    /// An instruction for TLBs or translations, with any operands.
    pub fn instruction(&mut self, register: Sysreg) {
        let mut registers = [0; 31];
        registers[1] = self.random.odd();
        registers[2] = self.random.bits();
        stage2::with_guest_regime(|| {
            probe::run(&[register.write(1), register.write(2), register.write(31)], &mut registers);
        });
    }

    /// Any instruction of that kind.
    pub fn any_instruction(&mut self) {
        let n = self.random.below(1 << 8) as u32;
        let (crn, crm) = if n >> 7 == 0 { (8, n >> 3 & 15) } else { (7, 8 + (n >> 3 & 1)) };
        let op1 = self.random.pick(&[0, 4]);
        self.instruction(Sysreg::new(1, op1, crn, crm, n & 7));
    }

    /// An entry of a root that leads back to itself, and loads by it.
    pub fn table(&mut self, stage2: Stage2, guest: &mut Guest) {
        let address = self.random.below(1 << 39);
        let level = 1 + self.random.below(3) as u32;
        if address >> 30 == guest::CODE >> 30 {
            return;
        }
        let entry = self.descriptor(stage2.root);
        stage2.set_in_root(address, level, entry);
        if self.random.below(2) == 0 {
            stage2::forget_all();
        }
        guest.x = core::array::from_fn(|_| address & !0xFFF | self.random.below(0x1000) & !7);
        guest.write(loads());
        self.run(guest);
    }

    /// Any VTTBR_EL2 and VTCR_EL2.
    pub fn root(&mut self, stage2: Stage2) {
        let mut guest = Guest::bare();
        let root = if self.random.below(3) == 0 { stage2.root | self.random.below(64) } else { self.place() };
        msr!("VTTBR_EL2", root & 0xFFFF_FFFF_FFFF | self.random.odd() << 48);
        let vtcr = match self.random.below(3) {
            // Any size, start and granule, the rest as it should be.
            0 => stage2::vtcr() & !0xC0FF | self.random.bits() & 0xC0FF,
            1 => self.random.bits(),
            _ => stage2::vtcr(),
        };
        msr!("VTCR_EL2", vtcr);
        guest.pc = if self.random.below(2) == 0 { guest::CODE } else { self.place() & !3 };
        guest.x = core::array::from_fn(|_| self.random.odd());
        guest.write(loads());
        self.run(&mut guest);
    }

    /// Any controls of traps.
    pub fn controls(&mut self, stage2: Stage2) {
        /// HCR_EL2.{IMO, RW, E2H}.
        const KEPT: u64 = 1 << 4 | 1 << 31 | 1 << 34;
        let control = mrs!("CNTHCTL_EL2");
        stage2.activate();
        let mut guest = Guest::bare();
        let flips = if self.random.below(2) == 0 { self.random.bits() } else { 1 << self.random.below(64) };
        guest.hcr = (guest.hcr ^ flips) | KEPT;
        msr!("MDCR_EL2", self.random.odd());
        msr!("CPTR_EL2", self.random.odd());
        msr!("HSTR_EL2", self.random.odd());
        msr!("CNTHCTL_EL2", self.random.odd());
        msr!("VPIDR_EL2", self.random.odd());
        msr!("VMPIDR_EL2", self.random.odd());
        fine::wild(|| if self.random.below(4) == 0 { self.random.odd() } else { 0 });
        let register = Sysreg::new(2 + self.random.below(2) as u32, 0, 0, 0, 0);
        let any = self.random.bits() as u32 & 0xF_FFE0;
        guest.write(&[register.read(0) & !0x7_FFE0 | any & 0x7_FFE0, NOP, 0xD503_207F, 0x1E27_0000, 0xD400_0003, 0xD538_4240, hvc(0)]);
        guest.pstate = self.random.pick(&[guest::EL1H, guest::EL0T, 0x3C4, 0x5, 0]);
        self.run(&mut guest);
        msr!("CNTHCTL_EL2", control);
        restore();
    }

    /// Any list registers.
    pub fn lists(&mut self) -> Outcome {
        let mut guest = Guest::bare();
        for n in 0..4 {
            let any = self.random.bits();
            // Often an enabled interrupt of L1's or L2's.
            let intids = self.random.below(64) << 32 | self.random.below(64);
            lists::write(n, if self.random.below(3) == 0 { any } else { any & !0x1FFF_FFFF_FFFF | intids });
        }
        if self.random.below(4) == 0 {
            let twice = lists::read(0);
            lists::write(1, twice);
        }
        msr!("S3_4_C12_C11_0", self.random.odd() | self.random.below(2)); // ICH_HCR_EL2, ICH_VMCR_EL2, ICH_AP0R0_EL2, ICH_AP1R0_EL2
        msr!("S3_4_C12_C11_7", self.random.odd());
        msr!("S3_4_C12_C8_0", self.random.odd());
        msr!("S3_4_C12_C9_0", self.random.odd());
        guest.x = core::array::from_fn(|_| self.random.below(1100));
        guest.pstate = self.random.pick(&[guest::EL1H, 0x305]);
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
        self.run(&mut guest);
        for status in [mrs!("S3_4_C12_C11_2"), mrs!("S3_4_C12_C11_3"), mrs!("S3_4_C12_C11_5")] {
            check!(status < 1 << 16, "a status of {status:#x}");
        }
        Ok(())
    }

    /// Any timers.
    pub fn timers(&mut self) {
        let mut guest = Guest::bare();
        let mut deadline = || match self.random.below(3) {
            0 => self.random.odd(),
            _ => wait::now().wrapping_add(self.random.below(0x8000)),
        };
        let deadlines: [u64; 3] = core::array::from_fn(|_| deadline());
        Timer::Virtual.set_deadline(deadlines[0]);
        Timer::Virtual.set_control(self.random.below(4));
        msr!("S3_5_C14_C3_2", deadlines[1]); // CNTV_CVAL_EL02, CNTV_CTL_EL02, CNTP_CVAL_EL02, CNTP_CTL_EL02
        msr!("S3_5_C14_C3_1", self.random.below(8));
        msr!("S3_5_C14_C2_2", deadlines[2]);
        msr!("S3_5_C14_C2_1", self.random.below(8));
        msr!("CNTVOFF_EL2", self.random.odd());
        guest.x = core::array::from_fn(|_| self.random.odd());
        guest.x[2] = wait::now().wrapping_add(self.random.below(0x4000));
        guest.write(code!("msr CNTV_TVAL_EL0, x0", "msr CNTP_CVAL_EL0, x2", "msr CNTP_CTL_EL0, x3", "wfi", "mrs x4, CNTP_TVAL_EL0", "wfi"));
        self.run(&mut guest);
        if self.random.below(4) == 0 {
            // As a level-sensitive interrupt that nothing deasserts: it stays active.
            let _ = icc::iar1();
        }
        restore();
        drain();
    }

    /// Any SPSR_EL2.
    pub fn way_back(&mut self, guest: &mut Guest) {
        // Excluded: an SPSR_EL2 with which EL2 itself would continue anywhere, with interrupts unmasked.
        let mode = self.random.below(32);
        guest.pstate = self.random.bits() & !0x1F | mode | if mode & 0xC == 8 { 0x3C0 } else { 0 };
        guest.hcr = guest::HCR | self.random.below(2) << 27;
        guest.pc = self.random.pick(&[guest::CODE, guest::CODE + 2, 0, 0xFFFF_0000_0000_0000]);
        guest.write(code!("nop"));
        self.run(guest);
    }

    /// An address that L2 uses with tables that all CPUs share.
    fn shared(&mut self) -> u64 {
        loop {
            let address = self.random.below(64) << 30 | self.random.below(8) << 21 | self.random.below(8) << 12;
            if address >> 30 != guest::CODE >> 30 {
                return address;
            }
        }
    }

    /// Changes tables that other CPUs use.
    pub fn change_shared(&mut self, stage2: Stage2, clears: bool) {
        let address = self.shared();
        let entry = self.descriptor(stage2.root);
        stage2.set_in_root(address, 1 + self.random.below(3) as u32, if clears { 0 } else { entry });
        match self.random.below(3) {
            0 => stage2::forget(address),
            1 => stage2::forget_all(),
            _ => {}
        }
    }

    /// Uses tables that other CPUs change.
    pub fn use_shared(&mut self) {
        let address = self.shared();
        let mut guest = Guest::bare();
        guest.x = core::array::from_fn(|_| address | self.random.below(0x1000) & !7);
        if smp::this() == 0 {
            guest.write(loads());
        }
        self.run(&mut guest);
    }
}

/// Ends all active interrupts.
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
                let value = if round == 0 { wild.random.odd() } else { wild.random.bits() };
                access(register, value);
            }
        }
        restore();
        wild.check()
    })
}

/// Reads a register, writes it and reads it again.
fn access(register: Sysreg, value: u64) {
    let mut registers = [0; 31];
    registers[1] = value;
    probe::run(&[register.read(0), register.write(1), register.read(2)], &mut registers);
}

/// Whether L1 would not survive a change of a register: its own controls, tables, memory attributes and vectors.
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
                wild.instruction(Sysreg::new(1, op1, crn, crm, op2));
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
            wild.table(stage2, &mut guest);
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
            wild.root(stage2);
        }
        wild.check()
    })
}

/// Any HCR_EL2, MDCR_EL2, CPTR_EL2, HSTR_EL2, CNTHCTL_EL2, VPIDR_EL2, VMPIDR_EL2.
fn wild_controls() -> Outcome {
    on_all(|| {
        let mut wild = Wild::new(5);
        let stage2 = Stage2::new(50 + smp::this() as u64);
        Guest::new(stage2);
        for _ in attempts(2_000) {
            wild.controls(stage2);
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
            wild.lists()?;
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
            wild.timers();
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
            wild.way_back(&mut guest);
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
    // All of them run the first CPU's page of code.
    Guest::new(stage2);
    on_all(|| {
        let mut wild = Wild::new(9);
        let stage2 = Stage2 { root: SHARED.load(Acquire), vmid: 90 };
        stage2.activate();
        for n in attempts(2_000) {
            if smp::this() % 2 == 1 {
                wild.change_shared(stage2, n % 3 == 0);
            } else {
                wild.use_shared();
            }
        }
        wild.check()
    })
}
