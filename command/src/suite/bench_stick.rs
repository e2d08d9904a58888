//! The bench stick: UEFI firmware starts it, and the serial line has the machine's description and a figure for each operation.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::firmware_pc::{AMD_V, DISK, Firmware, Machine, PLAIN, Run};
use super::screen;
use stile::config::Arch;
use stile::debian;

/// The tests' names, and the tests.
pub const TESTS: [(&str, Arch, Run); 2] = [("firmware/bench", Arch::Aarch64, on_arm), ("firmware/pc-bench", Arch::X86_64, on_a_pc)];

/// The loop, which each machine measures first.
const LOOP: &str = "loop";

/// Debian's EDK2 on QEMU's board, with a screen. The emulated PMU counts instructions if each takes a nanosecond, cycles in any case.
fn on_arm() -> Result<()> {
    let firmware = debian::tree(Arch::Aarch64, &["qemu-efi-aarch64"])?.join("usr/share/qemu-efi-aarch64/QEMU_EFI.fd").display().to_string();
    let arguments = ["-M", "virt,virtualization=on,gic-version=3", "-icount", "shift=0,sleep=off", "-bios", &firmware, "-device", "ramfb"];
    let board = Firmware { program: "qemu-system-aarch64", files: None, arguments: &arguments, cpu: "max" };
    let (dir, image) = image(Arch::Aarch64)?;
    let mut machine = Machine::start(dir.path(), &board, DISK, &image, &[])?;
    machine.wait_for("\"timer_wfi\"")?;
    machine.retry(|| screen::check(dir.path(), &["The machine stays on, so that this can be read."]))?;
    let log = machine.serial();
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
    Ok(())
}

/// OVMF on a PC with AMD-V, without a PMU.
fn on_a_pc() -> Result<()> {
    let (dir, image) = image(Arch::X86_64)?;
    let mut machine = Machine::start(dir.path(), &Firmware { cpu: AMD_V, ..PLAIN }, DISK, &image, &[])?;
    machine.wait_for("\"eoi_xapic\"")?;
    let log = machine.serial();
    for line in ["CPU: QEMU TCG", "features: Features { largest_page", "counters: cycles and instructions not available"] {
        ensure!(log.contains(line), "no {line:?}:\n{log}");
    }
    for name in [LOOP, "cpuid", "vmmcall"] {
        let figure = figure(&log, name)?;
        ensure!(figure["ticks"].is_f64() && figure["cycles"] == "not available" && figure["instructions"] == "not available", "{figure}");
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
