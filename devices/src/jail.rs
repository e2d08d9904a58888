//! The root directory of a back end that has the right to all files: a folder, the programs, and nothing else.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use rustix::process::{chdir, chroot};
use rustix::thread::{CapabilitySet, CapabilitySets, configure_capability_in_ambient_set, set_capabilities, set_keep_capabilities};

use crate::mounting::mount;
use crate::private;

/// Path of the folder, for the back end.
pub const FOLDER: &str = "/folder";

/// Directories with programs and libraries, and with what the kernel tells of the process: without devices, and not writable.
const OTHERS: [&str; 2] = ["/usr", "/proc"];

/// Rights to files, whoever owns them: what a client may do with a file is its own kernel's decision, and that of who shares the folder.
const RIGHTS: [CapabilitySet; 2] = [CapabilitySet::DAC_OVERRIDE, CapabilitySet::FOWNER];

/// Makes the root directory of the `user`'s back end of a folder, unless it is there.
///
/// # Errors
/// There is no such folder; this process is not root's.
pub fn prepare(user: u32, folder: &Path) -> io::Result<PathBuf> {
    let root = private::directory()?.join(format!("root-{user}"));
    // Made last.
    let libraries = root.join("lib");
    if libraries.is_symlink() {
        return Ok(root);
    }
    let within = |path: &str| root.join(path.trim_start_matches('/'));
    for (from, to) in OTHERS.map(|path| (Path::new(path), path)).into_iter().chain([(folder, FOLDER)]) {
        fs::create_dir_all(within(to))?;
        mount([OsStr::new("-o"), OsStr::new("bind"), from.as_os_str(), within(to).as_os_str()])?;
    }
    for (path, options) in
        OTHERS.map(|path| (path, "remount,bind,nodev,nosuid,ro")).into_iter().chain([(FOLDER, "remount,bind,nodev,nosuid,noexec")])
    {
        mount([OsStr::new("-o"), OsStr::new(options), within(path).as_os_str()])?;
    }
    // Directories of the loader: for programs of x86-64, and of Arm.
    for (target, link) in [("usr/lib64", root.join("lib64")), ("usr/lib", libraries)] {
        if !link.is_symlink() {
            symlink(target, link)?;
        }
    }
    Ok(root)
}

/// Makes a directory this process's root for ever: leaving it takes a right that [`keep_rights`] does not keep.
///
/// # Errors
/// The process is not root's.
pub fn enter(root: &Path) -> io::Result<()> {
    chroot(root)?;
    Ok(chdir("/")?)
}

/// Has the rights to files survive what `become_user` does, and the start of another program.
///
/// # Errors
/// The process is not root's.
pub fn keep_rights(become_user: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    set_keep_capabilities(true)?;
    become_user()?;
    let rights = RIGHTS.into_iter().fold(CapabilitySet::empty(), |all, right| all | right);
    set_capabilities(None, CapabilitySets { effective: rights, permitted: rights, inheritable: rights })?;
    for right in RIGHTS {
        configure_capability_in_ambient_set(right, true)?;
    }
    Ok(())
}
