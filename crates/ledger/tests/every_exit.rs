//! Every syndrome, offset and function identifier has exactly one row, within range and under the right name. The names are compared with
//! tables that were written from the manuals, not from the crate.

use std::collections::{HashMap, HashSet};

use stile_ledger::aarch64::{self, key, reason};
use stile_ledger::{Catalogue, DYNAMIC_BASE, REASONS, RowId, RowKey, x86_64};

/// Finds names without formatting each a million times.
struct Names {
    catalogue: &'static Catalogue,
    known: HashMap<RowId, String>,
}

impl Names {
    fn of(catalogue: &'static Catalogue) -> Self {
        Self { catalogue, known: HashMap::new() }
    }

    /// Panics if the static row does not exist.
    fn get(&mut self, id: RowId) -> &str {
        self.known.entry(id).or_insert_with(|| {
            assert!(!id.is_dynamic() && id.index() < DYNAMIC_BASE);
            let name = self.catalogue.name(RowKey::Static(id)).expect("every row that is returned has a name");
            format!("{} {}", name.reason_name, name.sub)
        })
    }

    fn check(&mut self, id: RowId, expected: &str) {
        assert_eq!(self.get(id), expected);
    }
}

fn access(write: bool) -> &'static str {
    if write { "write" } else { "read" }
}

/// The name of the range that an offset lies in.
fn find(ranges: &[(u32, u32, &'static str)], offset: u32) -> &'static str {
    ranges.iter().find(|(first, end, _)| (*first..*end).contains(&offset)).map_or("other", |range| range.2)
}

/// "The GIC Distributor register map", IHI 0069.
const GICD: &[(u32, u32, &str)] = &[
    (0x0000, 0x0004, "CTLR"),
    (0x0004, 0x0008, "TYPER"),
    (0x0008, 0x000c, "IIDR"),
    (0x000c, 0x0010, "TYPER2"),
    (0x0010, 0x0014, "STATUSR"),
    (0x0040, 0x005c, "SETSPI"),
    (0x0080, 0x0100, "IGROUPR"),
    (0x0100, 0x0180, "ISENABLER"),
    (0x0180, 0x0200, "ICENABLER"),
    (0x0200, 0x0280, "ISPENDR"),
    (0x0280, 0x0300, "ICPENDR"),
    (0x0300, 0x0380, "ISACTIVER"),
    (0x0380, 0x0400, "ICACTIVER"),
    (0x0400, 0x0800, "IPRIORITYR"),
    (0x0800, 0x0c00, "ITARGETSR"),
    (0x0c00, 0x0d00, "ICFGR"),
    (0x0d00, 0x0d80, "IGRPMODR"),
    (0x0e00, 0x0f00, "NSACR"),
    (0x0f00, 0x0f80, "SGIR"),
    (0x6000, 0x8000, "IROUTER"),
    (0xffd0, 0x1_0000, "ID"),
];

/// "The GIC Redistributor register map": RD_base, then SGI_base.
const GICR: &[(u32, u32, &str)] = &[
    (0x0000, 0x0004, "CTLR"),
    (0x0004, 0x0008, "IIDR"),
    (0x0008, 0x0010, "TYPER"),
    (0x0010, 0x0014, "STATUSR"),
    (0x0014, 0x0018, "WAKER"),
    (0x0040, 0x0050, "LPI"),
    (0x0070, 0x0078, "PROPBASER"),
    (0x0078, 0x0080, "PENDBASER"),
    (0x00a0, 0x00c8, "LPI"),
    (0xffd0, 0x1_0000, "ID"),
    (0x1_0080, 0x1_0100, "IGROUPR0"),
    (0x1_0100, 0x1_0180, "ISENABLER0"),
    (0x1_0180, 0x1_0200, "ICENABLER0"),
    (0x1_0200, 0x1_0280, "ISPENDR0"),
    (0x1_0280, 0x1_0300, "ICPENDR0"),
    (0x1_0300, 0x1_0380, "ISACTIVER0"),
    (0x1_0380, 0x1_0400, "ICACTIVER0"),
    (0x1_0400, 0x1_0480, "IPRIORITYR"),
    (0x1_0c00, 0x1_0c80, "ICFGR"),
    (0x1_0d00, 0x1_0d80, "IGRPMODR0"),
    (0x1_0e00, 0x1_0e80, "NSACR"),
];

/// "PrimeCell UART (PL011) Technical Reference Manual", "Summary of registers".
const PL011: &[(u32, u32, &str)] = &[
    (0x00, 0x04, "DR"),
    (0x04, 0x08, "RSR"),
    (0x08, 0x0c, "0x08"),
    (0x0c, 0x10, "0x0c"),
    (0x10, 0x14, "0x10"),
    (0x14, 0x18, "0x14"),
    (0x18, 0x1c, "FR"),
    (0x1c, 0x20, "0x1c"),
    (0x20, 0x24, "ILPR"),
    (0x24, 0x28, "IBRD"),
    (0x28, 0x2c, "FBRD"),
    (0x2c, 0x30, "LCR_H"),
    (0x30, 0x34, "CR"),
    (0x34, 0x38, "IFLS"),
    (0x38, 0x3c, "IMSC"),
    (0x3c, 0x40, "RIS"),
    (0x40, 0x44, "MIS"),
    (0x44, 0x48, "ICR"),
    (0x48, 0x4c, "DMACR"),
];

/// "PrimeCell Real Time Clock (PL031) Technical Reference Manual", "Summary of registers".
const PL031: &[(u32, u32, &str)] = &[
    (0x00, 0x04, "DR"),
    (0x04, 0x08, "MR"),
    (0x08, 0x0c, "LR"),
    (0x0c, 0x10, "CR"),
    (0x10, 0x14, "IMSC"),
    (0x14, 0x18, "RIS"),
    (0x18, 0x1c, "MIS"),
    (0x1c, 0x20, "ICR"),
];

#[test]
fn every_offset_of_a_device() {
    type Row = fn(u32, bool) -> RowId;
    type Ranges = &'static [(u32, u32, &'static str)];
    let devices: [(&str, Row, Ranges, u32); 4] = [
        ("GICD", aarch64::gicd, GICD, 0x1_0000),
        ("GICR", aarch64::gicr, GICR, 0x2_0000),
        ("PL011", aarch64::pl011, PL011, 0x1000),
        ("PL031", aarch64::pl031, PL031, 0x1000),
    ];
    let mut names = Names::of(&aarch64::CATALOGUE);
    let mut owners = HashMap::new();
    for (device, row, ranges, size) in devices {
        for offset in 0..size {
            let register = find(ranges, offset);
            for write in [false, true] {
                let id = row(offset, write);
                names.check(id, &format!("MMIO {device} {register} {}", access(write)));
                assert_eq!(*owners.entry(id).or_insert((device, register, write)), (device, register, write), "a row of two registers");
            }
        }
    }
}

/// The system registers' encodings are 16 bits of the syndrome, and the direction one more.
#[test]
fn every_system_register() {
    let mut names = HashSet::new();
    let mut keys = HashSet::new();
    for bits in 0..1u32 << 17 {
        // Op0, Op2, Op1, CRn above bit 10, CRm and the direction below bit 5: Rt is between.
        let iss = (bits >> 5) << 10 | bits & 0x1f;
        let key = key::sysreg(iss);
        assert!(keys.insert(key), "two registers have key {key:#x}");
        for reason in [reason::SYSREG, reason::NESTED, reason::FORWARDED] {
            let name = aarch64::CATALOGUE.name(RowKey::Dynamic { reason, key }).expect("any key has a name");
            assert!(names.insert(format!("{} {}", name.reason_name, name.sub)), "two registers are called {}", name.sub);
        }
    }
    assert_eq!(keys.len(), 1 << 17);
}

/// Rt and the reserved bits do not distinguish accesses.
#[test]
fn every_syndrome_of_an_access() {
    for iss in 0..1u32 << 25 {
        let key = key::sysreg(iss);
        assert!(key == iss & 0x3f_fc1f, "{iss:#x} has key {key:#x}");
    }
}

#[test]
fn every_wait_and_id_register() {
    let mut names = Names::of(&aarch64::CATALOGUE);
    for iss in 0..1u32 << 25 {
        let row = aarch64::wfx(iss);
        assert!(row.index() == aarch64::wfx(iss & 3).index(), "{iss:#x}");
    }
    for (ti, name) in ["WFI", "WFE", "WFIT", "WFET"].into_iter().enumerate() {
        names.check(aarch64::wfx(ti as u32), &format!("WFX {name}"));
    }
    let mut rows = HashSet::new();
    for (crm, op2) in (0..=u8::MAX).flat_map(|crm| (0..=u8::MAX).map(move |op2| (crm, op2))) {
        let row = aarch64::id_register(crm, op2);
        assert!(names.get(row).starts_with("SYSREG "));
        assert_eq!(row, aarch64::id_register(crm % 8, op2 % 8));
        rows.insert(row);
    }
    assert_eq!(rows.len(), 64);
}

/// The function identifier's owner and call type are its upper half: each is tried with each number that begins or ends
/// a range, and those in use with every number.
#[test]
fn every_function_identifier() {
    let mut names = Names::of(&aarch64::CATALOGUE);
    let numbers = [0, 1, 2, 3, 0x1f, 0x20, 0x21, 0x22, 0x4f, 0x50, 0x5f, 0x60, 0x3ffe, 0x3fff, 0x8000, 0x8001, 0xfeff, 0xff00, 0xffff];
    let used = [0x8000, 0xc000, 0x8400, 0xc400, 0x8500, 0xc500, 0x8600, 0xc600];
    let few = (0..=0xffff).flat_map(|owner: u32| numbers.into_iter().map(move |number| (owner, number)));
    let many = used.into_iter().flat_map(|owner| (0..=0xffff).map(move |number| (owner, number)));
    for (owner, number) in few.chain(many) {
        let name = names.get(aarch64::hvc(owner << 16 | number));
        let name = name.strip_prefix("HVC ").expect("a hypercall");
        let agrees = match (owner & !0x4000, number) {
            (0x8400, 0..=0x1f) => name.starts_with("PSCI "),
            (0x8000, 0) => name == "SMCCC_VERSION",
            (0x8000, 1) => name == "SMCCC_ARCH_FEATURES",
            (0x8000, 2) => name == "SMCCC_ARCH_SOC_ID",
            (0x8000, 0x3fff..=0x8000) => name == "SMCCC_ARCH_WORKAROUND",
            (0x8400, 0x50..=0x5f) => name == "TRNG",
            (0x8500, 0x20..=0x21) => name == "PV_TIME",
            (0x8600, 0xff00..) => name == "vendor query",
            (0x8600, _) => name == "vendor call",
            _ => name == "other",
        };
        assert!(agrees, "{owner:#x}, {number:#x}: {name}");
    }
}

#[test]
fn every_pc_exit() {
    let mut names = Names::of(&x86_64::CATALOGUE);
    let registers = ["data", "IER", "IIR/FCR", "LCR", "MCR", "LSR", "MSR", "scratch"];
    for (offset, write) in (0..=u16::MAX).flat_map(|offset| [(offset, false), (offset, true)]) {
        names.check(x86_64::com1(offset, write), &format!("IO COM1 {} {}", registers[usize::from(offset) % 8], access(write)));
    }
    for exit_reason in 0..=u64::from(u16::MAX) {
        let expected = if matches!(exit_reason, 36 | 39) { "MWAIT other" } else { "VMX other" };
        names.check(x86_64::absent(exit_reason), expected);
    }
    let mut ports = HashSet::new();
    for (port, write) in (0..=u16::MAX).flat_map(|port| [(port, false), (port, true)]) {
        let name = x86_64::CATALOGUE.name(RowKey::Dynamic { reason: x86_64::reason::IO, key: x86_64::key::port(port, write) });
        assert!(ports.insert(name.expect("any key has a name").sub.to_string()), "two ports share a row");
    }
}

/// Both catalogues: the names of static rows are unique, and every reason has a row.
#[test]
fn every_row() {
    for catalogue in [&aarch64::CATALOGUE, &x86_64::CATALOGUE] {
        let mut names = Names::of(catalogue);
        let mut seen = HashSet::new();
        let mut reasons = 0;
        for id in catalogue.static_rows() {
            assert!(seen.insert(names.get(id).to_owned()), "{} twice", names.get(id));
            reasons += usize::from(id.index() < REASONS);
        }
        let named = (0..REASONS as u8).filter_map(stile_ledger::Reason::from_raw).filter(|reason| catalogue.reason(*reason).is_some());
        assert_eq!(reasons, named.count());
    }
}
