//! Everything that counts exits, compared: the emulator's plugin, the ledger, `top`, `metrics` and traces.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;
use serde_json::Value;

use super::client::MACHINE;
use stile::child::end_with_parent;
use stile::config::Arch;
use stile::metrics::parse::parse;
use stile::programs::Programs;
use stile_bench::counts::{self, Plugin};

/// Its name in the suite.
pub const NAME: &str = "long/counts";

/// Seconds of the trace. A busy host needs more: the VMs must run within it, and their records get over the line.
const ATTEMPTS: [u64; 3] = [8, 40, 160];

/// The VMs: `ring` sends interrupts between its vCPUs, `snapshot` takes those of timers and waits.
const VMS: [&str; 2] = ["ring", "snapshot"];

/// Exits by VM, reason and sub-reason.
type Exits = BTreeMap<[String; 3], u64>;

/// The test. The error is a report for people.
pub fn test() -> Result<(), String> {
    compare().map_err(|error| format!("{error:#}"))
}

fn compare() -> Result<()> {
    let programs = Programs::build(Arch::Aarch64)?;
    let plugin = counts::build()?;
    let dir = tempfile::tempdir()?;
    let operator = Operator { runtime: dir.path() };
    let counted = dir.path().join("counts");
    let mut machine = operator.start(&programs, &Plugin::new(&plugin).arguments(&counted))?;
    for vm in VMS {
        operator.stile(&["pause", &vm_of(vm)])?;
    }
    let last = operator.trace_is_the_growth()?;
    for vm in VMS {
        operator.stile(&["stop", &vm_of(vm), "--force"])?;
    }
    ensure!(machine.wait()?.success(), "the machine failed: {}", operator.messages()?);
    let accounts = operator.messages()?;
    let ledger = ledger(&accounts)?;
    ensure!(ledger == last, "the ledger is not that of metrics: {ledger:?}, {last:?}");
    let run = counts::parse(&fs::read_to_string(counted)?)?.run.context("the plugin counted no run")?;
    let (emulator, taken) = (run.exits_of_vms(), ledger.values().sum::<u64>());
    ensure!(emulator == taken, "the ledger has {taken} exits, and the emulator's plugin {emulator}");
    Ok(())
}

fn vm_of(vm: &str) -> String {
    format!("{MACHINE}/{vm}")
}

/// The user of a machine, whose files and control sockets are in a directory.
struct Operator<'d> {
    runtime: &'d Path,
}

impl Operator<'_> {
    fn command(&self, words: &[&str]) -> Result<Command> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(words).env("XDG_RUNTIME_DIR", self.runtime).current_dir(self.runtime).stdin(Stdio::null());
        Ok(command)
    }

    /// Runs a command, and returns its standard output.
    fn stile(&self, words: &[&str]) -> Result<String> {
        let output = self.command(words)?.output()?;
        ensure!(output.status.success(), "stile {}: {}", words.join(" "), String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Starts a machine, and returns when its VMs run. One thread emulates all CPUs: the plugin is exact then.
    fn start(&self, programs: &Programs, plugin: &[String]) -> Result<Child> {
        let mut config = "[machine]\ncpus = 2\n".to_owned();
        for vm in VMS {
            let kernel = programs.path(vm)?;
            config += &format!("[[vm]]\nname = \"{vm}\"\nkernel = \"{kernel}\"\nappend = \"holds=1000\"\nvcpus = 2\nmemory = \"24M\"\n");
        }
        fs::write(self.runtime.join("m.toml"), config)?;
        let mut command = self.command(&["run", "m.toml", "--name", MACHINE, "--exits=json", "--quiet"])?;
        for argument in ["-accel", "tcg,thread=single"].into_iter().chain(plugin.iter().map(String::as_str)) {
            command.args(["--qemu-arg", argument]);
        }
        command.stdout(Stdio::null()).stderr(File::create(self.runtime.join("messages"))?);
        let mut machine = end_with_parent(&mut command, Signal::TERM).spawn()?;
        while !self.stile(&["ps", "--json"])?.contains(r#""state":"running"},{"name":"snapshot","state":"running""#) {
            ensure!(machine.try_wait()?.is_none(), "the machine ended: {}", self.messages()?);
            thread::sleep(Duration::from_millis(200));
        }
        Ok(machine)
    }

    fn messages(&self) -> Result<String> {
        Ok(fs::read_to_string(self.runtime.join("messages"))?)
    }

    /// Lets the VMs, which are paused, run for a while within a trace: it has the exits by which `metrics` grow. Returns those
    /// after it.
    fn trace_is_the_growth(&self) -> Result<Exits> {
        let mut problem = String::new();
        for seconds in ATTEMPTS {
            let before = self.counted()?;
            let mut trace = self.command(&["trace", MACHINE, "-o", "t.jsonl", "--format", "json", "--seconds", &seconds.to_string()])?;
            let mut trace = trace.stdout(Stdio::null()).spawn()?;
            let quarter = Duration::from_secs(seconds) / 4;
            for action in ["resume", "pause"] {
                thread::sleep(quarter);
                for vm in VMS {
                    self.stile(&[action, &vm_of(vm)])?;
                }
            }
            ensure!(trace.wait()?.success(), "the trace failed");
            let after = self.counted()?;
            let grown = after.iter().map(|(row, count)| (row.clone(), count - before.get(row).unwrap_or(&0)));
            let grown: Exits = grown.filter(|(_, count)| *count != 0).collect();
            let traced = traced(&fs::read_to_string(self.runtime.join("t.jsonl"))?)?;
            if traced == grown && grown.values().sum::<u64>() > 20 {
                return Ok(after);
            }
            problem = format!("{traced:?} are in the trace, and metrics grew by {grown:?}");
        }
        bail!(problem)
    }

    /// The exits of `metrics`, which are as many as those of `top`: the VMs are paused.
    fn counted(&self) -> Result<Exits> {
        let exits = self.metrics()?;
        let text = self.stile(&["top", MACHINE, "--once", "--json", "--interval", "0.1"])?;
        for vm in serde_json::from_str::<Vec<Value>>(&text)? {
            let of_vm: u64 = exits.iter().filter(|(row, _)| vm["vm"] == row[0]).map(|(_, count)| count).sum();
            ensure!(vm["exits_taken"] == of_vm && vm["unaccounted"] == 0, "metrics have {of_vm} exits, top: {vm}");
        }
        Ok(exits)
    }

    fn metrics(&self) -> Result<Exits> {
        let series = parse(&self.stile(&["metrics", MACHINE, "--once"])?).map_err(anyhow::Error::msg)?;
        let mut exits = Exits::new();
        for series in series.iter().filter(|series| series.name == "stile_vcpu_exits_total" && series.value != 0.0) {
            let label = |name| series.label(name).unwrap_or_default().to_owned();
            *exits.entry(["vm", "reason", "sub_reason"].map(label)).or_default() += series.value as u64;
        }
        Ok(exits)
    }
}

/// The rows of an object with the member `vm`, without empty ones.
fn rows(object: &Value) -> Vec<([String; 3], u64)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let rows = object["rows"].as_array().into_iter().flatten();
    let row = |row: &Value| ([text(&object["vm"]), text(&row["reason"]), text(&row["sub"])], row["count"].as_u64().unwrap_or(0));
    rows.map(row).filter(|(_, count)| *count != 0).collect()
}

/// The accounts at the end, among a machine's messages.
fn ledger(messages: &str) -> Result<Exits> {
    let accounts = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let accounts: Vec<Value> = accounts.filter(|account| account["rows"].is_array()).collect();
    ensure!(accounts.len() == VMS.len() && accounts.iter().all(|account| account["difference"] == 0), "no exact accounts: {messages}");
    Ok(accounts.iter().flat_map(rows).collect())
}

/// The exits of a trace in JSON lines, none of which was dropped.
fn traced(text: &str) -> Result<Exits> {
    let mut exits = Exits::new();
    for line in text.lines() {
        let event: Value = serde_json::from_str(line)?;
        if event["event"] == "exit" {
            *exits.entry(["vm", "reason", "sub"].map(|name| event[name].as_str().unwrap_or_default().to_owned())).or_default() += 1;
        }
    }
    Ok(exits)
}
