//! The frames that a client may send: those in its own name.

use std::net::Ipv4Addr;

use etherparse::{ArpHardwareId, ArpPacketSlice, EtherType, Ethernet2Slice, IpNumber, Ipv4HeaderSlice};
use virtio_bindings::virtio_net::VIRTIO_NET_HDR_F_NEEDS_CSUM;

use crate::frame::{HEADER, Mac};

/// Ports of DHCP's servers and clients (RFC 2131, section 4.1).
const DHCP_SERVER: u16 = 67;
const DHCP_CLIENT: u16 = 68;
/// Offset of a client's Ethernet address in a DHCP message (RFC 2131, section 2, `chaddr`), in bytes.
const CLIENT_ADDRESS: usize = 28;

/// Size of UDP's header, in bytes. Offset of its checksum, and of TCP's.
const UDP_HEADER: usize = 8;
const UDP_CHECKSUM: u16 = 6;
const TCP_CHECKSUM: u16 = 16;

/// A fragment that begins before this could replace what was checked in the first one, in bytes: headers and `chaddr`.
const CHECKED: usize = UDP_HEADER + CLIENT_ADDRESS + size_of::<Mac>();

/// A client's addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// Ethernet address of its card.
    pub mac: Mac,
    /// IP address of its system, if it is known: then only IPv4 and ARP pass.
    pub ip: Option<Ipv4Addr>,
}

impl Identity {
    /// Whether a frame is in the client's name. It begins with the header of [`HEADER`] bytes.
    ///
    /// With another's Ethernet address, the client would get the other's frames. With another's IP address in ARP as well; as a server of DHCP
    /// it would name itself as router.
    pub fn may_send(&self, frame: &[u8]) -> bool {
        let Some((header, ethernet)) = frame.split_first_chunk::<HEADER>() else { return false };
        let Ok(ethernet) = Ethernet2Slice::from_slice_without_fcs(ethernet) else { return false };
        if ethernet.source() != self.mac {
            return false;
        }
        let Some(ip) = self.ip else { return true };
        match ethernet.ether_type() {
            EtherType::ARP => !needs_checksum(header) && self.may_resolve(ip, ethernet.payload_slice()),
            EtherType::IPV4 => self.may_send_packet(ip, header, ethernet.slice(), ethernet.payload_slice()),
            // IPv6's addresses are the client's own choice; a VLAN's frames have others within.
            _ => false,
        }
    }

    /// Whether an ARP packet has the client's address as its sender, or is a probe for that address, which has no sender (RFC 5227). A
    /// probe for another client's address would keep that client from using it.
    fn may_resolve(&self, ip: Ipv4Addr, packet: &[u8]) -> bool {
        let Ok(arp) = ArpPacketSlice::from_slice(packet) else { return false };
        let (sender, target) = (arp.sender_protocol_addr(), arp.target_protocol_addr());
        arp.hw_addr_type() == ArpHardwareId::ETHERNET
            && arp.proto_addr_type() == EtherType::IPV4
            && arp.sender_hw_addr() == self.mac
            && (sender == ip.octets() || sender == Ipv4Addr::UNSPECIFIED.octets() && target == ip.octets())
    }

    fn may_send_packet(&self, ip: Ipv4Addr, header: &[u8; HEADER], ethernet: &[u8], packet: &[u8]) -> bool {
        let Ok(head) = Ipv4HeaderSlice::from_slice(packet) else { return false };
        let Some(payload) = packet.get(head.slice().len()..usize::from(head.total_len())) else { return false };
        let offset = usize::from(head.fragments_offset().value()) * 8;
        let is_fragment = offset != 0 || head.more_fragments();
        if needs_checksum(header) {
            // The kernel stores the checksum where the header says: nowhere else than in the transport protocol's.
            let place = match head.protocol() {
                IpNumber::TCP => TCP_CHECKSUM,
                IpNumber::UDP => UDP_CHECKSUM,
                _ => return false,
            };
            let [.., start0, start1, offset0, offset1, _, _] = *header;
            let transport = ethernet.len() - packet.len() + head.slice().len();
            let is_there =
                usize::from(u16::from_le_bytes([start0, start1])) == transport && u16::from_le_bytes([offset0, offset1]) == place;
            if !is_there || is_fragment {
                return false;
            }
        }
        if offset != 0 {
            return offset >= CHECKED && head.source_addr() == ip;
        }
        let mut ports = (0, 0);
        if head.protocol() == IpNumber::UDP {
            let Some([source0, source1, destination0, destination1]) = payload.first_chunk() else { return false };
            ports = (u16::from_be_bytes([*source0, *source1]), u16::from_be_bytes([*destination0, *destination1]));
        }
        match ports {
            (DHCP_SERVER, _) => false,
            (source, DHCP_SERVER) => {
                let is_client =
                    source == DHCP_CLIENT && !is_fragment && payload.get(UDP_HEADER + CLIENT_ADDRESS..CHECKED) == Some(&self.mac);
                is_client && [Ipv4Addr::UNSPECIFIED, ip].contains(&head.source_addr())
            }
            _ => head.source_addr() == ip,
        }
    }
}

fn needs_checksum(header: &[u8; HEADER]) -> bool {
    header[0] & VIRTIO_NET_HDR_F_NEEDS_CSUM as u8 != 0
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const OWN: Identity = Identity { mac: [0x52, 0x54, 0, 0x73, 0x76, 1], ip: Some(Ipv4Addr::new(10, 0, 2, 15)) };
    const OTHER: Identity = Identity { mac: [0x52, 0x54, 0, 0x73, 0x76, 2], ip: Some(Ipv4Addr::new(10, 0, 2, 16)) };
    const NOBODY: [u8; 4] = [0; 4];
    const ICMP: u8 = 1;
    const TCP: u8 = 6;
    const UDP: u8 = 17;
    const GRE: u8 = 47;
    const FIRST: u16 = 0x2000;

    fn ip(of: Identity) -> [u8; 4] {
        of.ip.expect("it has one").octets()
    }

    /// A frame with a virtio header that asks for a checksum from `sum.0` on at offset `sum.1`, if any.
    fn frame(mac: Mac, ether_type: u16, sum: Option<(u16, u16)>, content: &[u8]) -> Vec<u8> {
        let mut header = [0; HEADER];
        if let Some((start, offset)) = sum {
            header[0] = 1;
            header[6..8].copy_from_slice(&start.to_le_bytes());
            header[8..10].copy_from_slice(&offset.to_le_bytes());
        }
        [&header[..], &[0xff; 6], &mac, &ether_type.to_be_bytes(), content].concat()
    }

    fn arp(mac: Mac, sender: [u8; 4]) -> Vec<u8> {
        arp_for(mac, sender, ip(OTHER))
    }

    fn arp_for(mac: Mac, sender: [u8; 4], target: [u8; 4]) -> Vec<u8> {
        frame(OWN.mac, 0x0806, None, &[&[0, 1, 8, 0, 6, 4, 0, 2][..], &mac, &sender, &OTHER.mac, &target].concat())
    }

    fn packet(source: [u8; 4], protocol: u8, fragment: u16, payload: &[u8]) -> Vec<u8> {
        let length = (20 + payload.len() as u16).to_be_bytes();
        let fragment = fragment.to_be_bytes();
        let head = [0x45, 0, length[0], length[1], 0, 0, fragment[0], fragment[1], 64, protocol, 0, 0];
        [&head[..], &source, &ip(OTHER), payload].concat()
    }

    fn udp(source: u16, destination: u16, content: &[u8]) -> Vec<u8> {
        let length = (8 + content.len() as u16).to_be_bytes();
        [&source.to_be_bytes()[..], &destination.to_be_bytes(), &length, &[0, 0], content].concat()
    }

    fn dhcp(of: Mac) -> Vec<u8> {
        let mut message = vec![0; 240];
        message[28..34].copy_from_slice(&of);
        message
    }

    fn may(source: [u8; 4], protocol: u8, fragment: u16, payload: &[u8]) -> bool {
        OWN.may_send(&frame(OWN.mac, 0x0800, None, &packet(source, protocol, fragment, payload)))
    }

    #[test]
    fn a_client_speaks_for_itself() {
        assert!(OWN.may_send(&arp(OWN.mac, ip(OWN))) && OWN.may_send(&arp_for(OWN.mac, NOBODY, ip(OWN))));
        assert!(!OWN.may_send(&arp(OWN.mac, NOBODY)), "a probe for another's address");
        for (protocol, payload) in [(ICMP, b"ping".to_vec()), (TCP, vec![0; 20]), (UDP, udp(1, 53, b"?")), (GRE, vec![])] {
            assert!(may(ip(OWN), protocol, 0, &payload), "{protocol}");
            assert!(!may(ip(OTHER), protocol, 0, &payload) && !may(NOBODY, protocol, 0, &payload), "{protocol}");
        }
        assert!(!OWN.may_send(&arp(OWN.mac, ip(OTHER))) && !OWN.may_send(&arp(OTHER.mac, ip(OWN))));
        let others = frame(OTHER.mac, 0x0800, None, &packet(ip(OWN), ICMP, 0, b""));
        assert!(!OWN.may_send(&others) && OTHER.mac != OWN.mac);
    }

    #[test]
    fn without_an_ip_address_the_card_s_counts() {
        let open = Identity { ip: None, ..OWN };
        assert!(open.may_send(&frame(OWN.mac, 0x86dd, None, b"IPv6")) && open.may_send(&arp(OWN.mac, ip(OTHER))));
        assert!(!open.may_send(&frame(OTHER.mac, 0x0800, None, b"")));
    }

    #[test]
    fn protocols_without_a_known_sender_are_dropped() {
        for ether_type in [0x86dd, 0x8100, 0x88a8, 0x88cc, 0x0026] {
            assert!(!OWN.may_send(&frame(OWN.mac, ether_type, None, &packet(ip(OWN), ICMP, 0, b"ping"))), "{ether_type:#x}");
        }
    }

    #[test]
    fn a_client_is_no_server_of_dhcp() {
        for source in [NOBODY, ip(OWN)] {
            assert!(may(source, UDP, 0, &udp(68, 67, &dhcp(OWN.mac))));
            assert!(!may(source, UDP, 0, &udp(68, 67, &dhcp(OTHER.mac))), "in the name of another");
            assert!(!may(source, UDP, 0, &udp(68, 67, b"short")));
            assert!(!may(source, UDP, 0, &udp(67, 68, &dhcp(OWN.mac))), "an answer");
            assert!(!may(source, UDP, 0, &udp(67, 67, &dhcp(OWN.mac))), "a relay's");
        }
        assert!(!may(ip(OTHER), UDP, 0, &udp(68, 67, &dhcp(OWN.mac))));
    }

    #[test]
    fn fragments_hide_nothing() {
        assert!(may(ip(OWN), UDP, FIRST, &udp(1, 2049, &[0; 1400])));
        assert!(!may(ip(OWN), UDP, FIRST, &[0; 3]), "without its ports");
        assert!(!may(ip(OWN), UDP, FIRST, &udp(68, 67, &dhcp(OWN.mac))), "what follows could be anything");
        for (offset, passes) in [(1, false), (5, false), (6, true), (185, true)] {
            assert_eq!(may(ip(OWN), UDP, offset, &[0; 8]), passes, "{offset}");
        }
        assert!(!may(ip(OTHER), UDP, 185, &[0; 8]));
    }

    #[test]
    fn a_checksum_is_stored_in_its_place_only() {
        let datagram = packet(ip(OWN), UDP, 0, &udp(1, 2, b"x"));
        let stream = packet(ip(OWN), TCP, 0, &[0; 20]);
        let may = |content: &[u8], start, offset| OWN.may_send(&frame(OWN.mac, 0x0800, Some((start, offset)), content));
        assert!(may(&datagram, 34, 6) && may(&stream, 34, 16));
        // 26 is the place of the source address.
        for (start, offset) in [(20, 6), (26, 0), (34, 16), (0, 26), (33, 7), (35, 5)] {
            assert!(!may(&datagram, start, offset), "{start} + {offset}");
        }
        assert!(!may(&packet(ip(OWN), ICMP, 0, &[0; 20]), 34, 6) && !may(&packet(ip(OWN), UDP, FIRST, &[0; 20]), 34, 6));
        let mut resolution = arp(OWN.mac, ip(OWN));
        resolution[0] = 1;
        assert!(!OWN.may_send(&resolution));
    }

    proptest! {
        /// A frame that passes, of any bytes, has the client's addresses where receivers look for them.
        #[test]
        fn what_passes_is_in_the_client_s_name(
            which in 0..4usize, changes in prop::collection::vec((0..90usize, any::<u8>()), 0..4), length in 0..400usize,
        ) {
            let packets = [
                arp(OWN.mac, ip(OWN)),
                frame(OWN.mac, 0x0800, Some((34, 6)), &packet(ip(OWN), UDP, 0, &udp(1, 53, b"?"))),
                frame(OWN.mac, 0x0800, None, &packet(ip(OWN), UDP, 0, &udp(68, 67, &dhcp(OWN.mac)))),
                frame(OWN.mac, 0x0800, Some((34, 16)), &packet(ip(OWN), TCP, 0, &[0; 30])),
            ];
            let mut frame = packets[which].clone();
            for (at, byte) in changes {
                if let Some(old) = frame.get_mut(at) {
                    *old = byte;
                }
            }
            frame.truncate(length);
            if OWN.may_send(&frame) {
                let ethernet = &frame[HEADER..];
                prop_assert_eq!(&ethernet[6..12], &OWN.mac);
                match ethernet[12..14] {
                    [0x08, 0x06] => {
                        let has_sender = ethernet[28..32] == ip(OWN);
                        prop_assert!(ethernet[22..28] == OWN.mac);
                        prop_assert!(has_sender || ethernet[28..32] == NOBODY && ethernet[38..42] == ip(OWN));
                    }
                    [0x08, 0x00] => prop_assert!(ethernet[26..30] == ip(OWN) || ethernet[26..30] == NOBODY && ethernet[23] == UDP),
                    _ => prop_assert!(false),
                }
            }
        }
    }
}
