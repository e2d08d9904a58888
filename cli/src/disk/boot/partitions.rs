//! Partition tables: GPT (UEFI Specification 2.10, 5.3) and MBR with logical partitions. Untrusted input.

use std::io;

use crc::{CRC_32_ISO_HDLC, Crc};

use crate::disk::contents::Contents;

/// Bytes of a sector, as QEMU's virtio disks have them.
const SECTOR: u64 = 512;
/// Maximum number of partitions that are examined. UEFI reserves space for 128 by default.
const MOST: usize = 256;

/// A partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partition {
    /// Its number, as Linux counts: `/dev/vda1`.
    pub number: u32,
    /// Its first byte on the disk.
    pub start: u64,
    /// Its bytes.
    pub length: u64,
    /// Linux's name of it: `root=PARTUUID=...`.
    pub id: String,
}

/// Reads the partition table of a disk; none if the disk has none.
///
/// # Errors
/// The disk can't be read.
pub fn partitions(disk: &mut Contents) -> io::Result<Option<Vec<Partition>>> {
    let length = disk.length();
    if length < 2 * SECTOR {
        return Ok(None);
    }
    let mut first = [0; SECTOR as usize];
    disk.read(0, &mut first)?;
    if first[510..] != [0x55, 0xaa] {
        return Ok(None);
    }
    let protective = entries(&first).any(|entry| entry.kind == 0xee);
    let found = match protective {
        // The second table is the last sector's.
        true => match gpt(disk, 1)? {
            Some(found) => found,
            None => gpt(disk, length / SECTOR - 1)?.unwrap_or_default(),
        },
        false => mbr(disk, &first)?,
    };
    let fits = |partition: &Partition| {
        partition.length > 0 && partition.start.checked_add(partition.length).is_some_and(|end| end <= length && partition.start > 0)
    };
    Ok(Some(found.into_iter().filter(fits).collect()))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_le_bytes)
}

/// The GPT whose header is in `sector`, if it is valid.
fn gpt(disk: &mut Contents, sector: u64) -> io::Result<Option<Vec<Partition>>> {
    let crc = Crc::<u32>::new(&CRC_32_ISO_HDLC);
    let mut header = [0; SECTOR as usize];
    disk.read(sector * SECTOR, &mut header)?;
    let size = u32_at(&header, 12) as usize;
    if &header[..8] != b"EFI PART" || !(92..=header.len()).contains(&size) {
        return Ok(None);
    }
    let sum = u32_at(&header, 16);
    header[16..20].fill(0);
    let (count, entry) = (u32_at(&header, 80) as usize, u32_at(&header, 84) as usize);
    if crc.checksum(&header[..size]) != sum || count > MOST || !(128..=4096).contains(&entry) {
        return Ok(None);
    }
    let Some(at) = u64_at(&header, 72).checked_mul(SECTOR) else { return Ok(None) };
    let mut table = vec![0; count * entry];
    if at.checked_add(table.len() as u64).is_none_or(|end| end > disk.length()) {
        return Ok(None);
    }
    disk.read(at, &mut table)?;
    if crc.checksum(&table) != u32_at(&header, 88) {
        return Ok(None);
    }
    let partition = |(index, entry): (usize, &[u8])| {
        let (first, last) = (u64_at(entry, 32), u64_at(entry, 40));
        let used = entry[..16].iter().any(|byte| *byte != 0);
        let sectors = last.checked_sub(first)?.checked_add(1).filter(|_| used)?;
        Some(Partition {
            number: index as u32 + 1,
            start: first.checked_mul(SECTOR)?,
            length: sectors.checked_mul(SECTOR)?,
            id: guid(&entry[16..32]),
        })
    };
    Ok(Some(table.chunks_exact(entry).enumerate().filter_map(partition).collect()))
}

/// A GUID as text: its first three numbers are little-endian.
fn guid(bytes: &[u8]) -> String {
    let hex = |order: &[usize]| order.iter().map(|at| format!("{:02x}", bytes[*at])).collect::<String>();
    [&[3, 2, 1, 0][..], &[5, 4], &[7, 6], &[8, 9], &[10, 11, 12, 13, 14, 15]].map(hex).join("-")
}

/// An entry of an MBR.
struct Entry {
    kind: u8,
    start: u64,
    sectors: u64,
}

/// The four entries of a sector with a table.
fn entries(sector: &[u8; SECTOR as usize]) -> impl Iterator<Item = Entry> {
    sector[446..510].chunks_exact(16).map(|entry| Entry {
        kind: entry[4],
        start: u32_at(entry, 8).into(),
        sectors: u32_at(entry, 12).into(),
    })
}

/// Whether this is the type of an extended partition, which contains logical ones.
fn is_extended(kind: u8) -> bool {
    [0x05, 0x0f, 0x85].contains(&kind)
}

fn mbr(disk: &mut Contents, first: &[u8; SECTOR as usize]) -> io::Result<Vec<Partition>> {
    let signature = u32_at(first, 440);
    let partition = |number: u32, start: u64, sectors: u64| Partition {
        number,
        start: start * SECTOR,
        length: sectors * SECTOR,
        id: format!("{signature:08x}-{number:02x}"),
    };
    let mut found = Vec::new();
    let mut extended = None;
    for (number, entry) in (1..).zip(entries(first)) {
        match entry.kind {
            0 => {}
            kind if is_extended(kind) => extended = extended.or(Some(entry.start)),
            _ => found.push(partition(number, entry.start, entry.sectors)),
        }
    }
    // Each logical partition has a table, which also leads to the next one.
    let base = extended.unwrap_or(0);
    let mut next = extended.map(|_| 0);
    for number in 5..MOST as u32 {
        let Some(table) = next.map(|offset| base + offset) else { break };
        let mut sector = [0; SECTOR as usize];
        if (table + 1) * SECTOR > disk.length() {
            break;
        }
        disk.read(table * SECTOR, &mut sector)?;
        if sector[510..] != [0x55, 0xaa] {
            break;
        }
        next = None;
        for entry in entries(&sector).take(2) {
            match entry.kind {
                0 => {}
                kind if is_extended(kind) => next = Some(entry.start),
                _ => found.push(partition(number, table + entry.start, entry.sectors)),
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
pub(super) mod tests {
    use std::io::Write;

    use super::*;

    fn disk(bytes: &[u8]) -> Contents {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        Contents::raw(file).unwrap()
    }

    fn entry(kind: u8, start: u32, sectors: u32) -> Vec<u8> {
        [&[0, 0, 0, 0, kind, 0, 0, 0][..], &start.to_le_bytes(), &sectors.to_le_bytes()].concat()
    }

    fn sector(entries: &[Vec<u8>]) -> Vec<u8> {
        let mut sector = vec![0; 512];
        sector[440..444].copy_from_slice(&0xdead_beef_u32.to_le_bytes());
        let entries = entries.concat();
        sector[446..446 + entries.len()].copy_from_slice(&entries);
        sector[510..].copy_from_slice(&[0x55, 0xaa]);
        sector
    }

    /// Builds a disk of `sectors` sectors with a GPT and these partitions, each given by its first and last sector.
    pub fn with_gpt(sectors: usize, partitions: &[(u64, u64)]) -> Vec<u8> {
        let crc = Crc::<u32>::new(&CRC_32_ISO_HDLC);
        let mut bytes = vec![0; sectors * 512];
        bytes[..512].copy_from_slice(&sector(&[entry(0xee, 1, u32::MAX)]));
        let mut table = vec![0; 128 * 128];
        for (index, (first, last)) in partitions.iter().enumerate() {
            let entry = &mut table[index * 128..][..128];
            entry[..16].fill(7);
            entry[16..32].copy_from_slice(&(0..16).map(|n| n + index as u8).collect::<Vec<_>>());
            entry[32..40].copy_from_slice(&first.to_le_bytes());
            entry[40..48].copy_from_slice(&last.to_le_bytes());
        }
        for (at, table_at) in [(1, 2), (sectors - 1, sectors - 33)] {
            let mut header = vec![0; 512];
            header[..8].copy_from_slice(b"EFI PART");
            header[12..16].copy_from_slice(&92_u32.to_le_bytes());
            header[72..80].copy_from_slice(&(table_at as u64).to_le_bytes());
            header[80..84].copy_from_slice(&128_u32.to_le_bytes());
            header[84..88].copy_from_slice(&128_u32.to_le_bytes());
            header[88..92].copy_from_slice(&crc.checksum(&table).to_le_bytes());
            let sum = crc.checksum(&header[..92]);
            header[16..20].copy_from_slice(&sum.to_le_bytes());
            bytes[at * 512..][..512].copy_from_slice(&header);
            bytes[table_at * 512..][..table.len()].copy_from_slice(&table);
        }
        bytes
    }

    #[test]
    fn a_gpt_is_read_from_either_copy() {
        let mut bytes = with_gpt(200, &[(40, 49), (50, 99), (100, 500)]);
        let found = partitions(&mut disk(&bytes)).unwrap().unwrap();
        let places: Vec<_> = found.iter().map(|partition| (partition.number, partition.start / 512, partition.length / 512)).collect();
        assert_eq!(places, [(1, 40, 10), (2, 50, 50)], "the third one is not on the disk");
        assert_eq!(found[0].id, "03020100-0504-0706-0809-0a0b0c0d0e0f");
        bytes[512 + 80] ^= 1;
        assert_eq!(partitions(&mut disk(&bytes)).unwrap().unwrap(), found);
        bytes[199 * 512 + 80] ^= 1;
        assert_eq!(partitions(&mut disk(&bytes)).unwrap(), Some(Vec::new()));
    }

    #[test]
    fn primary_and_logical_partitions_are_read() {
        let mut bytes = sector(&[entry(0x83, 2, 3), entry(5, 10, 50)]);
        bytes.resize(100 * 512, 0);
        bytes[10 * 512..11 * 512].copy_from_slice(&sector(&[entry(0x83, 1, 4), entry(5, 20, 10)]));
        // The second one leads back to itself.
        bytes[30 * 512..31 * 512].copy_from_slice(&sector(&[entry(0x83, 2, 5), entry(5, 20, 10)]));
        let found = partitions(&mut disk(&bytes)).unwrap().unwrap();
        assert_eq!(found.len(), 1 + MOST - 5);
        let places: Vec<_> = found.iter().map(|partition| (partition.number, partition.start / 512, partition.length / 512)).collect();
        assert_eq!(places[..4], [(1, 2, 3), (5, 11, 4), (6, 32, 5), (7, 32, 5)]);
        assert_eq!(found[1].id, "deadbeef-05");
    }

    #[test]
    fn disks_without_a_table_have_none() {
        assert_eq!(partitions(&mut disk(&[0; 4096])).unwrap(), None);
        assert_eq!(partitions(&mut disk(&[0; 100])).unwrap(), None);
    }
}
