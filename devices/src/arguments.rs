//! The command line.

use std::path::PathBuf;

use crate::vsock::forward::HOST;
use crate::{Identity, Mac};

/// The accepted forms.
const EXPECTED: &str = "expected block=FILE[,format=qcow2][,readonly], net=BRIDGE,mac=ADDRESS[,ip=ADDRESS], fs=DIRECTORY,tag=NAME[,readonly], \
                        rng, balloon=MIB, vsock=CID, console=FILE, or behind all others forward=PORT:CID:PORT[+PORT:CID:PORT]...; stile-devices \
                        serves no other devices";

/// Format of a disk's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// The content, and nothing else.
    Raw,
    /// QEMU's format, which a back end serves.
    Qcow2,
}

/// A device to serve.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeviceArgument {
    /// A disk.
    Block {
        /// File or block device with the content of the disk.
        file: PathBuf,
        /// Format of the file.
        format: Format,
        /// The client can't write.
        read_only: bool,
    },
    /// A network card.
    Net {
        /// The bridge that it is a port of.
        bridge: String,
        /// The client's addresses.
        identity: Identity,
    },
    /// A folder.
    Folder {
        /// The folder.
        path: PathBuf,
        /// The client's name for it.
        tag: String,
        /// The client can't write.
        read_only: bool,
    },
    /// Random bytes.
    Entropy,
    /// A balloon.
    Balloon {
        /// RAM that the client is to give back, in MiB.
        mib: u32,
    },
    /// A console.
    Console {
        /// File for its output.
        file: PathBuf,
    },
    /// Sockets between clients.
    Vsock {
        /// The client's address.
        cid: u32,
    },
    /// No device: TCP ports of this VM that lead to sockets of clients.
    Forward {
        /// A port of this VM, and the address and port of a client.
        ports: Vec<(u16, u32, u32)>,
    },
}

impl DeviceArgument {
    /// Type of the device (Virtio 1.2, section 5), and its name.
    pub const fn kind(&self) -> (u32, &'static str) {
        match self {
            Self::Net { .. } => (1, "net"),
            Self::Block { .. } => (2, "block"),
            Self::Console { .. } => (3, "console"),
            Self::Entropy => (4, "rng"),
            Self::Balloon { .. } => (5, "balloon"),
            Self::Vsock { .. } => (19, "vsock"),
            Self::Folder { .. } => (26, "fs"),
            Self::Forward { .. } => (0, "forward"),
        }
    }

    /// Whether a client has the device.
    pub const fn is_device(&self) -> bool {
        !matches!(self, Self::Forward { .. })
    }

    /// The client's address, of sockets; the host's, of forwarded ports.
    pub const fn cid(&self) -> Option<u32> {
        match self {
            Self::Vsock { cid } => Some(*cid),
            Self::Forward { .. } => Some(HOST),
            _ => None,
        }
    }

    /// Whether another program carries out its requests.
    pub const fn has_back_end(&self) -> bool {
        matches!(self, Self::Block { format: Format::Qcow2, .. } | Self::Folder { .. })
    }
}

/// Reads an argument: `block=FILE`, with `,format=qcow2` and `,readonly` behind it, `net=BRIDGE,mac=ADDRESS` or
/// `net=BRIDGE,mac=ADDRESS,ip=ADDRESS`, `fs=DIRECTORY,tag=NAME` with `,readonly` behind it, `rng`, `balloon=MIB`, `vsock=CID`,
/// `console=FILE` or `forward=PORT:CID:PORT` with `+PORT:CID:PORT` behind it.
///
/// # Errors
/// Another form; the message says which was expected.
pub fn parse(argument: &str) -> Result<DeviceArgument, String> {
    let parsed = match argument.split_once('=') {
        None if argument == "rng" => Some(DeviceArgument::Entropy),
        Some(("fs", folder)) => self::folder(folder),
        Some(("block", file)) => block(file),
        Some(("net", card)) => net(card),
        Some(("balloon", mib)) => mib.parse().ok().map(|mib| DeviceArgument::Balloon { mib }),
        Some(("vsock", cid)) => vsock(cid),
        Some(("forward", ports)) => forward(ports),
        Some(("console", file)) => (!file.is_empty()).then(|| DeviceArgument::Console { file: file.into() }),
        _ => None,
    };
    parsed.ok_or_else(|| format!("{argument}: {EXPECTED}"))
}

fn block<'a>(file: &'a str) -> Option<DeviceArgument> {
    let option = |text: &'a str, option| text.strip_suffix(option).map_or((text, false), |text| (text, true));
    let (file, read_only) = option(file, ",readonly");
    let (file, is_qcow2) = option(file, ",format=qcow2");
    let format = if is_qcow2 { Format::Qcow2 } else { Format::Raw };
    (!file.is_empty()).then(|| DeviceArgument::Block { file: file.into(), format, read_only })
}

/// Longest tag, in bytes.
const LONGEST_TAG: usize = 36;

fn folder(folder: &str) -> Option<DeviceArgument> {
    let (folder, read_only) = folder.strip_suffix(",readonly").map_or((folder, false), |folder| (folder, true));
    let (path, tag) = folder.rsplit_once(",tag=")?;
    let is_tag = (1..=LONGEST_TAG).contains(&tag.len()) && !tag.contains('\0');
    (!path.is_empty() && is_tag).then(|| DeviceArgument::Folder { path: path.into(), tag: tag.to_owned(), read_only })
}

fn net(card: &str) -> Option<DeviceArgument> {
    let (bridge, addresses) = card.split_once(",mac=")?;
    let (mac, ip) = match addresses.split_once(",ip=") {
        Some((mac, ip)) => (mac, Some(ip.parse().ok()?)),
        None => (addresses, None),
    };
    let identity = Identity { mac: address(mac)?, ip };
    (!bridge.is_empty()).then(|| DeviceArgument::Net { bridge: bridge.to_owned(), identity })
}

/// The first address of a VM: lower ones are the host's, or reserved (Virtio 1.2, section 5.10.4).
const FIRST_CID: u32 = 3;

fn vsock(cid: &str) -> Option<DeviceArgument> {
    Some(DeviceArgument::Vsock { cid: self::cid(cid)? })
}

fn cid(text: &str) -> Option<u32> {
    text.parse().ok().filter(|cid| (FIRST_CID..u32::MAX).contains(cid))
}

/// Ports that can be forwarded, at most.
const MOST_PORTS: usize = 32;

fn forward(ports: &str) -> Option<DeviceArgument> {
    let port = |text: &str| {
        let [own, cid, port] = text.split(':').collect::<Vec<_>>().try_into().ok()?;
        let own = own.parse().ok().filter(|port| *port != 0)?;
        Some((own, self::cid(cid)?, port.parse().ok().filter(|port| *port != u32::MAX)?))
    };
    let ports: Vec<_> = ports.split('+').map(port).collect::<Option<_>>()?;
    (ports.len() <= MOST_PORTS).then_some(DeviceArgument::Forward { ports })
}

/// Reads an individual Ethernet address: six bytes in hexadecimal digits.
fn address(text: &str) -> Option<Mac> {
    let bytes: Option<Vec<u8>> = text.split(':').map(|byte| u8::from_str_radix(byte, 16).ok()).collect();
    let mac: Mac = bytes?.try_into().ok()?;
    let is_group = mac[0] & 1 != 0;
    (!is_group).then_some(mac)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_parsed() {
        let disk = |file: &str, format, read_only| Ok(DeviceArgument::Block { file: file.into(), format, read_only });
        assert_eq!(parse("block=/dev/vda"), disk("/dev/vda", Format::Raw, false));
        assert_eq!(parse("block=a,b,readonly"), disk("a,b", Format::Raw, true));
        assert_eq!(parse("block=a,format=qcow2"), disk("a", Format::Qcow2, false));
        assert_eq!(parse("block=a,b,format=qcow2,readonly"), disk("a,b", Format::Qcow2, true));
        let card =
            |ip| Ok(DeviceArgument::Net { bridge: "net0".into(), identity: Identity { mac: [0x52, 0x54, 0, 0x73, 0x76, 0x0a], ip } });
        assert_eq!(parse("net=net0,mac=52:54:00:73:76:0a"), card(None));
        assert_eq!(parse("net=net0,mac=52:54:00:73:76:0a,ip=10.0.2.15"), card(Some([10, 0, 2, 15].into())));
        let folder = |path: &str, tag: &str, read_only| Ok(DeviceArgument::Folder { path: path.into(), tag: tag.into(), read_only });
        assert_eq!(parse("fs=/a,tag=b"), folder("/a", "b", false));
        assert_eq!(parse("fs=/a,tag=b,tag=c,readonly"), folder("/a,tag=b", "c", true));
        assert_eq!(parse("rng").map(|entropy| entropy.kind()), Ok((4, "rng")));
        assert_eq!(parse("balloon=64"), Ok(DeviceArgument::Balloon { mib: 64 }));
        assert_eq!(parse("vsock=3"), Ok(DeviceArgument::Vsock { cid: 3 }));
        assert_eq!(parse("forward=2222:3:22"), Ok(DeviceArgument::Forward { ports: vec![(2222, 3, 22)] }));
        assert_eq!(
            parse("forward=1:3:4294967294+65535:4:0"),
            Ok(DeviceArgument::Forward { ports: vec![(1, 3, u32::MAX - 1), (65535, 4, 0)] })
        );
        for wrong in ["", "22", "22:3", "0:3:22", "65536:3:22", "22:2:22", "22:3:4294967295", "22:3:22+", "22:3:22:1", &"1:3:2+".repeat(40)]
        {
            assert!(parse(&format!("forward={wrong}")).is_err(), "{wrong}");
        }
        assert_eq!(parse("console=/tmp/log"), Ok(DeviceArgument::Console { file: "/tmp/log".into() }));
        let long = format!("fs=/a,tag={}", "x".repeat(37));
        let wrong = [
            "",
            "rng=a",
            "fs=/a",
            "fs=,tag=b",
            "console=",
            "balloon=",
            "balloon=64M",
            "vsock=2",
            "vsock=4294967295",
            &long,
            "block=",
            "block=,readonly",
            "block=,format=qcow2",
            "/dev/vda",
            "net=net0",
            "net=,mac=52:54:00:00:00:00",
            "net=a,mac=52:54:00:00:00",
        ];
        for wrong in wrong.into_iter().chain([
            "net=a,mac=01:00:5e:00:00:00",
            "net=a,mac=52:54:00:00:00:00,ip=10.0.2",
            "net=a,mac=52:54:00:00:00:00:00",
        ]) {
            assert!(parse(wrong).unwrap_err().contains("expected block=FILE"), "{wrong}");
        }
    }
}
