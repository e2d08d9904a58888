//! Networks that a machine uses.

use std::net::TcpListener;

use anyhow::Result;

use crate::exit;

/// A network of the emulator's own: the VM reaches what this user reaches, and is reached through forwarded ports only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Network {
    /// Forwarded TCP ports.
    pub forwards: Vec<Forward>,
}

/// A TCP port of this machine's loopback interface that leads to one of the VM's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forward {
    /// This machine's port.
    pub host: u16,
    /// The VM's port.
    pub guest: u16,
}

impl Network {
    /// Reads `user[,forward=PORT:VM-PORT]...`.
    ///
    /// # Errors
    /// Another kind of network; a malformed port.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut words = text.split(',');
        if words.next() != Some("user") {
            return Err("expected user[,forward=PORT:VM-PORT]..., such as user,forward=2222:22".into());
        }
        let forwards = words.map(|word| {
            forward(word).ok_or_else(|| format!("\"{word}\" is not understood; expected forward=PORT:VM-PORT, such as forward=2222:22"))
        });
        Ok(Self { forwards: forwards.collect::<Result<_, _>>()? })
    }

    /// Checks that nothing else uses the ports.
    ///
    /// # Errors
    /// A port is in use, or reserved for root.
    pub fn check(&self) -> Result<()> {
        for Forward { host, guest } in &self.forwards {
            if let Err(error) = TcpListener::bind(("127.0.0.1", *host)) {
                let other = if *host < 1024 { host.saturating_add(2200) } else { host.checked_add(1).unwrap_or(2222) };
                let what =
                    format!("port {host} of this machine can't be used ({error}): choose another one, such as forward={other}:{guest}");
                return Err(exit::usage(format!("--net: {what}")));
            }
        }
        Ok(())
    }
}

fn forward(word: &str) -> Option<Forward> {
    let (host, guest) = word.strip_prefix("forward=")?.split_once(':')?;
    let port = |text: &str| text.parse().ok().filter(|port: &u16| *port != 0);
    Some(Forward { host: port(host)?, guest: port(guest)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_forwarded() {
        let forwards = vec![Forward { host: 2222, guest: 22 }, Forward { host: 8080, guest: 80 }];
        assert_eq!(Network::parse("user,forward=2222:22,forward=8080:80"), Ok(Network { forwards }));
        assert_eq!(Network::parse("user"), Ok(Network { forwards: Vec::new() }));
        for wrong in ["", "tap", "user,forward=22", "user,forward=0:22", "user,forward=2222:99999", "user,x"] {
            assert!(Network::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_port_in_use_is_refused() {
        let other = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let host = other.local_addr().unwrap().port();
        let network = Network { forwards: vec![Forward { host, guest: 22 }] };
        assert!(format!("{:#}", network.check().unwrap_err()).contains("choose another one"));
        drop(other);
        network.check().unwrap();
    }
}
