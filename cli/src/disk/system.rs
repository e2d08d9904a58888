//! The system on a disk: its kernel, initial RAM file system, and command line.

use anyhow::{Context, Result, anyhow};
use data_encoding::BASE64;

use super::boot::{self, Files, Unbootable};
use super::contents::Contents;
use super::drive::Drive;
use super::folder::Folder;
use crate::config::Arch;
use crate::exit;
use crate::initramfs::{Marks, console, quoted};

/// The longest command line that Linux accepts on arm64 and on x86-64, without the zero at its end (`COMMAND_LINE_SIZE`).
const LONGEST: usize = 2047;

/// Reads kernel, initrd and parameters of the system on `drive`, and adds the parameters for Stile's machine of this architecture.
///
/// # Errors
/// The disk has no file system that can be read, or no kernel for this architecture: the error has the remedy.
pub fn boot(arch: Arch, drive: &Drive) -> Result<Files> {
    let refuse = |what: Unbootable| exit::usage(format!("disk: {} {what}: {}", drive.file.display(), remedy(arch, &what)));
    let contents = Contents::open(&drive.file, drive.format()).with_context(|| format!("reading {}", drive.file.display()))?;
    let files = boot::find(contents, arch).map_err(refuse)?;
    let parameters = parameters(arch, &files.parameters, drive.read_only);
    if parameters.len() > LONGEST {
        let what = format!("names kernel parameters of {} bytes, and Linux takes {LONGEST}", parameters.len());
        return Err(refuse(Unbootable::Other(what)));
    }
    Ok(Files { parameters, ..files })
}

/// Remedy for a message: another way to start a disk's system whose kernel Stile can't start on this architecture.
fn remedy(arch: Arch, what: &Unbootable) -> String {
    let kernel = "name a kernel, such as --kernel debian, and what it needs with --initrd and --append";
    match (arch, what) {
        (_, Unbootable::OtherArch { arch: Arch::X86_64, .. }) => "start it on a PC, with --arch x86_64 --cpu max".to_owned(),
        (_, Unbootable::OtherArch { arch: Arch::Aarch64, .. }) => "start it on an Arm machine, with --arch aarch64".to_owned(),
        (Arch::Aarch64, Unbootable::Other(_)) => format!("start it by UEFI firmware, with --kernel debian-edk2; or {kernel}"),
        (Arch::X86_64, Unbootable::Other(_)) => kernel.to_owned(),
    }
}

/// The parameters of the disk's boot loader, and those for Stile's machine: the console, and a reset when the kernel
/// panics.
fn parameters(arch: Arch, own: &str, read_only: bool) -> String {
    let mut words: Vec<&str> = own.split_whitespace().collect();
    // The system's own output goes to the last console.
    let needed = format!("console={}", console(arch));
    if !words.iter().rfind(|word| word.starts_with("console=")).is_some_and(|last| last.starts_with(&needed)) {
        words.push(&needed);
    }
    if !words.iter().any(|word| word.starts_with("panic=")) {
        words.push("panic=-1");
    }
    if read_only {
        words.retain(|word| *word != "rw");
        words.push("ro");
    }
    words.join(" ")
}

/// The parameters that let systemd (254 or later) mount folders when they are accessed. A folder that can't be mounted does not stop the
/// system from starting.
pub fn mounts<'a>(folders: impl Iterator<Item = &'a Folder>) -> String {
    let mount = |folder: &Folder| {
        let (tag, system, options) = (&folder.tag, folder.file_system(), folder.mount_options());
        format!("systemd.mount-extra={tag}:/mnt/{tag}:{system}:{options},nofail,x-systemd.automount")
    };
    folders.map(mount).collect::<Vec<_>>().join(" ")
}

/// The parameters that let systemd run a command when the system is up, and then power off. The command's output and status are between
/// marks. With `online`, the command starts when the network is up, or after that many seconds of the VM's.
///
/// # Errors
/// The command is too long.
pub fn command(arch: Arch, command: &str, marks: &Marks, online: Option<u32>, others: &str) -> Result<String> {
    let wait =
        online.map_or_else(String::new, |seconds| format!("/usr/lib/systemd/systemd-networkd-wait-online --any --timeout={seconds}\n"));
    let script = format!(
        "exec </dev/console >/dev/console 2>&1\nstty raw -echo\ndmesg -n 1\n(systemctl start multi-user.target\n{wait}) >/dev/null 2>&1\n\
         cd /root\nexport HOME=/root\nprintf %s {}\nsh -c {}\nprintf '%s%d%s' {} $? {}\nstty -echo\n",
        quoted(&marks.begin),
        quoted(command),
        quoted(&marks.end),
        quoted(&marks.stop)
    );
    // systemd's own quoting is avoided: neither it nor the kernel changes letters and digits.
    let parameters = format!(
        "quiet systemd.show_status=false systemd.mask=serial-getty@{}.service systemd.run_success_action=poweroff \
         systemd.run_failure_action=poweroff systemd.run=\"/bin/sh -c 'echo {}|base64 -d>/run/stile;exec /bin/sh /run/stile'\"",
        console(arch),
        BASE64.encode(script.as_bytes())
    );
    let excess = (others.len() + 1 + parameters.len()).saturating_sub(LONGEST);
    if excess > 0 {
        // Four characters for three.
        let most = command.len().saturating_sub(excess.div_ceil(4) * 3);
        return Err(anyhow!(exit::usage(format!(
            "--exec: the command has {} bytes, and the kernel's command line has room for {most}: put it into a script on the disk",
            command.len()
        ))));
    }
    Ok(parameters)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_commands_are_refused_with_their_room() {
        let marks = Marks::new(1);
        let fits = |length: usize| command(Arch::Aarch64, &"x".repeat(length), &marks, Some(60), "root=x");
        let most = (1..2000).rev().find(|length| fits(*length).is_ok()).unwrap();
        assert!(most >= 800, "{most}");
        assert!(fits(most).unwrap().len() + 7 <= LONGEST);
        let said = format!("{:#}", fits(1999).unwrap_err());
        let room: usize = said.split("room for ").nth(1).unwrap().split(':').next().unwrap().parse().unwrap();
        assert!(room <= most && room + 4 > most, "{room} of {most}");
    }

    #[test]
    fn folders_are_mounted_by_parameters() {
        let folder = |tag: &str, read_only, served| Folder { path: "/a".into(), read_only, tag: tag.into(), served };
        let parameters = mounts([folder("src", false, false), folder("b", true, false), folder("c", true, true)].iter());
        let [first, second, third] = parameters.split(' ').collect::<Vec<_>>()[..] else { panic!("{parameters}") };
        assert_eq!(third, "systemd.mount-extra=c:/mnt/c:virtiofs:ro,nofail,x-systemd.automount");
        assert!(first.starts_with("systemd.mount-extra=src:/mnt/src:9p:trans=virtio,") && first.contains(",rw,nofail"), "{first}");
        assert!(second.starts_with("systemd.mount-extra=b:/mnt/b:9p:trans=virtio,") && second.contains(",ro,nofail"), "{second}");
    }

    #[test]
    fn parameters_keep_those_of_the_disk() {
        let arm = |own, read_only| parameters(Arch::Aarch64, own, read_only);
        assert_eq!(arm("root=UUID=1 rw", false), "root=UUID=1 rw console=ttyAMA0 panic=-1");
        assert_eq!(arm("root=UUID=1 rw", true), "root=UUID=1 console=ttyAMA0 panic=-1 ro");
        let own = "console=tty0 console=ttyAMA0,115200 panic=5 root=/dev/vda1";
        assert_eq!(arm(own, false), own);
        assert_eq!(arm("console=ttyAMA0 console=tty0 panic=5", false), "console=ttyAMA0 console=tty0 panic=5 console=ttyAMA0");
        assert_eq!(parameters(Arch::X86_64, "root=UUID=1 rw", false), "root=UUID=1 rw console=ttyS0 panic=-1");
        assert_eq!(parameters(Arch::X86_64, "console=ttyAMA0 panic=5", false), "console=ttyAMA0 panic=5 console=ttyS0");
    }

    #[test]
    fn remedies_are_those_of_the_architecture() {
        let of = |arch| Unbootable::OtherArch { path: "/vmlinuz".into(), arch };
        let (pc, arm) = (of(Arch::X86_64), of(Arch::Aarch64));
        assert!(remedy(Arch::Aarch64, &pc).contains("--arch x86_64 --cpu max"));
        assert!(remedy(Arch::X86_64, &arm).contains("--arch aarch64"));
        let other = Unbootable::Other("has no partitions".into());
        assert!(remedy(Arch::Aarch64, &other).contains("debian-edk2") && !remedy(Arch::X86_64, &other).contains("edk2"));
    }
}
