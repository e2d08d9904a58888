//! `stile restore`: a saved VM continues in a machine that runs.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::args::RestoreArgs;
use crate::config::Arch;
use crate::control::client::Connection;
use crate::control::directory::Directory;
use crate::control::protocol::{Reply, Request, State, Work};
use crate::exit;
use crate::operate::Target;
use crate::progress::Task;
use crate::save::PATIENCE;
use crate::snapshot::{Summary, verify};

/// Restores the VM of a file in a machine.
///
/// # Errors
/// The machine does not exist, the file is no whole snapshot, or the machine can't have the VM.
pub fn run(args: &RestoreArgs) -> Result<u8> {
    let path = std::path::absolute(&args.file).with_context(|| args.file.display().to_string())?;
    let mut connection = Connection::open(&Directory::open()?, &args.machine)?;
    let summary = check(&mut connection, &path)?;
    let target = restore(connection, &summary, &path, args)?;
    target.report(args.json, State::Running, "runs", None)
}

/// Reads a whole snapshot, and checks that a machine may have its VM.
///
/// # Errors
/// It is none, or the machine can't have it.
fn check(connection: &mut Connection, path: &Path) -> Result<Summary> {
    let file = File::open(path).map_err(|error| exit::usage(format!("{} can't be read: {error}", path.display())))?;
    let summary = verify(BufReader::new(file)).map_err(|error| exit::usage(format!("{}: {error}", path.display())))?;
    may_have(connection, &summary.guest.name, summary.arch)?;
    Ok(summary)
}

/// Checks that a machine may have a VM of this name.
///
/// # Errors
/// It is of another architecture, or has one.
pub(crate) fn may_have(connection: &mut Connection, name: &str, arch: Arch) -> Result<()> {
    let status = connection.status()?;
    if status.arch != arch {
        return Err(exit::usage(format!(
            "{} is an {} machine: it can't have a VM on {}",
            connection.name,
            status.arch.name(),
            arch.name()
        )));
    }
    if status.vms.iter().any(|vm| vm.name == name) {
        return Err(exit::usage(format!(
            "{} has a VM called {name} already: destroy it, or restore into another machine",
            connection.name
        )));
    }
    Ok(())
}

/// Restores a snapshot, and lets the VM continue. After a failure the machine removes what there is of it.
///
/// # Errors
/// The machine can't have the VM.
fn restore(connection: Connection, summary: &Summary, path: &Path, args: &RestoreArgs) -> Result<Target> {
    let mut target = Target { connection, vm: summary.guest.name.clone() };
    let task = Task::start(format!("restoring {}", target.name()));
    target.connection.set_patience(Some(PATIENCE))?;
    let request = Request::Restore { file: path.to_owned(), clock: args.clock, sections: None, trusted: args.trusted };
    load(&mut target, &request, |done| task.percent(done as f64 * 100.0 / summary.size.max(1) as f64))?;
    Ok(target)
}

/// Sends a request that restores a VM, or more of it, and waits for its end. Returns Stile's work. After a failure the
/// machine removes what there is of it.
///
/// # Errors
/// The machine can't have the VM.
pub(crate) fn load(target: &mut Target, request: &Request, progress: impl Fn(u64)) -> Result<Work> {
    target.connection.send(request)?;
    loop {
        match target.connection.receive()? {
            Reply::Progress { done, .. } => progress(done),
            Reply::Loaded(work) => return Ok(work),
            Reply::Refused { message } => bail!("{} can't be restored: {message}", target.name()),
            other => bail!("{}: unexpected answer: {other:?}", target.name()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::BufReader;
    use std::os::unix::net::UnixListener;
    use std::thread;

    use super::*;
    use crate::control::protocol::{self, Clock, VERSION};

    /// Another command may have created a VM of this name meanwhile, which is why the machine refuses.
    #[test]
    fn a_refused_snapshot_leaves_the_vm_of_that_name_alone() {
        let dir = tempfile::tempdir().unwrap();
        let sockets = Directory::at(dir.path().join("stile")).unwrap();
        let listener = UnixListener::bind(dir.path().join("stile/b.sock")).unwrap();
        let machine = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut requests = BufReader::new(stream.try_clone().unwrap());
            let mut asked = Vec::new();
            while let Ok(Some(request)) = protocol::read::<Request>(&mut requests) {
                let reply = match &request {
                    Request::Hello { .. } => Reply::Hello { version: VERSION },
                    Request::Restore { .. } => Reply::Refused { message: "the machine has a VM called db".into() },
                    Request::State { vm } => Reply::State { vm: vm.clone(), state: State::Running },
                    _ => Reply::Done,
                };
                asked.push(request);
                protocol::write(&mut stream, &reply).unwrap();
            }
            asked
        });
        let connection = Connection::open(&sockets, "b").unwrap();
        let mut target = Target { connection, vm: "db".into() };
        let request = Request::Restore { file: "a.snap".into(), clock: Clock::Real, sections: Some(9), trusted: false };
        assert!(load(&mut target, &request, |_| ()).unwrap_err().to_string().contains("the machine has a VM called db"));
        drop(target);
        let asked = machine.join().unwrap();
        assert!(!asked.iter().any(|request| matches!(request, Request::Control { .. })), "{asked:?}");
    }
}
