//! `stile-devices block=FILE[,format=qcow2][,readonly]|net=BRIDGE,mac=ADDRESS|fs=DIRECTORY,tag=NAME[,readonly]|rng|balloon=MIB|vsock=CID|
//! console=FILE ... [forward=PORT:CID:PORT[+PORT:CID:PORT]...]`: serves the Nth device of this VM by the Nth argument: a disk with the
//! content of a file, a network card that is a port of a bridge, a folder, random bytes, a balloon that asks for so much RAM, sockets, or
//! a console whose output goes to a file. TCP connections to a forwarded port of this VM lead to a port of the client whose sockets have
//! this CID.
//!
//! Ends when all clients are off.

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use libc::c_long;
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use stile_devices::supervisor::Mode;
use stile_devices::vsock::forward::{self, Forward, Host};
use stile_devices::vsock::mesh::Mesh;
use stile_devices::{
    Backend, Balloon, DISK, Device, DeviceArgument, Disk, Entropy, FOLDER, FOLDER_QUEUES, FailedDisk, FailedFolder, Format, Kind, Log,
    Network, Page, Server, Tap, Unplugged, VhostUser, Vsock, confined, memory_limit, parse, sandbox, supervisor,
};
use vm_memory::GuestMemoryMmap;

/// Error of forwarded ports that are used as a device: they have no requests.
const NO_DEVICE: &str = "forwarded ports are no device";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match &arguments[..] {
        [] => Err("usage: stile-devices \
                 block=FILE[,format=qcow2][,readonly]|net=BRIDGE,mac=ADDRESS|fs=DIRECTORY,tag=NAME[,readonly]|rng|balloon=MIB|vsock=CID|console=FILE ... [forward=PORT:CID:PORT]"
            .to_owned()),
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
    let devices = arguments.iter().map(|argument| parse(argument)).collect::<Result<Vec<_>, _>>()?;
    let count = devices.iter().take_while(|device| device.is_device()).count();
    if devices.len() > count + 1 {
        return Err("forward= must be the last argument; add further ports to it, with a + before each".to_owned());
    }
    if count == 0 {
        return Err("forward= needs a device that it leads to: add vsock=CID before it".to_owned());
    }
    for (number, (device, argument)) in devices.iter().zip(arguments).take(count).enumerate() {
        check(number, device, argument)?;
    }
    let next = format!("/dev/stile-served{count}");
    if Path::new(&next).exists() {
        eprintln!("stile-devices: {next} has no argument: its client waits until something serves it");
    }
    if devices.iter().any(DeviceArgument::has_back_end) {
        memory_limit::prepare().map_err(|error| format!("the memory of back ends can't be limited: {error}"))?;
    }
    let sockets: Vec<(usize, u32)> = devices.iter().enumerate().filter_map(|(number, device)| Some((number, device.cid()?))).collect();
    for (index, (_, cid)) in sockets.iter().enumerate() {
        if sockets[..index].iter().any(|(_, other)| other == cid) {
            return Err(format!("vsock={cid} is given twice: each client needs an address of its own"));
        }
    }
    let mesh = Mesh::new(&sockets).map_err(|error| format!("no sockets between the processes of vsock=: {error}"))?;
    supervisor::run(arguments, &mesh).map_err(|error| error.to_string())
}

/// Checks that a device is what an argument is for: a driver would not understand another one.
fn check(number: usize, given: &DeviceArgument, argument: &str) -> Result<(), String> {
    let path = format!("/dev/stile-served{number}");
    let device = Device::open(Path::new(&path)).map_err(|error| format!("{path}, for {argument}: {error}"))?;
    let kind = device.kind().map_err(|error| format!("{path}: {error}"))?;
    let (expected, name) = given.kind();
    if kind == expected {
        return Ok(());
    }
    let wanted = format!("its [[vm.served]] must say \"{name}\"");
    Err(format!("{argument} is of type {expected}, but the client's device {number} is of type {kind}: {wanted}"))
}

/// Serves one device, for ever.
fn serve(number: &str, argument: &str) -> Result<(), String> {
    let supervisor = getppid();
    let given = parse(argument)?;
    if let DeviceArgument::Forward { ports } = given {
        return forward(number, &ports, supervisor).map_err(|error| format!("{argument}: {error}"));
    }
    let (device, user, of_device) = open(number)?;
    match given {
        DeviceArgument::Block { file, format: Format::Raw, read_only } => {
            let disk = Disk::open(&file, read_only).map_err(|error| format!("{}: {error}", file.display()))?;
            run(&device, user, supervisor, disk).map_err(of_device)
        }
        DeviceArgument::Block { file, format: Format::Qcow2, read_only } => {
            confined::give(&file, user).map_err(|error| format!("{}: {error}", file.display()))?;
            with_back_end::<1>(&device, user, supervisor, (DISK, None), |socket| confined::disk(&file, read_only, socket))
                .map_err(of_device)
        }
        DeviceArgument::Folder { path, tag, read_only } => {
            let folder = (FOLDER, Some(path.as_path()));
            with_back_end::<FOLDER_QUEUES>(&device, user, supervisor, folder, |socket| confined::folder(&tag, read_only, socket))
                .map_err(of_device)
        }
        DeviceArgument::Entropy => Entropy::open().and_then(|entropy| run(&device, user, supervisor, entropy)).map_err(of_device),
        DeviceArgument::Balloon { mib } => {
            balloon(&device, mib).and_then(|balloon| run(&device, user, supervisor, balloon)).map_err(of_device)
        }
        DeviceArgument::Console { file } => {
            let log = Log::open(&file).map_err(|error| format!("{}: {error}", file.display()))?;
            run(&device, user, supervisor, log).map_err(of_device)
        }
        DeviceArgument::Vsock { cid } => {
            let sockets = Mesh::inherited().and_then(|links| Vsock::new(cid, links));
            sockets.and_then(|sockets| run(&device, user, supervisor, sockets)).map_err(of_device)
        }
        DeviceArgument::Net { bridge, identity } => {
            let tap = Tap::new(&format!("client{number}"), &bridge).map_err(|error| format!("{bridge}: {error}"))?;
            run(&device, user, supervisor, Network::new(tap, identity)).map_err(of_device)
        }
        DeviceArgument::Forward { .. } => Err(NO_DEVICE.to_owned()),
    }
}

/// Forwards connections to sockets of clients, for ever. `ports`: those of this VM, with addresses and ports of clients.
fn forward(number: &str, ports: &[(u16, u32, u32)], supervisor: Option<Pid>) -> io::Result<()> {
    let port = |&(own, cid, port): &(u16, u32, u32)| {
        Forward::new(own, cid, port).map_err(|error| io::Error::other(format!("port {own} of this VM: {error}")))
    };
    let forwards = ports.iter().map(port).collect::<io::Result<_>>()?;
    let mut host = Host::new(forwards, Mesh::inherited()?)?;
    enter(sandbox::user(number.parse().map_err(io::Error::other)?), supervisor, forward::SYSTEM_CALLS)?;
    tell(supervisor::ONLINE);
    // The supervisor does not wait for its end.
    tell(supervisor::OFF);
    loop {
        host.serve();
        host.wait()?;
    }
}

/// Enters the sandbox.
fn enter(user: u32, supervisor: Option<Pid>, system_calls: &[c_long]) -> io::Result<()> {
    sandbox::limit_memory()?;
    sandbox::drop_privileges(user)?;
    // A process without a supervisor would never be started again.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    if getppid() != supervisor {
        return Err(io::Error::other("the supervisor has ended"));
    }
    sandbox::filter_system_calls(system_calls)
}

/// Serves a device, for ever, by a program with this command line. It reaches a folder only, if one is given.
fn with_back_end<const QUEUES: usize>(
    device: &Device,
    user: u32,
    supervisor: Option<Pid>,
    (kind, folder): (Kind, Option<&Path>),
    command: impl FnOnce(i32) -> Vec<String>,
) -> io::Result<()> {
    let socket = confined::start(user, folder, command)?;
    let mapped = device.map()?;
    let back_end = VhostUser::<QUEUES>::new(socket, kind, &mapped.1, &device.window()?)?;
    run_mapped(device, mapped, user, supervisor, back_end)
}

/// Answers requests of one device with errors, for ever.
fn fail(number: &str, argument: &str) -> Result<(), String> {
    let supervisor = getppid();
    let given = parse(argument)?;
    if !given.is_device() {
        return Err(NO_DEVICE.to_owned());
    }
    let (device, user, of_device) = open(number)?;
    match given {
        DeviceArgument::Block { read_only, .. } => run(&device, user, supervisor, FailedDisk { read_only }),
        DeviceArgument::Net { identity, .. } => run(&device, user, supervisor, Network::new(Unplugged, identity)),
        DeviceArgument::Folder { tag, .. } => run(&device, user, supervisor, FailedFolder { tag }),
        DeviceArgument::Console { .. } => run(&device, user, supervisor, Log::lost()),
        DeviceArgument::Forward { .. } => return Err(NO_DEVICE.to_owned()),
        // Nobody can be reached.
        DeviceArgument::Vsock { cid } => Vsock::new(cid, Vec::new()).and_then(|sockets| run(&device, user, supervisor, sockets)),
        // It needs nothing that could be missing.
        DeviceArgument::Entropy => Entropy::open().and_then(|entropy| run(&device, user, supervisor, entropy)),
        // Nor does this. It asks for nothing more.
        DeviceArgument::Balloon { .. } => balloon(&device, 0).and_then(|balloon| run(&device, user, supervisor, balloon)),
    }
    .map_err(of_device)
}

/// A balloon that asks for so many MiB, with the device's registers.
fn balloon(device: &Device, mib: u32) -> io::Result<Balloon<Page>> {
    Ok(Balloon::new(device.page()?, u64::from(mib) << 20))
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
    enter(user, supervisor, B::SYSTEM_CALLS)?;
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
        has_events = device.wait(server.sources(), server.patience())?;
    }
}

/// Writes a line for the supervisor, if there is one.
fn tell(line: &str) {
    let _ = writeln!(io::stdout(), "{line}");
}
