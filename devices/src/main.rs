//! `stile-devices block=FILE[,readonly] ...`: serves the Nth device of this VM with the content of the Nth file.
//!
//! Ends when all clients are off.

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use rustix::process::{Signal, set_parent_process_death_signal};
use stile_devices::{Device, Disk, Server, parse, supervisor};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match &arguments[..] {
        [] => Err("usage: stile-devices block=FILE[,readonly] ...".to_owned()),
        [flag, number, argument] if flag == "--device" => serve(number, argument),
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
    // A device without a supervisor would never be served again.
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(|error| error.to_string())?;
    let given = parse(argument)?;
    let path = format!("/dev/stile-served{number}");
    let of_device = |error: io::Error| format!("{path}: {error}");
    let device = Device::open(Path::new(&path)).map_err(of_device)?;
    let disk = Disk::open(&given.file, given.read_only).map_err(|error| format!("{}: {error}", given.file.display()))?;
    let (registers, memory) = device.map().map_err(of_device)?;
    let mut server = Server::new(registers, memory, disk);
    server.come_online();
    tell(supervisor::ONLINE);
    let mut was_off = false;
    loop {
        server.attend();
        if was_off != server.client_is_off() {
            was_off = !was_off;
            tell(if was_off { supervisor::OFF } else { supervisor::ON });
        }
        device.wait().map_err(of_device)?;
    }
}

/// Writes a line for the supervisor, if there is one.
fn tell(line: &str) {
    let _ = writeln!(io::stdout(), "{line}");
}
