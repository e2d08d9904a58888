//! Output that can't be written: the reader left, or the disk is full. An emulator's last message.

mod common;

use std::fs;
use std::os::unix::fs::symlink;

use common::{Sandbox, end, full_disk, left_pipe, line};

/// Commands that print a page.
const PAGES: [&[&str]; 4] = [&["doctor"], &["check", "--kernel", "kernel"], &["--help"], &["run", "--help"]];

#[test]
fn a_reader_that_leaves_ends_the_command_in_silence() {
    let sandbox = Sandbox::new(&line("hello\n"));
    for words in PAGES {
        let ended = end(&sandbox.stile(words).stdout(left_pipe()).output().expect("it starts"));
        assert_eq!(ended, (141, String::new()), "{words:?}");
    }
    let ended = end(&sandbox.run(&["--quiet"]).stdout(left_pipe()).output().expect("it starts"));
    assert_eq!(ended, (141, String::new()));
}

#[test]
fn a_full_disk_is_a_failure() {
    let sandbox = Sandbox::new(&line("hello\n"));
    for words in PAGES {
        let (status, notes) = end(&sandbox.stile(words).stdout(full_disk()).output().expect("it starts"));
        assert_eq!(status, 1, "{words:?}: {notes}");
        assert!(notes.contains("standard output can't be written: No space left"), "{words:?}: {notes}");
        assert_eq!(notes.matches("No space left").count(), 1, "{words:?}: {notes}");
    }
    let (status, notes) = end(&sandbox.run(&[]).stdout(full_disk()).output().expect("it starts"));
    assert_eq!(status, 1, "{notes}");
    assert!(notes.contains("standard output can't be written: No space left"), "{notes}");
}

#[test]
fn notes_that_cannot_be_written_change_nothing() {
    let sandbox = Sandbox::new(&line("hello\n"));
    let output = sandbox.run(&[]).stderr(full_disk()).output().expect("it starts");
    assert_eq!((output.status.code(), &output.stdout[..]), (Some(0), &b"hello\n"[..]));
    let refused = sandbox.stile(&["check", "missing.toml"]).stderr(full_disk()).output().expect("it starts");
    assert_eq!(refused.status.code(), Some(2));
}

#[test]
fn logs_that_are_incomplete_are_a_failure() {
    let sandbox = Sandbox::new(&line("hello\n"));
    let logs = sandbox.path("logs");
    fs::create_dir(&logs).expect("a directory");
    symlink("/dev/full", logs.join("vm0.console.log")).expect("a link");
    let (status, notes) = end(&sandbox.run(&["--log", "logs"]).output().expect("it starts"));
    assert_eq!(status, 1, "{notes}");
    assert_eq!(notes.matches("is incomplete").count(), 1, "{notes}");
    assert!(notes.contains("logs/vm0.console.log is incomplete: No space left"), "{notes}");
    assert!(fs::read_to_string(logs.join("stile.log")).expect("a file").contains("Stile is up"));

    fs::remove_file(logs.join("vm0.console.log")).expect("a file");
    let (status, notes) = end(&sandbox.run(&["--log", "logs"]).output().expect("it starts"));
    assert_eq!(status, 0, "{notes}");
    assert_eq!(fs::read_to_string(logs.join("vm0.console.log")).expect("a file"), "hello\n");
}

/// The emulator closes its serial line first, and its last message comes later, as on a busy host.
#[test]
fn a_message_after_the_end_of_the_serial_line_is_shown() {
    let sandbox = Sandbox::new(b"");
    let version = "*--version*) echo 'QEMU emulator version 10.0.2' ;;";
    let fails = "*) exec >&-; sleep 0.5; echo 'no such machine' >&2; exit 1 ;;";
    sandbox.script("qemu-system-aarch64", &format!("case \"$*\" in\n{version}\n{fails}\nesac\n"));
    let (status, notes) = end(&sandbox.run(&[]).output().expect("it starts"));
    assert_eq!(status, 102, "{notes}");
    assert!(notes.contains("the emulator failed: no such machine"), "{notes}");
}
