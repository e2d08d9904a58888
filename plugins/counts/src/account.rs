//! Attribution of instructions and exits.
//!
//! Instructions at EL2, and at EL0 under EL2, belong to the hypervisor or host. Those at EL1 and EL0 belong to a regime:
//! a second stage of translation, that is, a VM.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use serde::Serialize;
use stile_ledger::aarch64::register_name;
use stile_sysreg::SysReg;
use stile_sysreg::syndrome::{Ec, Esr};

use crate::counts::Counts;
use crate::decode::KINDS;
use crate::regime::Regime;
use crate::sharing::{Part, Sharing};

/// An Exception level.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
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

impl Level {
    /// Whether only hypervisors and hosts run at it.
    const fn is_above(self) -> bool {
        matches!(self, Self::El2 | Self::HostEl0)
    }
}

/// Reason for leaving a regime.
#[derive(Debug, Clone, Copy)]
pub enum Reason {
    /// A synchronous exception: its syndrome, and the intermediate physical address of an abort.
    Synchronous(u64, u64),
    /// IRQ.
    Irq,
    /// FIQ.
    Fiq,
    /// SError.
    SError,
}

impl Reason {
    /// Decodes the vector's offset in the table ("AArch64 exception vector table"), `ESR_EL2` and `HPFAR_EL2`.
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

    /// Its name in a report. Aborts are distinguished by 64 KiB of address, the size of a device.
    fn name(self) -> String {
        let (esr, address) = match self {
            Self::Synchronous(esr, address) => (Esr(esr), address),
            Self::Irq => return "IRQ".into(),
            Self::Fiq => return "FIQ".into(),
            Self::SError => return "SError".into(),
        };
        match esr.ec() {
            Ec::MSR => format!("system register {} {}", register(esr.msr().reg()), if esr.msr().is_read() { "read" } else { "write" }),
            Ec::WFX => format!("{:?}", esr.wfx().kind()).to_uppercase(),
            abort @ (Ec::DATA_ABORT_LOWER | Ec::INSTRUCTION_ABORT_LOWER) => format!("{} {:#x}", abort.name(), address & !0xffff),
            other => other.name().into(),
        }
    }
}

/// Name of a register. Registers of hypervisors only have the ledger's name.
fn register(reg: SysReg) -> String {
    let name = register_name([reg.op0(), reg.op1(), reg.crn(), reg.crm(), reg.op2()]);
    name.map_or_else(|| reg.to_string(), str::to_owned)
}

/// Counts of one place.
#[derive(Debug, Default)]
pub struct Tally([AtomicU64; KINDS]);

impl Tally {
    /// Adds counts of each kind. Not atomic: concurrent additions are lost.
    #[inline]
    pub fn add(&self, counts: &[u32; KINDS]) {
        for (sum, count) in self.0.iter().zip(counts) {
            if *count != 0 {
                sum.store(sum.load(Relaxed) + u64::from(*count), Relaxed);
            }
        }
    }

    fn get(&self) -> [u64; KINDS] {
        std::array::from_fn(|kind| self.0[kind].load(Relaxed))
    }
}

/// Exception level and regime of executed instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Place {
    /// The Exception level.
    pub level: Level,
    /// The regime at EL1 and EL0; not meaningful for code above.
    pub regime: Regime,
}

/// The account.
#[derive(Debug, Default)]
pub struct Account {
    places: Vec<(Place, &'static Tally)>,
    /// Exits by reason.
    exits: Vec<(Regime, BTreeMap<String, u64>)>,
    /// Memory shared by CPUs, if counted.
    pub sharing: Option<Sharing>,
    open: Option<Mark>,
}

/// Counts at the beginning of a section.
#[derive(Debug)]
struct Mark {
    guest: Regime,
    ran: Vec<[u64; KINDS]>,
    exits: Vec<BTreeMap<String, u64>>,
    sharing: Option<Sharing>,
}

/// A line of the output.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Line {
    /// Counts between two marks.
    Section(Section),
    /// Counts of the whole run.
    Run(Run),
    /// A message: a limit of the plugin, or a failure.
    Error(String),
}

/// Counts between two marks, on all CPUs.
#[derive(Debug, PartialEq, Serialize)]
pub struct Section {
    /// Counts of the guest that set the marks.
    guest: Counts,
    /// Counts of everything else.
    outside: Counts,
    /// The part of `outside` at EL2.
    el2: Counts,
    /// Exits of the guest.
    exits: u64,
    /// Exits of other regimes: of a host's kernel at EL1, of a hypervisor that is a guest.
    other_exits: u64,
    /// The guest's exits by reason.
    reasons: BTreeMap<String, u64>,
    /// Exits of other regimes by reason.
    other_reasons: BTreeMap<String, u64>,
    /// Counts at EL2 on the CPUs that had the guest loaded, if they are wanted.
    #[serde(skip_serializing_if = "Option::is_none")]
    sharing: Option<Part>,
}

impl Section {
    /// Counts where reasons of exits are unknown, and there is one guest.
    #[cfg(not(test))]
    pub fn without_reasons(guest: Counts, outside: Counts, exits: u64) -> Self {
        let (reasons, other_reasons) = (BTreeMap::new(), BTreeMap::new());
        Self { guest, outside, el2: outside, exits, other_exits: 0, reasons, other_reasons, sharing: None }
    }
}

/// Counts of the whole run.
#[derive(Debug, PartialEq, Serialize)]
pub struct Run {
    el2: Counts,
    host_el0: Counts,
    regimes: Vec<Summary>,
}

/// Counts of a regime.
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
    /// Returns an empty account, which counts sharing if `sharing` is present.
    #[cfg(not(test))]
    pub fn new(sharing: Option<Sharing>) -> Self {
        Self { sharing, ..Self::default() }
    }

    /// The counts of a place.
    pub fn tally(&mut self, place: Place) -> &'static Tally {
        let place = Place { regime: if place.level.is_above() { Regime::BARE } else { place.regime }, ..place };
        if let Some((_, tally)) = self.places.iter().find(|(other, _)| *other == place) {
            return tally;
        }
        // Leaked: there are few, and they are used until the run ends.
        let tally: &'static Tally = Box::leak(Box::default());
        self.places.push((place, tally));
        tally
    }

    /// Records an exception from a regime to EL2.
    pub fn exit(&mut self, regime: Regime, reason: Reason) {
        let index = self.exits.iter().position(|(other, _)| *other == regime).unwrap_or_else(|| {
            self.exits.push((regime, BTreeMap::new()));
            self.exits.len() - 1
        });
        *self.exits[index].1.entry(reason.name()).or_default() += 1;
    }

    /// Begins a section, at the mark of a guest.
    pub fn begin(&mut self, guest: Regime) -> Result<(), String> {
        if self.open.is_some() {
            return Err("a section begins in another one".into());
        }
        let ran = self.places.iter().map(|(_, tally)| tally.get()).collect();
        let exits = self.exits.iter().map(|(_, reasons)| reasons.clone()).collect();
        self.open = Some(Mark { guest, ran, exits, sharing: self.sharing.clone() });
        Ok(())
    }

    /// Ends the section, at the mark of a guest.
    pub fn end(&mut self, guest: Regime) -> Result<Section, String> {
        let start = self.open.take().ok_or("a section ends that did not begin")?;
        if start.guest != guest {
            return Err("a section ends in another guest".into());
        }
        let ran = |wanted: &dyn Fn(Place) -> bool| {
            let mut sum = [0; KINDS];
            for (index, (_, tally)) in self.places.iter().enumerate().filter(|(_, (place, _))| wanted(*place)) {
                let then = start.ran.get(index).copied().unwrap_or_default();
                sum.iter_mut().zip(tally.get().iter().zip(then)).for_each(|(sum, (now, then))| *sum += now - then);
            }
            Counts::from(sum)
        };
        let guests = |place: Place| !place.level.is_above() && place.regime == guest;
        let mut section = Section {
            guest: ran(&guests),
            outside: ran(&|place| !guests(place)),
            el2: ran(&|place| place.level == Level::El2),
            exits: 0,
            other_exits: 0,
            reasons: BTreeMap::new(),
            other_reasons: BTreeMap::new(),
            sharing: self.sharing.as_ref().zip(start.sharing.as_ref()).map(|(now, then)| now.since(then, guest)),
        };
        for (index, (regime, reasons)) in self.exits.iter().enumerate() {
            let then = |reason| start.exits.get(index).and_then(|reasons| reasons.get(reason)).copied().unwrap_or(0);
            let more = reasons.iter().map(|(reason, now)| (reason.clone(), now - then(reason)));
            for (reason, count) in more.filter(|(_, count)| *count > 0) {
                if *regime == guest {
                    section.exits += count;
                    section.reasons.insert(reason, count);
                } else {
                    section.other_exits += count;
                    *section.other_reasons.entry(reason).or_default() += count;
                }
            }
        }
        Ok(section)
    }

    /// Ends the run, and writes its counts.
    pub fn run(&self) -> Run {
        let ran = |level, regime| {
            let found = self.places.iter().find(|(place, _)| *place == Place { level, regime });
            found.map_or_else(Counts::default, |(_, tally)| tally.get().into())
        };
        let mut regimes: Vec<Regime> =
            self.places.iter().filter(|(place, _)| !place.level.is_above()).map(|(place, _)| place.regime).collect();
        regimes.sort_unstable();
        regimes.dedup();
        let summary = |regime: Regime| {
            let reasons = self.exits.iter().find(|(other, _)| *other == regime).map(|(_, reasons)| reasons.clone()).unwrap_or_default();
            let exits = reasons.values().sum();
            Summary { table: regime.table(), el1: ran(Level::El1, regime), el0: ran(Level::El0, regime), exits, reasons }
        };
        Run {
            el2: ran(Level::El2, Regime::BARE),
            host_el0: ran(Level::HostEl0, Regime::BARE),
            regimes: regimes.into_iter().map(summary).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GUEST: Regime = Regime::new(1, 0x4_4001_0000);
    const HOST: Regime = Regime::new(0, 0);
    const HVC: u64 = 0x16 << 26 | 1 << 25;

    fn run(account: &mut Account, level: Level, regime: Regime, counts: [u32; KINDS]) {
        account.tally(Place { level, regime }).add(&counts);
    }

    #[test]
    fn a_section_has_what_happened_in_it() {
        let mut account = Account::default();
        run(&mut account, Level::El2, GUEST, [1000; KINDS]);
        run(&mut account, Level::El1, GUEST, [500; KINDS]);
        account.exit(GUEST, Reason::new(0x400, HVC, 0));
        account.begin(GUEST).unwrap();
        assert!(account.begin(GUEST).is_err());
        for _ in 0..3 {
            account.exit(GUEST, Reason::new(0x400, HVC, 0));
            run(&mut account, Level::El2, GUEST, [33, 3, 0, 0, 0, 8, 5]);
            run(&mut account, Level::El1, GUEST, [4, 0, 0, 0, 0, 0, 0]);
        }
        account.exit(GUEST, Reason::new(0x480, HVC, 0));
        // A host's kernel at EL1, and its user space under a kernel at EL2.
        account.exit(HOST, Reason::new(0x400, HVC, 0));
        run(&mut account, Level::El1, HOST, [7, 0, 0, 1, 0, 0, 0]);
        run(&mut account, Level::HostEl0, HOST, [2, 0, 0, 0, 0, 0, 0]);
        let section = account.end(GUEST).unwrap();
        assert_eq!(section.guest, Counts::from([12, 0, 0, 0, 0, 0, 0]));
        assert_eq!(section.el2, Counts::from([99, 9, 0, 0, 0, 24, 15]));
        assert_eq!(section.outside, Counts::from([108, 9, 0, 1, 0, 24, 15]));
        assert_eq!((section.exits, section.other_exits), (4, 1));
        assert_eq!(section.reasons, BTreeMap::from([("HVC".to_owned(), 3), ("IRQ".to_owned(), 1)]));
        assert_eq!(section.other_reasons, BTreeMap::from([("HVC".to_owned(), 1)]));
        assert!(account.end(GUEST).is_err());
        let line = serde_json::to_string(&Line::Section(section)).unwrap();
        assert!(line.starts_with("{\"section\":{\"guest\":{\"instructions\":12,"), "{line}");
        let all = account.run();
        assert_eq!(all.regimes.len(), 2);
        assert_eq!(all.el2.instructions, 1099);
        assert_eq!(all.host_el0.instructions, 2);
        assert!(serde_json::to_string(&Line::Run(all)).unwrap().starts_with("{\"run\":{\"el2\":"));
    }

    #[test]
    fn an_error_is_a_line() {
        assert_eq!(serde_json::to_string(&Line::Error("no register".into())).unwrap(), r#"{"error":"no register"}"#);
    }

    #[test]
    fn a_section_ends_where_it_began() {
        let mut account = Account::default();
        account.begin(GUEST).unwrap();
        assert!(account.end(HOST).is_err());
    }

    #[test]
    fn a_world_is_its_second_stage() {
        // Another VMID and CnP: the same VM.
        assert_eq!(Regime::new(1, 5 << 48 | 0x8000_0001), Regime::new(1 << 27 | 1, 6 << 48 | 0x8000_0000));
        assert_ne!(Regime::new(1, 0x8000_0000), Regime::new(1, 0x9000_0000));
        assert_eq!(Regime::new(0, 0x8000_0000), Regime::BARE);
    }

    #[test]
    fn reasons_have_names() {
        let name = |vector, ec: u64, iss, hpfar| Reason::new(vector, ec << 26 | iss, hpfar).name();
        assert_eq!(name(0x400, 0x16, 0, 0), "HVC");
        assert_eq!(name(0x600, 0x24, 0, 0x9_0100), "data abort 0x9010000");
        // mrs x0, id_aa64pfr0_el1
        assert_eq!(name(0x400, 0x18, 3 << 20 | 4 << 1 | 1, 0), "system register ID_AA64PFR0_EL1 read");
        // mrs x0, ich_misr_el2
        assert_eq!(name(0x400, 0x18, 3 << 20 | 2 << 17 | 4 << 14 | 12 << 10 | 11 << 1 | 1, 0), "system register ICH_MISR_EL2 read");
        assert_eq!(name(0x400, 0x01, 0, 0), "WFI");
        assert_eq!(name(0x480, 0x16, 0, 0), "IRQ");
        assert_eq!(name(0x780, 0, 0, 0), "SError");
    }
}
