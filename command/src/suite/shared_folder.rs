//! The test of shared folders: two VMs have one, which one of them can only read.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use super::scenario::{Expect, NO_DIFFERENCE, Scenario};

/// Its name in the suite.
pub const NAME: &str = "devices/shared-folder";

/// A file beside the folder, which no VM may read.
const SECRET: &str = "secret of the host";

/// A VM reads files of a folder, tries to leave it, and writes; another VM reads what was written, and tries to write. Then the host
/// finds what the first VM wrote, and nothing else.
pub fn test() -> Result<(), String> {
    let dir = tempfile::tempdir().map_err(|error| format!("no temporary directory: {error}"))?;
    // A name that needs quotes in a shell, and in QEMU's options.
    let folder = dir.path().join("a,readonly=on, \"b' c");
    let secret = dir.path().join("secret");
    prepare(&folder, &secret).map_err(|error| format!("{}: {error}", folder.display()))?;
    let (path, secret) = (folder.display().to_string(), secret.display());
    let write = format!(
        "cd /mnt/out; (cat from-host inside; ln -s {secret} made; cat above outside made ../secret; mknod node b 8 0; \
         mkdir deep; echo of the writer >deep/file; echo end) >log 2>&1; mv log result"
    );
    // The folder is mounted again without `ro`: the emulator refuses writes, too.
    let read = "cd /; while [ ! -e /mnt/in/result ]; do sleep 1; done; cat /mnt/in/deep/file; umount /mnt/in; \
                mount -t 9p -o trans=virtio,version=9p2000.L in /mnt/in; \
                (touch /mnt/in/new; rm -f /mnt/in/from-host; cat /mnt/in/from-host) 2>&1";
    let vm = |name: &str, exec: &str, share: &str| {
        format!(
            "[[vm]]\nname = \"{name}\"\nkernel = \"debian:6.1\"\nmemory = \"128M\"\nexec = '''{exec}'''\n\
             [[vm.share]]\npath = {path:?}\n{share}\n"
        )
    };
    let config =
        ["[machine]\ncpus = 2\n", &vm("writer", &write, "tag = \"out\""), &vm("reader", read, "tag = \"in\"\nreadonly = true")].concat();
    let line = |text: &str| format!("reader | {text}");
    let expect = Expect {
        output: vec![
            line("of the writer"),
            line("touch: /mnt/in/new: Read-only file system"),
            line("rm: can't remove"),
            line("of the host"),
        ],
        notes: vec![NO_DIFFERENCE.into(); 2],
        absent: vec![SECRET],
        ..Expect::default()
    };
    Scenario { config: Some(config), expect, ..Scenario::new(NAME, "--exits") }.run()?;
    check(&folder).map_err(|problem| format!("the folder after the run: {problem}"))
}

/// Makes the folder, with links in it and to the outside.
fn prepare(folder: &Path, secret: &Path) -> std::io::Result<()> {
    fs::create_dir(folder)?;
    fs::write(folder.join("from-host"), "of the host\n")?;
    fs::write(secret, SECRET)?;
    symlink("from-host", folder.join("inside"))?;
    symlink("../secret", folder.join("above"))?;
    symlink(secret, folder.join("outside"))
}

/// Checks what the first VM wrote.
fn check(folder: &Path) -> Result<(), String> {
    let read = |name: &str| fs::read_to_string(folder.join(name)).map_err(|error| format!("{name}: {error}"));
    let result = read("result")?;
    if !result.starts_with("of the host\nof the host\n") || !result.ends_with("end\n") || result.contains(SECRET) {
        return Err(format!("the VM reports:\n{result}"));
    }
    if read("deep/file")? != "of the writer\n" {
        return Err("deep/file has other content".into());
    }
    match ["node", "new"].iter().find(|name| folder.join(name).exists()) {
        Some(name) => Err(format!("it has a file {name}")),
        None => Ok(()),
    }
}
