//! ACPI tables of an Arm machine (ACPI Specification 6.5; Arm Base Boot Requirements): CPUs and interrupt controller (MADT), timers
//! (GTDT), PSCI (FADT), console (SPCR, or else DBG2), nodes (SRAT), PCI host bridge with SMMU (MCFG, IORT).

use core::ops::Range;

use heapless::Vec;

use crate::arm_pci::ArmPci;
use crate::bytes::{u8_at, u16_at, u32_at, u64_at};
use crate::numa::Numa;
use crate::serial_tables::{self, Port, Space};
use crate::srat::{self, Affinity};
use crate::table::{APIC, DBG2, FACP, HEADER, MCFG, SPCR, SRAT, name, root, root_pointer, wanted};
use crate::{MAX_CPUS, Memory};

/// Registers of one redistributor: GICv3's two frames, or GICv4's four, of 64 KiB. Firmware that names them one by one
/// has one for each CPU.
const REDISTRIBUTOR: u64 = 2 << 16;
/// Maximum number of ITSs that are read.
const MOST_ITS: usize = 16;

/// Generic Timer Description Table, and I/O Remapping Table.
const GTDT: u32 = name(*b"GTDT");
const IORT: u32 = name(*b"IORT");

/// Private peripheral interrupts.
const PPIS: Range<u32> = 16..32;

/// Contents of the tables. Numbers of interrupts are INTIDs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ArmTables {
    /// MPIDR affinities of the enabled CPUs.
    pub cpus: Vec<u64, MAX_CPUS>,
    /// Classes of `cpus` by efficiency (GICC structure, "Processor Power Efficiency Class"): CPUs of a higher class perform
    /// better and are less efficient.
    pub efficiency: Vec<u8, MAX_CPUS>,
    /// Physical address of the distributor.
    pub distributor: Option<u64>,
    /// The GIC's version; 0 leaves it to the hardware to say.
    version: u8,
    /// A GICv2's CPU interface, virtual interface control and virtual CPU interface: physical addresses.
    interfaces: Option<[u64; 3]>,
    /// The redistributors' registers.
    pub redistributors: Vec<Range<u64>, 8>,
    /// Physical address of the ITS to which the functions of `pci` send messages, or else of the first one.
    pub its: Option<u64>,
    /// Identifiers and physical addresses of the ITSs.
    all_its: Vec<(u32, u64), MOST_ITS>,
    /// The PCI host bridge.
    pub pci: Option<ArmPci>,
    /// The virtual CPU interface's maintenance interrupt, if the tables name a private one.
    pub maintenance: Option<u32>,
    /// Interrupts of the timers: secure EL1's, non-secure EL1's, the virtual one, EL2's.
    pub timers: Option<[u32; 4]>,
    /// Whether PSCI is called by HVC; `None` without PSCI.
    pub psci_by_hvc: Option<bool>,
    /// The console.
    pub uart: Option<Port>,
    /// DBG2's port, if it is not the console: the fallback for a console that does not answer.
    pub debug_port: Option<Port>,
    /// Nodes of memory and CPUs, by MPIDR affinities.
    pub numa: Numa,
    /// ACPI processor UIDs of `cpus`.
    uids: Vec<u32, MAX_CPUS>,
}

impl ArmTables {
    /// Parses the tables whose root pointer (RSDP) is at an address. `None` without a root or a MADT.
    pub fn read(memory: &impl Memory, rsdp: u64) -> Option<Self> {
        let root = root(memory, root_pointer(memory, rsdp)?)?;
        let mut tables = Self::default();
        let mut has_madt = false;
        let (mut affinities, mut spaces, mut remapping) = (None, None, None);
        let in_memory = |port: &Port| port.space == Space::Memory;
        for (name, bytes) in wanted(memory, root, &[APIC, GTDT, FACP, SPCR, DBG2, SRAT, MCFG, IORT]) {
            // Tables that are cut short are ignored.
            let _ = match name {
                APIC => {
                    has_madt = true;
                    tables.read_madt(bytes)
                }
                GTDT => tables.read_gtdt(bytes),
                FACP => tables.read_fadt(bytes),
                SPCR => {
                    tables.uart = serial_tables::of_spcr(bytes, in_memory);
                    None
                }
                DBG2 => {
                    tables.debug_port = serial_tables::of_dbg2(bytes, in_memory);
                    None
                }
                // It refers to CPUs by the MADT's UIDs, which may follow.
                SRAT => {
                    affinities = Some(bytes);
                    None
                }
                MCFG => {
                    spaces = Some(bytes);
                    None
                }
                // It refers to the MADT's ITSs.
                IORT => {
                    remapping = Some(bytes);
                    None
                }
                _ => None,
            };
        }
        if let Some(affinities) = affinities {
            tables.read_srat(affinities);
        }
        tables.pci = spaces.and_then(|spaces| ArmPci::read(spaces, remapping.unwrap_or(&[])));
        tables.find_its();
        // Without an SPCR, DBG2's port is the console.
        tables.uart = tables.uart.or(tables.debug_port);
        tables.debug_port = tables.debug_port.filter(|port| tables.uart.is_none_or(|uart| uart.address != port.address));
        has_madt.then_some(tables)
    }

    /// A GICv2's CPU interface, virtual interface control and virtual CPU interface, if it is one: physical addresses.
    pub fn gicv2(&self) -> Option<[u64; 3]> {
        // Where the hardware is to say what it is, the tables have redistributors if it is a GICv3.
        let is_v2 = self.version == 2 || self.version == 0 && self.redistributors.is_empty();
        self.interfaces.filter(|_| is_v2)
    }

    fn read_madt(&mut self, bytes: &[u8]) -> Option<()> {
        let mut rest = bytes.get(HEADER + 8..)?;
        while let [kind, length, ..] = *rest
            && length >= 2
            && let Some((entry, after)) = rest.split_at_checked(length.into())
        {
            // Entries beyond a list's capacity are dropped.
            let _ = self.read_controller(kind, entry);
            rest = after;
        }
        Some(())
    }

    fn read_controller(&mut self, kind: u8, entry: &[u8]) -> Option<()> {
        const ENABLED: u32 = 1;
        match kind {
            // GIC CPU Interface
            0x0b if u32_at(entry, 12)? & ENABLED != 0 => {
                let (uid, mpidr) = (u32_at(entry, 8)?, u64_at(entry, 68)?);
                self.cpus.push(mpidr).ok()?;
                self.uids.push(uid).ok()?;
                // Older tables end before it.
                self.efficiency.push(u8_at(entry, 76).unwrap_or(0)).ok()?;
                self.maintenance = self.maintenance.or(u32_at(entry, 56).filter(|intid| PPIS.contains(intid)));
                let interfaces = [u64_at(entry, 32)?, u64_at(entry, 48)?, u64_at(entry, 40)?];
                self.interfaces = self.interfaces.or((!interfaces.contains(&0)).then_some(interfaces));
                let redistributor = u64_at(entry, 60)?;
                if redistributor != 0 {
                    self.add_redistributors(redistributor..redistributor.checked_add(REDISTRIBUTOR)?)?;
                }
            }
            // GIC Distributor
            0x0c if matches!(u8_at(entry, 20)?, 0 | 2..=4) => {
                (self.distributor, self.version) = (Some(u64_at(entry, 8)?), u8_at(entry, 20)?);
            }
            // GIC Redistributor
            0x0e => {
                let start = u64_at(entry, 4)?;
                self.add_redistributors(start..start.checked_add(u32_at(entry, 12)?.into())?)?;
            }
            // GIC Interrupt Translation Service
            0x0f => self.all_its.push((u32_at(entry, 4)?, u64_at(entry, 8)?)).ok()?,
            _ => {}
        }
        Some(())
    }

    /// Chooses the ITS. If the MADT does not have the one that the bridge's functions send messages to, they have none.
    fn find_its(&mut self) {
        let of_functions = self.pci.as_ref().and_then(|pci| pci.route.its);
        let of_functions = of_functions.and_then(|id| self.all_its.iter().find(|(of, _)| *of == id));
        if let Some(pci) = self.pci.as_mut().filter(|_| of_functions.is_none()) {
            pci.route.devices.clear();
        }
        self.its = of_functions.or(self.all_its.first()).map(|&(_, address)| address);
    }

    /// Neighbours become one range.
    fn add_redistributors(&mut self, range: Range<u64>) -> Option<()> {
        match self.redistributors.iter_mut().find(|other| other.end == range.start) {
            Some(before) => before.end = range.end,
            None => self.redistributors.push(range).ok()?,
        }
        Some(())
    }

    fn read_gtdt(&mut self, bytes: &[u8]) -> Option<()> {
        self.timers = Some([u32_at(bytes, 48)?, u32_at(bytes, 56)?, u32_at(bytes, 64)?, u32_at(bytes, 72)?]);
        Some(())
    }

    /// ARM_BOOT_ARCH: PSCI_COMPLIANT, PSCI_USE_HVC.
    fn read_fadt(&mut self, bytes: &[u8]) -> Option<()> {
        let flags = u16_at(bytes, 129)?;
        self.psci_by_hvc = (flags & 1 != 0).then_some(flags & 2 != 0);
        Some(())
    }

    fn read_srat(&mut self, bytes: &[u8]) {
        srat::visit(bytes, |affinity, node| match affinity {
            Affinity::Memory(range) => self.numa.add_memory(range, node),
            Affinity::Uid(uid) => {
                if let Some((_, &mpidr)) = self.uids.iter().zip(&self.cpus).find(|&(&of, _)| of == uid) {
                    self.numa.add_cpu(mpidr, node);
                }
            }
            Affinity::Apic(_) => {}
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::described::tests::{cpu, machine, put_table};

    #[test]
    fn redistributors_of_cpus_are_joined() {
        let mut memory = machine();
        let cpu = |number: u64| {
            let mut entry = cpu(number, 1);
            entry[60..68].copy_from_slice(&(0x80a_0000 + number * 0x2_0000).to_le_bytes());
            entry
        };
        put_table(&mut memory, 0x1000, b"APIC", &[std::vec![0; 8], cpu(0), cpu(1), cpu(9)].concat());
        let tables = ArmTables::read(&memory, 0).unwrap();
        assert_eq!(tables.redistributors, [0x80a_0000..0x80e_0000, 0x81c_0000..0x81e_0000]);
    }

    #[test]
    fn the_first_table_with_a_name_counts() {
        let mut memory = machine();
        put_table(&mut memory, 0x6a00, b"APIC", &[std::vec![0; 8], cpu(9, 1)].concat());
        for (roots, cpus) in [([0x1000_u64, 0x6a00], &[0, 0x1_0000_0203][..]), ([0x6a00, 0x1000], &[9]), ([0x6b00, 0x6a00], &[9])] {
            put_table(&mut memory, 0x5000, b"XSDT", &roots.map(u64::to_le_bytes).concat());
            assert_eq!(ArmTables::read(&memory, 0).unwrap().cpus, cpus);
        }
    }

    #[test]
    fn root_and_root_pointer_are_checked() {
        for at in [0, 8, 20, 24, 0x5000, 0x5009] {
            let mut memory = machine();
            memory.0[at] ^= 1;
            assert_eq!(ArmTables::read(&memory, 0), None, "{at:#x}");
        }
        let mut memory = machine();
        // Another name, with a checksum that hides it.
        (memory.0[0x5000], memory.0[0x5009]) = (memory.0[0x5000] + 1, memory.0[0x5009].wrapping_sub(1));
        assert_eq!(ArmTables::read(&memory, 0), None);
    }
}
