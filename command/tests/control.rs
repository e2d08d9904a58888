//! A machine is reached from other processes. The emulator is a script that keeps its serial line open, and records what it is sent.

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::process::{Child, Output, Stdio};
use std::thread;
use std::time::Duration;

use common::Sandbox;
use stile_wire::{Channel, Decoder, Encoder, Event, Item, VmState};

/// A machine that greets on its console and runs until its serial line's input ends.
struct Machine<'w> {
    sandbox: &'w Sandbox,
    run: Child,
}

impl<'w> Machine<'w> {
    fn start(sandbox: &'w Sandbox, name: &str) -> Self {
        let mut bytes = Vec::new();
        let mut encoder = Encoder::new();
        encoder.event(&Event::Vm { vm: 0, state: VmState::Started }, &mut |byte| bytes.push(byte));
        encoder.bytes(Channel::console(0), b"hello\r\n~ # ", &mut |byte| bytes.push(byte));
        fs::write(sandbox.path("line"), bytes).expect("a file");
        let dir = sandbox.path("").display().to_string();
        let version = "*--version*) echo 'QEMU emulator version 10.0.2' ;;";
        sandbox.script("qemu-system-aarch64", &format!("case \"$*\" in\n{version}\n*) cat {dir}/line; cat > {dir}/sent ;;\nesac\n"));
        let mut command = sandbox.run(&["--name", name]);
        let run = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
        let machine = Self { sandbox, run };
        machine.wait_for(|| sandbox.path(&format!("stile/{name}.sock")).exists());
        machine.wait_for(|| machine.ps("").contains("running"));
        machine
    }

    fn wait_for(&self, condition: impl Fn() -> bool) {
        while !condition() {
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn ps(&self, flag: &str) -> String {
        let words: Vec<&str> = ["ps", flag].into_iter().filter(|word| !word.is_empty()).collect();
        text(&self.sandbox.stile(&words).output().expect("it runs").stdout)
    }

    /// Bytes typed to the VM.
    fn sent(&self) -> Vec<u8> {
        let mut decoder = Decoder::new();
        let sent = fs::read(self.sandbox.path("sent")).unwrap_or_default();
        sent.into_iter().filter_map(|byte| if let Some(Item::Byte(_, byte)) = decoder.push(byte) { Some(byte) } else { None }).collect()
    }

    fn end(mut self) {
        let pid = rustix::process::Pid::from_child(&self.run);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it runs");
        self.run.wait().expect("it ends");
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn failure(output: &Output) -> String {
    assert!(!output.status.success());
    text(&output.stderr)
}

#[test]
fn shells_complete_machines_and_vms() {
    let sandbox = Sandbox::new(b"");
    let machine = Machine::start(&sandbox, "web");
    for (command, names) in [("attach", "web\nweb/vm0\n"), ("pause", "web/vm0\n"), ("create", "web\n"), ("migrate", "web/vm0\n")] {
        let complete = || {
            let mut shell = sandbox.stile(&["--", "stile", command, "w"]);
            let output = shell.env("STILE_COMPLETE", "fish").output().expect("it runs");
            let values =
                text(&output.stdout).lines().map(|line| format!("{}\n", line.split('\t').next().unwrap_or(line))).collect::<String>();
            (values, text(&output.stderr))
        };
        // A machine that does not answer within a second, as on a busy host, is left out: it is asked again.
        let (values, errors) = (0..30).map(|_| complete()).find(|(values, _)| values == names).unwrap_or_else(complete);
        assert_eq!(values, names, "{command}: {errors}");
    }
    machine.end();
}

#[test]
fn consoles_are_shared_with_their_scroll_back() {
    let sandbox = Sandbox::new(b"");
    let machine = Machine::start(&sandbox, "web");
    let mut writer = sandbox.stile(&["attach", "web"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
    let mut watcher =
        sandbox.stile(&["attach", "--read-only", "web/vm0"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
    for client in [&mut writer, &mut watcher] {
        let mut first = String::new();
        BufReader::new(client.stdout.as_mut().expect("a pipe")).read_line(&mut first).expect("scroll-back");
        assert_eq!(first, "hello\r\n");
    }
    watcher.stdin.take().expect("a pipe").write_all(b"not passed on\n").expect("written");
    writer.stdin.take().expect("a pipe").write_all(b"ls\n").expect("written");
    machine.wait_for(|| machine.sent().len() >= 3);
    assert_eq!(machine.sent(), b"ls\n");
    machine.end();
    for client in [writer, watcher] {
        let output = client.wait_with_output().expect("it ends");
        assert!(output.status.success(), "{output:?}");
    }
}

#[test]
fn what_is_typed_to_a_destroyed_vm_reaches_no_other() {
    let sandbox = Sandbox::new(b"");
    let mut bytes = Vec::new();
    let mut encoder = Encoder::new();
    for vm in [0, 1] {
        encoder.event(&Event::Vm { vm, state: VmState::Started }, &mut |byte| bytes.push(byte));
    }
    encoder.bytes(Channel::console(0), b"hello\r\n", &mut |byte| bytes.push(byte));
    fs::write(sandbox.path("line"), &bytes).expect("a file");
    bytes.clear();
    encoder.event(&Event::Vm { vm: 0, state: VmState::Destroyed }, &mut |byte| bytes.push(byte));
    fs::write(sandbox.path("more"), &bytes).expect("a file");
    let dir = sandbox.path("").display().to_string();
    let version = "*--version*) echo 'QEMU emulator version 10.0.2' ;;";
    let machine = format!("cat {dir}/line; while [ ! -e {dir}/go ]; do sleep 0.02; done; cat {dir}/more; cat > {dir}/sent");
    sandbox.script("qemu-system-aarch64", &format!("case \"$*\" in\n{version}\n*) {machine} ;;\nesac\n"));
    let vm = |name: &str| format!("[[vm]]\nname = \"{name}\"\nkernel = \"kernel\"\nmemory = \"64M\"\n");
    fs::write(sandbox.path("two.toml"), vm("one") + &vm("two")).expect("a file");
    let run =
        sandbox.stile(&["run", "two.toml", "--name", "web"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let machine = Machine { sandbox: &sandbox, run };
    machine.wait_for(|| machine.ps("").contains("running"));
    let mut client = sandbox.stile(&["attach", "web/one"]);
    let mut client = client.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let mut first = String::new();
    BufReader::new(client.stdout.as_mut().expect("a pipe")).read_line(&mut first).expect("scroll-back");
    fs::write(sandbox.path("go"), "").expect("a file");
    let mut notes = BufReader::new(client.stderr.take().expect("a pipe")).lines().map_while(Result::ok);
    assert!(notes.any(|note| note.contains("one is destroyed")));
    client.stdin.take().expect("a pipe").write_all(b"secret\n").expect("written");
    assert!(notes.any(|note| note.contains("attach to a console first")));
    assert_eq!(text(&machine.sent()), "");
    machine.end();
    client.wait().expect("it ends");
}

#[test]
fn machines_are_listed_until_they_end() {
    let sandbox = Sandbox::new(b"");
    let machine = Machine::start(&sandbox, "web");
    let socket = sandbox.path("stile/web.sock");
    assert_eq!(fs::metadata(&socket).expect("a socket").permissions().mode() & 0o777, 0o600);
    drop(UnixListener::bind(sandbox.path("stile/stale.sock")).expect("a socket"));
    let listed: serde_json::Value = serde_json::from_str(&machine.ps("--json")).expect("JSON");
    assert_eq!(listed.as_array().expect("machines").len(), 1);
    assert_eq!(listed[0]["name"], "web");
    assert_eq!(listed[0]["pid"], machine.run.id());
    assert_eq!(listed[0]["vms"], serde_json::json!([{ "name": "vm0", "state": "running" }]));
    assert!(!sandbox.path("stile/stale.sock").exists());
    let second = sandbox.run(&["--name", "web"]).output().expect("it runs");
    assert!(failure(&second).contains("a machine called web runs already"));
    machine.end();
    assert!(!socket.exists());
    assert_eq!(text(&sandbox.stile(&["ps", "--json"]).output().expect("it runs").stdout), "[]\n");
}

#[test]
fn a_detached_machine_goes_on_without_the_command() {
    let sandbox = Sandbox::new(b"");
    // A machine that is not detached leaves the scripts behind.
    Machine::start(&sandbox, "web").end();
    let output = sandbox.run(&["--detach", "--json", "--name", "back"]).output().expect("it runs");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let json = |bytes: &[u8]| serde_json::from_slice::<serde_json::Value>(bytes).expect("JSON");
    let (started, list) = (json(&output.stdout), json(&sandbox.stile(&["ps", "--json"]).output().expect("it runs").stdout));
    assert_eq!((&list[0]["name"], &list[0]["pid"]), (&started["machine"], &started["pid"]));
    assert_eq!((&started["machine"], &started["log"]), (&"back".into(), &sandbox.path("stile/back.log").display().to_string().into()));
    assert_eq!(fs::metadata(sandbox.path("stile/back.log")).expect("a log").permissions().mode() & 0o777, 0o600);
    let pid = list[0]["pid"].as_i64().and_then(|pid| rustix::process::Pid::from_raw(pid as i32)).expect("a process");
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it runs");
    while sandbox.path("stile/back.sock").exists() {
        thread::sleep(Duration::from_millis(20));
    }
    // A mistake in the configuration is reported before the command detaches.
    let output = sandbox.run(&["--detach", "--vcpus", "999"]).output().expect("it runs");
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("99"), "{output:?}");
}

#[test]
fn a_detached_machine_shows_its_messages_while_it_starts() {
    let sandbox = Sandbox::new(b"");
    Machine::start(&sandbox, "web").end();
    // It builds the hypervisor until the message was seen, at most for a minute.
    let dir = sandbox.path("").display().to_string();
    fs::rename(sandbox.path("cargo"), sandbox.path("build")).expect("a script");
    let wait = format!("n=0; while [ ! -e {dir}/go ] && [ $n != 600 ]; do n=$((n+1)); sleep 0.1; done");
    sandbox.script(
        "cargo",
        &format!("if [ -n \"$STILE_DETACHED\" ]; then echo \"   Compiling stile\" >&2; {wait}; touch {dir}/built; fi\nexec {dir}/build\n"),
    );
    let mut detach = sandbox.run(&["--detach", "--name", "back"]);
    let mut detach = detach.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let mut messages = BufReader::new(detach.stderr.take().expect("its messages")).lines();
    let first = messages.next().expect("a message").expect("text");
    assert!(first.contains("building the hypervisor"), "{first}");
    assert!(!sandbox.path("built").exists());
    fs::write(sandbox.path("go"), "").expect("a file");
    let output = detach.wait_with_output().expect("it ends");
    assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(0), "back\n"), "{output:?}");
    let list: serde_json::Value =
        serde_json::from_slice(&sandbox.stile(&["ps", "--json"]).output().expect("it runs").stdout).expect("JSON");
    let pid = list[0]["pid"].as_i64().and_then(|pid| rustix::process::Pid::from_raw(pid as i32)).expect("a process");
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it runs");
}

#[test]
fn a_detached_machine_leaves_another_one_with_its_name_alone() {
    let sandbox = Sandbox::new(b"");
    let log = sandbox.path("stile/web.log");
    // The process of the first one builds the hypervisor until `go` is there. Meanwhile another machine takes the name.
    let dir = sandbox.path("").display().to_string();
    fs::rename(sandbox.path("cargo"), sandbox.path("build")).expect("a script");
    let wait = format!("touch {dir}/building; while [ ! -e {dir}/go ]; do sleep 0.1; done");
    sandbox.script("cargo", &format!("if [ -n \"$STILE_DETACHED\" ]; then {wait}; fi\nexec {dir}/build\n"));
    let mut late = sandbox.run(&["--detach", "--name", "web"]);
    let late = late.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    while !sandbox.path("building").exists() {
        thread::sleep(Duration::from_millis(20));
    }
    let machine = Machine::start(&sandbox, "web");
    fs::write(&log, "messages of web\n").expect("a file");
    let second = sandbox.run(&["--detach", "--name", "web"]).output().expect("it runs");
    assert!(failure(&second).contains("a machine called web runs already"), "{second:?}");
    fs::write(sandbox.path("go"), "").expect("a file");
    let late = late.wait_with_output().expect("it ends");
    assert!(failure(&late).contains("a machine called web runs already"), "{late:?}");
    assert_eq!(fs::read_to_string(&log).expect("the log"), "messages of web\n");
    let files = fs::read_dir(sandbox.path("stile")).expect("a directory").map(|file| file.expect("a file").file_name());
    let mut logs: Vec<_> = files.filter(|name| name.to_string_lossy().ends_with(".log")).collect();
    assert_eq!(logs.pop(), Some("web.log".into()));
    assert!(logs.is_empty(), "{logs:?}");
    machine.end();
}

#[test]
fn mistakes_are_explained() {
    let sandbox = Sandbox::new(b"");
    let run = |words: &[&str]| failure(&sandbox.stile(words).output().expect("it runs"));
    assert!(run(&["attach", "web"]).contains("no machine runs, so none called web"));
    let machine = Machine::start(&sandbox, "web");
    assert!(run(&["attach", "wob"]).contains("running: web"));
    assert!(run(&["attach", "web/db"]).contains("there is no VM called db; the VMs are vm0"));
    for command in ["stop", "start", "restart", "pause", "resume"] {
        assert!(run(&[command, "web/db"]).contains("there is no VM called db; the VMs are vm0"), "{command}");
        assert!(run(&[command, "wob/vm0"]).contains("running: web"), "{command}");
    }
    assert!(run(&["run", "--name", "Web"]).contains("expected 1 to 32 characters"));
    machine.end();
}
