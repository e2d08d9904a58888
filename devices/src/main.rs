//! `stile-devices block=FILE[,format=qcow2][,readonly]|net=BRIDGE,mac=ADDRESS ...`: serves the Nth device of this VM by the Nth argument: a disk with the
//! content of a file, or a network card that is a port of a bridge.
//!
//! Ends when all clients are off.

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use stile_devices::supervisor::Mode;
use stile_devices::{
    Backend, DISK, Device, DeviceArgument, Disk, FailedDisk, Format, Kind, Network, Page, Server, Tap, Unplugged, VhostUser, confined,
    parse, sandbox, supervisor,
};
use vm_memory::GuestMemoryMmap;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match &arguments[..] {
        [] => Err("usage: stile-devices block=FILE[,format=qcow2][,readonly]|net=BRIDGE,mac=ADDRESS ...".to_owned()),
        [flag, number, argument] if flag == Mode::Serve.flag() => serve(number, argument),
        [flag, number, argument] if flag == Mode::Fail.flag() => fail(number, argument),
        [flag, rest @ ..] if flag == confined::FLAG => confined::become_back_end(rest).map(|never| match never {}),
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
    let (device, user, of_device) = open(number)?;
    match given {
        DeviceArgument::Block { file, format: Format::Raw, read_only } => {
            let disk = Disk::open(&file, read_only).map_err(|error| format!("{}: {error}", file.display()))?;
            run(&device, user, supervisor, disk).map_err(of_device)
        }
        DeviceArgument::Block { file, format: Format::Qcow2, read_only } => {
            confined::give(&file, user).map_err(|error| format!("{}: {error}", file.display()))?;
            with_back_end::<1>(&device, user, supervisor, DISK, |socket| confined::disk(&file, read_only, socket)).map_err(of_device)
        }
        DeviceArgument::Net { bridge, identity } => {
            let tap = Tap::new(&format!("client{number}"), &bridge).map_err(|error| format!("{bridge}: {error}"))?;
            run(&device, user, supervisor, Network::new(tap, identity)).map_err(of_device)
        }
    }
}

/// Serves a device, for ever, by a program with this command line.
fn with_back_end<const QUEUES: usize>(
    device: &Device,
    user: u32,
    supervisor: Option<Pid>,
    kind: Kind,
    command: impl FnOnce(i32) -> Vec<String>,
) -> io::Result<()> {
    let socket = confined::start(user, command)?;
    let mapped = device.map()?;
    let back_end = VhostUser::<QUEUES>::new(socket, kind, &mapped.1, &device.window()?)?;
    run_mapped(device, mapped, user, supervisor, back_end)
}

/// Answers requests of one device with errors, for ever.
fn fail(number: &str, argument: &str) -> Result<(), String> {
    let supervisor = getppid();
    let given = parse(argument)?;
    let (device, user, of_device) = open(number)?;
    match given {
        DeviceArgument::Block { read_only, .. } => run(&device, user, supervisor, FailedDisk { read_only }),
        DeviceArgument::Net { identity, .. } => run(&device, user, supervisor, Network::new(Unplugged, identity)),
    }
    .map_err(of_device)
}

/// Opens a device. Also returns the user of its processes, and a function that adds its name to errors.
fn open(number: &str) -> Result<(Device, u32, impl Fn(io::Error) -> String), String> {
    let user = sandbox::user(number.parse().map_err(|error| format!("{number}: {error}"))?);
    let path = format!("/dev/stile-served{number}");
    let device = Device::open(Path::new(&path)).map_err(|error| format!("{path}: {error}"))?;
    Ok((device, user, move |error| format!("{path}: {error}")))
}

/// Serves a device for ever, in a sandbox.
fn run<B: Backend>(device: &Device, user: u32, supervisor: Option<Pid>, backend: B) -> io::Result<()> {
    run_mapped(device, device.map()?, user, supervisor, backend)
}

fn run_mapped<B: Backend>(
    device: &Device,
    (registers, memory): (Page, GuestMemoryMmap),
    user: u32,
    supervisor: Option<Pid>,
    backend: B,
) -> io::Result<()> {
    sandbox::limit_memory()?;
    sandbox::drop_privileges(user)?;
    // A device without a supervisor would never be served again.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    if getppid() != supervisor {
        return Err(io::Error::other("the supervisor has ended"));
    }
    sandbox::filter_system_calls(B::SYSTEM_CALLS)?;
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
        has_events = device.wait(server.sources())?;
    }
}

/// Writes a line for the supervisor, if there is one.
fn tell(line: &str) {
    let _ = writeln!(io::stdout(), "{line}");
}
