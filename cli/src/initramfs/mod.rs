//! The minimal root file system for a kernel without one: Debian's busybox and an init program.
//!
//! Provides a shell on the console, or runs one command whose output and status are separated from other
//! console output by [`Marks`].

pub mod cpio;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use cpio::Archive;
use serde::{Deserialize, Serialize};

use crate::config::Arch;
use crate::debian::Module;
use crate::disk::folder::Folder;

/// The task of the system after boot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Task<'a> {
    /// A shell on the console, and power-off when it ends. The size is the terminal's, in columns and rows; 0
    /// if unknown.
    Shell {
        /// The terminal's type, for `TERM`.
        terminal: &'a str,
        /// Columns and rows.
        size: (u16, u16),
        /// Whether input comes from a keyboard, not from a pipe or a file.
        keyboard: bool,
    },
    /// This command, run by the shell, and then power-off.
    Command(&'a str),
}

/// Byte strings that the system prints to mark the begin and end of a command's output. They contain a number
/// specific to the run, so that no output contains them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Marks {
    /// The command's output follows, or the shell is about to start.
    pub begin: String,
    /// End of the command's output; its status follows in decimal, then [`Marks::stop`].
    pub end: String,
    /// End of the status.
    pub stop: String,
    /// The shell has ended.
    pub bye: String,
    /// The shell waits for a command.
    pub ready: String,
}

impl Marks {
    /// The marks with this number in them.
    pub fn new(number: u64) -> Self {
        // The first character is the record separator, which programs rarely print: so output rarely has to
        // be buffered as a possible beginning of a mark.
        let mark = |word: &str| format!("\x1estile {number:016x} {word}\x1e");
        Self { begin: mark("begin"), end: mark("end"), stop: mark("stop"), bye: mark("bye"), ready: mark("ready") }
    }
}

/// Linux's name of the VM's UART.
pub const fn console(arch: Arch) -> &'static str {
    match arch {
        Arch::Aarch64 => "ttyAMA0",
        Arch::X86_64 => "ttyS0",
    }
}

/// The kernel parameters for a console on the VM's UART, and a reset after a panic.
pub const fn kernel_arguments(arch: Arch) -> &'static str {
    match arch {
        Arch::Aarch64 => "console=ttyAMA0 panic=-1",
        Arch::X86_64 => "console=ttyS0 panic=-1",
    }
}

/// Added if only a command's output matters: the kernel prints warnings and errors only.
pub const QUIET_ARGUMENTS: &str = "quiet";

const INIT: &str = include_str!("init.sh");
const UPLINK: &str = include_str!("uplink.sh");
const DHCP: &str = include_str!("dhcp.sh");

const DIRECTORIES: [&str; 12] = ["bin", "dev", "etc", "proc", "root", "sbin", "stile", "sys", "tmp", "usr", "usr/bin", "usr/sbin"];

/// Builds the archive; `busybox` is the program, `name` the VM's name.
pub fn build(busybox: &[u8], name: &str, task: &Task<'_>, marks: &Marks) -> Vec<u8> {
    let mut archive = Archive::default();
    for directory in DIRECTORIES {
        archive.directory(directory);
    }
    // The kernel opens this device before it mounts any file system.
    archive.character_device("dev/console", 0o600, 5, 1);
    archive.file("bin/busybox", 0o755, busybox);
    archive.link("bin/sh", "busybox");
    archive.file("init", 0o755, INIT.as_bytes());
    archive.file("etc/hostname", 0o644, format!("{name}\n").as_bytes());
    archive.file("etc/passwd", 0o644, b"root::0:0:root:/root:/bin/sh\n");
    archive.file("etc/group", 0o644, b"root:x:0:\n");
    archive.file("stile/marks", 0o644, marks_script(marks).as_bytes());
    match task {
        Task::Shell { terminal, size: (columns, rows), keyboard } => {
            let keyboard = if *keyboard { "yes" } else { "no" };
            let script = format!("export TERM={}\nrows={rows} columns={columns}\nkeyboard={keyboard}\n", quoted(terminal));
            archive.file("stile/terminal", 0o644, script.as_bytes());
        }
        Task::Command(command) => archive.file("stile/exec", 0o644, format!("{command}\n").as_bytes()),
    }
    archive.finish()
}

/// Added if Debian's installer has a file with answers: it asks only questions that have neither an answer nor a default.
pub const UNATTENDED_ARGUMENTS: &str = "auto=true priority=critical";

/// The installer's archive, followed by one with the file from which the installer takes answers.
pub fn with_answers(mut installer: Vec<u8>, preseed: &[u8]) -> Vec<u8> {
    let mut archive = Archive::default();
    archive.file("preseed.cfg", 0o644, preseed);
    // Linux finds an uncompressed archive behind a compressed one at a multiple of 4 bytes only, after zeroes.
    installer.resize(installer.len().next_multiple_of(4), 0);
    installer.extend(archive.finish());
    installer
}

/// Builds an archive to follow that of [`build`]: modules that the system loads when it starts, in this order.
pub fn with_drivers(modules: &[Module]) -> Vec<u8> {
    let mut archive = Archive::default();
    add_modules(&mut archive, modules, |number| format!("{number:02}"));
    archive.finish()
}

/// Adds modules that the system loads when it starts, in the order of the names that `name` gives their numbers: words follow the numbers
/// of drivers.
fn add_modules(archive: &mut Archive, modules: &[Module], name: impl Fn(usize) -> String) {
    archive.directory("stile/drivers");
    for (number, module) in modules.iter().enumerate() {
        archive.file(&format!("stile/drivers/{}-{}", name(number), module.name), 0o644, &module.bytes);
    }
}

/// Builds an archive to follow that of [`with_drivers`]: the modules for consoles over virtio.
pub fn with_consoles(modules: &[Module]) -> Vec<u8> {
    let mut archive = Archive::default();
    add_modules(&mut archive, modules, |number| format!("console-{number}"));
    archive.finish()
}

/// Builds an archive to follow that of [`with_drivers`]: the modules for disks in memory, and a folder to mount one.
pub fn with_memory_disks(modules: &[Module]) -> Vec<u8> {
    let mut archive = Archive::default();
    archive.directory("mnt");
    add_modules(&mut archive, modules, |number| format!("disk-{number:02}"));
    archive.finish()
}

/// Builds an archive to follow that of [`build`]: the default script of busybox's DHCP client, which Debian's package lacks.
pub fn with_networks() -> Vec<u8> {
    let mut archive = Archive::default();
    archive.directory("etc/udhcpc");
    archive.file("etc/udhcpc/default.script", 0o755, DHCP.as_bytes());
    archive.finish()
}

/// Builds an archive to follow those of [`build`] and [`with_drivers`]: the modules for sockets, and the program `stile-vsock`.
pub fn with_sockets(modules: &[Module], program: &[u8]) -> Vec<u8> {
    let mut archive = Archive::default();
    add_modules(&mut archive, modules, |number| format!("socket-{number}"));
    archive.file("bin/stile-vsock", 0o755, program);
    archive.finish()
}

/// Options with which a system that serves folders mounts them. `virtiofsd` reads into its client's RAM, which 9P can't do without a copy
/// in the page cache: Linux has no descriptors of those pages.
const TO_SERVE: &str = ",cache=loose";

/// Builds an archive to follow those of [`build`] and [`with_drivers`]: the modules for folders, and a list of those that the system
/// mounts, to use them or to serve them.
pub fn with_folders(modules: &[Module], folders: &[Folder], to_serve: bool) -> Vec<u8> {
    let mut archive = Archive::default();
    add_modules(&mut archive, modules, |number| format!("folder-{number}"));
    let more = if to_serve { TO_SERVE } else { "" };
    let line = |folder: &Folder| format!("{} {} {}{more}\n", folder.tag, folder.file_system(), folder.mount_options());
    let list: String = folders.iter().map(line).collect();
    archive.file("stile/folders", 0o644, list.as_bytes());
    archive.finish()
}

/// Builds an archive to follow those of [`build`] and [`with_drivers`]: the modules and programs that serve devices to other VMs.
///
/// `back_ends` are files by their paths: programs that carry out requests, with their libraries.
pub fn with_server(modules: &[Module], program: &[u8], back_ends: &BTreeMap<String, Vec<u8>>) -> Vec<u8> {
    let mut archive = Archive::default();
    add_modules(&mut archive, modules, |number| format!("served-{number}"));
    archive.file("bin/stile-devices", 0o755, program);
    archive.file("bin/stile-uplink", 0o755, UPLINK.as_bytes());
    if !back_ends.is_empty() {
        // Directories of the loader: for programs of Arm, and of x86-64.
        archive.link("lib", "usr/lib");
        archive.link("lib64", "usr/lib64");
    }
    let mut folders = BTreeSet::new();
    for (path, bytes) in back_ends {
        let mut above: Vec<&Path> = Path::new(path).ancestors().skip(1).filter(|folder| folder.parent().is_some()).collect();
        above.reverse();
        above.into_iter().filter(|folder| folders.insert(*folder)).for_each(|folder| archive.directory(&folder.to_string_lossy()));
        archive.file(path, 0o755, bytes);
    }
    archive.finish()
}

fn marks_script(marks: &Marks) -> String {
    let Marks { begin, end, stop, bye, ready } = marks;
    let words = [("begin", begin), ("end", end), ("stop", stop), ("bye", bye), ("ready", ready)];
    words.into_iter().map(|(name, mark)| format!("{name}={}\n", quoted(mark))).collect()
}

/// `text` as one word of a shell.
pub fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holds(archive: &[u8], text: &str) -> bool {
        archive.windows(text.len()).any(|window| window == text.as_bytes())
    }

    #[test]
    fn a_command_is_passed_in_a_file() {
        let marks = Marks::new(7);
        let archive = build(b"busybox", "guest", &Task::Command("echo 'hello'"), &marks);
        assert!(holds(&archive, "stile/exec\0"));
        assert!(holds(&archive, "echo 'hello'\n"));
        assert!(holds(&archive, "begin='\x1estile 0000000000000007 begin\x1e'"));
        assert!(!holds(&archive, "stile/terminal\0"));
    }

    #[test]
    fn answers_begin_where_linux_looks_for_them() {
        for size in 0..9 {
            let archive = with_answers(vec![1; size], b"d-i passwd/make-user boolean false");
            let begin = size.next_multiple_of(4);
            assert_eq!(&archive[begin..begin + 6], b"070701");
            assert!(archive[size..begin].iter().all(|byte| *byte == 0));
            assert!(holds(&archive, "preseed.cfg\0") && holds(&archive, "passwd/make-user"));
        }
    }

    #[test]
    fn drivers_are_loaded_in_their_order() {
        let module = |name| Module { name, bytes: b"code".to_vec() };
        let archive = with_drivers(&[module("virtio.ko"), module("e1000e.ko")]);
        assert!(holds(&archive, "stile/drivers/00-virtio.ko\0"));
        assert!(holds(&archive, "stile/drivers/01-e1000e.ko\0"));
    }

    #[test]
    fn the_dhcp_client_finds_its_script() {
        // The path that Debian's busybox is built with.
        assert!(holds(&with_networks(), "etc/udhcpc/default.script\0#!/bin/sh\n"));
    }

    #[test]
    fn back_ends_are_in_their_folders() {
        let files = BTreeMap::from([("usr/lib/a/c.so".to_owned(), b"code".to_vec()), ("usr/bin/program".to_owned(), b"code".to_vec())]);
        let archive = with_server(&[], b"devices", &files);
        let at = |text: &str| archive.windows(text.len()).position(|window| window == text.as_bytes());
        assert!(at("usr/lib/a\0") < at("usr/lib/a/c.so\0"), "the kernel makes files in folders that are there");
        assert!(holds(&archive, "usr/bin/program\0") && holds(&archive, "lib64\0"));
        assert!(!holds(&with_server(&[], b"devices", &BTreeMap::new()), "usr/lib"));
    }

    #[test]
    fn folders_are_listed() {
        let folder = Folder { path: "/a b".into(), read_only: true, tag: "src".into(), served: false };
        let archive = with_folders(&[Module { name: "9p.ko", bytes: b"code".to_vec() }], std::slice::from_ref(&folder), false);
        assert!(holds(&archive, "stile/drivers/folder-0-9p.ko\0"));
        assert!(holds(&archive, "src 9p trans=virtio,version=9p2000.L,msize=262144,ro\n"));
        assert!(holds(&with_folders(&[], &[folder], true), "msize=262144,ro,cache=loose\n"));
    }

    #[test]
    fn a_shell_knows_its_terminal() {
        let task = Task::Shell { terminal: "it's", size: (80, 24), keyboard: true };
        let archive = build(b"busybox", "guest", &task, &Marks::new(1));
        assert!(holds(&archive, r"export TERM='it'\''s'"));
        assert!(holds(&archive, "rows=24 columns=80"));
        assert!(!holds(&archive, "stile/exec\0"));
    }
}
