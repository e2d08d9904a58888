//! The bench stick: UEFI firmware starts it, and the serial line has the machine's description and a figure for each operation; the next start
//! writes both to the stick's partition.

use std::fs;
use std::io::{Cursor, Read};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use fatfs::{FileSystem, FsOptions};
use serde_json::Value;

use super::firmware_pc::{AMD_V, Firmware, Machine, PLAIN, Run, WRITABLE_DISK};
use super::{reconfigured, screen};
use stile::config::Arch;
use stile::debian;

/// The tests' names, and the tests.
pub const TESTS: [(&str, Arch, Run); 2] = [("firmware/bench", Arch::Aarch64, on_arm), ("firmware/pc-bench", Arch::X86_64, on_a_pc)];

/// Message of Stile's after which the machine can be started again.
const STORED: &str = "The figures are stored.";

/// The loop, which each machine measures first.
const LOOP: &str = "loop";

/// Debian's EDK2 on QEMU's board, with a screen. The emulated PMU counts instructions if each takes a nanosecond, cycles in any case.
fn on_arm() -> Result<()> {
    let (dir, image) = image(Arch::Aarch64)?;
    let firmware = debian::tree(Arch::Aarch64, &["qemu-efi-aarch64"])?.join("usr/share/AAVMF");
    let variables = dir.path().join("variables.fd");
    fs::copy(firmware.join("AAVMF_VARS.fd"), &variables)?;
    let code = format!("if=pflash,format=raw,readonly=on,file={}", firmware.join("AAVMF_CODE.fd").display());
    let variables = format!("if=pflash,format=raw,file={}", variables.display());
    let arguments = ["-M", "virt,virtualization=on,gic-version=3", "-drive", &code, "-drive", &variables];
    let board = Firmware { program: "qemu-system-aarch64", files: None, arguments: &arguments, cpu: "max" };
    let counting = ["-icount", "shift=0,sleep=off", "-device", "ramfb"];
    let mut machine = Machine::start(dir.path(), &board, WRITABLE_DISK, &image, &counting)?;
    machine.wait_for("\"timer_wfi\"")?;
    machine.wait_for(STORED)?;
    machine.retry(|| screen::check(dir.path(), &[STORED, "The machine stays on, so that this can be read."]))?;
    let log = machine.serial();
    drop(machine);
    for line in ["CPU: MIDR_EL1 ", "interrupts: GICv3", "counters: PMUv3 ", "event counters): cycles, instructions"] {
        ensure!(log.contains(line), "no {line:?}:\n{log}");
    }
    for name in [LOOP, "hyp_call", "ipi"] {
        let figure = figure(&log, name)?;
        let number = |key: &str| figure[key].as_f64().with_context(|| format!("no {key}: {figure}"));
        // A tick is an instruction, and so is a cycle here. Both counters have the loop's in addition, and reading the counters.
        let ticks = number("ticks")?;
        for key in ["cycles", "instructions"] {
            let counted = number(key)?;
            ensure!(counted >= ticks && counted < ticks + 4.0, "{key} of EL2 are not counted: {figure}");
        }
    }
    writes(dir.path(), &board, &image, 1, &log)
}

/// OVMF on a PC with AMD-V, without a PMU. It measures twice.
fn on_a_pc() -> Result<()> {
    let (dir, image) = image(Arch::X86_64)?;
    let board = Firmware { cpu: AMD_V, ..PLAIN };
    for number in [1, 2] {
        let mut machine = Machine::start(dir.path(), &board, WRITABLE_DISK, &image, &[])?;
        machine.wait_for("\"eoi_xapic\"")?;
        machine.wait_for(STORED)?;
        machine.wait_for_end()?;
        let log = machine.serial();
        for line in ["CPU: QEMU TCG", "features: Features { largest_page", "counters: cycles and instructions not available"] {
            ensure!(log.contains(line), "no {line:?}:\n{log}");
        }
        for name in [LOOP, "cpuid", "vmmcall"] {
            let figure = figure(&log, name)?;
            ensure!(
                figure["ticks"].is_f64() && figure["cycles"] == "not available" && figure["instructions"] == "not available",
                "{figure}"
            );
        }
        writes(dir.path(), &board, &image, number, &log)?;
    }
    Ok(())
}

/// The next start writes the figures that the serial line had to a file of its own, and turns the machine off, which has no screen.
fn writes(dir: &Path, board: &Firmware<'_>, image: &Path, number: u32, log: &str) -> Result<()> {
    let mut machine = Machine::start(dir, board, WRITABLE_DISK, image, &[])?;
    machine.wait_for(&format!("the figures of the last start are in FIGURES\\{number}.JSON on this stick"))?;
    machine.wait_for_end()?;
    ensure!(!machine.serial().contains("\"operation\""), "it measures again:\n{}", machine.serial());
    let mut bytes = fs::read(image)?;
    let volume = bytes.split_off(reconfigured::volume(&bytes)?);
    let volume = FileSystem::new(Cursor::new(volume), FsOptions::new())?;
    let mut text = String::new();
    volume.root_dir().open_file(&format!("FIGURES/{number}.JSON"))?.read_to_string(&mut text)?;
    let file: Value = serde_json::from_str(&text).with_context(|| text.clone())?;
    ensure!(file["complete"] == true && file["stile"] == env!("CARGO_PKG_VERSION"), "{text}");
    let machine: Vec<&str> = file["machine"].as_array().context("no machine")?.iter().filter_map(Value::as_str).collect();
    for start in ["CPU: ", "features: ", "errata: ", "firmware: ", "console: ", "RAM: ", "Stile: ", "clock: ", "counters: "] {
        let line = machine.iter().find(|line| line.starts_with(start)).with_context(|| format!("no {start:?}: {text}"))?;
        ensure!(log.contains(line), "the log has no {line:?}:\n{log}");
    }
    let operations = file["operations"].as_array().context("no operations")?;
    ensure!(operations.len() == log.matches("{\"operation\":").count(), "{text}");
    for operation in operations {
        let name = operation["operation"].as_str().context("an operation without a name")?;
        ensure!(*operation == figure(log, name)?, "{operation} is not the log's");
    }
    Ok(())
}

/// Makes the image by `stile image --bench`.
fn image(arch: Arch) -> Result<(tempfile::TempDir, PathBuf)> {
    let dir = tempfile::tempdir()?;
    let image = dir.path().join("stick.img");
    let output = Command::new(std::env::current_exe()?).args(["image", "--bench", "--arch", arch.name(), "-o"]).arg(&image).output()?;
    ensure!(output.status.success(), "stile image: {}", String::from_utf8_lossy(&output.stderr));
    Ok((dir, image))
}

/// The line of an operation.
fn figure(log: &str, name: &str) -> Result<Value> {
    let start = format!("{{\"operation\":\"{name}\"");
    let line = log.lines().find_map(|line| line.get(line.find(&start)?..)).with_context(|| format!("no line of {name}:\n{log}"))?;
    serde_json::from_str(line.trim_end()).with_context(|| format!("{line:?}"))
}
