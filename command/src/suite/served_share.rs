//! The test of a folder of this machine that the VM `service` serves.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use super::scenario::{Expect, NO_DIFFERENCE, Scenario};

/// Its name in the suite.
pub const NAME: &str = "served/share";
/// Its name for a PC with AMD-V.
pub const NAME_ON_PC: &str = "pc/amd/devices/served-share";

/// A file beside the folder, which no VM may read.
const SECRET: &str = "secret of the host";

/// The test on Arm.
pub fn test() -> Result<(), String> {
    of_vm(NAME, "", "debian:6.12")
}

/// The test on a PC, where the client's kernel, for clouds, has virtiofs but no 9P.
pub fn test_on_pc() -> Result<(), String> {
    of_vm(NAME_ON_PC, "arch = \"x86_64\"\ncpu = \"max\"\n", "debian:6.1")
}

/// A VM reads a file of a folder, tries to leave it, and writes as two users. It also gets random bytes. `machine`: lines of the
/// configuration.
fn of_vm(name: &str, machine: &str, kernel: &str) -> Result<(), String> {
    let dir = tempfile::tempdir().map_err(|error| format!("no temporary directory: {error}"))?;
    let folder = dir.path().join("folder");
    prepare(&folder, &dir.path().join("secret")).map_err(|error| format!("{}: {error}", folder.display()))?;
    let exec = "cd /mnt/src; cat from-host; cat above outside ../secret 2> /dev/null; mknod node b 8 0 2> /dev/null || echo no devices; \
                echo of root > by-root; echo u:x:1000:1000::/:/bin/sh >> /etc/passwd; \
                su u -c \"echo of a user > /mnt/src/by-user\"; mkdir deep; mv by-user deep; \
                [ $(dd if=/dev/hwrng bs=64 count=4 2> /dev/null | wc -c) = 256 ] && echo random bytes";
    let config = format!(
        "[machine]\n{machine}cpus = 2\n\n[[vm]]\nname = \"web\"\nkernel = \"{kernel}\"\nmemory = \"256M\"\nexec = \'\'\'{exec}\'\'\'\n\
         [[vm.share]]\npath = {folder:?}\ntag = \"src\"\nserved = true\n[[vm.served]]\ndevice = \"rng\"\n"
    );
    let expect = Expect {
        output: ["| of the host", "| no devices", "| random bytes"].map(String::from).into(),
        notes: vec![NO_DIFFERENCE.into(); 2],
        absent: vec![SECRET],
        ..Expect::default()
    };
    Scenario { config: Some(config), expect, ..Scenario::new(name, "--exits") }.run()?;
    for (name, content) in [("by-root", "of root\n"), ("deep/by-user", "of a user\n")] {
        let found = fs::read_to_string(folder.join(name)).map_err(|error| format!("{name}: {error}"))?;
        if found != content {
            return Err(format!("{name} has the content {found:?}"));
        }
    }
    if folder.join("node").exists() { Err("the folder has a device".into()) } else { Ok(()) }
}

/// Makes the folder, which all may write, with links to the outside.
fn prepare(folder: &Path, secret: &Path) -> std::io::Result<()> {
    fs::create_dir(folder)?;
    fs::set_permissions(folder, Permissions::from_mode(0o777))?;
    fs::write(folder.join("from-host"), "of the host\n")?;
    fs::write(secret, SECRET)?;
    symlink("../secret", folder.join("above"))?;
    symlink(secret, folder.join("outside"))
}
