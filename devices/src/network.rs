//! A virtio network card (Virtio 1.2, section 5.1), which is a port of a switch.

use std::io;
use std::os::fd::BorrowedFd;

use virtio_bindings::virtio_net::{
    VIRTIO_NET_F_CSUM, VIRTIO_NET_F_GUEST_CSUM, VIRTIO_NET_F_HOST_TSO4, VIRTIO_NET_F_HOST_TSO6, VIRTIO_NET_F_MAC, VIRTIO_NET_F_STATUS,
    VIRTIO_NET_HDR_F_NEEDS_CSUM, VIRTIO_NET_HDR_GSO_NONE, VIRTIO_NET_HDR_GSO_TCPV4, VIRTIO_NET_HDR_GSO_TCPV6, VIRTIO_NET_S_LINK_UP,
};
use virtio_queue::{DescriptorChain, Error, Queue};
use vm_memory::GuestMemoryMmap;

use crate::frame::{ETHERNET, HEADER};
use crate::identity::Identity;
use crate::server::{Backend, Progress, Sources, fill_buffers, use_buffers};

/// Maximum size of a frame with its header: a TCP segment of 64 KiB that the switch divides, with a VLAN tag.
const MAX_FRAME: usize = HEADER + ETHERNET + 4 + (64 << 10);

/// A port of a switch. Frames have the header of [`HEADER`] bytes.
pub trait Port {
    /// Sends a frame. One that can't be sent is dropped.
    fn send(&mut self, frame: &[u8]);

    /// Takes a frame that waits for the client into `buffer`, and returns its length; `None` if there is none.
    fn receive(&mut self, buffer: &mut [u8]) -> Option<usize>;

    /// Sets whether received frames may lack the checksum of their transport protocol, as the header then says.
    ///
    /// # Errors
    /// The kernel refuses.
    fn accept_partial_checksums(&mut self, accepted: bool) -> io::Result<()>;

    /// The file that is readable when there is a frame.
    fn file(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Whether there is a switch behind the port: the link is up.
    fn is_connected(&self) -> bool {
        true
    }
}

/// A port without a switch: of a card that can't be served. Sent frames are lost.
pub struct Unplugged;

impl Port for Unplugged {
    fn send(&mut self, _frame: &[u8]) {}

    fn receive(&mut self, _buffer: &mut [u8]) -> Option<usize> {
        None
    }

    fn accept_partial_checksums(&mut self, _accepted: bool) -> io::Result<()> {
        Ok(())
    }

    fn is_connected(&self) -> bool {
        false
    }
}

/// A network card.
pub struct Network<P> {
    port: P,
    identity: Identity,
    /// The driver accepts partial checksums.
    partial_checksums: bool,
    /// The driver offered a buffer for the next frame when the port had none.
    has_buffer: bool,
    /// A frame with its header: the client can change its buffers at any time.
    frame: Box<[u8]>,
}

impl<P: Port> Network<P> {
    /// A card of a client with these addresses.
    pub fn new(port: P, identity: Identity) -> Self {
        Self { port, identity, partial_checksums: false, has_buffer: false, frame: vec![0; MAX_FRAME].into() }
    }

    /// The port, if the next frame that it receives can be passed on. If not, the client's next interrupt comes first.
    pub fn waits_for(&self) -> Option<&P> {
        self.has_buffer.then_some(&self.port)
    }

    /// Sends the frame in a buffer of the client's. A frame that no honest driver sends is dropped.
    fn send(&mut self, memory: &GuestMemoryMmap, chain: DescriptorChain<&GuestMemoryMmap>) {
        let Ok(mut reader) = chain.reader(memory) else { return };
        let length = reader.available_bytes();
        let Some(frame) = self.frame.get_mut(..length) else { return };
        if io::Read::read_exact(&mut reader, frame).is_err() || length < HEADER + ETHERNET {
            return;
        }
        // Other bits are reserved (section 5.1.6.2).
        frame[0] &= VIRTIO_NET_HDR_F_NEEDS_CSUM as u8;
        let is_known = [VIRTIO_NET_HDR_GSO_NONE, VIRTIO_NET_HDR_GSO_TCPV4, VIRTIO_NET_HDR_GSO_TCPV6].contains(&frame[1].into());
        if is_known && self.identity.may_send(frame) {
            self.port.send(frame);
        }
    }

    /// Passes frames on to the client, a batch at most.
    fn receive(&mut self, memory: &GuestMemoryMmap, queue: &mut Queue) -> Result<Progress, Error> {
        let (progress, has_buffer) = fill_buffers(
            memory,
            queue,
            self,
            |network| network.port.receive(&mut network.frame),
            |network, chain, length| network.fill(memory, chain, length),
        )?;
        self.has_buffer = has_buffer.unwrap_or(self.has_buffer);
        Ok(progress)
    }

    /// Copies the received frame into a buffer, and returns its length. A frame that does not fit is dropped.
    fn fill(&mut self, memory: &GuestMemoryMmap, chain: DescriptorChain<&GuestMemoryMmap>, length: usize) -> u32 {
        let frame = &mut self.frame[..length];
        let Some(header) = frame.first_chunk_mut::<HEADER>() else { return 0 };
        if !self.partial_checksums {
            *header = [0; HEADER];
        }
        // The frame is in one buffer (section 5.1.6.4.1).
        [header[10], header[11]] = 1u16.to_le_bytes();
        let Ok(mut writer) = chain.writer(memory) else { return 0 };
        let fits = writer.available_bytes() >= length && io::Write::write_all(&mut writer, frame).is_ok();
        if fits { length as u32 } else { 0 }
    }
}

impl<P: Port> Backend for Network<P> {
    /// Received frames, and sent ones.
    const QUEUE_SIZES: &'static [u16] = &[256, 256];

    fn features(&self) -> u64 {
        let offered = [
            VIRTIO_NET_F_CSUM,
            VIRTIO_NET_F_GUEST_CSUM,
            VIRTIO_NET_F_MAC,
            VIRTIO_NET_F_HOST_TSO4,
            VIRTIO_NET_F_HOST_TSO6,
            VIRTIO_NET_F_STATUS,
        ];
        offered.into_iter().fold(0, |features, bit| features | 1 << bit)
    }

    /// The address, and the link's status (section 5.1.4).
    fn configuration(&self) -> Vec<(u64, u32)> {
        let [a, b, c, d, e, f] = self.identity.mac;
        let status = if self.port.is_connected() { VIRTIO_NET_S_LINK_UP as u8 } else { 0 };
        vec![(0, u32::from_le_bytes([a, b, c, d])), (4, u32::from_le_bytes([e, f, status, 0]))]
    }

    fn start(&mut self, _: &GuestMemoryMmap, features: u64, _: &[Queue]) -> Result<(), Error> {
        self.has_buffer = false;
        let wanted = features & 1 << VIRTIO_NET_F_GUEST_CSUM != 0;
        self.partial_checksums = wanted && self.port.accept_partial_checksums(true).is_ok();
        if !wanted && let Err(error) = self.port.accept_partial_checksums(false) {
            eprintln!("stile-devices: frames with partial checksums can't be refused: {error}");
        }
        Ok(())
    }

    /// Without a driver nobody takes frames.
    fn sources(&self, has_driver: bool) -> Sources<'_> {
        [self.waits_for().filter(|_| has_driver).and_then(Port::file), None]
    }

    fn serve(&mut self, memory: &GuestMemoryMmap, queues: &mut [Queue]) -> Result<Progress, Error> {
        let [received, sent] = queues else { return Err(Error::QueueNotReady) };
        let sent = use_buffers(memory, sent, |chain| {
            self.send(memory, chain);
            0
        })?;
        let received = self.receive(memory, received)?;
        Ok(Progress { interrupt: received.interrupt | sent.interrupt << 1, more: sent.more || received.more })
    }
}
