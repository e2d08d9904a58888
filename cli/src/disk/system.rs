//! The system on a disk: its kernel, its initial RAM file system, and what the kernel must be told.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use data_encoding::BASE64;
use ext4_view::Ext4;

use super::drive::Drive;
use super::extents::Contents;
use crate::exit;
use crate::initramfs::{Marks, quoted};

/// Debian's names of the kernel and of the initial RAM file system to start: links to those in `/boot`.
const KERNEL: &str = "/vmlinuz";
const INITRD: &str = "/initrd.img";

/// The longest command line that Linux accepts on arm64, without the zero at its end (`COMMAND_LINE_SIZE`).
const LONGEST: usize = 2047;

/// The most bytes of a kernel or initrd: the guest may have made them.
const LARGEST: u64 = 512 << 20;

/// Files of a disk, copied from it.
#[derive(Debug)]
pub struct Boot {
    /// The kernel.
    pub kernel: PathBuf,
    /// The initial RAM file system.
    pub initrd: PathBuf,
    /// The kernel's parameters.
    pub parameters: String,
}

/// Copies what starts the system on `drive`, an image in `format`, into the directory `to`.
///
/// # Errors
/// The disk has no ext4 file system or no kernel for arm64 where Debian has one: the error names `--kernel`.
pub fn boot(drive: &Drive, format: &str, to: &Path) -> Result<Boot> {
    let instead = "name a kernel with --kernel, such as --kernel debian, and what it needs with --initrd and --append";
    let refuse = |what: String| exit::usage(format!("--disk: {} {what}: {instead}", drive.file.display()));
    let contents = Contents::open(&drive.file, format).with_context(|| format!("reading {}", drive.file.display()))?;
    let disk = Ext4::load(Box::new(contents)).map_err(|error| refuse(format!("has no ext4 file system on the whole disk ({error})")))?;
    let read = |name: &str| {
        let length = disk.metadata(name).map_err(|error| refuse(format!("has no {name} ({error})")))?.len();
        if length > LARGEST {
            return Err(refuse(format!("has a {name} of {} MiB, more than a kernel or initrd may have", length >> 20)));
        }
        disk.read(name).map_err(|error| refuse(format!("has no {name} ({error})")))
    };
    let kernel = read(KERNEL)?;
    if !is_arm64(&kernel) {
        return Err(refuse(format!("has a {KERNEL} that is no kernel for arm64, perhaps of another architecture")));
    }
    let write = |name: &str, bytes: &[u8]| {
        let path = to.join(name);
        fs::write(&path, bytes).with_context(|| format!("writing {}", path.display()))?;
        Ok::<_, anyhow::Error>(path)
    };
    let mode = if drive.read_only { "ro" } else { "rw" };
    let uuid = disk.uuid();
    Ok(Boot {
        kernel: write("disk-kernel", &kernel)?,
        initrd: write("disk-initrd", &read(INITRD)?)?,
        parameters: format!("console=ttyAMA0 panic=-1 root=UUID={uuid} {mode}"),
    })
}

/// Whether this is a kernel for arm64: an Image has its mark at byte 56; an EFI program, compressed or not, its machine in the PE header
/// (Linux, "Booting AArch64 Linux"; PE Format, "COFF File Header").
fn is_arm64(kernel: &[u8]) -> bool {
    let gzip = kernel.starts_with(&[0x1f, 0x8b]);
    let image = kernel.get(56..60) == Some(b"ARM\x64");
    let header = kernel.get(60..64).and_then(|bytes| bytes.try_into().ok()).map(u32::from_le_bytes).and_then(|at| usize::try_from(at).ok());
    let machine = header.and_then(|at| kernel.get(at..at.checked_add(6)?));
    let efi = kernel.starts_with(b"MZ") && machine == Some(b"PE\0\0\x64\xaa");
    gzip || image || efi
}

/// The parameters that let systemd run a command when the system is up, and then power off. The command's output and status are between
/// marks. With `online`, the command starts when the network is up.
///
/// # Errors
/// The command is too long.
pub fn command(command: &str, marks: &Marks, online: bool, others: &str) -> Result<String> {
    let wait = if online { "/usr/lib/systemd/systemd-networkd-wait-online --any --timeout=60\n" } else { "" };
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
        "quiet systemd.show_status=false systemd.mask=serial-getty@ttyAMA0.service systemd.run_success_action=poweroff \
         systemd.run_failure_action=poweroff systemd.run=\"/bin/sh -c 'echo {}|base64 -d>/run/stile;exec /bin/sh /run/stile'\"",
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
        let fits = |length: usize| command(&"x".repeat(length), &marks, true, "root=x");
        let most = (1..2000).rev().find(|length| fits(*length).is_ok()).unwrap();
        assert!(most >= 800, "{most}");
        assert!(fits(most).unwrap().len() + 7 <= LONGEST);
        let said = format!("{:#}", fits(1999).unwrap_err());
        let room: usize = said.split("room for ").nth(1).unwrap().split(':').next().unwrap().parse().unwrap();
        assert!(room <= most && room + 4 > most, "{room} of {most}");
    }

    #[test]
    fn kernels_of_other_architectures_are_recognized() {
        let mut kernel = vec![0; 128];
        assert!(!is_arm64(&kernel) && !is_arm64(b"") && is_arm64(&[0x1f, 0x8b]));
        kernel[56..60].copy_from_slice(b"ARM\x64");
        assert!(is_arm64(&kernel));
        let mut efi = vec![0; 128];
        efi[..2].copy_from_slice(b"MZ");
        efi[60] = 64;
        efi[64..70].copy_from_slice(b"PE\0\0\x64\x86");
        assert!(!is_arm64(&efi));
        efi[69] = 0xaa;
        assert!(is_arm64(&efi));
        efi[60..64].fill(0xff);
        assert!(!is_arm64(&efi));
    }
}
