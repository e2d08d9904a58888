//! Tests of Debian's installer with a file of answers. It asks no question, and a mirror for its components. Whole installations from a
//! mirror, whose disks are started afterwards, run only if they are named.

use std::fs::{self, File};

use rustix::process::Signal;
use stile::config::Arch;
use stile::{debian, exit};

use super::scenario::{Expect, NO_DIFFERENCE, Scenario};

/// Its name in the suite.
pub const NAME: &str = "boot/debian-installer-answered";

/// Answers up to the mirror. Its address is the emulator's own, where nothing listens, so that the test depends on no other machine.
const ANSWERS: &str = "d-i debian-installer/locale string en_US.UTF-8\n\
    d-i keyboard-configuration/xkb-keymap select us\n\
    d-i netcfg/get_hostname string answered\n\
    d-i netcfg/get_domain string\n\
    d-i mirror/country string manual\n\
    d-i mirror/protocol string http\n\
    d-i mirror/http/hostname string 10.0.2.2:9\n\
    d-i mirror/http/directory string /debian\n\
    d-i mirror/http/proxy string\n";

/// Runs the installer until it has asked that mirror.
pub fn test() -> Result<(), String> {
    let dir = tempfile::tempdir().map_err(|error| format!("no temporary directory: {error}"))?;
    let answers = dir.path().join("answers.cfg");
    fs::write(&answers, ANSWERS).map_err(|error| format!("writing {}: {error}", answers.display()))?;
    let arguments = format!("--kernel debian-installer --preseed {} --net user --exits", answers.display());
    let scenario = Scenario {
        timeout: 1500,
        expect: Expect {
            status: exit::LEFT,
            output: vec!["Configuring the network with DHCP".into(), "Checking the Debian archive mirror".into()],
            absent: vec!["Select a language"],
            notes: vec![NO_DIFFERENCE.into()],
            signal: Some(Signal::INT),
            ..Expect::default()
        },
        // The frontend without windows prints lines of text.
        ..Scenario::new(NAME, &arguments).with("--append", "DEBIAN_FRONTEND=text")
    };
    scenario.run()
}

/// The name of the whole installation on Arm.
pub const WHOLE: &str = "long/installer";
/// The name of the whole installation on AMD-V.
pub const WHOLE_ON_PC: &str = "long/installer-pc";

/// Bytes of the disk. An installed system without tasks takes 1 GiB.
const DISK: u64 = 3 << 30;
/// Time-out of the installation in seconds. Without Stile, the emulator took 300 s of CPU time to the base system's first packages.
const INSTALLATION: u32 = 6 * 3600;
/// Time-out in seconds of the installed system's start.
const START: u32 = 1800;

/// Answers of a whole installation, but for the mirror and the kernel: one partition, no swap, no tasks. On PCs the installer also installs
/// GRUB on the disk.
const WHOLE_ANSWERS: &str = "d-i debian-installer/locale string en_US.UTF-8
d-i keyboard-configuration/xkb-keymap select us
d-i netcfg/get_hostname string installed
d-i netcfg/get_domain string
d-i passwd/make-user boolean false
d-i passwd/root-password password stile
d-i passwd/root-password-again password stile
d-i time/zone string Etc/UTC
d-i clock-setup/ntp boolean false
d-i partman-auto/disk string /dev/vda
d-i partman-auto/method string regular
d-i partman-auto/expert_recipe string root :: 1000 1000 -1 ext4 $primary{ } $bootable{ } method{ format } format{ } \
    use_filesystem{ } filesystem{ ext4 } mountpoint{ / } .
d-i partman-basicfilesystems/no_swap boolean false
d-i partman-partitioning/confirm_write_new_label boolean true
d-i partman/choose_partition select finish
d-i partman/confirm boolean true
d-i partman/confirm_nooverwrite boolean true
d-i base-installer/install-recommends boolean false
d-i apt-setup/services-select multiselect
d-i apt-setup/enable-source-repositories boolean false
d-i pkgsel/run_tasksel boolean false
d-i pkgsel/upgrade select none
popularity-contest popularity-contest/participate boolean false
d-i grub-installer/only_debian boolean true
d-i grub-installer/bootdev string /dev/vda
d-i nobootloader/confirmation_common note
d-i preseed/late_command string in-target sh -c 'echo to its end > /root/installed'
d-i finish-install/reboot_in_progress note
d-i debian-installer/exit/poweroff boolean true
";

/// Returns the answers about a mirror. The guest reaches a mirror on this machine (`localhost`) at the address of the emulator's network.
fn mirror_answers(mirror: &str) -> Result<String, String> {
    let parts = mirror.split_once("://").filter(|(scheme, _)| ["http", "https"].contains(scheme));
    let (scheme, rest) =
        parts.ok_or_else(|| format!("the mirror {mirror} is not one that the installer can use: expected http or https"))?;
    let (host, folder) = rest.split_once('/').unwrap_or((rest, ""));
    let (name, port) = host.split_once(':').map_or((host, String::new()), |(name, port)| (name, format!(":{port}")));
    let name = if ["localhost", "127.0.0.1"].contains(&name) { "10.0.2.2" } else { name };
    Ok(format!(
        "d-i mirror/country string manual\n\
         d-i mirror/protocol string {scheme}\n\
         d-i mirror/{scheme}/hostname string {name}{port}\n\
         d-i mirror/{scheme}/directory string /{folder}\n\
         d-i mirror/{scheme}/proxy string\n"
    ))
}

/// The installation on Arm.
pub fn installs_on_arm() -> Result<(), String> {
    installs(Arch::Aarch64, "", "linux-image-cloud-arm64")
}

/// The installation on AMD-V.
pub fn installs_on_pc() -> Result<(), String> {
    installs(Arch::X86_64, "--arch x86_64 --cpu max ", "linux-image-cloud-amd64")
}

/// Installs Debian on an empty disk, from the mirror of this machine, until the installer powers off, and starts the installed system.
fn installs(arch: Arch, machine: &str, kernel: &str) -> Result<(), String> {
    let mirror = debian::mirror().map_err(|error| format!("{error:#}"))?;
    debian::check_installer_packages(arch).map_err(|error| {
        format!("the mirror lacks packages of the installer: {error:#}\nset {} to a mirror that has them", debian::MIRROR_VARIABLE)
    })?;
    let dir = tempfile::tempdir().map_err(|error| format!("no temporary directory: {error}"))?;
    let (answers, disk) = (dir.path().join("answers.cfg"), dir.path().join("disk.img"));
    let text = format!("{WHOLE_ANSWERS}{}d-i base-installer/kernel/image string {kernel}\n", mirror_answers(&mirror)?);
    fs::write(&answers, text).map_err(|error| format!("writing {}: {error}", answers.display()))?;
    File::create(&disk).and_then(|file| file.set_len(DISK)).map_err(|error| format!("making {}: {error}", disk.display()))?;
    let machine = format!("{machine}--disk {},format=raw --net user --exits", disk.display());
    let install = Scenario {
        timeout: INSTALLATION,
        expect: Expect {
            output: ["Installing the base system", "Finishing the installation"].map(Into::into).into(),
            notes: vec![NO_DIFFERENCE.into()],
            ..Expect::default()
        },
        ..Scenario::new("install", &format!("--kernel debian-installer --preseed {} {machine}", answers.display()))
            .with("--append", "DEBIAN_FRONTEND=text")
    };
    let start = Scenario {
        timeout: START,
        expect: Expect {
            status: 42,
            output: ["to its end\n", "all configured\n", "/dev/vda1\n"].map(Into::into).into(),
            notes: vec![NO_DIFFERENCE.into()],
            ..Expect::default()
        },
        ..Scenario::new("start", &machine)
            .with("--exec", "cat /root/installed; dpkg -l | grep -q '^i[^i]' || echo all configured; findmnt -no SOURCE /; exit 42")
    };
    install.run().map_err(|report| format!("installing: {report}"))?;
    start.run().map_err(|report| format!("starting: {report}"))
}

#[cfg(test)]
mod tests {
    use super::mirror_answers;

    #[test]
    fn mirrors_are_those_of_the_guest_s_network() {
        let answers = mirror_answers("http://127.0.0.1:3142/debian").unwrap();
        assert!(answers.contains("mirror/http/hostname string 10.0.2.2:3142\n") && answers.contains("directory string /debian\n"));
        assert!(mirror_answers("https://mirror.example").unwrap().contains("mirror/https/hostname string mirror.example\n"));
        assert!(mirror_answers("file:///mirror").unwrap_err().contains("expected http"));
    }
}
