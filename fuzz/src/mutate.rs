//! Deterministic mutations, for tests without coverage.

use crate::target::LONGEST;

/// Xorshift (Marsaglia 2003): the same numbers in every run.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Numbers that follow from `seed`.
    pub const fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    /// The next number.
    pub const fn number(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `limit`; 0 if that is 0.
    pub fn below(&mut self, limit: usize) -> usize {
        (self.number() >> 32) as usize % limit.max(1)
    }
}

/// Changes one to four places of `input`; some changes copy from `other`.
pub fn mutate(input: &[u8], other: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = input.to_vec();
    for _ in 0..=random.below(4) {
        change(&mut bytes, other, random);
    }
    bytes.truncate(LONGEST);
    bytes
}

fn change(bytes: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    let at = random.below(bytes.len());
    let len = 1 + random.below(8);
    let end = (at + len).min(bytes.len());
    match random.below(8) {
        0 => bytes.truncate(at),
        1 => drop(bytes.drain(at.min(end)..end)),
        2 => drop(bytes.splice(at..at, (0..len).map(|_| random.number() as u8))),
        3 => {
            let from = random.below(other.len());
            let part = &other[from..(from + 4 * len).min(other.len())];
            bytes.splice(at..(at + part.len()).min(bytes.len()), part.iter().copied());
        }
        4 => bytes.get_mut(at..end).unwrap_or_default().fill([0, 0xff, 0x7f, 0x80, 1][random.below(5)]),
        5 => {
            let part = bytes[at.min(end)..end].to_vec();
            let to = random.below(bytes.len());
            bytes.splice(to..to, part);
        }
        _ => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = if random.below(2) == 0 { *byte ^ 1 << random.below(8) } else { random.number() as u8 };
            }
        }
    }
}
