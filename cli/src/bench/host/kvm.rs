//! The probe under KVM: in a VM of a small client (`guests/kvm-client`), which is init of one of Debian's kernels.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use stile_board::map;

use super::{Figure, Request};
use crate::bench::operation::{Needs, Operation};
use crate::bench::{emulate, probe};
use crate::cargo;
use crate::config::DebianKernel;
use crate::debian::{self, Freshness};
use crate::emulator::Board;
use crate::exit;
use crate::image::dtb::{self, Description, SEED_LEN};
use crate::initramfs::cpio::Archive;

/// KVM in one of its modes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kvm {
    /// The newest kernel, with the host at EL2.
    Vhe,
    /// The newest kernel, with the host at EL1.
    Nvhe,
    /// The newest kernel, with a host that is not trusted.
    Protected,
    /// Linux 6.12, with the host at EL2.
    V6_12,
}

impl Kvm {
    /// Its name on the command line and in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Vhe => "kvm-vhe",
            Self::Nvhe => "kvm-nvhe",
            Self::Protected => "kvm-protected",
            Self::V6_12 => "kvm-6.12",
        }
    }

    const fn kernel(self) -> DebianKernel {
        match self {
            Self::Vhe | Self::Nvhe | Self::Protected => DebianKernel::Newest,
            Self::V6_12 => DebianKernel::V6_12,
        }
    }

    /// The kernel's parameter that asks for the mode.
    const fn parameter(self) -> &'static str {
        match self {
            Self::Vhe | Self::V6_12 => "",
            Self::Nvhe => "kvm-arm.mode=nvhe",
            Self::Protected => "kvm-arm.mode=protected",
        }
    }

    /// What the kernel says when it is in the mode.
    const fn confirmation(self) -> &'static str {
        match self {
            Self::Vhe | Self::V6_12 => ": VHE mode initialized",
            Self::Nvhe => "nVHE mode initialized",
            Self::Protected => ": Protected ",
        }
    }
}

/// The target of the client: a static program for Linux.
const TARGET: &str = "aarch64-unknown-linux-musl";

/// The host's memory, in bytes.
const MEMORY: u64 = 1 << 30;

/// Numbers of the device `/dev/kvm` (Linux, "Linux allocated devices").
const KVM_DEVICE: (u32, u32) = (10, 232);

/// Measures in two runs: with one physical CPU, and with two.
pub fn measure(kvm: Kvm, request: &Request<'_>) -> Result<Vec<Figure>> {
    let client = build_client()?;
    let kernel = debian::kernel(kvm.kernel(), Freshness::Weekly)?.kernel;
    let kernel = std::fs::read(&kernel).with_context(|| format!("reading {}", kernel.display()))?;
    let mut figures = Vec::new();
    for cpus in [1, 2] {
        let operations: Vec<Operation> = request.operations.iter().filter(|operation| operation.needs.cpus() == cpus).copied().collect();
        if operations.is_empty() {
            continue;
        }
        (request.progress)(format!("{}, {cpus} CPUs", kvm.name()));
        let (archive, counts) = archive(&client, request.probe, &operations, request.iterations)?;
        let mut initrd = tempfile::NamedTempFile::new().context("making the initial RAM file system's file")?;
        initrd.write_all(&archive).context("writing the initial RAM file system")?;
        let append = boot_arguments(&format!("loglevel=7 {}", kvm.parameter()), &counts);
        let board = Board {
            cpu: request.cpu.to_owned(),
            cpus,
            memory: MEMORY,
            machine: Vec::new(),
            icount: true,
            // The same figures each time: the same random numbers, and the same date.
            extra: ["-seed", "1", "-rtc", "base=2026-01-01,clock=vm", "-initrd", &initrd.path().display().to_string(), "-append", &append]
                .map(str::to_owned)
                .to_vec(),
        };
        let output = emulate::run(&board, &kernel, request.plugin)?;
        let measured = super::figures(&output, &output.line, &operations)?;
        let confirmed = String::from_utf8_lossy(&output.line).contains(kvm.confirmation());
        ensure!(confirmed, "KVM does not run in the mode of {} on {}", kvm.name(), request.cpu);
        figures.extend(measured);
    }
    Ok(figures)
}

/// The boot arguments of a host kernel, with more of them, for the VMs with so many vCPUs.
pub fn boot_arguments(more: &str, counts: &[String]) -> String {
    format!("console=ttyAMA0 panic=-1 {more} -- {}", counts.join(" "))
}

/// [`archive`], with the client built for it.
///
/// # Errors
/// The client can't be built.
pub fn client_archive(probe: &[u8], operations: &[Operation], iterations: u32) -> Result<(Vec<u8>, Vec<String>)> {
    archive(&build_client()?, probe, operations, iterations)
}

/// The host's file system, and the arguments of its init: the numbers of vCPUs of the VMs to start.
fn archive(client: &[u8], probe: &[u8], operations: &[Operation], iterations: u32) -> Result<(Vec<u8>, Vec<String>)> {
    let mut archive = Archive::default();
    archive.directory("dev");
    archive.character_device("dev/console", 0o600, 5, 1);
    archive.character_device("dev/kvm", 0o600, KVM_DEVICE.0, KVM_DEVICE.1);
    archive.file("init", 0o755, client);
    archive.file("probe", 0o644, probe);
    let mut counts = Vec::new();
    for needs in [Needs::One, Needs::Two, Needs::Shared] {
        let operations: Vec<Operation> = operations.iter().filter(|operation| operation.needs == needs).copied().collect();
        if operations.is_empty() {
            continue;
        }
        let tree = dtb::build(&Description {
            el2: false,
            memory: probe::MEMORY,
            vcpus: needs.vcpus(),
            bootargs: &probe::arguments(&operations, iterations),
            initrd: None,
            seed: [0x5a; SEED_LEN],
        })?;
        let count = needs.vcpus().to_string();
        archive.file(&format!("vm-{count}.dtb"), 0o644, &tree);
        counts.push(count);
    }
    Ok((archive.finish(), counts))
}

/// Builds the client, and returns it.
fn build_client() -> Result<Vec<u8>> {
    need_target()?;
    let repository = cargo::repository();
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command
        .current_dir(repository.join("guests/kvm-client"))
        .args(["build", "--release", "--target", TARGET])
        .env("CARGO_TARGET_DIR", repository.join("target/kvm-client"));
    let programs = cargo::build(command, "the KVM client")?;
    let path: PathBuf = programs.into_iter().find(|(name, _)| name == "kvm-client").context("cargo made no KVM client")?.1;
    std::fs::read(&path).with_context(|| format!("reading {}", path.display()))
}

/// Has rustup install the library for the client's target, if it isn't there.
fn need_target() -> Result<()> {
    let there = || cargo::sysroot().is_some_and(|sysroot| sysroot.join("lib/rustlib").join(TARGET).exists());
    if !there() {
        let _ = Command::new("rustup").args(["target", "add", TARGET]).stdin(Stdio::null()).stdout(Stdio::null()).status();
    }
    if there() {
        return Ok(());
    }
    Err(exit::lacking(format!("KVM's client needs Rust's library for {TARGET}: run `rustup target add {TARGET}`, or leave KVM out")))
}

// The client has the VM's memory map written down again.
const _: () = assert!(map::RAM_BASE == 0x4000_0000 && map::GICD_BASE == 0x0800_0000 && map::GICR_BASE == 0x080A_0000);
const _: () = assert!(map::PL011_BASE == 0x0900_0000 && probe::MEMORY == 64 << 20);
