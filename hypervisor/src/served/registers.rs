//! Registers of served devices: the client's, in BARs and configuration space, and the server's.

use core::sync::atomic::Ordering;

use stile_board::map;
use stile_virtio::{pci, server};

use super::link::Link;
use super::{Served, end_reset, reconnect};
use crate::arch;
use crate::arch::contract::ServedPart;
use crate::vm;

/// Handles a store of `bytes` bytes to an address at which it kicks a server or signals a completion, without a search of
/// the VM's bus. Bits of `value` above are ignored. Returns `kick` or `completion`; `None` without effect for all other addresses,
/// and for accesses that the bus refuses.
#[allow(dead_code, reason = "not every back end has a fast path for these")]
#[inline(always)]
pub fn ring<T>(served: &'static Served, address: u64, bytes: u64, value: u64, kick: T, completion: T) -> Option<T> {
    match served {
        Served::Client(links) if address % pci::SIZE == pci::NOTIFY => {
            let link = links.iter().find(|link| link.function.bar() == address - pci::NOTIFY)?;
            let value = if bytes == 1 { value as u8 as u32 } else { value as u32 };
            link.change(|transport| transport.pci_write(pci::NOTIFY, bytes, value));
            Some(kick)
        }
        Served::Server { slots, .. } if address % map::SERVER_STRIDE == server::INTERRUPT && bytes == 4 => {
            let link = slots.get((address.checked_sub(<arch::Vm as ServedPart>::REGISTERS)? / map::SERVER_STRIDE) as usize)?;
            link.change(|transport| transport.server_write(server::INTERRUPT, value as u32));
            Some(completion)
        }
        _ => None,
    }
}

/// Whether a store at this offset in a window of BARs kicks a server.
pub fn is_kick(offset: u64) -> bool {
    offset % pci::SIZE == pci::NOTIFY
}

/// Whether a store at this offset in a server's registers signals a completion.
pub fn is_completion(offset: u64) -> bool {
    offset % map::SERVER_STRIDE == server::INTERRUPT
}

impl Served {
    /// The device of a client whose BAR has an address, and the offset in the BAR.
    #[inline]
    fn at(&self, address: u64) -> Option<(&'static Link, u64)> {
        let page = address & !(pci::SIZE - 1);
        let link = self.links().iter().find(|link| link.function.bar() == page)?;
        Some((link, address % pci::SIZE))
    }

    /// Whether one of a client's devices has its BAR at an address.
    #[allow(dead_code, reason = "not every back end's bus has other BARs in this window")]
    pub fn has_bar(&self, address: u64) -> bool {
        self.at(address).is_some()
    }

    /// Loads from configuration space of a client's device number `index`. It reads as all ones if there is none.
    pub fn read_config(&self, index: usize, offset: u64, bytes: u64) -> u64 {
        let link = self.links().get(index).filter(|_| bytes <= 4);
        link.map_or(u64::MAX, |link| link.function.read_config(offset & 0xfff, bytes))
    }

    /// Stores to configuration space of a client's device number `index`.
    pub fn write_config(&self, index: usize, offset: u64, bytes: u64, value: u64) {
        if let Some(link) = self.links().get(index).filter(|_| bytes <= 4) {
            link.function.write_config(offset & 0xfff, bytes, value);
            link.send_pending();
        }
    }

    /// Loads from a BAR of a client's device. Returns `None` if no BAR has the address, and `Some(None)` if the load must wait for the
    /// server.
    pub fn read_bar(&self, address: u64, bytes: u64) -> Option<Option<u64>> {
        let (link, offset) = self.at(address)?;
        match offset {
            pci::MSIX_TABLE..pci::MSIX_PENDING => return Some(Some(link.function.read_table(offset, bytes))),
            pci::MSIX_PENDING.. => {
                let bits = u64::from(link.transport.lock().pending());
                return Some(Some(bits.checked_shr(8 * (offset - pci::MSIX_PENDING) as u32).unwrap_or(0)));
            }
            _ => {}
        }
        let value = link.load(offset, bytes);
        if link.awaited.load(Ordering::Relaxed) {
            end_reset(link);
        }
        Some(value.map(u64::from))
    }

    /// Whether a load from an address, in the width of its register, waits for the server, as [`Served::read_bar`] would. For back ends
    /// that can't undo a load that has begun.
    #[allow(dead_code, reason = "not every back end asks before the load")]
    pub fn must_wait(&self, address: u64) -> bool {
        let Some((link, offset)) = self.at(address) else { return false };
        let Some(bytes) = pci::width_of_waiting(offset) else { return false };
        let waits = link.load(offset, bytes).is_none();
        if link.awaited.load(Ordering::Relaxed) {
            end_reset(link);
        }
        waits
    }

    /// Loads from a BAR of a client's device without a wait, although [`Served::read_bar`] would wait.
    #[allow(dead_code, reason = "not every back end asks before the load")]
    pub fn read_bar_at_once(&self, address: u64, bytes: u64) -> u64 {
        self.at(address).map_or(0, |(link, offset)| link.transport.lock().pci_read_at_once(offset, bytes).into())
    }

    /// Stores to a BAR of a client's device. Returns `None` without effect if no BAR has the address.
    pub fn write_bar(&self, address: u64, bytes: u64, value: u64) -> Option<()> {
        let (link, offset) = self.at(address)?;
        if (pci::MSIX_TABLE..pci::MSIX_PENDING).contains(&offset) {
            link.function.write_table(offset, bytes, value);
            link.send_pending();
        } else {
            link.change(|transport| transport.pci_write(offset, bytes, value as u32));
        }
        Some(())
    }

    /// Loads a register of a server's devices, at an offset from the first one's.
    #[inline]
    pub fn read_register(&self, offset: u64) -> u64 {
        let Some(link) = self.slot(offset / map::SERVER_STRIDE) else { return 0 };
        match offset % map::SERVER_STRIDE {
            server::BALLOON_ANSWER => link.balloon.load(Ordering::Relaxed).into(),
            server::BALLOON_BLOCKS => vm::get(link.client).map_or(0, vm::Vm::blocks_given).into(),
            register => link.transport.lock().server_read(register).into(),
        }
    }

    /// Stores to a register of a server's devices.
    #[inline]
    pub fn write_register(&self, offset: u64, value: u64) {
        let Some(link) = self.slot(offset / map::SERVER_STRIDE) else { return };
        let register = offset % map::SERVER_STRIDE;
        if let server::BALLOON_BEGIN | server::BALLOON_GIVE | server::BALLOON_TAKE = register {
            link.use_balloon(register, value as u32);
            return;
        }
        link.change(|transport| transport.server_write(register, value as u32));
        if matches!(register, server::CONTROL | server::RESET_DONE) {
            reconnect(link);
            link.answer();
            link.watch_requests();
            link.watch_events();
        }
    }
}
