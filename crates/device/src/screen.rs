//! The CRT controller of a PC's text screen, at ports 0x3d4 and 0x3d5, and its status at 0x3da (IBM, *Video Graphics
//! Array*, "CRT Controller Registers"). Its registers keep their values; kernels that write to the screen's memory read
//! back the cursor position.
//!
//! No screen is emulated, and its memory is RAM.

use stile_snapshot::pc::Screen as Saved;

const INDEX: u16 = 0x3d4;
const DATA: u16 = 0x3d5;
const STATUS: u16 = 0x3da;
/// Its ports.
pub const PORTS: [u16; 3] = [INDEX, DATA, STATUS];

/// Status: horizontal and vertical blanking.
const BLANKED: u8 = 1 << 0 | 1 << 3;

/// The controller.
#[derive(Clone, Debug, Default)]
pub struct Screen {
    index: u8,
    registers: [u8; 32],
    blanked: bool,
}

impl Screen {
    /// The reset state: the cursor at the origin.
    pub const fn new() -> Self {
        Self { index: 0, registers: [0; 32], blanked: false }
    }

    /// Exports the state.
    pub const fn save(&self) -> Saved {
        let Self { index, registers, blanked } = *self;
        Saved { index, registers, blanked }
    }

    /// Imports a state.
    pub const fn restore(&mut self, from: &Saved) {
        *self = Self { index: from.index & 31, registers: from.registers, blanked: from.blanked };
    }

    /// The guest reads one of [`PORTS`]. The blanking bits toggle at each read of the status.
    pub fn read(&mut self, port: u16) -> u8 {
        match port {
            INDEX => self.index,
            DATA => self.registers[usize::from(self.index)],
            _ => {
                self.blanked = !self.blanked;
                if self.blanked { BLANKED } else { 0 }
            }
        }
    }

    /// The guest writes one of [`PORTS`].
    pub const fn write(&mut self, port: u16, value: u8) {
        match port {
            INDEX => self.index = value & 31,
            DATA => self.registers[self.index as usize] = value,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursor_position_reads_back() {
        let mut screen = Screen::new();
        for (index, value) in [(14, 0x03), (15, 0x7f)] {
            screen.write(INDEX, index);
            assert_eq!(screen.read(DATA), 0);
            screen.write(DATA, value);
        }
        assert_eq!((screen.read(INDEX), screen.read(DATA)), (15, 0x7f));
        screen.write(INDEX, 14);
        assert_eq!(screen.read(DATA), 0x03);
        screen.write(INDEX, 0xff);
        assert_eq!(screen.read(INDEX), 31);
    }

    #[test]
    fn blanking_toggles() {
        let mut screen = Screen::new();
        assert_ne!(screen.read(STATUS), screen.read(STATUS));
        screen.write(STATUS, 0);
    }
}
