//! `stile doctor`: installed and missing programs, and the emulators' features.

use std::process::Command;

use anyhow::Result;
use serde_json::{Value, json};

use crate::args::DoctorArgs;
use crate::config::{Arch, units};
use crate::emulator::bochs;
use crate::{cache, cargo, debian, emulator, exit, out};

/// A check: its subject, and its result or the missing part.
struct Finding {
    what: &'static str,
    found: Result<String, String>,
}

impl Finding {
    fn object(&self) -> Value {
        let (Ok(text) | Err(text)) = &self.found;
        json!({"what": self.what, "ok": self.found.is_ok(), "text": text})
    }
}

/// A CPU model of the emulator, and what it has for a hypervisor.
type Model = (&'static str, Result<Vec<&'static str>, String>);

/// Prints a report. The status is [`exit::LACKING`] if a requirement of `run` is missing.
///
/// # Errors
/// Standard output can't be written.
pub fn doctor(args: &DoctorArgs) -> Result<u8> {
    let findings = [
        Finding { what: "host", found: host() },
        Finding { what: "emulator", found: installed_emulator() },
        Finding { what: "compiler", found: version_of("rustc") },
        Finding { what: "cargo", found: version_of("cargo") },
        Finding { what: "target", found: target() },
        Finding { what: "linker (host)", found: version_of("cc") },
        Finding { what: "apt", found: version_of("apt-get") },
        Finding { what: "Debian mirror", found: debian::mirror().map_err(|error| error.to_string()) },
        Finding { what: "cache", found: cache_directory() },
    ];
    let pc = [
        Finding { what: "emulated PC", found: emulated_pc() },
        Finding { what: "boot CD-ROM", found: boot_tools() },
        Finding { what: "target", found: target_of(Arch::X86_64) },
    ];
    let models = if findings[1].found.is_ok() { models() } else { Vec::new() };
    if args.json {
        out::json(&object(&findings, &pc, &models))?;
    } else {
        show(&findings, &pc, &models)?;
    }
    Ok(if findings.iter().all(|finding| finding.found.is_ok()) { exit::OK } else { exit::LACKING })
}

/// The CPU models, from the emulator.
fn models() -> Vec<Model> {
    let features = |model| emulator::features(model).map(|features| features.names()).map_err(|error| error.to_string());
    emulator::MODELS.into_iter().map(|model| (model, features(model))).collect()
}

/// The report as JSON: what is in an array named after an architecture is needed for it only.
fn object(findings: &[Finding], pc: &[Finding], models: &[Model]) -> Value {
    let objects = |findings: &[Finding]| findings.iter().map(Finding::object).collect::<Value>();
    let model = |(name, features): &Model| match features {
        Ok(features) => json!({"model": name, "features": features}),
        Err(error) => json!({"model": name, "missing": error}),
    };
    json!({
        "findings": objects(findings),
        Arch::X86_64.name(): objects(pc),
        "cache": Arch::ALL.map(|arch| json!({"arch": arch.name(), "items": debian::cached(arch)})),
        "models": models.iter().map(model).collect::<Value>(),
    })
}

/// Shows the report for people.
fn show(findings: &[Finding], pc: &[Finding], models: &[Model]) -> Result<(), out::Unwritable> {
    let list = |findings: &[Finding], missing: &str| {
        findings.iter().try_for_each(|Finding { what, found }| match found {
            Ok(text) => out::line(format_args!("  ok       {what:<14} {text}")),
            Err(text) => out::line(format_args!("  {missing}  {what:<14} {text}")),
        })
    };
    list(findings, "MISSING")?;
    if findings.iter().any(|finding| finding.found.is_err()) {
        out::line("\n`sudo ./stile setup` installs what is missing")?;
    }
    out::line("\nFor --arch x86_64:")?;
    list(pc, "missing")?;
    for arch in Arch::ALL {
        out::line(format_args!("\nIn the cache for {}:", arch.name()))?;
        let cached = debian::cached(arch);
        cached.iter().try_for_each(|kept| out::line(format_args!("  {kept}")))?;
        if cached.is_empty() {
            out::line(format_args!(
                "  nothing yet: `stile run` fetches the files that it needs, `stile fetch --arch {}` all files",
                arch.name()
            ))?;
        }
    }
    if !models.is_empty() {
        out::line("\nCPU models of the emulator, and what they have for a hypervisor:")?;
    }
    models.iter().try_for_each(|(model, features)| match features {
        Ok(features) if features.is_empty() => out::line(format_args!("  {model:<12} nothing beyond Armv8.0")),
        Ok(features) => out::line(format_args!("  {model:<12} {}", features.join(" "))),
        Err(error) => out::line(format_args!("  {model:<12} not there: {error}")),
    })
}

fn host() -> Result<String, String> {
    let release = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    let name =
        release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME=")).map_or("an unknown system", |name| name.trim_matches('"'));
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    Ok(format!("{name}, {}, {}", std::env::consts::ARCH, units::plural(cpus, "CPU")))
}

fn installed_emulator() -> Result<String, String> {
    match emulator::installed() {
        Ok((program, version)) if version >= emulator::OLDEST => Ok(format!("{} {version}", program.display())),
        Ok((_, version)) => Err(format!(
            "{version} is too old for nested virtualization: {} or later is needed (package {})",
            emulator::OLDEST,
            emulator::PACKAGE
        )),
        Err(error) => Err(error.to_string()),
    }
}

/// The first line of a program's version output.
fn version_of(program: &str) -> Result<String, String> {
    let output = Command::new(program).arg("--version").output().map_err(|error| format!("{program}: {error}"))?;
    let first = |bytes: &[u8]| String::from_utf8_lossy(bytes).lines().next().map(str::to_owned);
    match (first(&output.stdout), first(&output.stderr)) {
        (Some(version), _) if output.status.success() => Ok(version),
        (_, Some(error)) => Err(format!("{program}: {error}")),
        (_, None) => Err(format!("{program} does not say its version")),
    }
}

/// Bochs, or its build requirements.
fn emulated_pc() -> Result<String, String> {
    if let Some(bochs) = bochs::cached() {
        return Ok(format!("Bochs {}, {}", bochs::VERSION, bochs.program.display()));
    }
    for program in ["g++", "make"] {
        version_of(program).map_err(|error| format!("Bochs is built at the first use, with {}: {error}", bochs::BUILD_PACKAGES))?;
    }
    Ok(format!("Bochs {} is built at the first use", bochs::VERSION))
}

/// GRUB, and its requirements for making a CD-ROM.
fn boot_tools() -> Result<String, String> {
    let version = version_of("grub-mkrescue").and_then(|version| version_of("xorriso").map(|_| version));
    let version = version.map_err(|error| format!("{error}: install the packages {}", bochs::ISO_PACKAGES))?;
    if !std::path::Path::new("/usr/lib/grub/i386-pc").exists() {
        return Err(format!("GRUB has no modules for a PC's BIOS: install the packages {}", bochs::ISO_PACKAGES));
    }
    Ok(version)
}

fn target() -> Result<String, String> {
    target_of(Arch::Aarch64)
}

fn target_of(arch: Arch) -> Result<String, String> {
    let target = cargo::target(arch);
    let sysroot = cargo::sysroot().ok_or("rustc does not run")?;
    let libraries = sysroot.join("lib/rustlib");
    if libraries.join(target).exists() {
        Ok(format!("{}, installed", target))
    } else if libraries.join("src/rust/library").exists() {
        Ok(format!("{}, built from the compiler's sources", target))
    } else {
        Err(format!("{}: `rustup target add {}`, or the compiler's sources", target, target))
    }
}

fn cache_directory() -> Result<String, String> {
    cache::dir().map(|dir| dir.display().to_string()).map_err(|error| format!("{error:#}"))
}
