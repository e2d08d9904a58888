//! Temporary files of commands that are ended.

mod common;

use std::process::{Child, Command};
use std::thread;
use std::time::Duration;

use common::{Sandbox, end, is_empty, line};
use rustix::process::{Pid, Signal, kill_process};

/// Starts a command, and waits until it has temporary files and `ready` exists.
fn start(sandbox: &Sandbox, command: &mut Command) -> Child {
    let mut child = command.spawn().expect("it starts");
    while is_empty(&sandbox.tmp()) || !sandbox.path("ready").exists() {
        assert_eq!(child.try_wait().expect("a child"), None, "it ended");
        thread::sleep(Duration::from_millis(10));
    }
    child
}

fn send(child: &Child, signal: Signal) {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).expect("a process");
    kill_process(pid, signal).expect("it runs");
}

/// A sandbox in which cargo takes its time.
fn slow_cargo() -> Sandbox {
    let sandbox = Sandbox::new(b"");
    let ready = sandbox.path("ready");
    sandbox.script("cargo", &format!("touch {}\nexec sleep 60 >/dev/null 2>&1\n", ready.display()));
    sandbox
}

#[test]
fn a_signal_ends_any_command_and_its_temporary_files_go() {
    for words in [&["test"][..], &["bench", "--against", "none"], &["run", "--kernel", "kernel"]] {
        for (signal, status) in [(Signal::INT, 130), (Signal::TERM, 143)] {
            let sandbox = slow_cargo();
            let mut child = start(&sandbox, &mut sandbox.stile(words));
            send(&child, signal);
            assert_eq!(child.wait().expect("it ends").code(), Some(status), "{words:?}");
            assert!(is_empty(&sandbox.tmp()), "{words:?}");
        }
    }
}

#[test]
fn what_a_killed_run_left_is_removed_by_the_next() {
    let sandbox = Sandbox::new(&line("hello\n"));
    let ready = sandbox.path("ready");
    let version = "*--version*) echo 'QEMU emulator version 10.0.2' ;;";
    sandbox.script(
        "qemu-system-aarch64",
        &format!("case \"$*\" in\n{version}\n*) touch {}; exec sleep 1000 2>/dev/null ;;\nesac\n", ready.display()),
    );
    let mut killed = start(&sandbox, &mut sandbox.run(&[]));
    let mut interrupted = start(&sandbox, &mut sandbox.run(&[]));
    let directories = || std::fs::read_dir(sandbox.tmp()).expect("a directory").count();
    while directories() < 2 {
        thread::sleep(Duration::from_millis(10));
    }
    killed.kill().expect("it runs");
    killed.wait().expect("it ends");
    assert!(!is_empty(&sandbox.tmp()));

    // A concurrent command keeps its files, and removes them itself.
    let (status, said) = end(&sandbox.stile(&["check", "--kernel", "kernel"]).output().expect("it starts"));
    assert_eq!(status, 0, "{said}");
    assert_eq!(directories(), 1, "of the two runs one was killed");
    send(&interrupted, Signal::INT);
    assert_eq!(interrupted.wait().expect("it ends").code(), Some(130));
    assert!(is_empty(&sandbox.tmp()));
}
