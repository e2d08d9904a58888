//! The guest's ACPI tables (ACPI Specification 6.5).

use alloc::format;
use alloc::vec;
use alloc::vec::Vec;

use acpi_tables::aml::{
    AddressSpace as Resource, AddressSpaceCacheable, Device, EISAName, IO, Interrupt, Memory32Fixed, Name, Package, Path, ResourceTemplate,
    Uuid,
};
use acpi_tables::fadt::{FADTBuilder, Flags};
use acpi_tables::gas::{AccessSize, AddressSpace, GAS};
use acpi_tables::madt::{EnabledStatus, IoApic, ProcessorLocalApic};
use acpi_tables::mcfg::MCFG;
use acpi_tables::rsdp::Rsdp;
use acpi_tables::sdt::Sdt;
use acpi_tables::xsdt::XSDT;
use acpi_tables::{Aml, AmlSink};
use stile_blob::Topology;
use stile_board::{map, pc};

/// Address of the tables, the root pointer first: in a BIOS's area, and in its upper half, since some
/// programs search from 0xf0000 on.
pub const TABLES: u64 = pc::ACPI_TABLES;
/// The OEM ID.
const OEM: [u8; 6] = *b"STILE ";
const TABLE: [u8; 8] = *b"STILEVM ";
const REVISION: u32 = 1;
/// Tables begin at multiples of this.
const ALIGN: usize = 64;

#[derive(Default)]
struct Bytes(Vec<u8>);

impl AmlSink for Bytes {
    fn byte(&mut self, byte: u8) {
        self.0.push(byte);
    }
}

fn bytes(table: &dyn Aml) -> Vec<u8> {
    let mut bytes = Bytes::default();
    table.to_aml_bytes(&mut bytes);
    bytes.0
}

/// The PC that the tables describe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Hardware-reduced (ACPI Specification 6.5, "Hardware-Reduced ACPI"): without PIT, 8259 and fixed
    /// registers, which a kernel would otherwise probe, with an exit each.
    Reduced,
    /// With all legacy devices, for kernels that require them.
    Whole,
}

/// The tables of a machine with the vCPUs of a topology and, if `has_bridge`, a PCI host bridge, which serves `serves` devices, located at
/// [`TABLES`].
pub fn tables(topology: Topology, kind: Kind, has_bridge: bool, serves: u8) -> Vec<u8> {
    let mut all = vec![0; Rsdp::len().next_multiple_of(ALIGN)];
    let mut put = |table: &[u8]| {
        let at = TABLES + all.len() as u64;
        all.extend(table);
        all.resize(all.len().next_multiple_of(ALIGN), 0);
        at
    };
    let facs = put(&facs());
    assert_eq!(facs, pc::FACS, "the hypervisor looks there");
    let dsdt = put(dsdt(has_bridge, serves).as_slice());
    let madt = put(madt(topology, kind).as_slice());
    let fadt = put(&bytes(&fadt(dsdt, facs, kind).finalize()));
    let mcfg = has_bridge.then(|| put(&bytes(&mcfg())));
    let mut xsdt = XSDT::new(OEM, TABLE, REVISION);
    let mut rsdt = Sdt::new(*b"RSDT", SDT_HEADER, 1, OEM, TABLE, REVISION);
    for table in [fadt, madt].into_iter().chain(mcfg) {
        xsdt.add_entry(table);
        rsdt.append_slice(&(table as u32).to_le_bytes());
    }
    let xsdt = put(&bytes(&xsdt));
    let rsdt = put(rsdt.as_slice());
    let rsdp = rsdp(rsdt as u32, xsdt);
    all[..rsdp.len()].copy_from_slice(&rsdp);
    all
}

/// Length of the header that every table has.
const SDT_HEADER: u32 = 36;

/// The root pointer ("Root System Description Pointer"), with the RSDT, too: small kernels support only
/// 32-bit addresses.
fn rsdp(rsdt: u32, xsdt: u64) -> Vec<u8> {
    const CHECKSUM: usize = 8;
    const RSDT: usize = 16;
    const LENGTH_OF_FIRST_VERSION: usize = 20;
    const EXTENDED_CHECKSUM: usize = 32;
    let mut rsdp = bytes(&Rsdp::new(OEM, xsdt));
    rsdp[RSDT..RSDT + 4].copy_from_slice(&rsdt.to_le_bytes());
    for (at, length) in [(CHECKSUM, LENGTH_OF_FIRST_VERSION), (EXTENDED_CHECKSUM, rsdp.len())] {
        rsdp[at] = 0;
        rsdp[at] = rsdp[..length].iter().fold(0u8, |sum, byte| sum.wrapping_sub(*byte));
    }
    rsdp
}

/// Interrupt controllers: a local APIC per vCPU, one I/O APIC, and the routing of a legacy PC's lines
/// ("Multiple APIC Description Table (MADT)").
fn madt(topology: Topology, kind: Kind) -> Sdt {
    const HAS_8259: u32 = 1;
    let mut madt = Sdt::new(*b"APIC", SDT_HEADER, 5, OEM, TABLE, REVISION);
    madt.append_slice(&(pc::LOCAL_APIC as u32).to_le_bytes());
    madt.append_slice(&(if kind == Kind::Whole { HAS_8259 } else { 0 }).to_le_bytes());
    for vcpu in 0..topology.vcpus() {
        let id = topology.apic_id(vcpu);
        match u8::try_from(id) {
            Ok(id) if id < u8::MAX => madt.append_slice(&bytes(&ProcessorLocalApic::new(id, id, EnabledStatus::Enabled))),
            _ => madt.append_slice(&x2apic(id)),
        }
    }
    madt.append_slice(&bytes(&IoApic::new(0, pc::IO_APIC as u32, 0)));
    if kind == Kind::Whole {
        /// Conforms to the bus: edge-triggered, active high.
        const CONFORMS: u16 = 0;
        /// Level-sensitive, active high.
        const LEVEL: u16 = 0b1101;
        for (line, input, flags) in [(0, pc::TIMER_INPUT, CONFORMS), (pc::ACPI_INPUT as u8, pc::ACPI_INPUT, LEVEL)] {
            // "Interrupt Source Override Structure".
            madt.append_slice(&[2, 10, 0, line]);
            madt.append_slice(&input.to_le_bytes());
            madt.append_slice(&flags.to_le_bytes());
        }
        // "Local APIC NMI Structure" and "Local x2APIC NMI Structure": LINT1 of all.
        madt.append_slice(&[4, 6, 0xff, 0, 0, 1]);
        if pc::starts_in_x2apic_mode(topology.last_apic_id()) {
            madt.append_slice(&[10, 12, 0, 0, 0xff, 0xff, 0xff, 0xff, 1, 0, 0, 0]);
        }
    }
    madt
}

/// "Processor Local x2APIC Structure", for identifiers that in xAPIC mode are no processor's.
fn x2apic(id: u32) -> Vec<u8> {
    const ENABLED: u32 = 1 << 0;
    [&[9, 16, 0, 0][..], &id.to_le_bytes(), &ENABLED.to_le_bytes(), &id.to_le_bytes()].concat()
}

/// "Firmware ACPI Control Structure": the global lock is free, and the waking vector zero.
fn facs() -> Vec<u8> {
    const LENGTH: usize = 64;
    let mut facs = vec![0; LENGTH];
    facs[..4].copy_from_slice(b"FACS");
    facs[4..8].copy_from_slice(&(LENGTH as u32).to_le_bytes());
    facs[32] = 2;
    facs
}

/// "Fixed ACPI Description Table (FADT)".
fn fadt(dsdt: u64, facs: u64, kind: Kind) -> FADTBuilder {
    let register = |bits: u8, size: AccessSize, port: u16| GAS::new(AddressSpace::SystemIo, bits, 0, size, port.into());
    let byte = |port: u16| register(8, AccessSize::ByteAccess, port);
    let mut fadt = FADTBuilder::new(OEM, TABLE, REVISION).dsdt_64(dsdt).flag(Flags::ResetRegSup);
    fadt.dsdt = (dsdt as u32).into();
    fadt.reset_reg = byte(pc::port::RESET);
    fadt.reset_value = pc::port::RESET_VALUE;
    // "IA-PC Boot Architecture Flags": no VGA.
    const NO_VGA: u16 = 1 << 2;
    /// There are legacy devices at standard ports.
    const LEGACY_DEVICES: u16 = 1 << 0;
    match kind {
        Kind::Reduced => {
            fadt = fadt.flag(Flags::HwReducedAcpi);
            fadt.sleep_control_reg = byte(pc::port::SLEEP_CONTROL);
            fadt.sleep_status_reg = byte(pc::port::SLEEP_STATUS);
            fadt.iapc_boot_arch = NO_VGA.into();
        }
        Kind::Whole => {
            fadt = fadt.firmware_ctrl_64(facs).flag(Flags::TmrValExt).flag(Flags::Wbinvd);
            fadt.firmware_ctrl = (facs as u32).into();
            fadt.sci_int = (pc::ACPI_INPUT as u16).into();
            fadt.century = pc::CENTURY;
            fadt.iapc_boot_arch = (NO_VGA | LEGACY_DEVICES).into();
            (fadt.pm1a_evt_blk, fadt.pm1_evt_len) = (u32::from(pc::port::PM1A_EVENT).into(), 4);
            (fadt.pm1a_cnt_blk, fadt.pm1_cnt_len) = (u32::from(pc::port::PM1A_CONTROL).into(), 2);
            (fadt.pm_tmr_blk, fadt.pm_tmr_len) = (u32::from(pc::port::PM_TIMER).into(), 4);
            fadt.x_pm1a_evt_blk = register(32, AccessSize::WordAccess, pc::port::PM1A_EVENT);
            fadt.x_pm1a_cnt_blk = register(16, AccessSize::WordAccess, pc::port::PM1A_CONTROL);
            fadt.x_pm_tmr_blk = register(32, AccessSize::DwordAccess, pc::port::PM_TIMER);
        }
    }
    fadt
}

/// Configuration space of PCI functions (PCI Firmware Specification 3.3, 4.1.2): that of bus 0.
fn mcfg() -> MCFG {
    let mut mcfg = MCFG::new(OEM, TABLE, REVISION);
    mcfg.add_ecam(pc::PCI_ECAM.start, 0, 0, 0);
    mcfg
}

/// The PCI host bridge, with a bus and a window for BARs, and the device that its configuration space belongs to: kernels do not use a
/// space that no device reserves (PCI Firmware Specification 3.3, 4.1.2). Without I/O ports, and without lines for interrupts.
fn bridge() -> Vec<u8> {
    let window = pc::PCI_WINDOW.start as u32..=(pc::PCI_WINDOW.end - 1) as u32;
    let hid = |id: &str| Name::new(Path::new("_HID"), &EISAName::new(id));
    let uid = Name::new(Path::new("_UID"), &0u8);
    let crs = |resources: ResourceTemplate<'_>| Name::new(Path::new("_CRS"), &resources);
    let buses = Resource::new_bus_number(0u16, 0);
    let memory = Resource::new_memory(AddressSpaceCacheable::NotCacheable, true, *window.start(), *window.end(), None);
    let compatible = Name::new(Path::new("_CID"), &EISAName::new("PNP0A03"));
    let (segment, first_bus) = (Name::new(Path::new("_SEG"), &0u8), Name::new(Path::new("_BBN"), &0u8));
    let (express, resources) = (hid("PNP0A08"), crs(ResourceTemplate::new(vec![&buses, &memory])));
    let bridge = Device::new(Path::new("\\_SB_.PCI0"), vec![&express, &compatible, &uid, &segment, &first_bus, &resources]);
    let space = Memory32Fixed::new(true, pc::PCI_ECAM.start as u32, (pc::PCI_ECAM.end - pc::PCI_ECAM.start) as u32);
    let (board, reserved) = (hid("PNP0C02"), crs(ResourceTemplate::new(vec![&space])));
    let owner = Device::new(Path::new("\\_SB_.ECAM"), vec![&board, &uid, &reserved]);
    [bytes(&bridge), bytes(&owner)].concat()
}

/// Device `number` that the machine serves: its registers, its page of events and its interrupt, with the `compatible` string of Arm's
/// device tree ("Device Tree Namespace Link Device ID").
fn served(number: u8) -> Vec<u8> {
    /// Properties of a device ("Device Properties UUID For _DSD").
    const PROPERTIES: &str = "daffd814-6eba-4d8c-8a91-bc9bbf4aa301";
    let at = |base: u64, stride: u64| Memory32Fixed::new(true, (base + u64::from(number) * stride) as u32, stride as u32);
    let (registers, events) = (at(pc::SERVER_REGISTERS, map::SERVER_STRIDE), at(pc::SERVER_EVENTS, map::EVENTS_STRIDE));
    let interrupt = Interrupt::new(true, true, false, false, pc::SERVER_INPUT + u32::from(number));
    let crs = Name::new(Path::new("_CRS"), &ResourceTemplate::new(vec![&registers, &events, &interrupt]));
    let (hid, uid) = (Name::new(Path::new("_HID"), &"PRP0001"), Name::new(Path::new("_UID"), &number));
    let compatible = Package::new(vec![&"compatible", &"stile,served-device"]);
    let slot = Package::new(vec![&"stile,number", &number]);
    let (uuid, properties) = (Uuid::new(PROPERTIES), Package::new(vec![&compatible, &slot]));
    let data = Name::new(Path::new("_DSD"), &Package::new(vec![&uuid, &properties]));
    bytes(&Device::new(Path::new(&format!("\\_SB_.SRV{number:X}")), vec![&hid, &uid, &crs, &data]))
}

/// The machine's devices that can't be discovered otherwise, and the power-off method.
fn dsdt(has_bridge: bool, serves: u8) -> Sdt {
    let uart = IO::new(pc::port::COM1, pc::port::COM1, 1, 8);
    let interrupt = Interrupt::new(true, true, false, false, pc::COM1_INPUT);
    let (hid, uid) = (Name::new(Path::new("_HID"), &EISAName::new("PNP0501")), Name::new(Path::new("_UID"), &0u8));
    let resources = ResourceTemplate::new(vec![&uart, &interrupt]);
    let crs = Name::new(Path::new("_CRS"), &resources);
    let serial = Device::new(Path::new("\\_SB_.COM1"), vec![&hid, &uid, &crs]);
    let soft_off = Package::new(vec![&pc::SLEEP_TYPE_OFF]);
    let mut dsdt = Sdt::new(*b"DSDT", 36, 6, OEM, TABLE, REVISION);
    for object in [&serial as &dyn Aml, &Name::new(Path::new("\\_S5_"), &soft_off)] {
        dsdt.append_slice(&bytes(object));
    }
    if has_bridge {
        dsdt.append_slice(&bridge());
    }
    (0..serves).for_each(|number| dsdt.append_slice(&served(number)));
    dsdt
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(bytes: &[u8]) -> u8 {
        bytes.iter().fold(0, |sum, byte| sum.wrapping_add(*byte))
    }

    /// Identifier 255, which in xAPIC mode is all processors, has an entry of its own kind.
    #[test]
    fn each_vcpu_has_an_entry() {
        let entries = |topology| {
            let all = madt(topology, Kind::Reduced);
            let (mut at, mut ids) = (44, Vec::new());
            while at < all.as_slice().len() {
                let entry = &all.as_slice()[at..];
                match entry[0] {
                    0 => ids.push((0, u32::from(entry[3]))),
                    9 => ids.push((9, u32::from_le_bytes(entry[4..8].try_into().unwrap()))),
                    _ => {}
                }
                at += usize::from(entry[1]);
            }
            ids
        };
        let low: Vec<_> = (0..255).map(|id| (0, id)).collect();
        assert_eq!(entries(Topology::flat(255)), low);
        assert_eq!(entries(Topology::flat(256)), [&low[..], &[(9, 255)]].concat());
        let with_gaps = |sockets, cores, threads| entries(Topology { sockets, cores, threads });
        assert_eq!(with_gaps(2, 3, 1), [0, 1, 2, 4, 5, 6].map(|id| (0, id)));
        assert_eq!(with_gaps(5, 5, 5).last(), Some(&(9, 292)));
    }

    /// From the root to each table: signatures, lengths and sums.
    #[test]
    fn tables_refer_to_each_other() {
        for (kind, has_bridge) in [(Kind::Reduced, false), (Kind::Reduced, true), (Kind::Whole, false), (Kind::Whole, true)] {
            they_lead(kind, has_bridge);
        }
    }

    fn they_lead(kind: Kind, has_bridge: bool) {
        let all = tables(Topology::flat(3), kind, has_bridge, if has_bridge { 8 } else { 0 });
        let word = |at: usize| u32::from_le_bytes(all[at..at + 4].try_into().unwrap());
        let pointer = |at: usize| (u64::from(word(at)) | u64::from(word(at + 4)) << 32) - TABLES;
        let table = |at: u64, signature: &[u8]| {
            let at = at as usize;
            let bytes = &all[at..at + word(at + 4) as usize];
            assert_eq!((&bytes[..4], sum(bytes)), (signature, 0));
            at
        };
        assert!(all.starts_with(b"RSD PTR ") && sum(&all[..20]) == 0 && sum(&all[..36]) == 0);
        let xsdt = table(pointer(24), b"XSDT");
        let fadt = table(pointer(xsdt + 36), b"FACP");
        let madt = table(pointer(xsdt + 44), b"APIC");
        let dsdt = table(pointer(fadt + 140), b"DSDT");
        let served = all[dsdt..dsdt + word(dsdt + 4) as usize].windows(7).filter(|id| id == b"PRP0001").count();
        assert_eq!(served, if has_bridge { 8 } else { 0 });
        let names_bridge = all[dsdt..dsdt + word(dsdt + 4) as usize].windows(4).any(|name| name == b"PCI0");
        assert_eq!((word(xsdt + 4), names_bridge), (36 + 8 * if has_bridge { 3 } else { 2 }, has_bridge));
        if has_bridge {
            let mcfg = table(pointer(xsdt + 52), b"MCFG");
            assert_eq!((word(mcfg + 44), word(mcfg + 52)), (pc::PCI_ECAM.start as u32, 0), "address, segment and buses");
        }
        // The older root refers to the same tables.
        let rsdt = table(u64::from(word(16)) - TABLES, b"RSDT");
        let low = |at: usize| u64::from(word(at)) - TABLES;
        assert_eq!((low(rsdt + 36), low(rsdt + 40)), (fadt as u64, madt as u64));
        // Three local APICs and an I/O APIC; and the lines that differ.
        let lines = if kind == Kind::Whole { 2 * 10 + 6 } else { 0 };
        assert_eq!(word(madt + 4), 44 + 3 * 8 + 12 + lines);
        assert_eq!(word(fadt + 112) >> 20 & 1, u32::from(kind == Kind::Reduced));
        assert_eq!(word(fadt + 76), if kind == Kind::Whole { 0x608 } else { 0 });
        assert!(TABLES as usize + all.len() < 0x10_0000);
    }
}
