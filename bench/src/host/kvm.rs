//! The probe under KVM: in a VM of a small client (`guests/kvm-client`), which is init of one of Debian's kernels.

mod pc;

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use stile_board::map;

use super::{Figure, Kvm, Request, figure};
use crate::counts::Plugin;
use crate::emulate::{self, Next, Output};
use crate::operation::{Needs, Operation};
use crate::platform::{self, Platform, Start};
use crate::probe;
use stile::config::{Arch, DebianKernel};
use stile::debian::{self, Freshness};
use stile::image::dtb::{self, Description, SEED_LEN};
use stile::l2::client::{self, Vm};
use stile::l2::linux;

impl Kvm {
    /// The architecture that it is measured on.
    const fn arch(self) -> Arch {
        match self {
            Self::Vhe | Self::Nvhe | Self::Protected | Self::V6_12 | Self::Nested => Arch::Aarch64,
            Self::V6_1 => Arch::X86_64,
        }
    }

    /// The kernel's file, for a machine with this CPU model.
    fn kernel(self, cpu: &str) -> Result<PathBuf> {
        Ok(match self {
            Self::Vhe | Self::Nvhe | Self::Protected | Self::Nested => debian::kernel(DebianKernel::Newest, Freshness::Weekly)?.kernel,
            Self::V6_12 => debian::kernel(DebianKernel::V6_12, Freshness::Weekly)?.kernel,
            Self::V6_1 if self.arch().has_amd_v(cpu) => debian::kvm_host_of_amd(Freshness::Weekly)?.join("kernel"),
            Self::V6_1 => debian::kvm_host(Freshness::Weekly)?.join("kernel"),
        })
    }

    /// The kernel parameter that selects the mode.
    const fn parameter(self) -> &'static str {
        match self {
            Self::Vhe | Self::V6_12 => "",
            Self::Nvhe => "kvm-arm.mode=nvhe",
            Self::Protected => "kvm-arm.mode=protected",
            Self::Nested => "kvm-arm.mode=nested",
            // Mitigations for CPUs of the emulator's age are not measured.
            Self::V6_1 => "mitigations=off",
        }
    }

    /// Returns the kernel's message that confirms the mode.
    const fn confirmation(self) -> &'static str {
        match self {
            Self::Vhe | Self::V6_12 => ": VHE mode initialized",
            Self::Nvhe => "nVHE mode initialized",
            Self::Protected => ": Protected ",
            Self::Nested => ": VHE+NV2 mode initialized",
            // It has one mode.
            Self::V6_1 => "",
        }
    }
}

/// The host's memory for the probe, in bytes.
const MEMORY: u64 = 1 << 30;

/// The probe's link address, and where its device tree is.
const PROBE: u64 = map::RAM_BASE + 0x8_0000;
const TREE: u64 = map::RAM_BASE + (32 << 20);

/// Measures in two runs: with one physical CPU, and with two.
pub fn measure(kvm: Kvm, request: &Request<'_>) -> Result<Vec<Figure>> {
    let client = linux::build_for(kvm.arch(), client::PROGRAM)?;
    let mut figures = Vec::new();
    for cpus in [1, 2] {
        let operations: Vec<Operation> = request.operations.iter().filter(|operation| operation.needs.cpus() == cpus).copied().collect();
        if operations.is_empty() {
            continue;
        }
        (request.progress)(format!("{}, {cpus} CPUs", kvm.name()));
        let (archive, names) = match kvm.arch() {
            Arch::Aarch64 => archive(&client, request.probe, &operations, request.iterations)?,
            Arch::X86_64 => pc::archive(&client, request.probe, &operations, request.iterations, request.cpu)?,
        };
        let boot = Boot { cpu: request.cpu, cpus, memory: MEMORY, initrd: &archive, names: &names, plugin: request.plugin };
        let output = kvm.boot(&boot)?;
        let found = figure::figures(output.counts.as_ref(), &output.vmx, &output.line, &operations)?;
        let outside_only = request.platform.counts_outside_only();
        figures.extend(found.into_iter().map(|figure| if outside_only { figure.outside_only() } else { figure }));
    }
    Ok(figures)
}

/// A host that runs VMs.
#[derive(Debug, Clone, Copy)]
pub struct Boot<'a> {
    /// The emulated CPUs' model.
    pub cpu: &'a str,
    /// Physical CPUs.
    pub cpus: u32,
    /// Physical memory in bytes.
    pub memory: u64,
    /// The host's initial RAM file system: see [`client::archive`].
    pub initrd: &'a [u8],
    /// The VMs to run, one after the other.
    pub names: &'a [String],
    /// The plugin that counts; nothing without it.
    pub plugin: Option<&'a Path>,
}

impl Kvm {
    /// Boots the host, which runs the VMs and turns the machine off, and returns its output.
    ///
    /// # Errors
    /// The kernel can't be fetched; KVM is not in the mode that it should be in; a VM fails.
    pub fn boot(self, boot: &Boot<'_>) -> Result<Output> {
        self.boot_until(boot, false, |_| Next::GoOn)
    }

    /// Boots the host, which need not end: `next` selects an action from the complete output whenever there is more.
    /// `sharing`: the plugin also counts memory that CPUs share.
    ///
    /// # Errors
    /// As of [`Kvm::boot`].
    pub fn boot_until(self, boot: &Boot<'_>, sharing: bool, next: impl FnMut(&[u8]) -> Next) -> Result<Output> {
        let kernel = self.kernel(boot.cpu)?;
        let kernel = std::fs::read(&kernel).with_context(|| format!("reading {}", kernel.display()))?;
        let mut initrd = tempfile::NamedTempFile::new().context("making the initial RAM file system's file")?;
        initrd.write_all(boot.initrd).context("writing the initial RAM file system")?;
        let append = arguments(self.arch(), &format!("loglevel=7 {}", self.parameter()), boot.names);
        let start = Start { cpu: boot.cpu, cpus: boot.cpus, memory: boot.memory };
        let machine = platform::of_machine(self.arch(), boot.cpu).linux(&start, append, initrd.path());
        let output = emulate::run_until(&machine, &kernel, boot.plugin.map(|path| Plugin { path, sharing }), next)?;
        let text = String::from_utf8_lossy(&output.line);
        ensure!(text.contains(self.confirmation()), "KVM does not run in the mode of {} on {}", self.name(), boot.cpu);
        let failure = text.lines().find(|line| line.contains("kvm-client: "));
        ensure!(failure.is_none(), "KVM's client failed: {}", failure.unwrap_or_default());
        Ok(output)
    }
}

/// The boot arguments of a host kernel for Arm, with more of them, for the VMs of these names.
pub fn boot_arguments(more: &str, names: &[String]) -> String {
    arguments(Arch::Aarch64, more, names)
}

fn arguments(arch: Arch, more: &str, names: &[String]) -> String {
    let console = match arch {
        Arch::Aarch64 => "ttyAMA0",
        Arch::X86_64 => "ttyS0",
    };
    format!("console={console} panic=-1 {more} -- {}", names.join(" "))
}

/// The file system of a host that runs the probe in VMs, and their names.
///
/// # Errors
/// The client can't be built.
pub fn client_archive(probe: &[u8], operations: &[Operation], iterations: u32) -> Result<(Vec<u8>, Vec<String>)> {
    archive(&linux::build(client::PROGRAM)?, probe, operations, iterations)
}

/// Order of several VMs on a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grouping {
    /// One after the other.
    Alone,
    /// Two at a time, of the same name.
    Pairs,
}

/// Kernel, file system and boot arguments of a PC's host that runs the probe in a number of VMs or groups of VMs.
///
/// # Errors
/// Something can't be built or fetched.
pub fn pc_host(
    probe: &[u8],
    operations: &[Operation],
    iterations: u32,
    rounds: usize,
    grouping: Grouping,
) -> Result<(PathBuf, Vec<u8>, String)> {
    let client = linux::build_for(Arch::X86_64, client::PROGRAM)?;
    let (archive, names) = pc::archive(&client, probe, operations, iterations, Arch::X86_64.default_cpu_model())?;
    let names = match grouping {
        Grouping::Alone => names,
        Grouping::Pairs => names.into_iter().map(|name| format!("{name}+{name}")).collect(),
    };
    // Linux panics if it has more than 32 arguments for init.
    let names = match &names[..] {
        [name] => vec![format!("{name}*{rounds}")],
        _ => vec![names; rounds].concat(),
    };
    let (kernel, append) = pc_host_arguments(&names)?;
    Ok((kernel, archive, append))
}

/// The kernel of a PC's host, and its boot arguments for the VMs of these names.
///
/// # Errors
/// It can't be fetched.
pub fn pc_host_arguments(names: &[String]) -> Result<(PathBuf, String)> {
    Ok((
        Kvm::V6_1.kernel(Arch::X86_64.default_cpu_model())?,
        arguments(Arch::X86_64, &format!("loglevel=4 {}", Kvm::V6_1.parameter()), names),
    ))
}

/// The host's file system, and the names of the VMs to start.
fn archive(client: &[u8], probe: &[u8], operations: &[Operation], iterations: u32) -> Result<(Vec<u8>, Vec<String>)> {
    let vm = |(needs, operations): (Needs, Vec<Operation>)| ProbeVm {
        name: format!("probe-{}", needs.vcpus()),
        vcpus: needs.vcpus(),
        bootargs: probe::arguments(&operations, iterations),
    };
    let vms: Vec<_> = Platform::groups(operations).into_iter().map(vm).collect();
    Ok((archive_of(client, probe, &vms)?, vms.into_iter().map(|vm| vm.name).collect()))
}

/// A VM that the probe runs in, on Arm.
#[derive(Debug, Clone)]
pub struct ProbeVm {
    /// Its name.
    pub name: String,
    /// Virtual CPUs.
    pub vcpus: u16,
    /// The probe's boot arguments.
    pub bootargs: String,
}

/// The file system of an Arm host with VMs of the probe.
///
/// # Errors
/// A device tree can't be built.
pub fn archive_of(client: &[u8], probe: &[u8], probes: &[ProbeVm]) -> Result<Vec<u8>> {
    let mut vms = Vec::new();
    for ProbeVm { name, vcpus, bootargs } in probes {
        let tree = dtb::build(&Description {
            disks: Vec::new(),
            el2: false,
            memory: probe::MEMORY,
            vcpus: *vcpus,
            topology: None,
            bootargs,
            initrd: None,
            seed: Some([0x5a; SEED_LEN]),
            pci: false,
            flash: false,
            served: 0,
            serves: 0,
            gic: stile_blob::Gic::V3,
            domains: Vec::new(),
        })?;
        vms.push((name, *vcpus, tree));
    }
    let trees: Vec<String> = vms.iter().map(|(name, ..)| format!("/{name}.dtb")).collect();
    let loads: Vec<_> = trees.iter().map(|tree| [("/probe", PROBE), (tree.as_str(), TREE)]).collect();
    let described: Vec<_> = vms
        .iter()
        .zip(&loads)
        .map(|((name, vcpus, _), loads)| Vm {
            arch: Arch::Aarch64,
            name,
            vcpus: *vcpus,
            memory: probe::MEMORY,
            loads,
            entry: PROBE,
            tree: TREE,
            el2: false,
            long: None,
        })
        .collect();
    let mut archive = client::archive(client, &described);
    archive.file("probe", 0o644, probe);
    for ((_, _, content), path) in vms.iter().zip(&trees) {
        archive.file(path.trim_start_matches('/'), 0o644, content);
    }
    Ok(archive.finish())
}

// The client has the VM's memory map written down again.
const _: () = assert!(map::RAM_BASE == 0x4000_0000 && map::GICD_BASE == 0x0800_0000 && map::GICR_BASE == 0x080A_0000);
const _: () = assert!(map::PL011_BASE == 0x0900_0000);
