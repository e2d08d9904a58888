//! `stile trace`: every exit and entry of a running machine, for a while.

mod arrows;
#[cfg(test)]
mod example;
mod format;
mod json;
mod model;
mod perfetto;
mod proto;

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::args::TraceArgs;
use crate::config::{Arch, units};
use crate::control::client::Connection;
use crate::control::directory::Directory;
use crate::control::name;
use crate::control::protocol::{Reply, Request};
use crate::session::{catalogue, records};
use crate::{exit, out, replaced};
pub use format::Format;
use model::{Event, Trace};
pub use perfetto::tracks_and_arrows;

/// Records a machine, and writes the file.
///
/// # Errors
/// The machine or VM does not exist; it refuses; the file can't be written.
pub fn trace(args: &TraceArgs) -> Result<u8> {
    // Before the recording, which would be lost.
    replaced::check(&args.output)?;
    let mut recorder = Recorder::open(&args.target, args.vm.as_deref())?;
    let mut trace = recorder.record(Duration::from_secs_f64(args.seconds))?;
    trace.keep(recorder.vm.as_deref(), args.reason.as_deref());
    replaced::write(&args.output, |file| write(&trace, args.format, file))?;
    if args.json {
        out::json(&json::summary(&trace))?;
    } else {
        out::line(text(&trace, &args.output))?;
    }
    Ok(exit::OK)
}

/// A machine that can be recorded.
pub struct Recorder {
    connection: Connection,
    arch: Arch,
    /// Only this VM's events are wanted.
    vm: Option<String>,
}

impl Recorder {
    /// Connects to a running machine, given as `NAME` or `NAME/VM`, for events of `vm` or of all VMs.
    ///
    /// # Errors
    /// The machine or VM does not exist; both arguments name a VM.
    pub fn open(target: &str, vm: Option<&str>) -> Result<Self> {
        let (machine, vm) = match (name::split(target), vm) {
            ((_, Some(_)), Some(_)) => return Err(exit::usage(format!("{target} names a VM already; expected no --vm"))),
            ((machine, named), vm) => (machine, named.or(vm)),
        };
        let mut connection = Connection::open(&Directory::open()?, machine)?;
        let status = connection.status()?;
        if let Some(name) = vm
            && !status.vms.iter().any(|vm| vm.name == *name)
        {
            let names: Vec<&str> = status.vms.iter().map(|vm| vm.name.as_str()).collect();
            return Err(exit::usage(format!("there is no VM called {name}; the VMs are {}", names.join(", "))));
        }
        Ok(Self { connection, arch: status.arch, vm: vm.map(str::to_owned) })
    }

    /// Records the events, and returns them as JSON lines.
    ///
    /// # Errors
    /// The machine refuses, or ends.
    pub fn json(&mut self, duration: Duration) -> Result<String> {
        let mut trace = self.record(duration)?;
        trace.keep(self.vm.as_deref(), None);
        let mut lines = Vec::new();
        json::write(&trace, &mut lines)?;
        Ok(String::from_utf8(lines)?)
    }

    /// Takes the trace.
    fn record(&mut self, duration: Duration) -> Result<Trace> {
        record(&mut self.connection, duration, self.arch)
    }
}

fn record(connection: &mut Connection, duration: Duration, arch: Arch) -> Result<Trace> {
    connection.send(&Request::Trace)?;
    let mut trace = Trace::default();
    let mut end: Option<Instant> = None;
    loop {
        if let Some(at) = end {
            connection.set_patience(Some(at.saturating_duration_since(Instant::now()).max(Duration::from_millis(1))))?;
        }
        // Records may arrive so fast that the line is never quiet.
        let is_over = end.is_some_and(|at| Instant::now() >= at);
        let reply = if is_over { None } else { connection.receive_for(end.is_some())? };
        let Some(reply) = reply else {
            connection.send(&Request::TraceStop)?;
            connection.set_patience(Some(Duration::from_secs(30)))?;
            end = None;
            continue;
        };
        match reply {
            Reply::TraceStarted { hz, now, cpus, vms } => {
                (trace.hz, trace.start, trace.vms, trace.cpus) = (hz, now, vms, cpus);
                end = Some(Instant::now() + duration);
            }
            Reply::TraceRecords { cpu, records: bytes } => {
                trace.events.extend(records(&bytes.0).map(|record| Event::new(cpu, &record, trace.start)));
            }
            Reply::TraceEnded { cpus, lost, rows } => {
                (trace.counts, trace.lost) = (cpus, lost);
                // In their order by CPU.
                trace.events.sort_by_key(|event| event.cpu);
                trace.name_rows(catalogue(arch), rows);
                trace.arrows = trace.take_timers();
                let kicks = arrows::find_kicks(&mut trace);
                trace.arrows.extend(kicks);
                // Posted interrupts.
                trace.arrows.extend(arrows::find(&trace, arch == Arch::X86_64));
                trace.arrows.sort_by_key(|arrow| arrow.from);
                return Ok(trace);
            }
            Reply::Refused { message } => bail!("{} can't be traced: {message}", connection.name),
            _ => {}
        }
    }
}

fn write(trace: &Trace, format: Format, file: &mut File) -> Result<()> {
    let mut to = BufWriter::new(file);
    match format {
        Format::Perfetto => to.write_all(&perfetto::encode(trace))?,
        Format::Json => json::write(trace, &mut to)?,
    }
    to.flush()?;
    Ok(())
}

fn text(trace: &Trace, file: &Path) -> String {
    // An emulated machine's time may pass faster or slower than this computer's.
    let seconds = trace.span() as f64 / 1e9;
    let (exits, events) = (trace.exits(), trace.events.len());
    let (exits, events) = (units::plural(exits, "exit"), units::plural(events, "event"));
    let mut text = format!("{}: {exits}, {events} in {seconds:.3} s of the machine's time", file.display());
    let (_, exits, others) = trace.counted();
    if exits + others != 0 {
        let exits = units::plural(exits, "exit");
        let others = units::plural(others, "other event");
        text += &format!("; dropped, because the serial line is too slow: {exits} and {others}");
    }
    if trace.lost != 0 {
        text += &format!("; lost on the serial line: {}", units::plural(trace.lost, "event"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_reports_lost_records() {
        let mut trace = example::example();
        let (file, counts) = (Path::new("t.trace"), std::mem::take(&mut trace.counts));
        let (exits, events) = (trace.exits(), trace.events.len());
        let whole = format!("t.trace: {exits} exits, {events} events in 0.001 s of the machine's time");
        assert_eq!(text(&trace, file), whole);
        (trace.counts, trace.lost) = (counts, 5);
        let (_, exits, others) = trace.counted();
        assert_eq!(others, 1);
        let missing = format!(
            "; dropped, because the serial line is too slow: {exits} exits and {others} other event; lost on the serial line: 5 events"
        );
        assert!(text(&trace, file).ends_with(&missing), "{}", text(&trace, file));
    }
}
