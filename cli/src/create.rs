//! `stile create`: a new VM in a machine that runs.

use std::fs;
use std::io::Write;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Serialize;
use stile_blob::Blob;

use crate::args::CreateArgs;
use crate::config::{Flags, MachineConfig};
use crate::control::client::Connection;
use crate::control::directory::Directory;
use crate::control::protocol::{Reply, Request, State};
use crate::machine::{self, Options};
use crate::progress::Task;
use crate::{exit, image, out};

/// Time-out for the acknowledgement of one piece: an emulated line may be slow.
const PATIENCE: Duration = Duration::from_secs(120);

/// The result, as `--json` shows it.
#[derive(Serialize)]
struct Done<'a> {
    machine: &'a str,
    vm: &'a str,
    state: State,
    /// Bytes that were sent to Stile; it has the others in its image.
    sent: u64,
}

/// Creates the VM of a file in a machine, and starts it.
///
/// # Errors
/// The machine does not exist; the file has a mistake, or not one VM; Stile has no room for the VM.
pub fn run(args: &CreateArgs) -> Result<u8> {
    let mut connection = Connection::open(&Directory::open()?, &args.machine)?;
    let status = connection.status()?;
    let flags = Flags {
        arch: Some(status.arch.name().to_owned()),
        // Stile knows which CPUs there are.
        machine_cpus: Some(stile_board::MAX_CPUS as i64),
        vms_only: true,
        ..Flags::default()
    };
    let terminal = std::env::var("TERM").ok().filter(|name| !name.is_empty());
    let terminal = (terminal.as_deref().unwrap_or("linux"), (0, 0), true);
    let options = Options { report_exits: false, seed: image::Seed::Random, terminal, text: "" };
    let config = MachineConfig::load(Some(&args.file), &flags)?;
    if config.vms.iter().any(|vm| !vm.served.is_empty()) {
        return Err(exit::usage(format!(
            "{}: served devices can be given only to VMs of the configuration that `run` starts with",
            args.file.display()
        )));
    }
    let [vm] = &config.vms[..] else {
        return Err(exit::usage(format!("{}: expected one [[vm]], found {}", args.file.display(), config.vms.len())));
    };
    if status.vms.iter().any(|other| other.name == vm.name) {
        return Err(exit::usage(format!("{} has a VM called {} already: choose another name", args.machine, vm.name)));
    }
    if !vm.functions.is_empty() {
        return Err(exit::usage(format!(
            "{}: PCI functions can be given only to VMs of the configuration that `run` starts with",
            vm.name
        )));
    }
    let (plan, guest) = machine::plan_one(&config, vm, &options)?;
    if !guest.inner.is_empty() {
        return Err(exit::usage(format!("{}: a VM that runs a Stile can't be created while the machine runs", vm.name)));
    }
    let task = Task::start(format!("comparing the files of {} with those of {}", vm.name, args.machine));
    let image = image_of(&mut connection)?;
    let package = image::package(vm, &plan, image.as_deref()).with_context(|| format!("describing {} to Stile", vm.name))?;
    let size = package.len() as u64;
    let mut file = tempfile::Builder::new().prefix("stile-").suffix(".vm").tempfile().context("making a file for the VM")?;
    file.write_all(&package).context("writing the VM's file")?;
    drop((package, task));

    connection.set_patience(Some(PATIENCE))?;
    let task = Task::start(format!("sending {} KiB to {}", size.div_ceil(1024), args.machine));
    connection.send(&Request::Create { guest: Box::new(guest), package: file.path().to_owned(), memory: vm.memory + vm.disk_memory() })?;
    loop {
        match connection.receive()? {
            Reply::Progress { done, all } => task.percent(done as f64 * 100.0 / all.max(1) as f64),
            Reply::Done => break,
            Reply::Refused { message } => bail!("{}/{} can't be created: {message}", args.machine, vm.name),
            other => bail!("{}: unexpected answer: {other:?}", args.machine),
        }
    }
    drop(task);
    if args.json {
        let done = Done { machine: &args.machine, vm: &vm.name, state: State::Running, sent: size };
        out::json(&done)?;
    } else {
        out::note(format_args!("stile: {}/{} runs; {} KiB were sent", args.machine, vm.name, size.div_ceil(1024)));
    }
    Ok(exit::OK)
}

/// The blob of the image that the machine was started with, if this computer has the image.
fn image_of(connection: &mut Connection) -> Result<Option<Vec<u8>>> {
    connection.send(&Request::Image)?;
    let path = match connection.receive()? {
        Reply::Image { path } => path,
        Reply::Refused { message } => bail!("{}: {message}", connection.name),
        other => bail!("{}: unexpected answer: {other:?}", connection.name),
    };
    let Some(path) = path else { return Ok(None) };
    let bytes = fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
    let blob = image::blob(&bytes).map(<[u8]>::to_vec);
    Ok(blob.filter(|blob| Blob::parse(blob).is_ok()))
}
