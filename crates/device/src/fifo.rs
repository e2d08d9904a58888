//! A UART's receive FIFO.

/// A ring buffer of bytes. A byte pushed when it is full is dropped.
#[derive(Clone, Debug)]
pub(crate) struct Fifo<const DEPTH: usize> {
    bytes: [u8; DEPTH],
    /// Index of the oldest byte.
    head: u8,
    len: u8,
}

impl<const DEPTH: usize> Fifo<DEPTH> {
    /// Capacity in bytes: a power of two, at most 128.
    pub(crate) const DEPTH: usize = DEPTH;

    pub(crate) const fn new() -> Self {
        const { assert!(DEPTH.is_power_of_two() && DEPTH <= 128) };
        Self { bytes: [0; DEPTH], head: 0, len: 0 }
    }

    pub(crate) const fn len(&self) -> usize {
        self.len as usize
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn clear(&mut self) {
        self.len = 0;
    }

    pub(crate) fn push(&mut self, byte: u8) {
        if self.len() < Self::DEPTH {
            self.bytes[(self.head as usize + self.len()) % Self::DEPTH] = byte;
            self.len += 1;
        }
    }

    pub(crate) fn pop(&mut self) -> Option<u8> {
        if self.is_empty() {
            return None;
        }
        let byte = self.bytes[self.head as usize % Self::DEPTH];
        self.head = (self.head + 1) % Self::DEPTH as u8;
        self.len -= 1;
        Some(byte)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    proptest! {
        /// `Some` pushes a byte, `None` pops one.
        #[test]
        fn behaves_as_a_bounded_queue(steps in prop::collection::vec(any::<Option<u8>>(), 0..200)) {
            let mut fifo = Fifo::<32>::new();
            let mut model = VecDeque::new();
            for step in steps {
                match step {
                    Some(byte) => {
                        fifo.push(byte);
                        if model.len() < Fifo::<32>::DEPTH {
                            model.push_back(byte);
                        }
                    }
                    None => assert_eq!(fifo.pop(), model.pop_front()),
                }
                assert_eq!(fifo.len(), model.len());
            }
        }
    }
}
