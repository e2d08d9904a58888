//! Figures that firmware keeps in parts.

use stile_firmware::figures::{Fault, LONGEST, MOST_PARTS, PART, join, part};

use crate::input::Input;
use crate::marks::reach;
use crate::target::Target;

/// Bytes of a part before its piece of the document, and of these the checksum's place.
const HEADER: usize = 12;
const CHECKSUM: std::ops::Range<usize> = 8..12;

/// Length of a part that firmware can't read.
const UNREADABLE: u16 = 0xffff;

/// The input: whether checksums are corrected, the room for the document, and the parts, each after its length.
pub const FIGURES: Target =
    Target { name: "figures", run: figures, seeds, mutations: 4000, marks: &["none", "document", "damaged", "unreadable"] };

fn seeds() -> Vec<Vec<u8>> {
    let of = |document: &[u8], room: u16| {
        let parts = (0..).map_while(|index| part(document, index));
        let parts = parts.flat_map(|part| [&(part.len() as u16).to_le_bytes()[..], &part].concat());
        [1].into_iter().chain(room.to_le_bytes()).chain(parts).collect::<Vec<u8>>()
    };
    let long = b"{\n  \"stile\": \"0\"\n}\n".repeat(130);
    let unreadable = [&of(b"{}\n", 9)[..], &UNREADABLE.to_le_bytes()].concat();
    vec![of(b"{}\n", 9), of(&long, LONGEST as u16), of(&long, 1000), unreadable, vec![0, 9, 0, 0xff, 0xff], vec![]]
}

fn figures(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let (is_corrected, room) = (input.byte() & 1 != 0, usize::from(input.half()).min(LONGEST));
    let mut parts = Vec::new();
    while !input.is_empty() {
        let length = input.half();
        parts.push((length != UNREADABLE).then(|| input.take(length.into()).to_vec()));
    }
    if is_corrected {
        let pieces: Vec<u8> = parts.iter().flatten().filter_map(|part| part.get(HEADER..)).flatten().copied().collect();
        if let Some(right) = part(&pieces, 0) {
            let places = parts.iter_mut().flatten().filter_map(|part| part.get_mut(CHECKSUM));
            places.for_each(|place| place.copy_from_slice(&right[CHECKSUM]));
        }
    }
    let mut reads = 0;
    let read = |index: usize, to: &mut [u8; PART]| {
        assert_eq!(index, reads, "parts are read once, in order");
        reads += 1;
        match parts.get(index) {
            None => Ok(None),
            Some(None) => Err(Fault::Unreadable),
            Some(Some(part)) => {
                to.iter_mut().zip(part).for_each(|(to, &byte)| *to = byte);
                Ok(Some(part.len()))
            }
        }
    };
    let mut to = vec![0; room];
    let result = join(read, &mut to);
    assert!(reads <= MOST_PARTS);
    match result {
        Ok(None) => {
            reach("none");
            assert!(parts.is_empty());
        }
        Ok(Some(document)) => {
            reach("document");
            assert!(document.iter().all(|byte| matches!(byte, b'\n' | b' '..=b'~')));
            for (index, stored) in parts[..reads].iter().enumerate() {
                assert_eq!(part(document, index).as_deref(), stored.as_deref());
            }
            assert!(part(document, reads).is_none());
        }
        Err(Fault::Damaged) => reach("damaged"),
        Err(Fault::Unreadable) => {
            reach("unreadable");
            assert!(parts[reads - 1].is_none());
        }
    }
}
