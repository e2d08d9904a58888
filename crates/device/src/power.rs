//! ACPI's fixed hardware, at ports: *Advanced Configuration and Power Interface*, "ACPI Hardware Specification"; and the PC's
//! reset register at port 0xcf9.
//!
//! The only sleeping state is S5 (off), and the only event is the power button.

use stile_snapshot::pc::Power as Saved;

use crate::line::Line;

#[cfg(test)]
mod tests;

/// Offsets from the block's first port, for the FADT.
pub mod offset {
    /// PM1a event block: status and enable, two bytes each.
    pub const EVENT: u16 = 0;
    /// PM1a control block, two bytes.
    pub const CONTROL: u16 = 4;
    /// Power management timer, four bytes.
    pub const TIMER: u16 = 8;
}

/// Ports of the block.
pub const SIZE: u16 = 12;

/// Timer ticks per second. The timer has 32 bits (the FADT's TMR_VAL_EXT).
pub const TIMER_FREQUENCY: u64 = 3_579_545;

/// SLP_TYP of S5, for `\_S5`.
pub const S5: u8 = 5;

/// The value that resets the machine, written to port 0xcf9: for the FADT.
pub const RESET_VALUE: u8 = 6;

const POWER_BUTTON: u16 = 1 << 8;
const SCI_ENABLE: u16 = 1 << 0;
const SLEEP_ENABLE: u16 = 1 << 13;
/// Implemented bits of the enable register: the power button.
const EVENTS: u16 = POWER_BUTTON;

/// A request to the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Power off.
    Off,
    /// Reset.
    Reset,
}

/// The effects of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    /// The guest's request.
    pub request: Option<Request>,
    /// SCI's new level, if it changed.
    pub sci: Option<bool>,
}

/// The fixed registers.
#[derive(Clone, Debug)]
pub struct Power {
    status: u16,
    enable: u16,
    control: u16,
    line: Line,
}

impl Default for Power {
    fn default() -> Self {
        Self::new()
    }
}

impl Power {
    /// The reset state: in ACPI mode from the start.
    pub const fn new() -> Self {
        Self { status: 0, enable: 0, control: SCI_ENABLE, line: Line::LOW }
    }

    /// The guest reads at `offset` in the block; the caller truncates the value to the access's width. `ticks` is the timer's count.
    pub const fn read(&self, offset: u16, ticks: u64) -> u32 {
        let register = match offset & !3 {
            offset::EVENT => self.status as u32 | (self.enable as u32) << 16,
            offset::CONTROL => self.control as u32,
            offset::TIMER => ticks as u32,
            _ => 0,
        };
        register >> (offset % 4 * 8)
    }

    /// The guest writes `value`, of `bytes` bytes, at `offset` in the block.
    pub fn write(&mut self, offset: u16, value: u32, bytes: u16) -> Write {
        let mut request = None;
        for i in 0..bytes.min(4) {
            let byte = (value >> (i * 8)) as u8;
            match offset.wrapping_add(i) {
                // Write 1 to clear.
                0 => self.status &= !u16::from(byte),
                1 => self.status &= !(u16::from(byte) << 8),
                3 => self.enable = u16::from(byte) << 8 & EVENTS,
                5 => request = self.sleep(u16::from(byte) << 8),
                _ => {}
            }
        }
        Write { request, sci: self.update_line() }
    }

    /// Exports the state.
    pub const fn save(&self) -> Saved {
        let Self { status, enable, control, .. } = *self;
        Saved { status, enable, control }
    }

    /// Imports a state, reduced to one that a guest could have produced. Returns SCI's level.
    pub fn restore(&mut self, from: &Saved) -> bool {
        let (status, enable) = (from.status & EVENTS, from.enable & EVENTS);
        *self = Self { status, enable, control: SCI_ENABLE | from.control & 0x1c00, line: Line::LOW };
        let _ = self.update_line();
        self.line.level()
    }

    /// Whether the guest has enabled the power button's event.
    pub const fn has_button_enabled(&self) -> bool {
        self.enable & POWER_BUTTON != 0
    }

    /// Presses the power button. Returns SCI's new level, if it changed.
    pub fn press_button(&mut self) -> Option<bool> {
        self.status |= POWER_BUTTON;
        self.update_line()
    }

    /// The guest writes port 0xcf9.
    pub const fn write_reset(value: u8) -> Option<Request> {
        if value & 4 != 0 { Some(Request::Reset) } else { None }
    }

    fn sleep(&mut self, control: u16) -> Option<Request> {
        self.control = SCI_ENABLE | control & 0x1c00;
        (control & SLEEP_ENABLE != 0 && (control >> 10 & 7) as u8 == S5).then_some(Request::Off)
    }

    fn update_line(&mut self) -> Option<bool> {
        self.line.drive(self.status & self.enable != 0)
    }
}
