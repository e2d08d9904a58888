//! The devices that a virtual machine serves, and their windows.

use heapless::Vec;
use stile_board::{MAX_SERVED, map, pc};

use crate::{Nested, Served, Vm, Vms};

/// A device that a virtual machine serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// The number of the virtual machine that has the device.
    pub client: u8,
    /// Its index in [`Vm::served`].
    pub index: u8,
    /// Type of the device.
    pub device: u32,
    /// Server-physical address of the window on the client's RAM. All devices of a client have the same window.
    pub window: u64,
    /// Size of the window: of the client's RAM and disks in memory, with a PC's devices inside.
    pub size: u64,
    /// Client-physical address of the window's first byte.
    pub base: u64,
}

impl Vms<'_> {
    /// The devices that virtual machine number `server` serves, in the order of their clients. `self` has all virtual
    /// machines. `None` if there are too many, or the windows have no addresses.
    pub fn served_by(&self, server: usize) -> Option<Vec<Slot, MAX_SERVED>> {
        let own = self.clone().nth(server)?;
        let end = own.memory_span().end;
        // On a PC also behind the devices.
        let mut window = if own.ram_base == 0 { end.max(pc::HIGH_RAM) } else { end }.checked_next_multiple_of(map::WINDOW_ALIGN)?;
        let mut slots = Vec::new();
        for (client, vm) in self.clone().enumerate() {
            let (before, span) = (slots.len(), vm.memory_span());
            let size = span.end - span.start;
            for (index, served) in vm.served.iter().enumerate().filter(|(_, served)| usize::from(served.server) == server) {
                let (client, index) = (client as u8, index as u8);
                slots.push(Slot { client, index, device: served.device, window, size, base: span.start }).ok()?;
            }
            if slots.len() != before {
                let end = window.checked_add(size).filter(|&end| end <= map::ADDRESS_END)?;
                window = end.checked_next_multiple_of(map::WINDOW_ALIGN)?;
            }
        }
        Some(slots)
    }

    /// Whether what virtual machine `vm`, number `number`, serves and is served can be so.
    pub(crate) fn is_served_as_configured(&self, number: usize, vm: &Vm<'_>) -> bool {
        if !vm.has_links() {
            return true;
        }
        let is_plain = vm.techniques.nested == Nested::Off && vm.firmware == 0 && (vm.served.is_empty() || vm.serves == 0);
        let has_server = |served: &Served| {
            let server = usize::from(served.server);
            server != number && self.clone().nth(server).is_some_and(|server| server.serves != 0)
        };
        let serves = |slots: Vec<Slot, MAX_SERVED>| slots.len() == usize::from(vm.serves);
        is_plain && vm.served.iter().all(has_server) && (vm.serves == 0 || self.served_by(number).is_some_and(serves))
    }
}
