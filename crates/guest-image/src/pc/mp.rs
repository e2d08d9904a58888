//! Tables with processors and interrupt controllers for kernels without ACPI (Intel, *MultiProcessor
//! Specification* 1.4).

use alloc::vec::Vec;

use stile_blob::Topology;
use stile_board::pc;

/// Address of the tables, below those of ACPI: the floating pointer, which is searched for from here to 1
/// MiB, followed by the configuration table.
pub const TABLES: u64 = 0xf_0000;

/// The most vCPUs that the tables have room for. Kernels that know more find them by ACPI.
const MOST: usize = 64;

const POINTER_LEN: usize = 16;
const REVISION: u8 = 4;
const LOCAL_APIC_VERSION: u8 = 0x14;
const IO_APIC_VERSION: u8 = 0x20;
/// The identifiers of the one bus and the one I/O APIC.
const ISA: u8 = 0;
const IO_APIC: u8 = 0;
/// Number of lines of that bus; the third is the cascade of the second 8259.
const LINES: u8 = 16;
const CASCADE: u8 = 2;
/// Types of interrupts ("Interrupt Type Values").
const INTERRUPT: u8 = 0;
const NMI: u8 = 1;
const EXTERNAL: u8 = 3;
/// Conforms to the bus; and level-sensitive, active high.
const CONFORMS: u16 = 0;
const LEVEL: u16 = 0b1101;

/// Makes the bytes of a structure add up to 0 by the one at `at`.
fn sum_up(bytes: &mut [u8], at: usize) {
    bytes[at] = bytes.iter().fold(0u8, |sum, byte| sum.wrapping_sub(*byte));
}

/// The tables of a machine with the vCPUs of a topology, of which they list the first 64 (`MOST`), located at [`TABLES`].
pub fn tables(topology: Topology) -> Vec<u8> {
    let ids = (0..topology.vcpus().min(MOST)).filter_map(|vcpu| u8::try_from(topology.apic_id(vcpu)).ok()).filter(|&id| id < u8::MAX);
    let mut pointer = b"_MP_".to_vec();
    pointer.extend((TABLES as u32 + POINTER_LEN as u32).to_le_bytes());
    // One paragraph; with a configuration table, and interrupts through APICs from the start.
    pointer.extend([1, REVISION]);
    pointer.resize(POINTER_LEN, 0);
    sum_up(&mut pointer, 10);
    pointer.extend(configuration(ids));
    pointer
}

/// "MP Configuration Table Header", and its entries.
fn configuration(ids: impl Iterator<Item = u8>) -> Vec<u8> {
    let entries = entries(ids);
    let mut table = b"PCMP\0\0".to_vec();
    table.extend([REVISION, 0]);
    table.extend(b"STILE   PC          ");
    // No table of the manufacturer's.
    table.extend([0; 6]);
    table.extend((entries.len() as u16).to_le_bytes());
    table.extend((pc::LOCAL_APIC as u32).to_le_bytes());
    table.extend([0; 4]);
    table.extend(entries.into_iter().flatten());
    let length = table.len() as u16;
    table[4..6].copy_from_slice(&length.to_le_bytes());
    sum_up(&mut table, 7);
    table
}

fn entries(ids: impl Iterator<Item = u8>) -> Vec<Vec<u8>> {
    const ENABLED: u8 = 1 << 0;
    const FIRST: u8 = 1 << 1;
    let processor = |id: u8| {
        let flags = if id == 0 { ENABLED | FIRST } else { ENABLED };
        // CPUID has the processor's type.
        [&[0, id, LOCAL_APIC_VERSION, flags][..], &[0; 16]].concat()
    };
    let io_apic = [&[2, IO_APIC, IO_APIC_VERSION, ENABLED][..], &(pc::IO_APIC as u32).to_le_bytes()].concat();
    let line = |line: u8| {
        let (input, flags) = match line {
            0 => (pc::TIMER_INPUT as u8, CONFORMS),
            line if u32::from(line) == pc::ACPI_INPUT => (line, LEVEL),
            line => (line, CONFORMS),
        };
        assignment(3, INTERRUPT, flags, [ISA, line, IO_APIC, input])
    };
    let mut entries: Vec<_> = ids.map(processor).collect();
    entries.push([&[1, ISA][..], b"ISA   "].concat());
    entries.push(io_apic);
    entries.extend((0..LINES).filter(|&line| line != CASCADE).map(line));
    // The 8259s on LINT0, and NMIs on LINT1, of all.
    entries.extend([(EXTERNAL, 0), (NMI, 1)].map(|(kind, pin)| assignment(4, kind, CONFORMS, [ISA, 0, 0xff, pin])));
    entries
}

/// "I/O Interrupt Assignment Entries" and "Local Interrupt Assignment Entries": from a bus's line to an APIC's pin.
fn assignment(entry: u8, kind: u8, flags: u16, way: [u8; 4]) -> Vec<u8> {
    [&[entry, kind][..], &flags.to_le_bytes(), &way].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pointer_refers_to_the_entries() {
        let all = tables(Topology { sockets: 1, cores: 1, threads: 3 });
        assert!(TABLES as usize + all.len() <= super::super::acpi::TABLES as usize);
        let sum = |bytes: &[u8]| bytes.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte));
        assert_eq!((&all[..4], sum(&all[..16]), all[4..8].to_vec()), (b"_MP_".as_slice(), 0, 0xf_0010u32.to_le_bytes().to_vec()));
        let table = &all[16..];
        assert_eq!((&table[..4], sum(table)), (b"PCMP".as_slice(), 0));
        assert_eq!(usize::from(u16::from_le_bytes([table[4], table[5]])), table.len());
        assert_eq!(table[36..40], 0xfee0_0000u32.to_le_bytes());
        // Each entry's type determines its length.
        let (mut at, mut kinds) = (44, [0; 5]);
        while at < table.len() {
            kinds[usize::from(table[at])] += 1;
            at += if table[at] == 0 { 20 } else { 8 };
        }
        assert_eq!((at, kinds), (table.len(), [3, 1, 1, 15, 2]));
        assert_eq!(u16::from_le_bytes([table[34], table[35]]), 22);
        assert_eq!((table[44 + 3], table[44 + 20 + 3]), (3, 1));
    }
}
