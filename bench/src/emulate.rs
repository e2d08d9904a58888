//! Runs of the emulator that only print.

use std::io::{Read, Write};
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::counts::Plugin;
use super::{counts, probe, vmx};
use stile::emulator::Machine;
use stile::exit;

/// Time-out of a run: emulators on busy machines are slow, and KVM as L0 takes minutes on idle ones.
const TIMEOUT: Duration = Duration::from_secs(3600);

/// Time-out for the emulator's end after its line is closed.
const GRACE: Duration = Duration::from_secs(10);

/// Arguments of the emulator that fix the random numbers and the date that it gives to a kernel.
pub const REPEATABLE: [&str; 4] = ["-seed", "1", "-rtc", "base=2026-01-01,clock=vm"];

/// Output of a run.
#[derive(Debug)]
pub struct Output {
    /// The complete output of the serial line.
    pub line: Vec<u8>,
    /// Counts of the plugin, if there is one.
    pub counts: Option<counts::Output>,
    /// Counts of the emulated PC, which needs no plugin.
    pub vmx: Vec<vmx::Section>,
}

/// Action on a machine that runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// The machine keeps running.
    GoOn,
    /// Bytes are sent over the serial line.
    Send(Vec<u8>),
    /// The machine is ended.
    End,
}

/// Boots `image` on a machine, lets it run until the machine ended, and counts with the plugin if there is one.
///
/// # Errors
/// The emulator fails, or takes too long; it can't load the plugin.
pub fn run(machine: &Machine, image: &[u8], plugin: Option<&Path>) -> Result<Output> {
    run_until(machine, image, plugin.map(Plugin::new), |_| Next::GoOn)
}

/// Runs a machine that need not end: `next` selects an action from the complete output whenever there is more.
///
/// # Errors
/// As of [`run`].
pub fn run_until(machine: &Machine, image: &[u8], plugin: Option<Plugin<'_>>, mut next: impl FnMut(&[u8]) -> Next) -> Result<Output> {
    let file = |suffix| tempfile::Builder::new().prefix("stile-").suffix(suffix).tempfile();
    let mut image_file = file(".img").context("making the image's file")?;
    image_file.write_all(image).context("writing the image")?;
    let counted = file(".json").context("making the file for the counts")?;
    let counts = || {
        let read = || counts::parse(&std::fs::read_to_string(counted.path()).context("reading the counts")?);
        plugin.map(|_| read()).transpose()
    };
    let is_pc = matches!(machine, Machine::Pc(_));
    let vmx = || match is_pc {
        true => vmx::parse(&std::fs::read_to_string(counted.path()).context("reading the counts")?),
        false => Ok(Vec::new()),
    };
    let mut machine = machine.clone();
    match (&mut machine, plugin) {
        (Machine::Arm(board), Some(plugin)) => board.extra.extend(plugin.arguments(counted.path())),
        (Machine::AmdPc(pc), Some(plugin)) => pc.extra.extend(plugin.arguments(counted.path())),
        (Machine::Pc(_), Some(_)) => bail!("the PC's emulator has no plugin that counts"),
        (Machine::Pc(pc), None) => pc.counts = Some(counted.path().to_owned()),
        (Machine::Arm(_) | Machine::AmdPc(_), None) => {}
    }
    let (mut emulator, mut pipes) = machine.start(image_file.path())?;
    let errors = thread::spawn(move || {
        let mut text = String::new();
        let _ = pipes.errors.read_to_string(&mut text);
        text
    });
    let (send, bytes) = channel();
    thread::spawn(move || {
        let mut buffer = vec![0; 16 * 1024];
        while let Ok(count @ 1..) = pipes.output.read(&mut buffer) {
            if send.send(buffer[..count].to_vec()).is_err() {
                return;
            }
        }
    });
    let until = Instant::now() + TIMEOUT;
    let mut output = Vec::new();
    loop {
        match bytes.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(bytes) => {
                output.extend(bytes);
                match next(&output) {
                    Next::GoOn => {}
                    // A line that is closed ends the run anyway.
                    Next::Send(bytes) => drop(pipes.input.write_all(&bytes).and_then(|()| pipes.input.flush())),
                    Next::End => {
                        emulator.kill();
                        return Ok(Output { line: output, counts: counts()?, vmx: vmx()? });
                    }
                }
            }
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                let end = probe::end(&output);
                return Err(exit::emulator(format!("the run did not end within {} s; the end of its output:\n{end}", TIMEOUT.as_secs())));
            }
        }
    }
    match emulator.wait(GRACE) {
        Some(status) if emulator.is_success(status) => Ok(Output { line: output, counts: counts()?, vmx: vmx()? }),
        Some(status) => {
            let errors = errors.join().unwrap_or_default();
            Err(match counts::advice(&errors) {
                Some(advice) if plugin.is_some() => exit::lacking(format!("{advice}. The emulator says: {}", errors.trim())),
                _ => exit::emulator(format!("the emulator failed ({status}): {}", errors.trim())),
            })
        }
        None => Err(exit::emulator("the emulator closed its serial line but does not end")),
    }
}
