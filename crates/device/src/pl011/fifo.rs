//! The receive FIFO.

/// A ring of bytes that never overruns: a byte pushed when it is full is dropped.
#[derive(Clone, Debug)]
pub(super) struct Fifo {
    bytes: [u8; Self::DEPTH],
    /// Where the oldest byte stands.
    head: u8,
    len: u8,
}

impl Fifo {
    /// How many bytes it holds. A power of two that `u8` can count.
    pub(super) const DEPTH: usize = 32;

    pub(super) const fn new() -> Self {
        Self { bytes: [0; Self::DEPTH], head: 0, len: 0 }
    }

    pub(super) const fn len(&self) -> usize {
        self.len as usize
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn clear(&mut self) {
        self.len = 0;
    }

    pub(super) fn push(&mut self, byte: u8) {
        if self.len() < Self::DEPTH {
            self.bytes[(self.head as usize + self.len()) % Self::DEPTH] = byte;
            self.len += 1;
        }
    }

    pub(super) fn pop(&mut self) -> Option<u8> {
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
            let mut fifo = Fifo::new();
            let mut model = VecDeque::new();
            for step in steps {
                match step {
                    Some(byte) => {
                        fifo.push(byte);
                        if model.len() < Fifo::DEPTH {
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
