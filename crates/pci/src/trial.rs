//! Trial of a BAR's address, where it is not known by which addresses CPUs access those on the bus.

use crate::bar::register;
use crate::register::{COMMAND, MEMORY};
use crate::{Bar, ConfigSpace, PAGE};

/// Whether CPUs access BAR `index` of a function, which has an address, at `address`: the BAR's first and last page answer while the function
/// decodes memory, and not once that BAR alone is elsewhere. Other BARs of the function, or other functions, would still answer then. `is_there`:
/// whether the first word of the page at an address answers. Nothing but the function is read unless both pages answer. Command and BAR are
/// restored. No other function may access the bus.
pub fn answers_at(space: &mut impl ConfigSpace, index: usize, bar: Bar, address: u64, mut is_there: impl FnMut(u64) -> bool) -> bool {
    let Some(last) = address.checked_add(bar.mapped_size() - PAGE) else { return false };
    let command = space.read(COMMAND) & 0xffff;
    let start = bar.address(space, index);
    let mut decode_at = |at: u64| {
        space.write(COMMAND, command & !MEMORY);
        space.write(register(index), at as u32);
        if bar.wide {
            space.write(register(index + 1), (at >> 32) as u32);
        }
        space.write(COMMAND, command | MEMORY);
        // The read completes the writes.
        space.read(COMMAND);
    };
    decode_at(start);
    let mut answers = is_there(address) && is_there(last);
    if answers {
        // Aligned to the BAR's size as well. Its type bits can't be written.
        decode_at(start ^ bar.mapped_size());
        answers = !is_there(address) && !is_there(last);
        decode_at(start);
    }
    space.write(COMMAND, command);
    answers
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;
    use crate::bar::probe_bars;

    const SIZE: u32 = 0x4000;

    /// A function with 32-bit BAR 0 and 64-bit BAR 2, each of 4 pages.
    struct Function<'a>(&'a RefCell<[u32; 64]>);

    impl ConfigSpace for Function<'_> {
        fn read(&self, register: u8) -> u32 {
            self.0.borrow()[usize::from(register) / 4]
        }

        fn write(&mut self, at: u8, value: u32) {
            let (writable, fixed) = match at {
                COMMAND => (MEMORY, 0),
                _ if at == register(0) => (!(SIZE - 1), 0),
                _ if at == register(2) => (!(SIZE - 1), 0b100),
                _ if at == register(3) => (u32::MAX, 0),
                _ => (0, 0),
            };
            self.0.borrow_mut()[usize::from(at) / 4] = value & writable | fixed;
        }
    }

    /// Tries BAR `index` at the address that it has on the bus, where addresses are those of CPUs plus `offset`. Returns the number of reads, too.
    fn attempt(index: usize, bars: [u64; 2], offset: i64) -> (bool, u32) {
        let registers = RefCell::new([0; 64]);
        let mut function = Function(&registers);
        for (index, value) in [(0, bars[0]), (2, bars[1]), (3, bars[1] >> 32)] {
            function.write(register(index), value as u32);
        }
        let before = *registers.borrow();
        let found = probe_bars(&mut function);
        let reads = Cell::new(0);
        let is_there = |cpu: u64| {
            reads.set(reads.get() + 1);
            let (at, registers) = (cpu.wrapping_add_signed(offset), Function(&registers));
            let decodes = |index: usize| at.wrapping_sub(found[index].unwrap().address(&registers, index)) < SIZE.into();
            registers.read(COMMAND) & MEMORY != 0 && [0, 2].into_iter().any(decodes)
        };
        let bar = found[index].unwrap();
        let address = bar.address(&function, index);
        let answers = answers_at(&mut Function(&registers), index, bar, address, is_there);
        assert_eq!(*registers.borrow(), before, "restored");
        (answers, reads.get())
    }

    #[test]
    fn bars_at_their_addresses_answer() {
        for bars in [[0x1000_0000, 0x1000_4000], [0x1000_4000, 0x1000_0000], [0x1000_0000, 0x80_0000_0000]] {
            assert_eq!([0, 2].map(|index| attempt(index, bars, 0)), [(true, 4); 2]);
        }
    }

    #[test]
    fn another_bar_does_not_answer_for_it() {
        for start in [0x1000_0000, 0x1000_4000] {
            let bars = [start, start + 0x4000];
            assert_eq!([attempt(0, bars, 0x4000).0, attempt(2, bars, -0x4000).0], [false; 2], "{start:#x}");
        }
        // Parts of both.
        for offset in [0x1000, 0x3000, -0x1000, -0x3000] {
            assert_eq!([0, 2].map(|index| attempt(index, [0x1000_0000, 0x1000_4000], offset).0), [false; 2], "{offset:#x}");
            assert_eq!([0, 2].map(|index| attempt(index, [0x1000_4000, 0x1000_0000], offset).0), [false; 2], "{offset:#x}");
        }
    }

    #[test]
    fn nothing_else_is_read_where_it_does_not_answer() {
        assert_eq!(attempt(0, [0x1000_0000, 0x80_0000_0000], 0x10_0000), (false, 1));
        assert_eq!(attempt(2, [0x1000_0000, 0x80_0000_0000], 0x1000), (false, 2), "its last page is elsewhere");
    }
}
