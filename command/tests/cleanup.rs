//! Signals that end a command early: it removes its files and restores the terminal. The tests act as the machine on its
//! control socket.

mod common;

use std::fs::{self, DirBuilder, File};
use std::io::BufReader;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixListener;
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use common::{Sandbox, is_empty};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};
use stile::config::Arch;
use stile::control::protocol::{self, Bytes, Reply, Request, State, Status, VmStatus};
use stile::control::sample::Sample;

/// Binds the control socket of a machine named m.
fn listen(sandbox: &Sandbox) -> UnixListener {
    let dir = sandbox.path("stile");
    DirBuilder::new().mode(0o700).create(&dir).expect("a folder");
    UnixListener::bind(dir.join("m.sock")).expect("a socket")
}

/// Acts as the machine for one client until it disconnects. A save makes no progress, so that the command stays in it.
fn play(listener: &UnixListener) {
    let (mut stream, _) = listener.accept().expect("a client");
    let mut requests = BufReader::new(stream.try_clone().expect("a copy"));
    let mut state = State::Running;
    while let Ok(Some(request)) = protocol::read(&mut requests) {
        let reply = match request {
            Request::Hello { version } => Reply::Hello { version },
            Request::Status => {
                let vms = vec![VmStatus { name: "web".into(), state, waits_for: None }];
                Reply::Status(Status { name: "m".into(), pid: 1, arch: Arch::Aarch64, seconds: 5, vms })
            }
            Request::Sample => Reply::Sample(Sample { counter_hz: 1, ..Sample::default() }),
            Request::Attach { .. } => Reply::Attached { vm: "web".into(), scrollback: Bytes::default(), bare: false },
            Request::State { vm } => Reply::State { vm, state },
            Request::Hold { .. } => {
                state = State::Paused;
                Reply::Done
            }
            Request::Save { .. } => Reply::Progress { done: 0, all: 1 },
            other => panic!("{other:?}"),
        };
        if protocol::write(&mut stream, &reply).is_err() {
            // The command was ended.
            return;
        }
    }
}

/// Waits for a condition while a command runs.
fn until(child: &mut Child, condition: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(300);
    while !condition() {
        assert!(Instant::now() < end, "the condition does not come");
        assert_eq!(child.try_wait().expect("a child"), None, "the command has ended");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Ends a command by SIGTERM: its exit status must be 143 (128 + 15).
fn terminate(mut child: Child) {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).expect("a process");
    kill_process(pid, Signal::TERM).expect("it runs");
    assert_eq!(child.wait().expect("it ends").code(), Some(143));
}

#[test]
fn a_file_beside_its_target_goes() {
    let sandbox = Sandbox::new(b"");
    let listener = listen(&sandbox);
    let folder = sandbox.path("snapshots");
    fs::create_dir(&folder).expect("a folder");
    thread::scope(|scope| {
        scope.spawn(|| play(&listener));
        let mut child = sandbox.stile(&["save", "m/web", "snapshots/web"]).spawn().expect("it starts");
        until(&mut child, || !is_empty(&folder));
        terminate(child);
    });
    assert!(is_empty(&folder));
    assert!(is_empty(&sandbox.tmp()));
}

#[test]
fn a_machine_that_has_not_started_ends_with_its_log() {
    let sandbox = Sandbox::new(b"");
    let dir = sandbox.path("").display().to_string();
    // A stand-in for cargo keeps the machine's process in its build, until the sandbox is removed at the latest.
    sandbox.script(
        "cargo",
        &format!("echo $PPID >{dir}/process; touch {dir}/building; while [ -e {dir}/building ]; do sleep 0.1; done; exit 1\n"),
    );
    let mut child = sandbox.run(&["--detach", "--name", "web"]).spawn().expect("it starts");
    until(&mut child, || sandbox.path("building").exists());
    let process = fs::read_to_string(sandbox.path("process")).expect("a file");
    // False also for a zombie: its link can't be read.
    let runs = || fs::read_link(format!("/proc/{}/exe", process.trim())).is_ok();
    let logs = || {
        let files = fs::read_dir(sandbox.path("stile")).expect("a directory").map(|file| file.expect("a file").path());
        files.filter(|path| path.extension().is_some_and(|extension| extension == "log")).count()
    };
    assert!(runs());
    assert_eq!(logs(), 1);
    terminate(child);
    assert_eq!(logs(), 0);
    // A limit of 60 s, far longer than it takes to end.
    let ends = (0..6_000).any(|_| {
        thread::sleep(Duration::from_millis(10));
        !runs()
    });
    assert!(ends, "the machine's process still runs");
}

#[test]
fn the_terminal_is_restored() {
    let sandbox = Sandbox::new(b"");
    let listener = listen(&sandbox);
    for name in ["attach", "top"] {
        let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a pseudo-terminal");
        grantpt(&terminal).expect("granted");
        unlockpt(&terminal).expect("unlocked");
        tcsetwinsize(&terminal, Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 }).expect("a size");
        let path = ptsname(&terminal, Vec::new()).expect("a name").into_string().expect("text");
        let other = || File::options().read(true).write(true).open(&path).expect("a terminal");
        // While one descriptor is open, the terminal keeps its modes, which are read after the command has ended.
        let modes = other();
        let is_raw = || !tcgetattr(&modes).expect("modes").local_modes.contains(LocalModes::ICANON);
        assert!(!is_raw());
        // In a session of its own, so that it does not use the terminal of the test's caller.
        let stile = sandbox.stile(&[name, "m"]);
        let mut command = Command::new("setsid");
        command.arg(stile.get_program()).args(stile.get_args()).current_dir(sandbox.path(""));
        command.envs(stile.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.stdin(other()).stdout(other()).stderr(other());
        thread::scope(|scope| {
            scope.spawn(|| play(&listener));
            let mut child = command.spawn().expect("it starts");
            until(&mut child, is_raw);
            terminate(child);
        });
        assert!(!is_raw(), "{name}");
    }
}
