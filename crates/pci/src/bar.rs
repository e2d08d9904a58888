//! Base address registers: what a function decodes (PCI Local Bus Specification, 6.2.5.1).

use crate::register::{BAR0, COMMAND};
use crate::{ConfigSpace, PAGE};

/// The number of base address registers of a type 0 header.
pub const BARS: usize = 6;

/// A memory BAR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bar {
    /// Bytes that it decodes: a power of two.
    pub size: u64,
    /// Whether it is 64 bits wide, and has the next register, too.
    pub wide: bool,
    /// Whether it is prefetchable.
    pub prefetchable: bool,
}

impl Bar {
    /// The type bits of its register.
    pub const fn flags(self) -> u32 {
        (self.wide as u32) << 2 | (self.prefetchable as u32) << 3
    }

    /// Reads the BAR's address on the bus from its registers. `index`: its number in the function.
    pub fn address(self, space: &impl ConfigSpace, index: usize) -> u64 {
        let high = if self.wide { u64::from(space.read(register(index + 1))) << 32 } else { 0 };
        high | u64::from(space.read(register(index)) & !0xf)
    }

    /// Bytes that are mapped for it: whole pages.
    pub const fn mapped_size(self) -> u64 {
        if self.size < PAGE { PAGE } else { self.size }
    }
}

/// The register of BAR `index`.
pub const fn register(index: usize) -> u8 {
    BAR0 + 4 * index as u8
}

/// Sizes the memory BARs of a function, by index. I/O BARs and the upper halves of wide ones have no entry.
/// The function decodes nothing during the sizing; command and BARs are restored.
pub fn probe_bars(space: &mut impl ConfigSpace) -> [Option<Bar>; BARS] {
    let command = space.read(COMMAND) & 0xffff;
    // The status bits above are cleared by writing ones.
    space.write(COMMAND, command & !0b11);
    let mut bars = [None; BARS];
    let mut index = 0;
    while index < BARS {
        let (bar, registers) = probe(space, index);
        bars[index] = bar;
        index += registers;
    }
    space.write(COMMAND, command);
    bars
}

/// Sizes one BAR. Returns how many registers it has.
fn probe(space: &mut impl ConfigSpace, index: usize) -> (Option<Bar>, usize) {
    let mask_of = |space: &mut dyn ConfigSpace, register: u8| {
        let before = space.read(register);
        space.write(register, u32::MAX);
        let mask = space.read(register);
        space.write(register, before);
        mask
    };
    let low = mask_of(space, register(index));
    if low & 1 != 0 {
        return (None, 1);
    }
    let wide = low >> 1 & 3 == 2 && index + 1 < BARS;
    let high = if wide { mask_of(space, register(index + 1)) } else { u32::MAX };
    let mask = u64::from(high) << 32 | u64::from(low & !0xf);
    let registers = if wide { 2 } else { 1 };
    // Writable bits are all those from the size up.
    let size = mask & mask.wrapping_neg();
    if low & !0xf == 0 && (!wide || high == 0) || size < 16 {
        return (None, registers);
    }
    (Some(Bar { size, wide, prefetchable: low >> 3 & 1 != 0 }), registers)
}
