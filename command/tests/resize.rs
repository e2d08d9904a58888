//! A terminal whose size changes while a shell waits for a command.

mod common;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use common::Sandbox;
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use stile::initramfs::Marks;
use stile_wire::{Channel, Decoder, Encoder, Event, Item, VmState};

/// The number in the marks of a run with `--icount`.
const NUMBER: u64 = 0x5717_e000_0000_0001;

fn set_size(terminal: &File, columns: u16, rows: u16) {
    tcsetwinsize(terminal, Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }).expect("a size");
}

/// The line of a machine whose shell shows its first prompt.
fn prompt() -> Vec<u8> {
    let Marks { begin, ready, .. } = Marks::new(NUMBER);
    let mut line = Vec::new();
    let mut encoder = Encoder::new();
    encoder.event(&Event::Vm { vm: 0, state: VmState::Started }, &mut |byte| line.push(byte));
    encoder.bytes(Channel::console(0), format!("boot\r\n{begin}{ready}~ # ").as_bytes(), &mut |byte| line.push(byte));
    line
}

/// Waits until the bytes that were sent to the machine's console contain `text`.
fn wait_for(sandbox: &Sandbox, child: &mut Child, text: &str) {
    let end = Instant::now() + Duration::from_secs(300);
    loop {
        assert!(Instant::now() < end, "the console receives no {text:?}");
        assert_eq!(child.try_wait().expect("a child"), None, "it ended");
        let mut decoder = Decoder::new();
        let bytes = fs::read(sandbox.path("sent")).unwrap_or_default();
        let mut push = |byte| match decoder.push(byte) {
            Some(Item::Byte(_, byte)) => Some(byte),
            _ => None,
        };
        let typed: Vec<u8> = bytes.into_iter().filter_map(&mut push).collect();
        if String::from_utf8_lossy(&typed).contains(text) {
            return;
        }
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_shell_is_told_the_terminals_new_size() {
    let sandbox = Sandbox::new(&prompt());
    let dir = sandbox.path("").display().to_string();
    let version = "*--version*) echo 'QEMU emulator version 10.0.2' ;;";
    sandbox.script("qemu-system-aarch64", &format!("case \"$*\" in\n{version}\n*) cat {dir}/line; exec tee {dir}/sent ;;\nesac\n"));
    let busybox = sandbox.path("cache/debian/busybox");
    fs::create_dir_all(&busybox).expect("a directory");
    fs::write(busybox.join("busybox"), "busybox").expect("a file");
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a date").as_secs();
    let about = format!(r#"{{"package":"busybox-static","version":"1","checked":{now}}}"#);
    fs::write(busybox.join("about.json"), about).expect("a file");

    let mut terminal = File::from({
        let end = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a pseudo-terminal");
        grantpt(&end).expect("granted");
        unlockpt(&end).expect("unlocked");
        end
    });
    let path = ptsname(&terminal, Vec::new()).expect("a name").into_string().expect("text");
    let other = || File::options().read(true).write(true).open(&path).expect("a terminal");
    set_size(&terminal, 80, 24);
    // In a separate session, so that the terminal of the test's caller is not its controlling terminal.
    let stile = sandbox.run(&["--initrd", "busybox", "--icount", "--quiet"]);
    let mut command = Command::new("setsid");
    command.arg(stile.get_program()).args(stile.get_args()).current_dir(sandbox.path(""));
    command.envs(stile.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let mut child = command.stdin(other()).stdout(other()).stderr(other()).spawn().expect("it starts");

    let mut shown = Vec::new();
    while !String::from_utf8_lossy(&shown).contains("~ # ") {
        let mut byte = [0];
        terminal.read_exact(&mut byte).expect("the command writes");
        shown.push(byte[0]);
    }
    set_size(&terminal, 100, 40);
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).expect("a process");
    kill_process(pid, Signal::WINCH).expect("it runs");
    wait_for(&sandbox, &mut child, "stty rows 40 cols 100\r");
    // Typed bytes follow.
    terminal.write_all(b"ls\r").expect("the command reads");
    wait_for(&sandbox, &mut child, "stty rows 40 cols 100\rls\r");
    terminal.write_all(b"\x01x").expect("the command reads");
    assert_eq!(child.wait().expect("it ends").code(), Some(130));
}
