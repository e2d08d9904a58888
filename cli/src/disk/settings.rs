//! The files that make a system out of packages: names, networks, keys and sources of packages.

/// A file of the system that belongs to no package.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// Its path, relative to the root.
    pub path: String,
    /// Its permissions.
    pub mode: u32,
    /// Its content.
    pub content: Vec<u8>,
}

impl Setting {
    /// A file that everybody may read.
    pub fn new(path: &str, content: impl Into<Vec<u8>>) -> Self {
        Self { path: path.to_owned(), mode: 0o644, content: content.into() }
    }

    /// The file, for its owner only.
    pub fn private(self) -> Self {
        Self { mode: 0o600, ..self }
    }

    /// The permissions of directories made for it.
    pub fn directory_mode(&self) -> u32 {
        if self.mode == 0o600 { 0o700 } else { 0o755 }
    }
}

/// The choices that differ between disks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct System<'a> {
    /// The host's name.
    pub hostname: &'a str,
    /// The file system's UUID.
    pub uuid: &'a str,
    /// Public keys that may log in as root, a line each.
    pub keys: &'a str,
    /// Debian's release.
    pub suite: &'a str,
    /// The mirror's address.
    pub mirror: &'a str,
    /// The address of the archive with security updates, if known.
    pub security: Option<&'a str>,
}

/// Ethernet interfaces are configured by DHCP. Systems on a bridge answer to their names (LLMNR, RFC 4795), which no server there knows.
const NETWORK: &str = "[Match]\nType=ether\nKind=!*\n\n[Network]\nDHCP=yes\nLLMNR=yes\n";

/// Debian's default is off.
const NAMES: &str = "[Resolve]\nLLMNR=yes\n";

/// Root is logged in on the console without a password: access to the console is access to the machine.
const CONSOLE: &str = "[Service]\nExecStart=\n\
    ExecStart=-/sbin/agetty --autologin root --noclear --keep-baud 115200,57600,38400,9600 - ${TERM}\n";

/// Debian's service makes SSH host keys if systemd takes the boot for the first one, which it does not with a file for the machine's id.
const HOST_KEYS: &str = "[Unit]\nConditionFirstBoot=\nConditionPathExists=!/etc/ssh/ssh_host_ed25519_key\n";

/// The files.
pub fn settings(system: &System<'_>) -> Vec<Setting> {
    let System { hostname, uuid, .. } = system;
    let mut settings = vec![
        Setting::new("etc/hostname", format!("{hostname}\n")),
        Setting::new("etc/hosts", format!("127.0.0.1 localhost\n127.0.1.1 {hostname}\n::1 localhost ip6-localhost ip6-loopback\n")),
        Setting::new("etc/fstab", format!("UUID={uuid} / ext4 errors=remount-ro,x-systemd.growfs 0 1\n")),
        Setting::new("etc/locale.conf", "LANG=C.UTF-8\n"),
        Setting::new("etc/systemd/network/80-ethernet.network", NETWORK),
        Setting::new("etc/systemd/resolved.conf.d/names.conf", NAMES),
        Setting::new("etc/systemd/system/serial-getty@.service.d/autologin.conf", CONSOLE),
        Setting::new("etc/systemd/system/sshd-keygen.service.d/host-keys.conf", HOST_KEYS),
        Setting::new("etc/apt/sources.list.d/debian.sources", sources(system)),
    ];
    if !system.keys.is_empty() {
        settings.push(Setting::new("root/.ssh/authorized_keys", system.keys).private());
    }
    settings
}

/// apt's sources.
fn sources(system: &System<'_>) -> String {
    let source = |address: &str, suites: &str| {
        format!(
            "Types: deb\nURIs: {address}\nSuites: {suites}\nComponents: main\nSigned-By: /usr/share/keyrings/debian-archive-keyring.pgp\n"
        )
    };
    let suite = system.suite;
    let main = source(system.mirror, &format!("{suite} {suite}-updates"));
    match system.security {
        Some(address) => format!("{main}\n{}", source(address, &format!("{suite}-security"))),
        None => main,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_those_of_the_host() {
        let system =
            System { hostname: "web", uuid: "u", keys: "", suite: "trixie", mirror: "http://mirror.example/debian", security: None };
        assert_eq!(sources(&system).matches("URIs").count(), 1);
        assert!(sources(&system).contains("URIs: http://mirror.example/debian\nSuites: trixie trixie-updates\n"));
        let system = System { security: Some("http://mirror.example/security"), ..system };
        assert!(sources(&system).contains("URIs: http://mirror.example/security\nSuites: trixie-security\n"));
        assert!(settings(&system).iter().all(|setting| setting.path != "root/.ssh/authorized_keys"), "there is no key");
        let system = System { keys: "ssh-ed25519 AAAA user@host\n", ..system };
        let keys = settings(&system).into_iter().find(|setting| setting.path == "root/.ssh/authorized_keys").unwrap();
        assert_eq!((keys.mode, keys.directory_mode()), (0o600, 0o700));
    }
}
