//! The PC's two 8259A interrupt controllers: *8259A Programmable Interrupt Controller*.
//!
//! Supports fully nested mode, automatic and specific EOI. Not supported: rotating priorities, special mask mode, polling. A guest with an
//! APIC masks all inputs and ignores the 8259s.

#[cfg(test)]
mod tests;

use stile_snapshot::pc::Pic as Saved;

/// The input of the first controller to which the second is connected.
const CASCADE: u8 = 2;

const ICW1_INIT: u8 = 1 << 4;
const ICW1_LEVEL: u8 = 1 << 3;
const ICW1_SINGLE: u8 = 1 << 1;
const ICW1_ICW4: u8 = 1 << 0;
const ICW4_AUTO: u8 = 1 << 1;
const OCW3: u8 = 1 << 3;

/// The meaning of the next write to the data port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expects {
    Mask,
    Icw2,
    Icw3,
    Icw4,
}

#[derive(Clone, Copy, Debug)]
struct Chip {
    lines: u8,
    requests: u8,
    in_service: u8,
    mask: u8,
    /// Level-sensitive inputs: by the ELCR, or all of them by ICW1.
    level: u8,
    all_level: bool,
    vector: u8,
    icw1: u8,
    automatic: bool,
    read_in_service: bool,
    expects: Expects,
}

impl Chip {
    const RESET: Self = Self {
        lines: 0,
        requests: 0,
        in_service: 0,
        mask: 0xff,
        level: 0,
        all_level: false,
        vector: 0,
        icw1: 0,
        automatic: false,
        read_in_service: false,
        expects: Expects::Mask,
    };

    const fn level(&self) -> u8 {
        if self.all_level { 0xff } else { self.level }
    }

    fn set_line(&mut self, line: u8, high: bool) {
        let bit = 1 << line;
        if high && self.lines & bit == 0 {
            self.requests |= bit;
        }
        if !high {
            // A request is withdrawn if its line falls before the acknowledgement.
            self.requests &= !bit;
        }
        self.lines = if high { self.lines | bit } else { self.lines & !bit };
    }

    /// Returns the pending input of the highest priority, which is the lowest number.
    fn pending(&self) -> Option<u8> {
        let waiting = (self.requests | self.lines & self.level()) & !self.mask;
        let line = waiting.trailing_zeros();
        (line < 8 && line < self.in_service.trailing_zeros()).then_some(line as u8)
    }

    /// Acknowledges the pending interrupt, and returns its input; 7 for a spurious interrupt.
    fn acknowledge(&mut self) -> u8 {
        let Some(line) = self.pending() else { return 7 };
        self.requests &= !(1 << line);
        if !self.automatic {
            self.in_service |= 1 << line;
        }
        line
    }

    fn write_command(&mut self, value: u8) {
        if value & ICW1_INIT != 0 {
            *self = Self { lines: self.lines, level: self.level, mask: 0, icw1: value, expects: Expects::Icw2, ..Self::RESET };
            self.all_level = value & ICW1_LEVEL != 0;
        } else if value & OCW3 != 0 {
            if value & 2 != 0 {
                self.read_in_service = value & 1 != 0;
            }
        } else {
            match value >> 5 {
                1 | 5 => self.in_service &= self.in_service.wrapping_sub(1),
                3 | 7 => self.in_service &= !(1 << (value & 7)),
                _ => {}
            }
        }
    }

    fn write_data(&mut self, value: u8) {
        match self.expects {
            Expects::Mask => self.mask = value,
            Expects::Icw2 => self.vector = value & 0xf8,
            Expects::Icw3 => {}
            Expects::Icw4 => self.automatic = value & ICW4_AUTO != 0,
        }
        self.expects = match self.expects {
            Expects::Icw2 if self.icw1 & ICW1_SINGLE == 0 => Expects::Icw3,
            Expects::Icw2 | Expects::Icw3 if self.icw1 & ICW1_ICW4 != 0 => Expects::Icw4,
            _ => Expects::Mask,
        };
    }

    const fn save(&self) -> Saved {
        let Self { lines, requests, in_service, mask, level, all_level, vector, icw1, automatic, read_in_service, expects } = *self;
        let expects = match expects {
            Expects::Mask => 0,
            Expects::Icw2 => 2,
            Expects::Icw3 => 3,
            Expects::Icw4 => 4,
        };
        Saved { lines, requests, in_service, mask, level, all_level, vector, icw1, automatic, read_in_service, expects }
    }

    /// `edges`: inputs that are always edge-triggered.
    const fn restored(from: &Saved, edges: u8) -> Self {
        let Saved { lines, requests, in_service, mask, level, all_level, vector, icw1, automatic, read_in_service, expects } = *from;
        let expects = match expects {
            2 => Expects::Icw2,
            3 => Expects::Icw3,
            4 => Expects::Icw4,
            _ => Expects::Mask,
        };
        let (level, vector, requests) = (level & !edges, vector & 0xf8, requests & lines);
        Self { lines, requests, in_service, mask, level, all_level, vector, icw1, automatic, read_in_service, expects }
    }

    const fn read(&self, data: bool) -> u8 {
        match (data, self.read_in_service) {
            (true, _) => self.mask,
            (false, true) => self.in_service,
            (false, false) => self.requests | self.lines & self.level(),
        }
    }
}

/// Inputs of each that are always edge-triggered: timer, keyboard, cascade; clock and coprocessor.
const EDGES: [u8; 2] = [0x07, 0x21];

/// Both controllers.
#[derive(Clone, Debug)]
pub struct Pic([Chip; 2]);

impl Default for Pic {
    fn default() -> Self {
        Self::new()
    }
}

impl Pic {
    /// The reset state: all inputs masked.
    pub const fn new() -> Self {
        Self([Chip::RESET; 2])
    }

    /// The guest reads `port`: 0x20, 0x21, 0xa0, 0xa1, 0x4d0 or 0x4d1.
    pub const fn read(&self, port: u16) -> u8 {
        let [first, second] = &self.0;
        match port {
            0x20 | 0x21 => first.read(port & 1 != 0),
            0xa0 | 0xa1 => second.read(port & 1 != 0),
            0x4d0 => first.level,
            0x4d1 => second.level,
            _ => 0xff,
        }
    }

    /// The guest writes one of the ports of [`read`](Self::read). [`output`](Self::output) may change.
    pub fn write(&mut self, port: u16, value: u8) {
        let [first, second] = &mut self.0;
        match port {
            0x20 => first.write_command(value),
            0x21 => first.write_data(value),
            0xa0 => second.write_command(value),
            0xa1 => second.write_data(value),
            0x4d0 => first.level = value & !EDGES[0],
            0x4d1 => second.level = value & !EDGES[1],
            _ => {}
        }
        self.cascade();
    }

    /// Line 0 to 15 goes high or low; others, and the cascade, are ignored.
    pub fn set_line(&mut self, line: u8, high: bool) {
        match line {
            CASCADE | 16.. => {}
            0..8 => self.0[0].set_line(line, high),
            _ => self.0[1].set_line(line - 8, high),
        }
        self.cascade();
    }

    /// The level of the INT output to the processor.
    pub fn output(&self) -> bool {
        self.0[0].pending().is_some()
    }

    /// The processor's acknowledge cycle: returns the vector.
    pub fn acknowledge(&mut self) -> u8 {
        let line = self.0[0].acknowledge();
        let vector = match line {
            CASCADE => self.0[1].vector | self.0[1].acknowledge(),
            line => self.0[0].vector | line,
        };
        self.cascade();
        vector
    }

    /// Exports the state.
    pub const fn save(&self) -> [Saved; 2] {
        [self.0[0].save(), self.0[1].save()]
    }

    /// Imports a state, reduced to one that a guest could have produced.
    pub fn restore(&mut self, from: &[Saved; 2]) {
        *self = Self([Chip::restored(&from[0], EDGES[0]), Chip::restored(&from[1], EDGES[1])]);
        self.cascade();
    }

    fn cascade(&mut self) {
        let high = self.0[1].pending().is_some();
        self.0[0].set_line(CASCADE, high);
    }
}
