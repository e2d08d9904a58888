//! Files of sections: round trips, every truncation, every flipped bit.

use proptest::prelude::*;
use stile_snapshot::encode;
use stile_snapshot::section::{Arch, Checker, End, Error, Header, Kind, MAGIC, PREFIX, VERSION, package_checksum, prefix};

/// Appends a section.
fn add(file: &mut Vec<u8>, position: &mut u32, kind: Kind, payload: &[u8]) {
    file.extend(prefix(kind, *position, payload));
    file.extend(payload);
    *position += 1;
}

fn encoded(record: &impl serde::Serialize) -> Vec<u8> {
    let mut buffer = [0; 64];
    let length = encode(record, &mut buffer).unwrap();
    buffer[..length].to_vec()
}

fn header(version: u32, package: &[u8]) -> Vec<u8> {
    let config = package_checksum(package);
    encoded(&Header { magic: MAGIC, version, arch: Arch::Aarch64, vcpus: 2, memory: 64 << 20, config })
}

/// A file with these states and pieces.
fn file(package: &[u8], states: &[Vec<u8>], pieces: &[Vec<u8>]) -> Vec<u8> {
    let (mut file, mut position) = (Vec::new(), 0);
    add(&mut file, &mut position, Kind::Header, &header(VERSION, package));
    add(&mut file, &mut position, Kind::Guest, b"{}");
    add(&mut file, &mut position, Kind::Package, package);
    states.iter().for_each(|state| add(&mut file, &mut position, Kind::State, state));
    pieces.iter().for_each(|piece| add(&mut file, &mut position, Kind::Memory, piece));
    let end = End { states: states.len() as u32, pieces: pieces.len() as u32, pages: pieces.len() as u64 };
    add(&mut file, &mut position, Kind::End, &encoded(&end));
    file
}

/// Reads a whole file: its sections.
fn read(mut file: &[u8]) -> Result<Vec<(Kind, Vec<u8>)>, Error> {
    let (mut checker, mut sections) = (Checker::new(), Vec::new());
    while !checker.is_complete() {
        let (prefix, rest) = file.split_first_chunk::<PREFIX>().ok_or(Error::Truncated)?;
        let (_, length) = checker.begin(prefix)?;
        let payload = rest.get(..length as usize).ok_or(Error::Truncated)?;
        let kind = checker.end(prefix, payload, 1)?;
        sections.push((kind, payload.to_vec()));
        file = &rest[length as usize..];
    }
    if file.is_empty() { Ok(sections) } else { Err(Error::Disorder) }
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(any::<u8>(), 0..20)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn every_truncation_and_flipped_bit_is_an_error(
        package in bytes(),
        states in proptest::collection::vec(bytes(), 1..4),
        pieces in proptest::collection::vec(bytes(), 0..4),
    ) {
        let file = file(&package, &states, &pieces);
        let sections = read(&file).unwrap();
        let of = |kind| sections.iter().filter(move |section| section.0 == kind).map(|section| section.1.clone());
        prop_assert!(of(Kind::Package).eq([package]) && of(Kind::State).eq(states) && of(Kind::Memory).eq(pieces));
        for length in 0..file.len() {
            prop_assert!(read(&file[..length]).is_err(), "{length} bytes");
        }
        let mut flipped = file.clone();
        for bit in 0..8 * file.len() {
            flipped[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(read(&flipped).is_err(), "bit {bit}");
            flipped[bit / 8] ^= 1 << (bit % 8);
        }
        prop_assert_eq!(read(&[&file[..], b"x"].concat()), Err(Error::Disorder));
    }

    #[test]
    fn garbage_is_no_snapshot(garbage in proptest::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(read(&garbage).is_err());
    }
}

#[test]
fn sections_are_those_of_one_snapshot_in_order() {
    let refused = |sections: &[(Kind, &[u8])]| {
        let (mut file, mut position) = (Vec::new(), 0);
        sections.iter().for_each(|(kind, payload)| add(&mut file, &mut position, *kind, payload));
        read(&file).unwrap_err()
    };
    let (head, end) = (header(VERSION, b"p"), encoded(&End { states: 1, pieces: 0, pages: 0 }));
    let (header, guest) = ((Kind::Header, &head[..]), (Kind::Guest, &b"{}"[..]));
    let (package, state, end) = ((Kind::Package, &b"p"[..]), (Kind::State, &b"s"[..]), (Kind::End, &end[..]));
    assert_eq!(refused(&[guest]), Error::NoSnapshot);
    assert_eq!(refused(&[header, package]), Error::Disorder);
    assert_eq!(refused(&[header, guest, (Kind::Package, b"another"), state, end]), Error::Disorder);
    assert_eq!(refused(&[header, guest, package, end]), Error::Disorder, "no state");
    assert_eq!(refused(&[header, guest, package, state, state, end]), Error::Disorder, "another number of states");
    assert_eq!(refused(&[header, guest, package, state]), Error::Truncated);
    let memory = (Kind::Memory, &b"m"[..]);
    assert_eq!(refused(&[header, guest, package, memory, state, memory]), Error::Truncated, "a VM that ran meanwhile");
    let other = crate::header(VERSION + 1, b"p");
    assert_eq!(refused(&[(Kind::Header, &other), guest]), Error::Version(VERSION + 1));
    // Two files of which sections were exchanged.
    let files = [b"1".to_vec(), b"2".to_vec()].map(|state| file(b"p", &[state.clone(), state], &[]));
    assert_eq!(files[0].len(), files[1].len());
    let swapped = [&file(b"p", &[b"1".to_vec()], &[])[..], &files[1]].concat();
    assert_eq!(read(&swapped), Err(Error::Disorder));
}
