//! `stile connect` at a pseudo-terminal whose other end plays the board.

mod common;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use common::{Sandbox, end, line};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, tcgetattr};
use stile_wire::{Action, Answer, Channel, Command, Decoder, Encoder, Event, Item, Level, Version, VmState};

/// Opens a pseudo-terminal. Returns the board's end, and the path of the command's end.
fn board() -> (File, PathBuf) {
    let end = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).expect("a pseudo-terminal");
    grantpt(&end).expect("granted");
    unlockpt(&end).expect("unlocked");
    let name = ptsname(&end, Vec::new()).expect("a name").into_string().expect("text");
    (File::from(end), name.into())
}

/// Waits until the command has made the terminal raw: until then, the terminal would translate the board's output.
fn wait_for_raw(device: &File, child: &mut Child) {
    while tcgetattr(device).expect("a terminal").local_modes.contains(LocalModes::ECHO) {
        assert_eq!(child.try_wait().expect("a child"), None, "it ended");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_boards_consoles_are_shown_and_its_end_is_the_commands() {
    let sandbox = Sandbox::new(b"");
    let (mut board, path) = board();
    let device = File::open(&path).expect("a device");
    fs::write(sandbox.path("machine.toml"), "[[vm]]\nname = \"web\"\nkernel = \"debian\"\n").expect("a file");
    let mut command = sandbox.stile(&["connect", &path.to_string_lossy(), "machine.toml", "--baud", "9600", "--log", "logs"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    wait_for_raw(&device, &mut child);

    // Typed bytes reach the console.
    child.stdin.take().expect("a pipe").write_all(b"ls\n").expect("written");
    let (mut decoder, mut typed) = (Decoder::new(), Vec::new());
    while typed.len() < 3 {
        let mut byte = [0];
        board.read_exact(&mut byte).expect("the command writes");
        if let Some(Item::Byte(channel, byte)) = decoder.push(byte[0]) {
            assert_eq!(channel, Channel::console(0));
            typed.push(byte);
        }
    }
    assert_eq!(typed, b"ls\n");

    // A VM that the configuration lacks: the board has another one.
    let mut unknown = Vec::new();
    let mut encoder = Encoder::new();
    for (vm, text) in [(5, &b"one"[..]), (6, b"one"), (5, b"two")] {
        encoder.bytes(Channel::console(vm), text, &mut |byte| unknown.push(byte));
    }
    // It is reset.
    let version = Version { major: 0, minor: 1, patch: 0 };
    encoder.event(&Event::Hello { version, cpus: 1, level: Level::Vhe, vms: 7 }, &mut |byte| unknown.push(byte));
    encoder.bytes(Channel::console(5), b"one", &mut |byte| unknown.push(byte));
    board.write_all(&unknown).expect("the command reads");
    board.write_all(&line("hello\n")).expect("the command reads");
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.stdout, b"hello\n");
    let (status, notes) = end(&output);
    assert_eq!(status, 0, "{notes}");
    assert!(notes.contains("Stile is up"), "{notes}");
    let noted = |vm: u8| notes.matches(&format!("no VM with the number {vm}")).count();
    assert_eq!((noted(5), noted(6)), (2, 1), "{notes}");
    assert_eq!(fs::read_to_string(sandbox.path("logs/web.console.log")).expect("a log"), "hello\n");
    assert!(tcgetattr(&device).expect("a terminal").local_modes.contains(LocalModes::ECHO), "the line is as it was");
}

#[test]
fn whoever_leaves_gets_the_account_and_the_board_goes_on() {
    let sandbox = Sandbox::new(b"");
    let (mut board, path) = board();
    let device = File::open(&path).expect("a device");
    let words = ["connect", &path.to_string_lossy(), "--timeout", "0.5", "--exits"];
    let mut command = sandbox.stile(&words);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    wait_for_raw(&device, &mut child);
    let mut decoder = Decoder::new();
    let asked = loop {
        let mut byte = [0];
        board.read_exact(&mut byte).expect("the command writes");
        if let Some(command) = decoder.push(byte[0]).and_then(|item| item.command()) {
            break command.expect("a command");
        }
    };
    assert_eq!(asked, stile_wire::Command::Ledger);
    let mut answer = Vec::new();
    stile_wire::Encoder::new().event(&Event::LedgerEnd, &mut |byte| answer.push(byte));
    board.write_all(&answer).expect("the command reads");
    let (status, notes) = end(&child.wait_with_output().expect("it ends"));
    assert_eq!(status, 124, "{notes}");
    assert!(notes.contains("sent no account"), "{notes}");
}

#[test]
fn what_is_no_serial_line_is_said() {
    let sandbox = Sandbox::new(b"");
    let pipe = sandbox.path("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).expect("a pipe");
    for (device, what) in [
        ("kernel", "not a serial line"),
        ("missing", "No such file"),
        (".", "Is a directory"),
        ("/dev/null", "not a serial line"),
        ("pipe", "not a serial line"),
    ] {
        let (status, notes) = end(&sandbox.stile(&["connect", device]).output().expect("it starts"));
        assert_eq!(status, 2, "{notes}");
        assert!(notes.contains(what), "{device}: {notes}");
    }
}

#[test]
fn a_line_has_one_user_and_can_be_unplugged() {
    let sandbox = Sandbox::new(b"");
    let (board, path) = board();
    let device = File::open(&path).expect("a device");
    let words = ["connect", &path.to_string_lossy(), "--timeout", "120"];
    let mut first = sandbox.stile(&words).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts");
    wait_for_raw(&device, &mut first);
    let (status, notes) = end(&sandbox.stile(&words).output().expect("it starts"));
    assert!(status == 2 && notes.contains("another program uses the line"), "{status}: {notes}");
    // The board's end is gone, as if the adapter were.
    drop(device);
    drop(board);
    let (status, notes) = end(&first.wait_with_output().expect("it ends"));
    assert_eq!(status, 102, "{notes}");
}

#[test]
fn vms_that_a_board_may_not_have_are_not_mentioned() {
    let sandbox = Sandbox::new(b"");
    let (_board, path) = board();
    let _device = File::open(&path).expect("a device");
    let output = sandbox.stile(&["connect", &path.to_string_lossy(), "--timeout", "0.1"]).output().expect("it runs");
    let (status, notes) = end(&output);
    assert_eq!(status, 124);
    assert!(notes.contains("time-out") && !notes.contains("vm100"), "{notes}");
    let output = sandbox.stile(&["connect", &path.to_string_lossy(), "--baud", "0"]).output().expect("it runs");
    assert_eq!(end(&output).0, 2);
}

/// A pause, an answer to it, and the message that it is complete are lost. Each is sent again, and the pause is carried out once.
#[test]
fn a_change_of_a_vms_state_survives_a_line_that_loses_messages() {
    let sandbox = Sandbox::new(b"");
    let (mut board, path) = board();
    let device = File::open(&path).expect("a device");
    fs::write(sandbox.path("machine.toml"), "[[vm]]\nname = \"web\"\nkernel = \"debian\"\n").expect("a file");
    let words = ["connect", &path.to_string_lossy(), "machine.toml", "--name", "board", "--timeout", "120"];
    let mut child = sandbox.stile(&words).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts");
    wait_for_raw(&device, &mut child);

    let mut encoder = Encoder::new();
    let mut say = |board: &mut File, event: &Event| {
        let mut bytes = Vec::new();
        encoder.event(event, &mut |byte| bytes.push(byte));
        board.write_all(&bytes).expect("the command reads");
    };
    say(&mut board, &Event::Vm { vm: 0, state: VmState::Started });

    let start = Instant::now();
    while !sandbox.path("stile/board.sock").exists() && start.elapsed() < Duration::from_secs(60) {
        thread::sleep(Duration::from_millis(10));
    }
    let pause = sandbox.stile(&["pause", "board/web"]).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts");
    let (mut decoder, mut asked, mut told) = (Decoder::new(), Vec::new(), false);
    while !told {
        let mut byte = [0];
        board.read_exact(&mut byte).expect("the command writes");
        match decoder.push(byte[0]).and_then(|item| item.command()) {
            Some(Ok(Command::Control { tag, vm: 0, action: Action::Pause })) => {
                // A command that did not get the answer within a second, on a busy host, asks again.
                asked.push(tag);
                if asked.len() >= 3 {
                    say(&mut board, &Event::Answer { tag, answer: Answer::Done });
                }
            }
            // After the third attempt the command asks for the state of the pause; requests before it are those of its start.
            Some(Ok(Command::State { vm: 0 })) if asked.len() >= 3 => {
                told = true;
                say(&mut board, &Event::Vm { vm: 0, state: VmState::Paused });
            }
            Some(Ok(Command::State { vm: 0 })) => say(&mut board, &Event::Vm { vm: 0, state: VmState::Started }),
            Some(other) => panic!("{other:?}"),
            None => {}
        }
    }
    let output = pause.wait_with_output().expect("it ends");
    assert_eq!(end(&output).0, 0, "{output:?}");
    assert!(asked.len() >= 3 && asked.iter().all(|tag| *tag == asked[0]), "{asked:?}");
    say(&mut board, &Event::End { status: 0 });
    child.wait_with_output().expect("it ends");
}
