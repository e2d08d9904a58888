//! The guest's ACPI tables: hardware-reduced (ACPI Specification 6.5, "Hardware-Reduced ACPI"), so that there is no PIT, no 8259
//! and no fixed register that a guest would look for.

use acpi_tables::aml::{Device, EISAName, IO, Interrupt, Name, Package, Path, ResourceTemplate};
use acpi_tables::fadt::{FADTBuilder, Flags};
use acpi_tables::gas::{AccessSize, AddressSpace, GAS};
use acpi_tables::madt::{EnabledStatus, IoApic, LocalInterruptController, MADT, ProcessorLocalApic};
use acpi_tables::rsdp::Rsdp;
use acpi_tables::sdt::Sdt;
use acpi_tables::xsdt::XSDT;
use acpi_tables::{Aml, AmlSink};
use stile_board::pc;

/// Where the tables go, the root pointer first: where a BIOS has them.
pub const TABLES: u64 = 0xe_0000;
/// What kernels know the maker by.
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

/// The tables of a machine with so many vCPUs, as they lie at [`TABLES`].
pub fn tables(vcpus: u8) -> Vec<u8> {
    let mut all = vec![0; Rsdp::len().next_multiple_of(ALIGN)];
    let mut put = |table: &[u8]| {
        let at = TABLES + all.len() as u64;
        all.extend(table);
        all.resize(all.len().next_multiple_of(ALIGN), 0);
        at
    };
    let dsdt = put(dsdt().as_slice());
    let madt = put(&bytes(&madt(vcpus)));
    let sleep = |port: u16| GAS::new(AddressSpace::SystemIo, 8, 0, AccessSize::ByteAccess, port.into());
    let mut fadt = FADTBuilder::new(OEM, TABLE, REVISION).dsdt_64(dsdt).flag(Flags::HwReducedAcpi).flag(Flags::ResetRegSup);
    fadt.sleep_control_reg = sleep(pc::port::SLEEP_CONTROL);
    fadt.sleep_status_reg = sleep(pc::port::SLEEP_STATUS);
    fadt.reset_reg = sleep(pc::port::RESET);
    fadt.reset_value = pc::port::RESET_VALUE;
    // "IA-PC Boot Architecture Flags": no VGA.
    fadt.iapc_boot_arch = (1 << 2).into();
    let fadt = put(&bytes(&fadt.finalize()));
    let mut xsdt = XSDT::new(OEM, TABLE, REVISION);
    xsdt.add_entry(fadt);
    xsdt.add_entry(madt);
    let xsdt = put(&bytes(&xsdt));
    let rsdp = bytes(&Rsdp::new(OEM, xsdt));
    all[..rsdp.len()].copy_from_slice(&rsdp);
    all
}

/// Interrupt controllers: a local APIC for each vCPU, and one I/O APIC.
fn madt(vcpus: u8) -> MADT {
    let mut madt = MADT::new(OEM, TABLE, REVISION, LocalInterruptController::Address(pc::LOCAL_APIC as u32));
    for vcpu in 0..vcpus {
        madt.add_structure(ProcessorLocalApic::new(vcpu, vcpu, EnabledStatus::Enabled));
    }
    madt.add_structure(IoApic::new(0, pc::IO_APIC as u32, 0));
    madt
}

/// The machine's one device that can't be found otherwise, and how it is turned off.
fn dsdt() -> Sdt {
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
    dsdt
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(bytes: &[u8]) -> u8 {
        bytes.iter().fold(0, |sum, byte| sum.wrapping_add(*byte))
    }

    /// From the root to each table: signatures, lengths and sums.
    #[test]
    fn the_tables_lead_to_each_other() {
        let all = tables(3);
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
        table(pointer(fadt + 140), b"DSDT");
        // Three local APICs and an I/O APIC.
        assert_eq!(word(madt + 4), 44 + 3 * 8 + 12);
        assert!(all.len() < 0x1_0000);
    }
}
