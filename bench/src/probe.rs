//! The probe: its build, its image, and its output.

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use stile_blob::Techniques;

use super::operation::{Needs, Operation};
use stile::config::{Arch, KernelSource, VmConfig};
use stile::image::{Kernel, UNPACKING};
use stile::{cargo, l2};

/// The probe's package and program.
const PACKAGE: &str = "probe";

/// RAM of the probe's machine or VM, in bytes.
pub const MEMORY: u64 = 64 << 20;

/// Start of the probe's lines about a failure.
const FAILURE: &str = "probe: ";

/// Builds the probe. Returns the image that every host starts: on Arm an arm64 Image, on a PC the ELF file.
///
/// # Errors
/// It doesn't compile.
pub fn build(arch: Arch) -> Result<Vec<u8>> {
    let repository = cargo::repository();
    let mut command = cargo::cargo_for(arch, "build", &repository.join("guests"));
    command.args(["--release", "--package", PACKAGE]).env("CARGO_TARGET_DIR", repository.join("target/guests"));
    let programs = cargo::build(command, "the probe")?;
    let (_, path) = programs.into_iter().find(|(name, _)| name == PACKAGE).context("cargo made no probe")?;
    let elf = std::fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
    match arch {
        Arch::Aarch64 => flatten(&elf),
        Arch::X86_64 => Ok(elf),
    }
}

fn flatten(elf: &[u8]) -> Result<Vec<u8>> {
    let program = Kernel::recognise(elf, MEMORY, &UNPACKING)?;
    let start = program.segments.first().context("the probe has no segments")?.gpa;
    let mut flat = Vec::new();
    for segment in &program.segments {
        flat.resize(usize::try_from(segment.gpa - start)?, 0);
        flat.extend_from_slice(program.bytes(segment));
    }
    Ok(flat)
}

/// The probe's boot arguments: operations, and the number of iterations.
pub fn arguments(operations: &[Operation], iterations: u32) -> String {
    let names: Vec<_> = operations.iter().map(|operation| operation.name).collect();
    format!("n={iterations} only={}", names.join(","))
}

/// A VM for it, with the vCPUs that operations need.
pub fn vm(needs: Needs, techniques: Techniques) -> VmConfig {
    VmConfig { techniques, ..l2::vm::vm(PACKAGE, KernelSource::File(PACKAGE.into()), MEMORY, needs.vcpus()) }
}

/// A result line of the probe.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Line {
    /// Its name.
    pub operation: String,
    /// Instructions of one operation, if the host supports it.
    pub instructions: Option<f64>,
    /// Number of iterations.
    pub iterations: Option<u64>,
    /// Number of exits, if the host reports it in the line before.
    pub exits: Option<u64>,
    /// Reason if it was not measured.
    pub skipped: Option<String>,
}

/// The probe's lines in a console's output. Other lines, such as a kernel's messages, are ignored.
///
/// # Errors
/// The output has none, or the probe reports a failure.
pub fn lines(output: &[u8]) -> Result<Vec<Line>> {
    let text = String::from_utf8_lossy(output);
    let failure = text.lines().find(|line| line.contains(FAILURE));
    ensure!(failure.is_none(), "the probe failed: {}", failure.unwrap_or_default());
    let mut exits = None;
    let mut lines = Vec::new();
    for text in text.lines() {
        if let Some(mut line) = line(text) {
            line.exits = exits.take();
            lines.push(line);
        } else if let Some(counted) = counted(text) {
            exits = Some(counted);
        }
    }
    ensure!(!lines.is_empty(), "the probe said nothing; the end of the output:\n{}", end(output));
    Ok(lines)
}

/// Whether the output is complete: a whole line for each of these operations, or a failure.
pub fn is_over(output: &[u8], operations: &[Operation]) -> bool {
    let text = String::from_utf8_lossy(output);
    let whole = || text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    let done = |operation: &Operation| whole().filter_map(line).any(|line| line.operation == operation.name);
    operations.iter().all(done) || whole().any(|line| line.contains(FAILURE))
}

fn line(text: &str) -> Option<Line> {
    serde_json::from_str(text.get(text.find("{\"operation\"")?..)?.trim_end()).ok()
}

/// The exits that KVM's client counted.
fn counted(text: &str) -> Option<u64> {
    #[derive(Deserialize)]
    struct Counted {
        exits: u64,
    }
    let counted: Counted = serde_json::from_str(text.get(text.find("{\"exits\"")?..)?.trim_end()).ok()?;
    Some(counted.exits)
}

/// The last lines of an output.
pub fn end(output: &[u8]) -> String {
    let text = String::from_utf8_lossy(output);
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation;

    #[test]
    fn lines_are_found_among_others() {
        let output = b"[    1.0] boot\n{\"operation\":\"eoi\",\"instructions\":     2.000,\"ticks\":  8192,\"iterations\":  4096}\r\n\
            {\"operation\":\"hyp_call\",\"skipped\":\"not here\"}\nbye\n";
        let lines = lines(output).unwrap();
        assert_eq!(lines.len(), 2);
        assert_eq!((lines[0].instructions, lines[0].iterations), (Some(2.0), Some(4096)));
        assert_eq!(lines[1].skipped.as_deref(), Some("not here"));
    }

    #[test]
    fn output_is_complete_with_a_whole_line_for_each_operation() {
        let operations = operation::choose(&operation::AARCH64, &["hyp_call".to_owned(), "eoi".to_owned()]).unwrap();
        let output = b"(XEN) DOM1: {\"operation\":\"eoi\",\"skipped\":\"not here\"}\r\n{\"operation\":\"hyp_call\",\"instructions\":2.0,\"iterations\":1}\n";
        assert!(is_over(output, &operations));
        assert!(!is_over(&output[..output.len() - 1], &operations));
        assert!(!is_over(b"(XEN) DOM1: probe: panicked", &operations));
        assert!(is_over(b"(XEN) DOM1: probe: panicked\n", &operations));
    }

    #[test]
    fn exits_that_the_host_counted_are_those_of_the_next_line() {
        let output = b"{\"exits\":130}\n{\"operation\":\"eoi\",\"instructions\":2.0,\"iterations\":64}\n{\"operation\":\"ipi\",\"skipped\":\"not here\"}\n";
        let lines = lines(output).unwrap();
        assert_eq!((lines[0].exits, lines[1].exits), (Some(130), None));
    }

    #[test]
    fn failures_are_reported() {
        assert!(lines(b"probe: panicked at ...\n").unwrap_err().to_string().contains("panicked"));
        assert!(lines(b"Kernel panic\n").unwrap_err().to_string().contains("Kernel panic"));
    }
}
