//! Registers of served devices on the memory buses of both sides.

use stile_board::map;
use stile_virtio::client;

use super::Served;
use super::link::{self, Link};
use crate::arch::aarch64::host::cpu::Cpu;
use crate::device::bus::Device;
use crate::vm::power::End;

/// The transports of a client's devices, one after the other.
pub struct Transports;

impl Transports {
    /// Whether a store at this offset kicks the server.
    pub fn is_kick(offset: u64) -> bool {
        offset % map::VIRTIO_STRIDE == client::QUEUE_NOTIFY
    }

    fn link(cpu: &Cpu, offset: u64) -> Option<&'static Link> {
        match cpu.vcpu().vm().arch.served? {
            Served::Client(links) => links.get((offset / map::VIRTIO_STRIDE) as usize).copied(),
            Served::Server(_) => None,
        }
    }
}

impl Device for Transports {
    fn read(&self, cpu: &mut Cpu, offset: u64, bytes: u64) -> u64 {
        self.try_read(cpu, offset, bytes).unwrap_or(0)
    }

    /// Transports that the configuration does not have read as zero: there is no device.
    fn try_read(&self, cpu: &mut Cpu, offset: u64, bytes: u64) -> Option<u64> {
        let Some(link) = Transports::link(cpu, offset) else { return Some(0) };
        let value = link.transport.lock().read(offset % map::VIRTIO_STRIDE, bytes);
        value.map(u64::from)
    }

    fn write(&self, cpu: &mut Cpu, offset: u64, bytes: u64, value: u64) -> Option<End> {
        let link = Transports::link(cpu, offset)?;
        let effect = link.transport.lock().write(offset % map::VIRTIO_STRIDE, bytes, value as u32);
        link.apply(effect);
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
        link::of_slot(cpu.vcpu().vm().number, (offset / map::SERVER_STRIDE) as usize)
    }
}

impl Device for ServerPages {
    fn read(&self, cpu: &mut Cpu, offset: u64, _bytes: u64) -> u64 {
        let link = ServerPages::link(cpu, offset);
        link.map_or(0, |link| link.transport.lock().server_read(offset % map::SERVER_STRIDE).into())
    }

    fn write(&self, cpu: &mut Cpu, offset: u64, _bytes: u64, value: u64) -> Option<End> {
        let link = ServerPages::link(cpu, offset)?;
        let effect = link.transport.lock().server_write(offset % map::SERVER_STRIDE, value as u32);
        link.apply(effect);
        None
    }
}
