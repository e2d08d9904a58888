//! Registers of served devices on the memory buses of both sides.

use core::sync::atomic::Ordering;

use stile_board::map;
use stile_ledger::RowId;
use stile_ledger::aarch64 as rows;
use stile_virtio::{pci, server};

use super::link::Link;
use super::{Served, end_reset, reconnect};
use crate::arch::aarch64::host::cpu::Cpu;
use crate::device::bus::Device;
use crate::vm;
use crate::vm::power::End;

/// Handles a store of `bytes` bytes to an address at which it kicks a server or signals a completion, without a search of
/// the VM's bus. Bits of `value` above are ignored. Returns the ledger's row; `None` without effect for all other addresses,
/// and for accesses that the bus refuses.
#[inline(always)]
pub fn ring(served: &'static Served, ipa: u64, bytes: u64, value: u64) -> Option<RowId> {
    match served {
        Served::Client(links) if ipa % pci::SIZE == pci::NOTIFY => {
            let link = links.iter().find(|link| link.function.bar() == ipa - pci::NOTIFY)?;
            let value = if bytes == 1 { value as u8 as u32 } else { value as u32 };
            link.change(|transport| transport.pci_write(pci::NOTIFY, bytes, value));
            Some(rows::MMIO_VIRTIO_KICK)
        }
        Served::Server { slots, .. } if ipa % map::SERVER_STRIDE == server::INTERRUPT && bytes == 4 => {
            let link = slots.get((ipa.checked_sub(map::SERVER_BASE)? / map::SERVER_STRIDE) as usize)?;
            link.change(|transport| transport.server_write(server::INTERRUPT, value as u32));
            Some(rows::MMIO_SERVER_COMPLETION)
        }
        _ => None,
    }
}

/// The PCI host bridge of a client's devices: configuration space, and behind it the window for BARs.
pub struct Transports;

const _: () = assert!(map::VIRTIO_WINDOW_BASE == map::VIRTIO_ECAM_BASE + map::PCI_ECAM_SIZE);

impl Transports {
    /// Size of the region, which starts with configuration space.
    pub const SIZE: u64 = map::PCI_ECAM_SIZE + map::VIRTIO_WINDOW_SIZE;

    /// Whether an offset is in configuration space.
    pub fn is_config(offset: u64) -> bool {
        offset < map::PCI_ECAM_SIZE
    }

    /// Whether a store at this offset kicks the server.
    pub fn is_kick(offset: u64) -> bool {
        !Self::is_config(offset) && offset % pci::SIZE == pci::NOTIFY
    }

    #[inline]
    fn links(cpu: &Cpu) -> &'static [&'static Link] {
        cpu.vcpu().vm().arch.served.map_or(&[], Served::links)
    }

    /// The link whose BAR has an offset in the window, and the offset in the BAR.
    #[inline]
    fn in_window(cpu: &Cpu, offset: u64) -> Option<(&'static Link, u64)> {
        let page = (map::VIRTIO_ECAM_BASE + offset) & !(pci::SIZE - 1);
        let link = Transports::links(cpu).iter().find(|link| link.function.bar() == page)?;
        Some((link, offset % pci::SIZE))
    }

    /// The link whose configuration space has an offset: functions are function 0 of devices 1 and up.
    fn in_config(cpu: &Cpu, offset: u64) -> Option<&'static Link> {
        let id = (offset >> 12) as usize;
        let index = (id & 7 == 0).then_some(id >> 3)?.checked_sub(1)?;
        Transports::links(cpu).get(index).copied()
    }
}

impl Device for Transports {
    fn read(&self, cpu: &mut Cpu, offset: u64, bytes: u64) -> u64 {
        self.try_read(cpu, offset, bytes).unwrap_or(0)
    }

    /// Functions that the configuration does not have read as all ones, as do addresses of no BAR.
    #[inline(never)]
    fn try_read(&self, cpu: &mut Cpu, offset: u64, bytes: u64) -> Option<u64> {
        if Self::is_config(offset) {
            let link = Self::in_config(cpu, offset).filter(|_| bytes <= 4);
            return Some(link.map_or(u64::MAX, |link| link.function.read_config(offset & 0xfff, bytes)));
        }
        let Some((link, offset)) = Self::in_window(cpu, offset) else { return Some(u64::MAX) };
        match offset {
            pci::MSIX_TABLE..pci::MSIX_PENDING => return Some(link.function.read_table(offset, bytes)),
            pci::MSIX_PENDING.. => {
                let bits = u64::from(link.transport.lock().pending());
                return Some(bits.checked_shr(8 * (offset - pci::MSIX_PENDING) as u32).unwrap_or(0));
            }
            _ => {}
        }
        let value = link.load(offset, bytes);
        if link.awaited.load(Ordering::Relaxed) {
            end_reset(link);
        }
        value.map(u64::from)
    }

    fn write(&self, cpu: &mut Cpu, offset: u64, bytes: u64, value: u64) -> Option<End> {
        if Self::is_config(offset) {
            if let Some(link) = Self::in_config(cpu, offset).filter(|_| bytes <= 4) {
                link.function.write_config(offset & 0xfff, bytes, value);
                link.send_pending();
            }
            return None;
        }
        let (link, offset) = Self::in_window(cpu, offset)?;
        if (pci::MSIX_TABLE..pci::MSIX_PENDING).contains(&offset) {
            link.function.write_table(offset, bytes, value);
            link.send_pending();
        } else {
            link.change(|transport| transport.pci_write(offset, bytes, value as u32));
        }
        None
    }
}

/// The registers of the devices that a VM serves, a page for each.
pub struct ServerPages;

impl ServerPages {
    /// Whether a store at this offset signals a completion.
    pub fn is_completion(offset: u64) -> bool {
        offset % map::SERVER_STRIDE == stile_virtio::server::INTERRUPT
    }

    fn link(cpu: &Cpu, offset: u64) -> Option<&'static Link> {
        cpu.vcpu().vm().arch.served?.slot(offset / map::SERVER_STRIDE)
    }
}

impl Device for ServerPages {
    fn read(&self, cpu: &mut Cpu, offset: u64, _bytes: u64) -> u64 {
        let Some(link) = ServerPages::link(cpu, offset) else { return 0 };
        match offset % map::SERVER_STRIDE {
            server::BALLOON_ANSWER => link.balloon.load(Ordering::Relaxed).into(),
            server::BALLOON_BLOCKS => vm::get(link.client).map_or(0, vm::Vm::blocks_given).into(),
            register => link.transport.lock().server_read(register).into(),
        }
    }

    fn write(&self, cpu: &mut Cpu, offset: u64, _bytes: u64, value: u64) -> Option<End> {
        let link = ServerPages::link(cpu, offset)?;
        let register = offset % map::SERVER_STRIDE;
        if let server::BALLOON_BEGIN | server::BALLOON_GIVE | server::BALLOON_TAKE = register {
            link.use_balloon(register, value as u32);
            return None;
        }
        link.change(|transport| transport.server_write(register, value as u32));
        if matches!(register, server::CONTROL | server::RESET_DONE) {
            reconnect(link);
            link.answer();
            link.watch_requests();
            link.watch_events();
        }
        None
    }
}
