//! ACPI tables of a PC with local APICs, an I/O APIC, UARTs and the fixed power registers (*Advanced Configuration and Power
//! Interface Specification*, "ACPI Software Programming Model").

use acpi_tables::aml::{Device, EISAName, IO, Interrupt, Name, Package, Path, ResourceTemplate, Scope};
use acpi_tables::fadt::{FADTBuilder, Flags};
use acpi_tables::gas::{AccessSize, AddressSpace, GAS};
use acpi_tables::rsdp::Rsdp;
use acpi_tables::sdt::Sdt;
use acpi_tables::xsdt::XSDT;
use acpi_tables::{Aml, aml};
use alloc::format;
use alloc::vec;
use alloc::vec::Vec;

const OEM: [u8; 6] = *b"STILE ";
const OEM_TABLE: [u8; 8] = *b"STILEPC ";
const REVISION: u32 = 1;
const HEADER: u32 = 36;
const DSDT_REVISION: u8 = 2;
const MADT_REVISION: u8 = 5;

/// A UART at I/O ports.
#[derive(Clone, Copy, Debug)]
pub struct Uart {
    /// The first of its eight ports.
    pub port: u16,
    /// Its input of the I/O APIC.
    pub interrupt: u8,
}

/// The machine that the tables tell of.
#[derive(Clone, Debug)]
pub struct Machine<'a> {
    /// APIC IDs of the processors, the first of which starts.
    pub processors: &'a [u8],
    /// Where local APICs are.
    pub local_apic: u32,
    /// ID and address of the I/O APIC, whose inputs are interrupts 0 to 23.
    pub io_apic: (u8, u32),
    /// The PIT's input of the I/O APIC: ISA interrupt 0.
    pub timer: u8,
    /// The input that the power registers interrupt by.
    pub sci: u8,
    /// First port of the fixed registers: event block at 0, control block at 4, timer at 8.
    pub power: u16,
    /// SLP_TYP of S5.
    pub s5: u8,
    /// Port and value that reset the machine.
    pub reset: (u16, u8),
    /// The CMOS index of the century.
    pub century: u8,
    /// UARTs, COM1 first.
    pub uarts: &'a [Uart],
}

/// The tables, to be placed at `address`, a multiple of 16 below 4 GiB; the RSDP comes first. None if they would not lie below 4 GiB.
pub fn tables(machine: &Machine<'_>, address: u32) -> Option<Vec<u8>> {
    let mut all = Vec::new();
    let rsdp_size = aligned(Rsdp::len());
    all.resize(rsdp_size, 0);
    let dsdt = append(&mut all, address, &dsdt(machine))?;
    let facs = append(&mut all, address, &facs())?;
    let fadt = append(&mut all, address, &bytes(&fadt(machine, dsdt, facs)))?;
    let madt = append(&mut all, address, madt(machine).as_slice())?;
    let mut xsdt = XSDT::new(OEM, OEM_TABLE, REVISION);
    xsdt.add_entry(fadt.into());
    xsdt.add_entry(madt.into());
    let xsdt = append(&mut all, address, &bytes(&xsdt))?;
    let rsdp = bytes(&Rsdp::new(OEM, xsdt.into()));
    all.get_mut(..rsdp.len())?.copy_from_slice(&rsdp);
    Some(all)
}

/// Appends a table and gives its address.
fn append(all: &mut Vec<u8>, address: u32, table: &[u8]) -> Option<u32> {
    // FACS asks for 64 bytes.
    all.resize(all.len().next_multiple_of(64), 0);
    let at = address.checked_add(u32::try_from(all.len()).ok()?)?;
    at.checked_add(u32::try_from(table.len()).ok()?)?;
    all.extend(table);
    Some(at)
}

const fn aligned(size: usize) -> usize {
    size.next_multiple_of(64)
}

fn bytes(table: &dyn Aml) -> Vec<u8> {
    let mut bytes = Vec::new();
    table.to_aml_bytes(&mut bytes);
    bytes
}

/// "Firmware ACPI Control Structure": nothing but its signature, length and version.
fn facs() -> [u8; 64] {
    let mut facs = [0; 64];
    facs[..4].copy_from_slice(b"FACS");
    facs[4] = 64;
    facs[32] = 2;
    facs
}

fn port(first: u16, bits: u8, size: AccessSize) -> GAS {
    GAS::new(AddressSpace::SystemIo, bits, 0, size, first.into())
}

fn fadt(machine: &Machine<'_>, dsdt: u32, facs: u32) -> impl Aml {
    /// There are devices on ports other than those that ACPI tells of, and no keyboard controller or VGA.
    const LEGACY_DEVICES: u16 = 1 << 0;
    const NO_VGA: u16 = 1 << 2;
    let mut fadt = FADTBuilder::new(OEM, OEM_TABLE, REVISION)
        .dsdt_64(dsdt.into())
        .firmware_ctrl_32(facs)
        .flag(Flags::Wbinvd)
        .flag(Flags::ProcC1)
        .flag(Flags::SlpButton)
        .flag(Flags::FixRtc)
        .flag(Flags::TmrValExt)
        .flag(Flags::ResetRegSup);
    fadt.dsdt = dsdt.into();
    fadt.sci_int = u16::from(machine.sci).into();
    let (event, control, timer) = (machine.power, machine.power.wrapping_add(4), machine.power.wrapping_add(8));
    fadt.pm1a_evt_blk = u32::from(event).into();
    fadt.pm1a_cnt_blk = u32::from(control).into();
    fadt.pm_tmr_blk = u32::from(timer).into();
    (fadt.pm1_evt_len, fadt.pm1_cnt_len, fadt.pm_tmr_len) = (4, 2, 4);
    fadt.x_pm1a_evt_blk = port(event, 32, AccessSize::WordAccess);
    fadt.x_pm1a_cnt_blk = port(control, 16, AccessSize::WordAccess);
    fadt.x_pm_tmr_blk = port(timer, 32, AccessSize::DwordAccess);
    fadt.century = machine.century;
    fadt.iapc_boot_arch = (LEGACY_DEVICES | NO_VGA).into();
    fadt.reset_reg = port(machine.reset.0, 8, AccessSize::ByteAccess);
    fadt.reset_value = machine.reset.1;
    // No C2 and C3.
    fadt.p_lvl2_lat = 101.into();
    fadt.p_lvl3_lat = 1001.into();
    fadt.finalize()
}

/// "Multiple APIC Description Table".
fn madt(machine: &Machine<'_>) -> Sdt {
    /// The 8259s are there, too.
    const PCAT_COMPATIBLE: u32 = 1;
    const ENABLED: u32 = 1;
    /// Active high and edge-triggered, active low and level-triggered ("MPS INTI Flags").
    const EDGE_HIGH: u16 = 0x5;
    const LEVEL_HIGH: u16 = 0xd;
    /// Of all processors, the same flags as the bus, LINT1.
    const NMI: [u8; 6] = [4, 6, 0xff, 0, 0, 1];

    let mut madt = Sdt::new(*b"APIC", HEADER, MADT_REVISION, OEM, OEM_TABLE, REVISION);
    madt.append_slice(&machine.local_apic.to_le_bytes());
    madt.append_slice(&PCAT_COMPATIBLE.to_le_bytes());
    for (uid, &id) in machine.processors.iter().enumerate() {
        madt.append_slice(&[0, 8, uid as u8, id]);
        madt.append_slice(&ENABLED.to_le_bytes());
    }
    let (id, address) = machine.io_apic;
    madt.append_slice(&[1, 12, id, 0]);
    madt.append_slice(&address.to_le_bytes());
    madt.append_slice(&0_u32.to_le_bytes());
    for (isa, input, flags) in [(0, machine.timer, EDGE_HIGH), (machine.sci, machine.sci, LEVEL_HIGH)] {
        madt.append_slice(&[2, 10, 0, isa]);
        madt.append_slice(&u32::from(input).to_le_bytes());
        madt.append_slice(&flags.to_le_bytes());
    }
    madt.append_slice(&NMI);
    madt
}

/// "Differentiated System Description Table".
fn dsdt(machine: &Machine<'_>) -> Vec<u8> {
    let mut dsdt = Sdt::new(*b"DSDT", HEADER, DSDT_REVISION, OEM, OEM_TABLE, REVISION);
    let s5 = Package::new(vec![&machine.s5, &machine.s5, &aml::ZERO, &aml::ZERO]);
    dsdt.append_slice(&bytes(&Name::new(Path::new("_S5_"), &s5)));
    let uarts: Vec<_> = machine.uarts.iter().enumerate().map(|(i, uart)| serial(i, *uart)).collect();
    for uart in uarts {
        dsdt.append_slice(&uart);
    }
    dsdt.update_checksum();
    dsdt.as_slice().to_vec()
}

fn serial(number: usize, uart: Uart) -> Vec<u8> {
    let ports = IO::new(uart.port, uart.port, 1, 8);
    let interrupt = Interrupt::new(true, true, false, false, uart.interrupt.into());
    let resources = ResourceTemplate::new(vec![&ports, &interrupt]);
    let (uid, id) = (number as u8, EISAName::new("PNP0501"));
    let id = Name::new(Path::new("_HID"), &id);
    let uid = Name::new(Path::new("_UID"), &uid);
    let resources = Name::new(Path::new("_CRS"), &resources);
    let device = Device::new(Path::new(&format!("COM{}", number % 9 + 1)), vec![&id, &uid, &resources]);
    bytes(&Scope::new(Path::new("_SB_"), vec![&device]))
}
