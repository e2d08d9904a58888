//! Networks that a machine uses.

use std::fmt;
use std::net::{Ipv4Addr, TcpListener};

use anyhow::Result;

use crate::exit;

/// A network of the emulator's. The VM reaches what this user reaches, and is reached through forwarded ports only; or, by a bridge, the
/// VMs on it reach each other only.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Network {
    /// Forwarded TCP ports.
    pub forwards: Vec<Forward>,
    /// The bridge, if it is one between VMs: 1 to 32 of `[a-z0-9-]`.
    pub bridge: Option<String>,
    /// Whether a VM that `stile run` adds serves it.
    pub served: bool,
    /// The address that is kept for the VM, if one is.
    pub address: Option<Ipv4Addr>,
    /// Whether it is for forwarded ports only: the VM reaches nothing.
    pub inward: bool,
}

/// Network of the addresses for forwarded ports of sockets, which no network of clients has.
pub const INWARD: &str = "10.1.0.0/24";

/// A TCP port of this machine's loopback interface that leads to one of the VM's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forward {
    /// This machine's port.
    pub host: u16,
    /// The VM's port.
    pub guest: u16,
    /// The VM's address, if several VMs are on the network.
    pub address: Option<Ipv4Addr>,
}

impl fmt::Display for Forward {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.guest)
    }
}

impl Network {
    /// Reads `user[,forward=PORT:VM-PORT]...[,served]` or `bridge=NAME[,served]`.
    ///
    /// # Errors
    /// Another kind of network; a malformed port.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut words = text.split(',');
        let bridge = match words.next().map(|word| (word, word.strip_prefix("bridge="))) {
            Some(("user", _)) => None,
            Some((_, Some(name))) if stile_blob::is_name(name) => Some(name.to_owned()),
            Some((_, Some(name))) => {
                return Err(format!("\"{name}\" is not a name for a bridge; expected 1 to 32 of a to z, 0 to 9 and '-'"));
            }
            _ => {
                return Err(
                    "expected user[,forward=PORT:VM-PORT]...[,served], such as user,forward=2222:22, or bridge=NAME[,served]".into()
                );
            }
        };
        let mut network = Self { bridge, ..Self::default() };
        for word in words {
            match (&network.bridge, forward(word)) {
                _ if word == "served" => network.served = true,
                (None, Some(forward)) => network.forwards.push(forward),
                (Some(_), _) => return Err(format!("\"{word}\" is not understood: only a user network forwards ports")),
                (None, None) => {
                    return Err(format!("\"{word}\" is not understood; expected forward=PORT:VM-PORT, such as forward=2222:22, or served"));
                }
            }
        }
        Ok(network)
    }

    /// Checks that the ports are free.
    ///
    /// # Errors
    /// A port is in use, or reserved for root.
    pub fn check(&self) -> Result<()> {
        for Forward { host, guest, .. } in &self.forwards {
            if let Err(error) = TcpListener::bind(("127.0.0.1", *host)) {
                let other = if *host < 1024 { host.saturating_add(2200) } else { host.checked_add(1).unwrap_or(2222) };
                let what =
                    format!("port {host} of this machine can't be used ({error}): choose another one, such as forward={other}:{guest}");
                return Err(exit::usage(format!("network: {what}")));
            }
        }
        Ok(())
    }
}

fn forward(word: &str) -> Option<Forward> {
    let (host, guest) = word.strip_prefix("forward=")?.split_once(':')?;
    let port = |text: &str| text.parse().ok().filter(|port: &u16| *port != 0);
    Some(Forward { host: port(host)?, guest: port(guest)?, address: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_forwarded() {
        let forwards = [(2222, 22), (8080, 80)].map(|(host, guest)| Forward { host, guest, address: None }).to_vec();
        let network = Network { forwards, ..Network::default() };
        assert_eq!(Network::parse("user,forward=2222:22,forward=8080:80"), Ok(network.clone()));
        assert_eq!(Network::parse("user,forward=2222:22,served,forward=8080:80"), Ok(Network { served: true, ..network }));
        assert_eq!(Network::parse("user"), Ok(Network::default()));
        let bridge = |served| Ok(Network { bridge: Some("lan0".into()), served, ..Network::default() });
        assert_eq!((Network::parse("bridge=lan0"), Network::parse("bridge=lan0,served")), (bridge(false), bridge(true)));
        for wrong in [
            "bridge=",
            "bridge=A b",
            "bridge=a,forward=1:1",
            "",
            "tap",
            "user,forward=22",
            "user,forward=0:22",
            "user,forward=2222:99999",
            "user,x",
        ] {
            assert!(Network::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_port_in_use_is_refused() {
        // A child process that another test forks keeps a copy of the socket until exec, and others may take the port.
        let is_free_afterwards = |_| {
            let other = TcpListener::bind(("127.0.0.1", 0)).unwrap();
            let host = other.local_addr().unwrap().port();
            let network = Network { forwards: vec![Forward { host, guest: 22, address: None }], ..Network::default() };
            assert!(format!("{:#}", network.check().unwrap_err()).contains("choose another one"));
            drop(other);
            network.check().is_ok()
        };
        assert!((0..20).any(is_free_afterwards));
    }
}
