//! Values from a fuzzer's bytes.

/// The rest of an input. Reads beyond the end yield zeros.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    /// All of these bytes.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Whether all bytes were read.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes the next `count` bytes, or the remaining ones if fewer.
    pub fn take(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// The bytes that are left.
    pub fn rest(&mut self) -> &'a [u8] {
        self.take(usize::MAX)
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        let taken = self.take(N);
        let mut bytes = [0; N];
        bytes[..taken.len()].copy_from_slice(taken);
        bytes
    }

    /// A byte.
    pub fn byte(&mut self) -> u8 {
        u8::from_le_bytes(self.array())
    }

    /// Two bytes, little-endian.
    pub fn half(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    /// Four bytes, little-endian.
    pub fn word(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    /// Eight bytes, little-endian.
    pub fn double(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    /// Eight bytes, most of them 0 or 0xff: the first byte selects them. Takes fewer bytes of the input for likely
    /// values.
    pub fn value(&mut self) -> u64 {
        match self.byte() {
            kind @ 0..64 => 1 << kind,
            kind @ 64..128 => u64::MAX << (kind - 64),
            128 => 0,
            129 => u64::MAX,
            130..160 => self.byte().into(),
            160..192 => self.half().into(),
            192..224 => self.word().into(),
            _ => self.double(),
        }
    }

    /// A bit.
    pub fn bit(&mut self) -> bool {
        self.byte() & 1 != 0
    }

    /// A number below `limit`, which is 1 to 65536.
    pub fn below(&mut self, limit: usize) -> usize {
        if limit <= 256 { usize::from(self.byte()) % limit } else { usize::from(self.half()) % limit }
    }

    /// A value out of `choices`, which is not empty.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }
}
