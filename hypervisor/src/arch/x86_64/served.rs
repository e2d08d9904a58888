//! Contract of served devices: windows in the second stage, and two kinds of signals: a message that reaches a local APIC, and an input of
//! the I/O APIC.

use stile_apic::Message;
use stile_board::pc;
use stile_paging::frames::Piece;

use super::host::cpu::this_index;
use super::interrupts::delivery;
use super::vm::Vm;
use crate::arch::contract::ServedPart;
use crate::vm;

/// Marks a signal that is a message: bits 28:11 have bits 19:2 of its address, bits 10:0 those of its data.
const MESSAGE: u32 = 1 << 31;
/// Address of messages to local APICs; bits 19:2 have the destination.
const ADDRESS: u64 = 0xfee0_0000;

impl ServedPart for Vm {
    const EVENTS: u64 = pc::SERVER_EVENTS;
    const REGISTERS: u64 = pc::SERVER_REGISTERS;

    /// Guests' caches are coherent with Stile's.
    fn clean(_page: *mut u8, _size: u64) {}

    fn reserve_window(&self, part: &Piece) -> Result<(), &'static str> {
        self.tables.reserve_window(part)
    }

    fn map_window(&self, part: &Piece) {
        self.tables.map_window(part);
    }

    fn unmap_window(&self, gpa: u64, size: u64) {
        self.tables.unmap(gpa, size);
    }

    fn map_events(&self, page: &Piece) {
        self.tables.map_events(page);
    }

    fn invalidate_windows(&self) {
        if let Some(invalidations) = self.window_invalidations {
            invalidations.request();
            invalidations.catch_up(this_index());
        }
    }

    fn are_windows_invalidated(&self) -> bool {
        self.window_invalidations.is_none_or(|invalidations| invalidations.all_invalidated())
    }

    fn message(address: u64, data: u32) -> u32 {
        let to = ((address - ADDRESS.min(address)) as u32 >> 2) << 11;
        Message::from_msi(address, data).map_or(0, |_| MESSAGE | to | data & 0x7ff)
    }

    fn event(slot: u32) -> u32 {
        pc::SERVER_INPUT + slot
    }

    /// Sends the signal at once: neither kind needs [`ServedPart::send`].
    fn post(vm: &'static vm::Vm, signal: u32) -> bool {
        if signal & MESSAGE == 0 {
            delivery::pulse_input(vm, signal as usize);
        } else {
            let (address, data) = (ADDRESS | u64::from(signal >> 11 & 0x3_ffff) << 2, signal & 0x7ff);
            if let Some(message) = Message::from_msi(address, data) {
                delivery::send_to_first(vm, message);
            }
        }
        true
    }

    fn send(vm: &'static vm::Vm, signals: impl Iterator<Item = u32>) {
        signals.for_each(|signal| _ = Self::post(vm, signal));
    }
}
