//! Contract of served devices: windows in the second stage, and SPIs as signals. Those of clients are messages to the VM's MSI frame.

use core::ops::Range;

use stile_board::{intid, map};
use stile_paging::frames::Piece;

use crate::arch::aarch64::host::bulk;
use crate::arch::aarch64::interrupts::delivery;
use crate::arch::aarch64::vm::Vm;
use crate::arch::contract::ServedPart;
use crate::vm;

/// SPIs that messages become.
const MESSAGES: Range<u32> = intid::MSI_BASE..intid::MSI_BASE + intid::MSI_COUNT;

impl ServedPart for Vm {
    const EVENTS: u64 = map::EVENTS_BASE;
    const REGISTERS: u64 = map::SERVER_BASE;

    fn clean(page: *mut u8, size: u64) {
        bulk::flush(page as u64, size as usize);
    }

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
        self.tables.invalidate_all();
    }

    #[inline]
    fn message(address: u64, data: u32) -> u32 {
        let is_message = address == map::MSI_FRAME_BASE + map::MSI_DOORBELL && MESSAGES.contains(&data);
        if is_message { data } else { 0 }
    }

    #[inline]
    fn event(slot: u32) -> u32 {
        intid::SERVER + slot
    }

    #[inline]
    fn post(vm: &'static vm::Vm, signal: u32) -> bool {
        delivery::post_spi(vm, signal)
    }

    fn send(vm: &'static vm::Vm, signals: impl Iterator<Item = u32>) {
        delivery::send_spis(vm, signals);
    }
}
