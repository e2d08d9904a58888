//! Servers for HTTP boot (UEFI Specification 2.10, 24.7): a proxy DHCP server on the emulator's network, which names a file, and an HTTP
//! server on this machine, which has the file. The emulator's own DHCP server assigns the address.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread;

use anyhow::Result;

/// This machine's loopback address on the emulator's network.
const HOST: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);
/// An address that the emulator does not assign.
const DHCP_SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 77);

/// The emulator's arguments for the medium, without the path of [`serve`]'s socket, which is appended.
pub const MEDIUM: [&str; 4] = ["-device", "virtio-net-pci,netdev=nic,romfile=", "-netdev", "stream,id=names,addr.type=unix,addr.path="];

/// Further arguments: the emulator's own DHCP server is on the network, too, and firmware does not try PXE first.
pub const MORE: [&str; 12] = [
    "-netdev",
    "user,id=assigns",
    "-netdev",
    "hubport,hubid=0,id=assigned,netdev=assigns",
    "-netdev",
    "hubport,hubid=0,id=named,netdev=names",
    "-netdev",
    "hubport,hubid=0,id=nic",
    "-fw_cfg",
    "name=opt/org.tianocore/IPv4PXESupport,string=n",
    "-fw_cfg",
    "name=opt/org.tianocore/IPv6PXESupport,string=n",
];

/// Starts both servers for a file. Returns the socket for the emulator's network, in `dir`. The servers end with the process.
///
/// # Errors
/// The file can't be read; a socket can't be made.
pub fn serve(dir: &Path, file: &Path) -> Result<PathBuf> {
    let socket = dir.join("network");
    let (bytes, network, web) = (fs::read(file)?, UnixListener::bind(&socket)?, TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?);
    let uri = format!("http://{HOST}:{}/stile.efi", web.local_addr()?.port());
    thread::spawn(move || network.incoming().flatten().try_for_each(|emulator| name_file(emulator, &uri)));
    thread::spawn(move || {
        // One after the other: firmware has one connection at a time.
        for client in web.incoming().flatten() {
            // Firmware may close a connection early; the boot shows whether it got the file.
            let _ = send_file(&client, &bytes);
        }
    });
    Ok(socket)
}

/// Answers frames of an emulator's network until the emulator ends. Before each frame is its length, in 32 bits.
fn name_file(mut emulator: UnixStream, uri: &str) -> io::Result<()> {
    let mut length = [0; 4];
    while emulator.read_exact(&mut length).is_ok() {
        let mut frame = vec![0; u32::from_be_bytes(length) as usize];
        emulator.read_exact(&mut frame)?;
        if let Some(offer) = offer(&frame, uri) {
            emulator.write_all(&[&(offer.len() as u32).to_be_bytes()[..], &offer].concat())?;
        }
    }
    Ok(())
}

/// The answer to a DHCPDISCOVER of HTTP boot: an offer without an address, which names a file (RFC 2131, table 1; RFC 2132).
fn offer(frame: &[u8], uri: &str) -> Option<Vec<u8>> {
    const HEADERS: usize = 14 + 20 + 8;
    const SERVER: u16 = 67;
    const CLIENT: u16 = 68;
    const BROADCAST: [u8; 6] = [0xff; 6];
    let has = |text: &[u8]| frame.windows(text.len()).any(|part| part == text);
    // The port; the message's type; the class of the client.
    if frame.get(36..38)? != SERVER.to_be_bytes() || !has(&[53, 1, 1]) || !has(b"HTTPClient:") {
        return None;
    }
    let mut dhcp = frame.get(HEADERS..HEADERS + 240)?.to_vec();
    dhcp[0] = 2;
    dhcp[12..28].fill(0);
    dhcp[20..24].copy_from_slice(&DHCP_SERVER.octets());
    dhcp.extend([53, 1, 2]);
    for (option, value) in [(54, &DHCP_SERVER.octets()[..]), (60, b"HTTPClient"), (67, uri.as_bytes())] {
        dhcp.extend([option, value.len() as u8]);
        dhcp.extend(value);
    }
    dhcp.push(0xff);
    let length = dhcp.len() as u16;
    let mut ip = [0; 20];
    (ip[0], ip[8], ip[9]) = (0x45, 64, 17);
    ip[2..4].copy_from_slice(&(20 + 8 + length).to_be_bytes());
    ip[12..16].copy_from_slice(&DHCP_SERVER.octets());
    ip[16..].fill(0xff);
    let sum: u32 = ip.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1])).sum();
    ip[10..12].copy_from_slice(&(!(sum + (sum >> 16)) as u16).to_be_bytes());
    // From a locally administered MAC address; without a UDP checksum.
    let ethernet = [&BROADCAST[..], &[2, 0, 0, 0, 0, 77, 8, 0]].concat();
    let udp = [SERVER, CLIENT, 8 + length, 0].map(u16::to_be_bytes).concat();
    Some([&ethernet[..], &ip, &udp, &dhcp].concat())
}

/// Answers requests on a connection with the file's length (HEAD) or the file (GET).
fn send_file(mut client: &TcpStream, file: &[u8]) -> io::Result<()> {
    let mut lines = BufReader::new(client).lines();
    while let Some(request) = lines.next().transpose()? {
        for line in lines.by_ref() {
            if line?.is_empty() {
                break;
            }
        }
        write!(client, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nContent-Type: application/efi\r\n\r\n", file.len())?;
        if request.starts_with("GET ") {
            client.write_all(file)?;
        }
    }
    Ok(())
}
