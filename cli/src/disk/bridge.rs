//! The DHCP server of a bridge (RFC 2131), a port of the emulator's hub. It answers DHCP and ARP only: QEMU's user network, which gets all
//! frames of the hub, would reset the TCP connections of others.

use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;
use std::thread;

use anyhow::{Context, Result};
use rustix::io::{FdFlags, fcntl_setfd};
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, DhcpMessageType, DhcpPacket, DhcpRepr, EthernetAddress, EthernetFrame, EthernetProtocol,
    EthernetRepr, IpProtocol, Ipv4Address, Ipv4Packet, Ipv4Repr, UdpPacket, UdpRepr,
};

/// Bytes of the longest frame of the hub: longer than a driver may send without segmentation offload.
const FRAME: usize = 1 << 16;

/// Ports of servers and of clients.
const SERVER: u16 = 67;
const CLIENT: u16 = 68;

/// The last byte of the server's address, and of the first client's.
const OWN: u8 = 2;
const FIRST: u8 = 15;
/// Maximum number of clients that get an address.
const CLIENTS: usize = 200;

/// Seconds for which an address is given. It is the client's as long as the machine runs.
const LEASE: u32 = 24 * 60 * 60;

/// The emulator's end of a bridge's port. Dropped once the emulator has been started.
#[derive(Debug)]
pub struct Port(UnixDatagram);

impl Port {
    /// The file descriptor, which processes that this one starts inherit.
    pub fn number(&self) -> i32 {
        self.0.as_raw_fd()
    }
}

/// Starts the server of the `number`th bridge, whose network is 10.0.`number` + 2.0/24. It ends with this process.
///
/// # Errors
/// The system has no socket or thread left.
pub fn serve(number: u8) -> Result<Port> {
    let (own, emulator) = UnixDatagram::pair().context("a bridge's DHCP server has no socket")?;
    fcntl_setfd(&emulator, FdFlags::empty()).map_err(io::Error::from)?;
    let mut server = Server::new(number);
    let serve = move || {
        let mut frame = vec![0; FRAME];
        while let Ok(length) = own.recv(&mut frame) {
            if let Some(answer) = server.answer(&frame[..length])
                && own.send(&answer).is_err()
            {
                break;
            }
        }
    };
    thread::Builder::new().name("dhcp".into()).spawn(serve).context("a bridge's DHCP server has no thread")?;
    Ok(Port(emulator))
}

/// The server's state.
struct Server {
    mac: EthernetAddress,
    /// The third byte of all addresses.
    network: u8,
    /// Clients that have an address, in the order in which they first asked.
    clients: Vec<EthernetAddress>,
}

impl Server {
    const fn new(number: u8) -> Self {
        let network = number + 2;
        Self { mac: EthernetAddress([0x52, 0x55, 10, 0, network, OWN]), network, clients: Vec::new() }
    }

    const fn address(&self, host: u8) -> Ipv4Address {
        Ipv4Address::new(10, 0, self.network, host)
    }

    /// Returns the answer to a frame, if there is one. Its sender may be hostile, and take the place of any other one on the hub.
    fn answer(&mut self, frame: &[u8]) -> Option<Vec<u8>> {
        let frame = EthernetFrame::new_checked(frame).ok()?;
        match frame.ethertype() {
            EthernetProtocol::Arp => self.resolve(frame.payload()),
            EthernetProtocol::Ipv4 => self.lease(frame.payload()),
            EthernetProtocol::Ipv6 | EthernetProtocol::Unknown(_) => None,
        }
    }

    /// Answers an ARP request for the server's address: a client renews its lease by a packet to it.
    fn resolve(&self, packet: &[u8]) -> Option<Vec<u8>> {
        let ArpRepr::EthernetIpv4 { operation, source_hardware_addr, source_protocol_addr, target_protocol_addr, .. } =
            ArpRepr::parse(&ArpPacket::new_checked(packet).ok()?).ok()?
        else {
            return None;
        };
        if operation != ArpOperation::Request || target_protocol_addr != self.address(OWN) {
            return None;
        }
        let reply = ArpRepr::EthernetIpv4 {
            operation: ArpOperation::Reply,
            source_hardware_addr: self.mac,
            source_protocol_addr: self.address(OWN),
            target_hardware_addr: source_hardware_addr,
            target_protocol_addr: source_protocol_addr,
        };
        Some(self.frame(source_hardware_addr, EthernetProtocol::Arp, reply.buffer_len(), |payload| {
            reply.emit(&mut ArpPacket::new_unchecked(payload));
        }))
    }

    /// Answers a request for an address.
    fn lease(&mut self, packet: &[u8]) -> Option<Vec<u8>> {
        let ip = Ipv4Packet::new_checked(packet).ok()?;
        let datagram = (ip.next_header() == IpProtocol::Udp).then(|| UdpPacket::new_checked(ip.payload()).ok())??;
        if (datagram.src_port(), datagram.dst_port()) != (CLIENT, SERVER) {
            return None;
        }
        let message = DhcpPacket::new_checked(datagram.payload()).ok()?;
        let request = DhcpRepr::parse(&message).ok()?;
        let client = request.client_hardware_address;
        let is_for_other = request.server_identifier.is_some_and(|server| server != self.address(OWN));
        if !client.is_unicast() || is_for_other {
            return None;
        }
        let given = self.address_of(client)?;
        let is_held = request.client_ip != Ipv4Address::UNSPECIFIED;
        let message_type = match request.message_type {
            DhcpMessageType::Discover => DhcpMessageType::Offer,
            DhcpMessageType::Request if given == request.requested_ip.unwrap_or(request.client_ip) => DhcpMessageType::Ack,
            // The client asks for an address that it had in another machine.
            DhcpMessageType::Request => DhcpMessageType::Nak,
            _ => return None,
        };
        let is_given = message_type != DhcpMessageType::Nak;
        let answer = DhcpRepr {
            message_type,
            your_ip: if is_given { given } else { Ipv4Address::UNSPECIFIED },
            client_ip: if is_given { request.client_ip } else { Ipv4Address::UNSPECIFIED },
            server_ip: Ipv4Address::UNSPECIFIED,
            router: None,
            subnet_mask: is_given.then(|| Ipv4Address::new(255, 255, 255, 0)),
            requested_ip: None,
            client_identifier: None,
            server_identifier: Some(self.address(OWN)),
            parameter_request_list: None,
            dns_servers: None,
            max_size: None,
            lease_duration: is_given.then_some(LEASE),
            renew_duration: None,
            rebind_duration: None,
            additional_options: &[],
            ..request
        };
        // A client takes packets to its address only once it holds it.
        let to = if is_given && is_held { given } else { Ipv4Address::BROADCAST };
        let mac = if is_given { client } else { EthernetAddress::BROADCAST };
        Some(self.datagram(mac, to, &answer))
    }

    /// The address of a client, a new one if it has none. `None` if all are given.
    fn address_of(&mut self, client: EthernetAddress) -> Option<Ipv4Address> {
        let index = match self.clients.iter().position(|other| *other == client) {
            Some(index) => index,
            None if self.clients.len() < CLIENTS => {
                self.clients.push(client);
                self.clients.len() - 1
            }
            None => return None,
        };
        Some(self.address(FIRST + index as u8))
    }

    fn datagram(&self, mac: EthernetAddress, to: Ipv4Address, message: &DhcpRepr<'_>) -> Vec<u8> {
        let (from, checksums) = (self.address(OWN), ChecksumCapabilities::default());
        let udp = UdpRepr { src_port: SERVER, dst_port: CLIENT };
        let length = udp.header_len() + message.buffer_len();
        let ip = Ipv4Repr { src_addr: from, dst_addr: to, next_header: IpProtocol::Udp, payload_len: length, hop_limit: 64 };
        self.frame(mac, EthernetProtocol::Ipv4, ip.buffer_len() + length, |payload| {
            let mut packet = Ipv4Packet::new_unchecked(payload);
            ip.emit(&mut packet, &checksums);
            let write = |bytes: &mut [u8]| message.emit(&mut DhcpPacket::new_unchecked(bytes)).unwrap_or_default();
            let mut datagram = UdpPacket::new_unchecked(packet.payload_mut());
            udp.emit(&mut datagram, &from.into(), &to.into(), message.buffer_len(), write, &checksums);
        })
    }

    /// A frame of this server's with a payload of some length, which `write` writes.
    fn frame(&self, to: EthernetAddress, ethertype: EthernetProtocol, length: usize, write: impl FnOnce(&mut [u8])) -> Vec<u8> {
        let header = EthernetRepr { src_addr: self.mac, dst_addr: to, ethertype };
        let mut bytes = vec![0; header.buffer_len() + length];
        let mut frame = EthernetFrame::new_unchecked(&mut bytes[..]);
        header.emit(&mut frame);
        write(frame.payload_mut());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn mac(number: u8) -> EthernetAddress {
        EthernetAddress([0x52, 0x54, 0, 0, 0, number])
    }

    fn request(client: u8, message_type: DhcpMessageType, requested_ip: Option<Ipv4Address>, client_ip: Ipv4Address) -> DhcpRepr<'static> {
        DhcpRepr {
            message_type,
            transaction_id: 7,
            secs: 0,
            client_hardware_address: mac(client),
            client_ip,
            your_ip: Ipv4Address::UNSPECIFIED,
            server_ip: Ipv4Address::UNSPECIFIED,
            router: None,
            subnet_mask: None,
            relay_agent_ip: Ipv4Address::UNSPECIFIED,
            broadcast: false,
            requested_ip,
            client_identifier: None,
            server_identifier: None,
            parameter_request_list: None,
            dns_servers: None,
            max_size: None,
            lease_duration: None,
            renew_duration: None,
            rebind_duration: None,
            additional_options: &[],
        }
    }

    /// A client's frame with a message, by the server's own functions, with the ports exchanged.
    fn sent(message: &DhcpRepr<'_>) -> Vec<u8> {
        let mut frame = Server::new(9).datagram(EthernetAddress::BROADCAST, Ipv4Address::BROADCAST, message);
        let udp = 14 + 20;
        frame[udp..udp + 4].copy_from_slice(&[0, CLIENT as u8, 0, SERVER as u8]);
        frame
    }

    /// The type, the address, and the destination of an answer, whose checksums are right.
    fn answer(server: &mut Server, message: &DhcpRepr<'_>) -> Option<(DhcpMessageType, Ipv4Address, EthernetAddress, Ipv4Address)> {
        let frame = server.answer(&sent(message))?;
        let frame = EthernetFrame::new_checked(&frame[..]).expect("a frame");
        let packet = Ipv4Packet::new_checked(frame.payload()).expect("a packet");
        let datagram = UdpPacket::new_checked(packet.payload()).expect("a datagram");
        assert!(packet.verify_checksum() && datagram.verify_checksum(&packet.src_addr().into(), &packet.dst_addr().into()));
        assert_eq!((datagram.src_port(), datagram.dst_port()), (SERVER, CLIENT));
        let message = DhcpPacket::new_checked(datagram.payload()).expect("a message");
        let answer = DhcpRepr::parse(&message).expect("a message");
        assert_eq!((answer.transaction_id, answer.server_identifier, answer.router), (7, Some(server.address(OWN)), None));
        Some((answer.message_type, answer.your_ip, frame.dst_addr(), packet.dst_addr()))
    }

    #[test]
    fn clients_get_addresses_in_the_order_in_which_they_ask() {
        use DhcpMessageType::{Ack, Discover, Nak, Offer, Request};
        let (none, all) = (Ipv4Address::UNSPECIFIED, Ipv4Address::BROADCAST);
        let mut server = Server::new(1);
        let address = |host| Ipv4Address::new(10, 0, 3, host);
        assert_eq!(answer(&mut server, &request(1, Discover, None, none)), Some((Offer, address(15), mac(1), all)));
        assert_eq!(answer(&mut server, &request(2, Discover, Some(address(15)), none)), Some((Offer, address(16), mac(2), all)));
        assert_eq!(answer(&mut server, &request(1, Request, Some(address(15)), none)), Some((Ack, address(15), mac(1), all)));
        // A renewal, and an address of another machine.
        assert_eq!(answer(&mut server, &request(1, Request, None, address(15))), Some((Ack, address(15), mac(1), address(15))));
        let refused = Some((Nak, none, EthernetAddress::BROADCAST, all));
        assert_eq!(answer(&mut server, &request(1, Request, Some(address(99)), none)), refused);
        assert_eq!(answer(&mut server, &request(1, Request, None, none)), refused);
        assert_eq!(answer(&mut server, &request(1, DhcpMessageType::Release, None, address(15))), None);
        let other = DhcpRepr { server_identifier: Some(address(3)), ..request(1, Request, Some(address(15)), none) };
        assert_eq!(answer(&mut server, &other), None, "for another server");
    }

    #[test]
    fn addresses_have_an_end() {
        let mut server = Server::new(1);
        let discover = |server: &mut Server, client: u8| {
            answer(server, &request(client, DhcpMessageType::Discover, None, Ipv4Address::UNSPECIFIED)).map(|answer| answer.1.octets()[3])
        };
        for client in 0..CLIENTS as u8 {
            assert_eq!(discover(&mut server, client), Some(FIRST + client));
        }
        assert_eq!([discover(&mut server, CLIENTS as u8), discover(&mut server, 3)], [None, Some(FIRST + 3)]);
    }

    #[test]
    fn the_servers_address_can_be_resolved_and_no_other() {
        let mut server = Server::new(1);
        let ask = |target_protocol_addr| {
            let request = ArpRepr::EthernetIpv4 {
                operation: ArpOperation::Request,
                source_hardware_addr: mac(1),
                source_protocol_addr: Ipv4Address::new(10, 0, 3, 15),
                target_hardware_addr: EthernetAddress([0; 6]),
                target_protocol_addr,
            };
            Server::new(9).frame(EthernetAddress::BROADCAST, EthernetProtocol::Arp, request.buffer_len(), |payload| {
                request.emit(&mut ArpPacket::new_unchecked(payload));
            })
        };
        let reply = server.answer(&ask(Ipv4Address::new(10, 0, 3, OWN))).expect("a reply");
        let reply = EthernetFrame::new_checked(&reply[..]).expect("a frame");
        assert_eq!((reply.dst_addr(), reply.src_addr()), (mac(1), server.mac));
        assert_eq!(server.answer(&ask(Ipv4Address::new(10, 0, 3, 16))), None);
    }

    /// TCP between others is not answered, whatever it is.
    #[test]
    fn connections_of_others_are_not_answered() {
        let mut server = Server::new(1);
        let mut frame = sent(&request(1, DhcpMessageType::Discover, None, Ipv4Address::UNSPECIFIED));
        frame[14 + 9] = u8::from(IpProtocol::Tcp);
        assert_eq!(server.answer(&frame), None);
    }

    proptest! {
        #[test]
        fn frames_of_any_bytes_end_in_nothing_worse(
            frame in prop::collection::vec(any::<u8>(), 0..600),
            changes in prop::collection::vec((14usize..290, any::<u8>()), 0..8),
        ) {
            let mut server = Server::new(1);
            server.answer(&frame);
            let mut close = sent(&request(1, DhcpMessageType::Discover, None, Ipv4Address::UNSPECIFIED));
            for (place, byte) in changes {
                if let Some(place) = close.get_mut(place) {
                    *place = byte;
                }
            }
            server.answer(&close);
            prop_assert!(server.clients.len() <= 2);
        }
    }
}
