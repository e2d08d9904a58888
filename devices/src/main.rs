//! `stile-devices block=FILE[,readonly]|net=BRIDGE,mac=ADDRESS ...`: serves the Nth device of this VM by the Nth argument: a disk with the
//! content of a file, or a network card that is a port of a bridge.
//!
//! Ends when all clients are off.

use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::process::ExitCode;

use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use stile_devices::supervisor::Mode;
use stile_devices::{Backend, Device, DeviceArgument, Disk, FailedDisk, Network, Server, Tap, Unplugged, parse, sandbox, supervisor};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match &arguments[..] {
        [] => Err("usage: stile-devices block=FILE[,readonly]|net=BRIDGE,mac=ADDRESS ...".to_owned()),
        [flag, number, argument] if flag == Mode::Serve.flag() => serve(number, argument),
        [flag, number, argument] if flag == Mode::Fail.flag() => fail(number, argument),
        _ => supervise(&arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("stile-devices: {error}");
            ExitCode::FAILURE
        }
    }
}

fn supervise(arguments: &[String]) -> Result<(), String> {
    for argument in arguments {
        parse(argument)?;
    }
    supervisor::run(arguments).map_err(|error| error.to_string())
}

/// Serves one device, for ever.
fn serve(number: &str, argument: &str) -> Result<(), String> {
    let supervisor = getppid();
    let given = parse(argument)?;
    let (device, of_device) = open(number)?;
    match given {
        DeviceArgument::Block { file, read_only } => {
            let disk = Disk::open(&file, read_only).map_err(|error| format!("{}: {error}", file.display()))?;
            run(&device, supervisor, disk, |_| None).map_err(of_device)
        }
        DeviceArgument::Net { bridge, identity } => {
            let tap = Tap::new(&format!("client{number}"), &bridge).map_err(|error| format!("{bridge}: {error}"))?;
            run(&device, supervisor, Network::new(tap, identity), |network| network.waits_for().map(Tap::as_fd)).map_err(of_device)
        }
    }
}

/// Answers requests of one device with errors, for ever.
fn fail(number: &str, argument: &str) -> Result<(), String> {
    let supervisor = getppid();
    let given = parse(argument)?;
    let (device, of_device) = open(number)?;
    match given {
        DeviceArgument::Block { read_only, .. } => run(&device, supervisor, FailedDisk { read_only }, |_| None),
        DeviceArgument::Net { identity, .. } => run(&device, supervisor, Network::new(Unplugged, identity), |_| None),
    }
    .map_err(of_device)
}

/// Opens a device. Also returns a function that adds its name to errors.
fn open(number: &str) -> Result<(Device, impl Fn(io::Error) -> String), String> {
    let path = format!("/dev/stile-served{number}");
    let device = Device::open(Path::new(&path)).map_err(|error| format!("{path}: {error}"))?;
    Ok((device, move |error| format!("{path}: {error}")))
}

/// Serves a device for ever, in a sandbox. `source` is the file from which the backend awaits input.
fn run<B: Backend>(device: &Device, supervisor: Option<Pid>, backend: B, source: impl Fn(&B) -> Option<BorrowedFd<'_>>) -> io::Result<()> {
    let (registers, memory) = device.map()?;
    sandbox::limit_memory()?;
    sandbox::drop_privileges()?;
    // A device without a supervisor would never be served again.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    if getppid() != supervisor {
        return Err(io::Error::other("the supervisor has ended"));
    }
    sandbox::filter_system_calls()?;
    let mut server = Server::new(registers, memory, backend);
    server.come_online();
    tell(supervisor::ONLINE);
    // The supervisor may have the report of an earlier process of this device: the first state is always reported.
    let mut told = None;
    let mut has_events = true;
    loop {
        if has_events {
            server.attend();
        } else {
            server.attend_backend();
        }
        let is_off = server.client_is_off();
        if told != Some(is_off) {
            told = Some(is_off);
            tell(if is_off { supervisor::OFF } else { supervisor::ON });
        }
        // Without a driver nobody takes input.
        has_events = device.wait(source(server.backend()).filter(|_| server.has_driver()))?;
    }
}

/// Writes a line for the supervisor, if there is one.
fn tell(line: &str) {
    let _ = writeln!(io::stdout(), "{line}");
}
