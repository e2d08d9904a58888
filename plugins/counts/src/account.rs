//! Who ran what, and who was left how often and why.
//!
//! What runs at EL2, and at EL0 under EL2, belongs to the hypervisor or host. What runs at EL1 and EL0 belongs to a world: what the second
//! stage of translation makes of the machine at that time. It can't change but at EL2, so what ran since the last exception to EL2 belongs
//! to the world that is found at the next one.

use std::collections::BTreeMap;

use serde::Serialize;
use stile_sysreg::syndrome::{Ec, Esr};

use crate::decode::KINDS;

/// Where a block of instructions runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// EL2.
    El2,
    /// EL0 of the host whose kernel is at EL2.
    HostEl0,
    /// EL1.
    El1,
    /// EL0 under EL1.
    El0,
}

/// How many levels there are.
pub const LEVELS: usize = 4;

/// By [`Level`] and [`crate::decode::Kind`].
pub type Counters = [[u64; KINDS]; LEVELS];

/// How many, by kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    instructions: u64,
    sysreg_reads: u64,
    sysreg_writes: u64,
    barriers: u64,
    tlb_ops: u64,
    loads: u64,
    stores: u64,
}

impl From<[u64; KINDS]> for Counts {
    fn from([instructions, sysreg_reads, sysreg_writes, barriers, tlb_ops, loads, stores]: [u64; KINDS]) -> Self {
        Self { instructions, sysreg_reads, sysreg_writes, barriers, tlb_ops, loads, stores }
    }
}

/// What is at EL1 and EL0: the table of the second stage of translation, if that is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct World(Option<u64>);

impl World {
    /// With no hypervisor.
    pub const BARE: Self = Self(None);

    /// By `HCR_EL2` and `VTTBR_EL2`. (Neither the VMID nor CnP counts: the one may change while the VM lives.)
    pub const fn new(hcr: u64, vttbr: u64) -> Self {
        const VM: u64 = 1;
        const BADDR: u64 = 0x0000_ffff_ffff_fffe;
        Self(if hcr & VM != 0 { Some(vttbr & BADDR) } else { None })
    }
}

/// Why a world was left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// By the syndrome, and for an abort the intermediate physical address.
    Synchronous(u64, u64),
    /// IRQ.
    Irq,
    /// FIQ.
    Fiq,
    /// SError.
    SError,
}

impl Reason {
    /// By the vector's offset in the table ("AArch64 exception vector table"), `ESR_EL2` and `HPFAR_EL2`.
    pub const fn new(vector: u64, esr: u64, hpfar: u64) -> Self {
        // HPFAR_EL2.FIPA is bits 51:12 of the address, in bits 43:4.
        const FIPA: u64 = 0x0000_0fff_ffff_fff0;
        match vector & 0x180 {
            0x000 => Self::Synchronous(esr, (hpfar & FIPA) << 8),
            0x080 => Self::Irq,
            0x100 => Self::Fiq,
            _ => Self::SError,
        }
    }

    /// Its name in a report. Aborts are told apart by 64 KiB of address, which is a device's size.
    fn name(self) -> String {
        let (esr, address) = match self {
            Self::Synchronous(esr, address) => (Esr(esr), address),
            Self::Irq => return "IRQ".into(),
            Self::Fiq => return "FIQ".into(),
            Self::SError => return "SError".into(),
        };
        match esr.ec() {
            Ec::MSR => format!("system register {} {}", esr.msr().reg(), if esr.msr().is_read() { "read" } else { "write" }),
            Ec::WFX => format!("{:?}", esr.wfx().kind()).to_uppercase(),
            abort @ (Ec::DATA_ABORT_LOWER | Ec::INSTRUCTION_ABORT_LOWER) => format!("{} {:#x}", abort.name(), address & !0xffff),
            other => other.name().into(),
        }
    }
}

/// What a world did.
#[derive(Debug, Clone)]
struct Inhabitant {
    world: World,
    /// At EL1 and at EL0.
    ran: [[u64; KINDS]; 2],
    exits: u64,
    reasons: BTreeMap<String, u64>,
}

/// All that was counted up to some time.
#[derive(Debug, Clone, Default)]
struct Total {
    /// At EL2, and at EL0 under it.
    above: [[u64; KINDS]; 2],
    worlds: Vec<Inhabitant>,
}

/// The account.
#[derive(Debug, Default)]
pub struct Account {
    /// Of each CPU, at EL1 and EL0: how much of its counters a world has got.
    settled: Vec<[[u64; KINDS]; 2]>,
    total: Total,
    open: Option<(World, Total)>,
}

/// A line of the output.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Line {
    /// What happened between two marks.
    Section(Section),
    /// What happened altogether.
    Run(Run),
    /// What the plugin can't do, or what went wrong.
    Error(String),
}

/// What happened between two marks, on all CPUs.
#[derive(Debug, PartialEq, Serialize)]
pub struct Section {
    /// What the guest ran that set the marks.
    guest: Counts,
    /// What everybody else ran.
    outside: Counts,
    /// What of that ran at EL2.
    el2: Counts,
    /// Exits of the guest.
    exits: u64,
    /// Exits of everybody else: of a host's kernel at EL1, of a hypervisor that is a guest.
    other_exits: u64,
    /// The guest's exits by reason.
    reasons: BTreeMap<String, u64>,
}

/// What happened altogether.
#[derive(Debug, PartialEq, Serialize)]
pub struct Run {
    el2: Counts,
    host_el0: Counts,
    worlds: Vec<Summary>,
}

/// What a world did altogether.
#[derive(Debug, PartialEq, Serialize)]
pub struct Summary {
    /// The address of its second-stage table, if it has one.
    table: Option<u64>,
    el1: Counts,
    el0: Counts,
    exits: u64,
    reasons: BTreeMap<String, u64>,
}

impl Account {
    /// CPU `cpu` was at EL1 or EL0 until now, in `world`; its counters are these.
    fn settle(&mut self, cpu: usize, counters: &Counters, world: World) -> &mut Inhabitant {
        if self.settled.len() <= cpu {
            self.settled.resize(cpu + 1, [[0; KINDS]; 2]);
        }
        let below = [counters[Level::El1 as usize], counters[Level::El0 as usize]];
        let inhabitant = self.total.inhabitant(world);
        for (ran, (now, then)) in inhabitant.ran.iter_mut().zip(below.iter().zip(&self.settled[cpu])) {
            add(ran, &difference(now, then));
        }
        self.settled[cpu] = below;
        inhabitant
    }

    /// CPU `cpu` takes an exception to EL2.
    pub fn exit(&mut self, cpu: usize, counters: &Counters, world: World, reason: Reason) {
        let inhabitant = self.settle(cpu, counters, world);
        inhabitant.exits += 1;
        *inhabitant.reasons.entry(reason.name()).or_default() += 1;
    }

    /// A guest on CPU `cpu` begins a section; `all` are the counters of all CPUs.
    pub fn begin(&mut self, cpu: usize, all: &[Counters], world: World) -> Result<(), String> {
        if self.open.is_some() {
            return Err("a section begins in another one".into());
        }
        self.settle(cpu, &all[cpu], world);
        self.total.above = above(all);
        self.open = Some((world, self.total.clone()));
        Ok(())
    }

    /// A guest on CPU `cpu` ends the section.
    pub fn end(&mut self, cpu: usize, all: &[Counters], world: World) -> Result<Section, String> {
        let (guest, start) = self.open.take().ok_or("a section ends that did not begin")?;
        if guest != world {
            return Err("a section ends in another guest".into());
        }
        self.settle(cpu, &all[cpu], world);
        self.total.above = above(all);
        Ok(self.total.since(start, guest))
    }

    /// The end: `all` are the counters of all CPUs. What a CPU ran after its last exception to EL2 is nobody's.
    pub fn run(&mut self, all: &[Counters]) -> Run {
        let [el2, host_el0] = above(all).map(Counts::from);
        let summary = |inhabitant: &Inhabitant| {
            let [el1, el0] = inhabitant.ran.map(Counts::from);
            Summary { table: inhabitant.world.0, el1, el0, exits: inhabitant.exits, reasons: inhabitant.reasons.clone() }
        };
        Run { el2, host_el0, worlds: self.total.worlds.iter().map(summary).collect() }
    }
}

impl Total {
    fn inhabitant(&mut self, world: World) -> &mut Inhabitant {
        let index = self.worlds.iter().position(|inhabitant| inhabitant.world == world).unwrap_or_else(|| {
            self.worlds.push(Inhabitant { world, ran: Default::default(), exits: 0, reasons: BTreeMap::new() });
            self.worlds.len() - 1
        });
        &mut self.worlds[index]
    }

    fn since(&self, mut start: Self, guest: World) -> Section {
        let el2 = difference(&self.above[0], &start.above[0]);
        let mut outside = el2;
        add(&mut outside, &difference(&self.above[1], &start.above[1]));
        let mut section = Section {
            guest: Counts::default(),
            outside: Counts::default(),
            el2: el2.into(),
            exits: 0,
            other_exits: 0,
            reasons: BTreeMap::new(),
        };
        for now in &self.worlds {
            let then = start.inhabitant(now.world);
            let mut ran = difference(&now.ran[0], &then.ran[0]);
            add(&mut ran, &difference(&now.ran[1], &then.ran[1]));
            let exits = now.exits - then.exits;
            if now.world != guest {
                add(&mut outside, &ran);
                section.other_exits += exits;
                continue;
            }
            section.guest = ran.into();
            section.exits = exits;
            let more = |(reason, count): (&String, &u64)| (reason.clone(), count - then.reasons.get(reason).copied().unwrap_or(0));
            section.reasons = now.reasons.iter().map(more).filter(|(_, count)| *count > 0).collect();
        }
        section.outside = outside.into();
        section
    }
}

fn above(all: &[Counters]) -> [[u64; KINDS]; 2] {
    let mut sum = [[0; KINDS]; 2];
    for counters in all {
        add(&mut sum[0], &counters[Level::El2 as usize]);
        add(&mut sum[1], &counters[Level::HostEl0 as usize]);
    }
    sum
}

fn add(sum: &mut [u64; KINDS], more: &[u64; KINDS]) {
    sum.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
}

fn difference(now: &[u64; KINDS], then: &[u64; KINDS]) -> [u64; KINDS] {
    std::array::from_fn(|kind| now[kind] - then[kind])
}
