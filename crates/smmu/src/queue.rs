//! Indexes of the circular queues (3.5.1): below the size, with a wrap bit above.

/// A queue of `1 << log2` entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queue {
    /// Logarithm of the number of entries: 0 to 19.
    pub log2: u32,
}

impl Queue {
    /// Entry that an index names.
    pub const fn slot(self, index: u32) -> usize {
        (index & ((1 << self.log2) - 1)) as usize
    }

    /// The index after another one.
    pub const fn next(self, index: u32) -> u32 {
        index.wrapping_add(1) & ((2 << self.log2) - 1)
    }

    /// Whether nothing is between producer and consumer.
    pub const fn is_empty(self, producer: u32, consumer: u32) -> bool {
        let mask = (2 << self.log2) - 1;
        producer & mask == consumer & mask
    }
}
