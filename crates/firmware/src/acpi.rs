//! ACPI tables that a PC's hypervisor needs (ACPI Specification 6.5): CPUs and interrupt controllers (MADT), power-off (FADT, and the
//! `_S5_` object of the DSDT), NUMA nodes (SRAT), the console (SPCR, DBG2), PCI configuration space (MCFG) and IOMMUs (IVRS).

use core::ops::Range;

use heapless::Vec;

use crate::bytes::{u8_at, u16_at, u32_at, u64_at};
use crate::e820::{BIOS, CHIPSET};
use crate::ivrs::{self, Ivrs};
use crate::mcfg::{self, ConfigurationSpace, MOST_SPACES};
use crate::numa::Numa;
use crate::serial::Kind;
use crate::serial_tables::{self, Interrupt, Port};
use crate::srat::{self, Affinity};
use crate::table::{self, APIC, DBG2, FACP, HEADER, MCFG, SPCR, SRAT, is_root_pointer, name, root_pointer, wanted};
use crate::{MAX_CPUS, Memory};

/// I/O Virtualization Reporting Structure.
const IVRS: u32 = name(*b"IVRS");

/// An I/O APIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoApic {
    /// Physical address of the registers.
    pub address: u64,
    /// Global system interrupt of the first input.
    pub first: u32,
}

/// An ISA interrupt whose global system interrupt differs from its number (Interrupt Source Override).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Override {
    /// The ISA interrupt.
    pub isa: u8,
    /// Its global system interrupt.
    pub gsi: u32,
    /// MPS INTI flags: polarity in bits 1 and 0, trigger mode in bits 3 and 2.
    pub flags: u16,
}

/// The writes that turn the machine off: `SLP_TYP` and `SLP_EN` to one or two registers in I/O space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PowerOff {
    /// Port and value, for PM1a and, if present, PM1b.
    pub writes: [Option<(u16, u16)>; 2],
}

/// Contents of the tables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tables {
    /// APIC IDs of the enabled CPUs, in the tables' order.
    pub cpus: Vec<u32, MAX_CPUS>,
    /// I/O APICs.
    pub io_apics: Vec<IoApic, 8>,
    /// Interrupt source overrides.
    pub overrides: Vec<Override, 16>,
    /// The power-off sequence, if the tables describe it.
    pub power_off: Option<PowerOff>,
    /// I/O port of the power management timer, if there is one.
    pub timer: Option<u16>,
    /// NUMA nodes: their memory, and their CPUs by APIC ID.
    pub numa: Numa,
    /// The console of an SPCR, a relative of the 16550.
    pub console: Option<Port>,
    /// The first such port of a DBG2.
    pub debug_port: Option<Port>,
    /// PCI configuration spaces in memory.
    pub configuration_spaces: Vec<ConfigurationSpace, MOST_SPACES>,
    /// AMD's IOMMUs.
    pub ivrs: Ivrs,
}

impl Tables {
    /// Finds the tables where a BIOS puts them, and parses them.
    ///
    /// # Errors
    /// A message for the operator: there is no root table, it can't be read, or it names no MADT.
    pub fn read(memory: &impl Memory) -> Result<Self, &'static str> {
        Self::from_root(memory, root(memory))
    }

    /// Parses the tables whose root pointer (RSDP) is at an address: UEFI firmware names it.
    ///
    /// # Errors
    /// See [`read`](Self::read).
    pub fn read_at(memory: &impl Memory, rsdp: u64) -> Result<Self, &'static str> {
        Self::from_root(memory, root_pointer(memory, rsdp))
    }

    /// Parses the tables that a root pointer (RSDP) names: boot loaders pass a copy of it.
    ///
    /// # Errors
    /// See [`read`](Self::read).
    pub fn read_by(memory: &impl Memory, rsdp: &[u8]) -> Result<Self, &'static str> {
        Self::from_root(memory, Some(rsdp).filter(|bytes| is_root_pointer(bytes)))
    }

    /// Whether a range of physical addresses has registers by which a PC is controlled: I/O APICs, local APICs, timers and
    /// flash memory below 4 GiB, PCI configuration spaces, and AMD's IOMMUs. No BAR belongs there.
    pub fn has_chipset(&self, range: &Range<u64>) -> bool {
        const IO_APIC: u64 = 0x1000;
        let io_apics = self.io_apics.iter().map(|io_apic| io_apic.address..io_apic.address + IO_APIC);
        let spaces = self.configuration_spaces.iter().map(ConfigurationSpace::span);
        let iommus = self.ivrs.iommus.iter().map(|iommu| iommu.address..iommu.address + ivrs::REGISTERS);
        [CHIPSET].into_iter().chain(io_apics).chain(spaces).chain(iommus).any(|other| other.start < range.end && range.start < other.end)
    }

    fn from_root(memory: &impl Memory, rsdp: Option<&[u8]>) -> Result<Self, &'static str> {
        let rsdp = rsdp.ok_or("the firmware has no ACPI tables")?;
        let root = table::root(memory, rsdp).ok_or("the ACPI tables' root can't be read")?;
        let mut tables = Self::default();
        let mut has_madt = false;
        for (name, bytes) in wanted(memory, root, &[APIC, SRAT, SPCR, DBG2, MCFG, IVRS, FACP]) {
            match name {
                APIC => {
                    has_madt = true;
                    tables.read_madt(bytes);
                }
                SRAT => srat::visit(bytes, |affinity, node| match affinity {
                    Affinity::Memory(range) => tables.numa.add_memory(range, node),
                    Affinity::Apic(id) => tables.numa.add_cpu(id.into(), node),
                    Affinity::Uid(_) => {}
                }),
                SPCR => tables.console = serial_tables::of_spcr(bytes, is_compatible),
                DBG2 => tables.debug_port = serial_tables::of_dbg2(bytes, is_compatible),
                MCFG => tables.configuration_spaces = mcfg::read(bytes),
                IVRS => tables.ivrs = ivrs::read(bytes),
                FACP => {
                    tables.power_off = power_off(memory, bytes);
                    tables.timer = timer(bytes);
                }
                _ => {}
            }
        }
        if has_madt { Ok(tables) } else { Err("the firmware's ACPI tables name no interrupt controllers (MADT)") }
    }

    /// Parses the Multiple APIC Description Table.
    fn read_madt(&mut self, bytes: &[u8]) {
        let mut rest = bytes.get(HEADER + 8..).unwrap_or(&[]);
        while let [kind, length, ..] = *rest
            && length >= 2
            && let Some((entry, after)) = rest.split_at_checked(length.into())
        {
            // Entries beyond a list's capacity are dropped.
            let _ = self.read_controller(kind, entry);
            rest = after;
        }
    }

    fn read_controller(&mut self, kind: u8, entry: &[u8]) -> Option<()> {
        const ENABLED: u32 = 1;
        match kind {
            // Processor Local APIC. Firmware has the ID of all CPUs where there is none.
            0 if u32_at(entry, 4)? & ENABLED != 0 && u8_at(entry, 3)? != u8::MAX => self.add_cpu(u8_at(entry, 3)?.into())?,
            // I/O APIC
            1 => self.io_apics.push(IoApic { address: u32_at(entry, 4)?.into(), first: u32_at(entry, 8)? }).ok()?,
            // Interrupt Source Override
            2 => {
                let moved = Override { isa: u8_at(entry, 3)?, gsi: u32_at(entry, 4)?, flags: u16_at(entry, 8)? };
                self.overrides.push(moved).ok()?;
            }
            // Processor Local x2APIC. An INIT to the ID of all CPUs would reset this one.
            9 if u32_at(entry, 8)? & ENABLED != 0 && u32_at(entry, 4)? != u32::MAX => self.add_cpu(u32_at(entry, 4)?)?,
            _ => {}
        }
        Some(())
    }

    /// Adds a CPU by its APIC ID, once: two entries may describe it, and a running CPU must not get an INIT.
    fn add_cpu(&mut self, id: u32) -> Option<()> {
        if self.cpus.contains(&id) { Some(()) } else { self.cpus.push(id).ok() }
    }

    /// Returns the global system interrupt and the MPS INTI flags of an interrupt.
    pub fn route(&self, interrupt: Interrupt) -> (u32, u16) {
        // Active low, level-sensitive.
        const PCI: u16 = 0b1111;
        const ISA_INTERRUPTS: u32 = 16;
        match interrupt {
            Interrupt::Isa(number) => self.isa(number),
            Interrupt::Global(gsi) => {
                let flags = self.overrides.iter().find(|moved| moved.gsi == gsi).map(|moved| moved.flags);
                (gsi, flags.unwrap_or(if gsi < ISA_INTERRUPTS { 0 } else { PCI }))
            }
        }
    }

    /// Returns the global system interrupt and the MPS INTI flags of an ISA interrupt.
    fn isa(&self, number: u8) -> (u32, u16) {
        self.overrides.iter().find(|moved| moved.isa == number).map_or((number.into(), 0), |moved| (moved.gsi, moved.flags))
    }
}

/// Whether a serial port is a relative of the 16550.
fn is_compatible(port: &Port) -> bool {
    matches!(port.kind, Kind::Compatible { .. })
}

/// Returns the bytes from the root pointer to the end of its area ("Finding the RSDP on IA-PC Systems").
fn root(memory: &impl Memory) -> Option<&[u8]> {
    // The BIOS Data Area holds the segment of the Extended BIOS Data Area.
    let extended = memory.bytes(0x40e, 2).and_then(|bytes| u16_at(bytes, 0)).map_or(0, |segment| u64::from(segment) << 4);
    let areas = [(extended, 1024), (BIOS.start, (BIOS.end - BIOS.start) as usize)];
    areas.into_iter().filter(|&(start, _)| start != 0).find_map(|(start, len)| {
        let area = memory.bytes(start, len)?;
        (0..len).step_by(16).filter_map(|at| area.get(at..)).find(|bytes| is_root_pointer(bytes))
    })
}

/// Returns the port of the power management timer: PM_TMR_BLK of the Fixed ACPI Description Table, or else X_PM_TMR_BLK.
fn timer(fadt: &[u8]) -> Option<u16> {
    const PORTS: u8 = 1;
    let port = |number: u64| u16::try_from(number).ok().filter(|&port| port != 0);
    let extended = || port(u64_at(fadt, 212)?).filter(|_| u8_at(fadt, 208) == Some(PORTS));
    port(u32_at(fadt, 76)?.into()).or_else(extended)
}

/// Returns the power-off sequence of the Fixed ACPI Description Table.
fn power_off(memory: &impl Memory, fadt: &[u8]) -> Option<PowerOff> {
    const SLP_EN: u16 = 1 << 13;
    // DSDT, or else X_DSDT.
    let dsdt = [u32_at(fadt, 40).map(u64::from), u64_at(fadt, 140)].into_iter().flatten();
    let dsdt = dsdt.filter_map(|address| table::table(memory, address)).find(|bytes| bytes.starts_with(b"DSDT"))?;
    let types = soft_off(dsdt)?;
    let register = |at: usize, kind: u8| {
        let port = u16::try_from(u32_at(fadt, at)?).ok().filter(|&port| port != 0)?;
        Some((port, u16::from(kind & 7) << 10 | SLP_EN))
    };
    Some(PowerOff { writes: [register(64, types[0]), register(68, types[1])] })
}

/// Returns `SLP_TYPa` and `SLP_TYPb` of the object `_S5_`. Every firmware encodes this package of constants in the same few ways, so no
/// AML interpreter is needed ("ACPI Machine Language", DefName and DefPackage).
fn soft_off(dsdt: &[u8]) -> Option<[u8; 2]> {
    const PACKAGE: u8 = 0x12;
    let name = dsdt.windows(5).position(|window| &window[..4] == b"_S5_" && window[4] == PACKAGE)?;
    let length = dsdt.get(name + 5)?;
    // PkgLength's two highest bits count its further bytes; the number of elements follows.
    let elements = name + 5 + 1 + usize::from(length >> 6);
    let mut rest = dsdt.get(elements + 1..)?;
    let mut element = || {
        let [op, after @ ..] = rest else { return None };
        let ([low, high], len) = match (op, after) {
            // ZeroOp, OneOp
            (0 | 1, _) => ([*op, 0], 0),
            // BytePrefix
            (0x0a, [low, ..]) => ([*low, 0], 1),
            // WordPrefix
            (0x0b, [low, high, ..]) => ([*low, *high], 2),
            _ => return None,
        };
        rest = after.get(len..)?;
        Some([low, high])
    };
    match (*dsdt.get(elements)?, element()?) {
        // An element for each register, or one with a byte for each (ACPI Specification 6.5, "\\_Sx (System States)").
        (1, both) => Some(both),
        (_, [first, _]) => Some([first, element()?[0]]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flat::Flat;
    use crate::table::sum;
    use proptest::prelude::*;
    use std::vec;

    impl Flat {
        fn put(&mut self, at: usize, bytes: &[u8]) {
            self.0[at..at + bytes.len()].copy_from_slice(bytes);
        }

        fn put_table(&mut self, at: usize, signature: &[u8; 4], body: &[u8]) {
            let mut bytes = vec![0; HEADER];
            bytes[..4].copy_from_slice(signature);
            bytes.extend(body);
            let length = bytes.len() as u32;
            bytes[4..8].copy_from_slice(&length.to_le_bytes());
            bytes[9] = 0u8.wrapping_sub(sum(&bytes));
            self.put(at, &bytes);
        }
    }

    const MADT: [u8; 90] = [
        0, 0, 0xe0, 0xfe, 1, 0, 0, 0, // address and flags
        0, 8, 0, 0, 1, 0, 0, 0, // CPU 0
        0, 8, 1, 4, 1, 0, 0, 0, // CPU 4
        0, 8, 2, 5, 0, 0, 0, 0, // not there
        0, 8, 3, 4, 1, 0, 0, 0, // CPU 4 again
        0, 8, 4, 255, 1, 0, 0, 0, // all CPUs
        9, 16, 0, 0, 255, 255, 255, 255, 1, 0, 0, 0, 9, 0, 0, 0, // all CPUs
        1, 12, 1, 0, 0, 0, 0xc0, 0xfe, 0, 0, 0, 0, // I/O APIC
        2, 10, 0, 0, 2, 0, 0, 0, 0, 0, // the timer is at input 2
        9, 4, 0, 0, // cut short
    ];

    fn machine() -> Flat {
        let mut memory = Flat(vec![0; 1 << 20]);
        memory.put_table(0x1000, b"APIC", &MADT);
        let mut fadt = [0; 80];
        fadt[4..8].copy_from_slice(&0x3000u32.to_le_bytes());
        fadt[28..32].copy_from_slice(&0xb004u32.to_le_bytes());
        fadt[40..44].copy_from_slice(&0xb008u32.to_le_bytes());
        memory.put_table(0x2000, b"FACP", &fadt);
        memory.put_table(0x3000, b"DSDT", b"\x08_S5_\x12\x08\x04\x0a\x05\x01\x00\x00");
        let mut spcr = [0; 52];
        spcr[4..16].copy_from_slice(&[1, 8, 0, 1, 0xf8, 2, 0, 0, 0, 0, 0, 0]);
        (spcr[16], spcr[17]) = (1, 3);
        memory.put_table(0x5000, b"SPCR", &spcr);
        let mut mcfg = [0; 24];
        (mcfg[11], mcfg[19]) = (0xb0, 255);
        memory.put_table(0x6000, b"MCFG", &mcfg);
        let mut ivrs = [0; 40];
        // An IOMMU for all functions.
        (ivrs[12], ivrs[14], ivrs[16], ivrs[18], ivrs[36]) = (0x10, 28, 8, 0x40, 1);
        ivrs[20..24].copy_from_slice(&0xfed8_0000u32.to_le_bytes());
        memory.put_table(0x7000, b"IVRS", &ivrs);
        let root = [0x1000u32, 0x2000, u32::MAX, 0x5000, 0x6000, 0x7000].map(u32::to_le_bytes);
        memory.put_table(0x4000, b"RSDT", &root.concat());
        let mut rsdp = *b"RSD PTR \0STILE \0\0\x40\0\0";
        rsdp[8] = 0u8.wrapping_sub(sum(&rsdp));
        memory.put(0xf_1230, &rsdp);
        memory
    }

    #[test]
    fn tables_are_read() {
        let tables = Tables::read(&machine()).unwrap();
        assert_eq!(tables.cpus, [0, 4]);
        assert_eq!(tables.io_apics, [IoApic { address: 0xfec0_0000, first: 0 }]);
        assert_eq!([0, 4].map(|number| tables.route(Interrupt::Isa(number))), [(2, 0), (4, 0)]);
        assert_eq!([2, 4, 20].map(|gsi| tables.route(Interrupt::Global(gsi))), [(2, 0), (4, 0), (20, 0b1111)]);
        let port = tables.console.unwrap();
        assert_eq!((port.address, port.interrupt, tables.debug_port), (0x2f8, Some(Interrupt::Isa(3)), None));
        let writes = [Some((0xb004, 5 << 10 | 1 << 13)), None];
        assert_eq!(tables.power_off, Some(PowerOff { writes }));
        assert_eq!(tables.timer, Some(0xb008));
        assert_eq!(tables.configuration_spaces[0].bus(0), Some(0xb000_0000));
        assert_eq!((tables.ivrs.iommus[0].address, tables.ivrs.check(0x10)), (0xfed8_0000, Ok(())));
        assert_eq!(Tables::read_at(&machine(), 0xf_1230).unwrap(), tables);
        assert!(Tables::read_at(&machine(), 0xf_1231).is_err(), "no root pointer");
        assert!(Tables::read_at(&machine(), u64::MAX - 8).is_err(), "no memory");
    }

    #[test]
    fn sleep_types_are_elements_or_bytes_of_one() {
        for (package, types) in [
            (&b"_S5_\x12\x08\x04\x0a\x05\x01\x00\x00"[..], Some([5, 1])),
            (b"_S5_\x12\x40\x09\x02\x0a\x05\x0a\x06", Some([5, 6])),
            (b"_S5_\x12\x04\x01\x0a\x05", Some([5, 0])),
            (b"_S5_\x12\x05\x01\x0b\x05\x06", Some([5, 6])),
            (b"_S5_\x12\x03\x01\x01", Some([1, 0])),
            (b"_S5_\x12\x03\x02\x01", None),
            (b"_S5_\x12\x04\x01\x0b\x05", None),
            (b"_S5_\x12\x06\x01\x0c\x05\x00\x00", None),
        ] {
            assert_eq!(soft_off(package), types, "{package:x?}");
        }
    }

    #[test]
    fn the_timer_is_at_a_port() {
        for (old, space, extended, port) in [
            (0xb008_u32, 0, 0, Some(0xb008)),
            (0, 1, 0xb008_u64, Some(0xb008)),
            (0, 0, 0xb008, None),
            (0x1_0000, 1, 0x1_0000, None),
            (0, 1, 0, None),
        ] {
            let mut fadt = vec![0; 220];
            fadt[76..80].copy_from_slice(&old.to_le_bytes());
            fadt[208] = space;
            fadt[212..220].copy_from_slice(&extended.to_le_bytes());
            assert_eq!(timer(&fadt), port);
            assert_eq!(timer(&fadt[..212]), port.filter(|_| old != 0), "an old table");
        }
        assert_eq!(timer(&[]), None);
    }

    /// A machine whose root pointer (revision 2) has the XSDT's address `xsdt`.
    fn with_xsdt(xsdt: u64) -> Flat {
        let mut memory = machine();
        let mut rsdp = [0; 36];
        rsdp[..20].copy_from_slice(&memory.0[0xf_1230..][..20]);
        (rsdp[8], rsdp[15]) = (rsdp[8].wrapping_sub(2), 2);
        rsdp[24..32].copy_from_slice(&xsdt.to_le_bytes());
        rsdp[32] = 0u8.wrapping_sub(sum(&rsdp));
        memory.put(0xf_1230, &rsdp);
        memory
    }

    #[test]
    fn the_rsdt_replaces_a_broken_xsdt() {
        let addresses = [0x1000_u64, 0x2000, u64::MAX, 0x5000, 0x6000, 0x7000].map(u64::to_le_bytes).concat();
        for xsdt in [0x8000, 0, 0x9000, 0x10_0000, 1 << 50, u64::MAX - 8, 0x1000] {
            let mut memory = with_xsdt(xsdt);
            memory.put_table(0x8000, b"XSDT", &addresses);
            if xsdt == 0x8000 {
                memory.put(0x4000, &[0; HEADER]);
            }
            assert_eq!(Tables::read(&memory), Tables::read(&machine()), "{xsdt:#x}");
        }
    }

    #[test]
    fn the_first_table_with_a_name_counts() {
        let mut memory = machine();
        let mut other = MADT;
        other[11] = 9;
        memory.put_table(0x8000, b"APIC", &other);
        for roots in [[0x1000_u32, 0x8000], [0x9000, 0x1000]] {
            memory.put_table(0x4000, b"RSDT", &roots.map(u32::to_le_bytes).concat());
            assert_eq!(Tables::read(&memory).unwrap().cpus, [0, 4]);
        }
    }

    /// A root of 1 MiB whose entries name a long table.
    #[test]
    fn reading_many_long_tables_ends() {
        let mut memory = Flat(vec![0; 4 << 20]);
        memory.0[..1 << 20].copy_from_slice(&machine().0);
        memory.put_table(0x20_0000, b"APIC", &[1; 1 << 18]);
        memory.0[0x20_0000 + HEADER] ^= 1;
        memory.put_table(0x10_0000, b"RSDT", &0x20_0000_u32.to_le_bytes().repeat(((1 << 20) - HEADER) / 4));
        memory.put(0xf_1230 + 16, &0x10_0000_u32.to_le_bytes());
        memory.0[0xf_1230 + 8] = memory.0[0xf_1230 + 8].wrapping_sub(0x10).wrapping_add(0x40);
        assert_eq!(Tables::read(&memory), Err("the firmware's ACPI tables name no interrupt controllers (MADT)"));
    }

    #[test]
    fn the_dsdt_may_be_above_4_gib() {
        let mut fadt = vec![0; 244];
        fadt[64..66].copy_from_slice(&0xb004_u16.to_le_bytes());
        for (dsdt, extended, is_found) in [(0x3000_u32, 0_u64, true), (0, 0x3000, true), (0x1000, 0x3000, true), (0, 0, false)] {
            fadt[40..44].copy_from_slice(&dsdt.to_le_bytes());
            fadt[140..148].copy_from_slice(&extended.to_le_bytes());
            assert_eq!(power_off(&machine(), &fadt).is_some(), is_found, "{dsdt:#x}, {extended:#x}");
        }
    }

    #[test]
    fn missing_tables_are_an_error() {
        assert!(Tables::read(&Flat(vec![0; 1 << 20])).is_err());
        assert!(Tables::read(&Flat(vec![])).is_err());
        let mut memory = machine();
        // A table with a wrong checksum is ignored.
        memory.0[0x1000 + HEADER] ^= 1;
        assert!(Tables::read(&memory).is_err());
        // So is one that is too long, whatever the sum of its beginning.
        let mut memory = Flat(vec![0; 4 << 20]);
        memory.0[..1 << 20].copy_from_slice(&machine().0);
        memory.put(0x1000 + 4, &(2u32 << 20).to_le_bytes());
        let sum = sum(&memory.0[0x1000..0x1000 + (1 << 20)]);
        memory.0[0x1000 + 9] = memory.0[0x1000 + 9].wrapping_sub(sum);
        assert!(Tables::read(&memory).is_err());
    }

    /// The machine has an ECAM of 256 buses at 0xb0000000, and an IOMMU and an I/O APIC at their usual addresses.
    #[test]
    fn the_chipset_has_no_bars() {
        let mut tables = Tables::read(&machine()).unwrap();
        tables.io_apics.push(IoApic { address: 0x10_0000_0000, first: 24 }).unwrap();
        tables.ivrs.iommus[0].address = 0xfeb8_0000;
        let bars = [
            (0xaff0_0000..0xb000_0000, false),
            (0xaff0_0000..0xb000_1000, true),
            (0xbfff_f000..0xc000_0000, true),
            (0xc000_0000..0xfeb8_0000, false),
            (0xfeb8_3000..0xfeb8_4000, true),
            (0xfeb8_4000..0xfec0_0000, false),
            (0xfebf_f000..0xfec0_1000, true),
            (0xfee0_0000..0xfee0_1000, true),
            (0xffff_f000..1 << 32, true),
            (1 << 32..0x10_0000_0000, false),
            (0x10_0000_0000..0x10_0000_1000, true),
            (0x10_0000_1000..1 << 47, false),
        ];
        for (bar, is_chipset) in bars {
            assert_eq!(tables.has_chipset(&bar), is_chipset, "{bar:#x?}");
        }
    }

    /// Each flipped bit, also with a checksum that hides it, yields an error or other contents.
    #[test]
    fn each_flipped_bit() {
        let mut memory = machine();
        let tables =
            [0x1000, 0x2000, 0x3000, 0x4000, 0x5000, 0x6000, 0x7000].map(|at| (at, u32_at(&memory.0, at + 4).unwrap() as usize, at + 9));
        for (start, length, checksum) in tables.into_iter().chain([(0xf_1230, 20, 0xf_1238)]) {
            for bit in 0..length * 8 {
                let (at, flipped, before) = (start + bit / 8, 1 << (bit % 8), memory.0[checksum]);
                memory.0[at] ^= flipped;
                let _ = Tables::read_at(&memory, 0xf_1230);
                let now = sum(&memory.0[start..start + length]);
                memory.0[checksum] = memory.0[checksum].wrapping_sub(now);
                if let Ok(tables) = Tables::read_at(&memory, 0xf_1230) {
                    assert!(tables.console.is_none_or(|port| port.address != 0), "{at:#x}");
                }
                memory.0[checksum] = before;
                if at != checksum {
                    memory.0[at] ^= flipped;
                }
            }
        }
        assert_eq!(Tables::read(&memory), Tables::read(&machine()));
    }

    proptest! {
        /// Corruption anywhere yields an error or different contents, never a panic.
        #[test]
        fn corrupt_tables_do_not_panic(at in 0usize..0x8000, length in 0usize..64, value: u8) {
            let mut memory = machine();
            memory.0[at..at + length].fill(value);
            let _ = Tables::read(&memory);
        }
    }
}
