//! Guests' suites in the emulator without Stile: shows that the suites themselves are right.

use std::io::Read;
use std::path::Path;
use std::time::Duration;

use super::slowdown::stretched;
use stile::config::Arch;
use stile::emulator::{Boot, Machine, Pc};
use stile::programs::{PASSED, Programs};

/// The tests: a name, a program, and the CPU's model.
pub const TESTS: [(&str, &str, &str); 2] =
    [("native/vmx/corei7_skylake_x", "vmx", "corei7_skylake_x"), ("native/vmx/corei7_ivy_bridge_3770k", "vmx", "corei7_ivy_bridge_3770k")];

/// Time limit of a run.
const LIMIT: Duration = Duration::from_secs(300);

/// Runs a program of `guests/pc`, which has to pass.
pub fn test(program: &str, cpu: &str) -> Result<(), String> {
    let text = |error: anyhow::Error| format!("{error:#}");
    let image = Programs::build(Arch::X86_64).and_then(|programs| programs.path(program)).map_err(text)?;
    let pc = Pc { cpu: cpu.to_owned(), cpus: 1, memory: 128 << 20, boot: Boot::default(), extra: Vec::new(), counts: None };
    let (mut emulator, mut pipes) = Machine::Pc(pc).start(Path::new(&image)).map_err(text)?;
    let reader = std::thread::spawn(move || {
        let mut output = Vec::new();
        // Bochs resets the connection when it ends.
        let _ = pipes.output.read_to_end(&mut output);
        String::from_utf8_lossy(&output).into_owned()
    });
    let ended = emulator.wait(stretched(LIMIT));
    emulator.kill();
    let output = reader.join().map_err(|_| "the reader panicked".to_owned())?;
    match ended {
        None => Err(format!("it does not end\n{output}")),
        Some(_) if output.contains(PASSED) && !output.contains("FAIL ") => Ok(()),
        Some(status) => Err(format!("it ends with {status}\n{output}")),
    }
}
