//! Prepares machines: fetches and builds the parts requested by the user, and assembles the image.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use stile_blob::{IpiAccess, Nested};

use crate::args::{CheckArgs, MachineArgs};
use crate::budget::Budget;
use crate::config::served::{CONSOLE, FS, NET, VSOCK};
use crate::config::{Arch, InitrdSource, KernelSource, MachineConfig, Mistake, Mistakes, Place, VmConfig};
use crate::debian::{self, Freshness};
use crate::disk::in_memory::MemoryDisk;
use crate::image::{self, Format, Image, Seed, VmFiles, VmPlan};
use crate::initramfs::{self, Marks, Task};
use crate::session::{Guest, System};
use crate::{disk, emulator, exit, hypervisor, l2, out, progress};

/// Options for making images.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options<'a> {
    /// Whether Stile sends its ledger at the end.
    pub report_exits: bool,
    /// The seed of the guests' random numbers.
    pub seed: Seed,
    /// The user's terminal: its type, columns and rows (0 if unknown), and whether input comes from a
    /// keyboard.
    pub terminal: (&'a str, (u16, u16), bool),
    /// The text of the configuration, if the file on the boot medium may change the settings; else empty.
    pub text: &'a str,
}

/// A machine ready to be started.
#[derive(Debug)]
pub struct Machine {
    /// The configuration.
    pub config: MachineConfig,
    /// The image.
    pub image: Image,
    /// The VMs.
    pub guests: Vec<Guest>,
    /// Physical memory in bytes.
    pub memory: u64,
}

/// The files of one VM.
struct Files {
    kernel: Vec<u8>,
    initrd: Option<Vec<u8>>,
    bootargs: String,
    /// Kernels of domains.
    domains: Vec<Vec<u8>>,
    /// Contents of disks in memory.
    disks: Vec<Vec<u8>>,
    system: Option<System>,
    /// If the kernel is a Stile: its VMs.
    inner: Vec<Guest>,
}

/// Reads the configuration: from the file, the flags or both.
///
/// # Errors
/// [`crate::config::Mistakes`].
pub fn configure(args: &MachineArgs) -> Result<MachineConfig> {
    let mut config = MachineConfig::load(args.config.as_deref(), &args.flags())?;
    if args.config.is_none() && args.initrd.is_none() {
        let arch = config.arch;
        for vm in &mut config.vms {
            give_linux_a_system(arch, vm)?;
        }
    }
    // The default model supports everything, and querying the emulator takes up to half a second.
    if config.cpu_model != config.arch.default_cpu_model() {
        emulator::check_model(config.arch, &config.cpu_model).map_err(|why| exit::usage(format!("cpu: {why}")))?;
        check_nesting(&config)?;
        check_amd_v(&config)?;
    }
    Ok(config)
}

/// Rejects a VM with virtual EL2 on a CPU model without FEAT_NV. If the emulator is missing or doesn't
/// know the model, Stile itself checks at boot.
fn check_nesting(config: &MachineConfig) -> Result<()> {
    let needs = |vm: &VmConfig| match vm.techniques.nested {
        Nested::Off | Nested::Enlightened => None,
        Nested::Nv => Some("NV"),
        Nested::Nv2 => Some("NV2"),
    };
    if config.arch != Arch::Aarch64 {
        return Ok(());
    }
    let Some((vm, feature)) = config.vms.iter().find_map(|vm| needs(vm).map(|feature| (&vm.name, feature))) else { return Ok(()) };
    match emulator::features(&config.cpu_model) {
        Ok(features) if !features.names().contains(&feature) => Err(exit::usage(format!(
            "{vm}: nested: CPU model {} has no FEAT_{feature}; expected one that has it, such as {} (`stile doctor` lists them)",
            config.cpu_model,
            config.arch.default_cpu_model()
        ))),
        Ok(_) | Err(_) => Ok(()),
    }
}

/// Rejects what the back end for AMD-V does not have (docs/x86-amd.md).
fn check_amd_v(config: &MachineConfig) -> Result<()> {
    let model = &config.cpu_model;
    if !config.arch.has_amd_v(model) {
        return Ok(());
    }
    let vmx = format!("expected a CPU model with VMX, such as {}", config.arch.default_cpu_model());
    for vm in &config.vms {
        if vm.techniques.nested != Nested::Off {
            let what = format!("{}: nested: on CPU model {model}, which has AMD-V, a VM can't have VMs of its own; {vmx}", vm.name);
            return Err(exit::usage(what));
        }
        if vm.techniques.ipi != IpiAccess::Trapped {
            let what = format!("{}: ipi: CPU model {model} has AMD-V, without posted interrupts; {vmx}", vm.name);
            return Err(exit::usage(what));
        }
    }
    Ok(())
}

/// Adds the busybox system to a Linux kernel without a root file system, which would only panic. A kernel
/// with a `root=` argument needs none.
fn give_linux_a_system(arch: Arch, vm: &mut VmConfig) -> Result<()> {
    let KernelSource::File(path) = &vm.kernel else { return Ok(()) };
    if vm.initrd != InitrdSource::None || vm.append.contains("root=") {
        return Ok(());
    }
    if image::is_linux(arch, &read(path)?, vm.memory) {
        vm.initrd = InitrdSource::Busybox;
    }
    Ok(())
}

/// Fetches, builds and assembles the machine of a configuration.
///
/// # Errors
/// Something can't be fetched, built or booted.
pub fn make(config: MachineConfig, options: &Options<'_>) -> Result<Machine> {
    let mut plans = Vec::new();
    let mut guests = Vec::new();
    for vm in &config.vms {
        let files = files(config.arch, vm, options, Freshness::Weekly)?;
        let plan = plan(config.arch, vm, &files, options.seed)?;
        note_format(vm, &plan);
        plans.push(plan);
        guests.push(Guest { name: vm.name.clone(), system: files.system, budget: vm.budget, inner: files.inner });
    }
    let hypervisor = hypervisor::make(config.arch)?;
    let image = image::assemble(&hypervisor, &config, &plans, options.report_exits, options.text).map_err(classify)?;
    let memory = config.physical_memory(image.bytes.len() as u64).map_err(exit::usage)?;
    Ok(Machine { config, image, guests, memory })
}

/// Fetches, builds and plans one VM of a configuration.
///
/// # Errors
/// See [`make`].
pub fn plan_one(config: &MachineConfig, vm: &VmConfig, options: &Options<'_>) -> Result<(VmPlan, Guest)> {
    let files = files(config.arch, vm, options, Freshness::Weekly)?;
    let task = progress::Task::start(format!("unpacking the files of {}", vm.name));
    let plan = plan(config.arch, vm, &files, options.seed)?;
    drop(task);
    note_format(vm, &plan);
    Ok((plan, Guest { name: vm.name.clone(), system: files.system, budget: vm.budget, inner: files.inner }))
}

/// Each mistake for programs: the file or the flag, and in a file the line and the column, counted from 1.
fn places(mistakes: &Mistakes) -> Vec<Value> {
    let file = mistakes.file();
    let of = |(mistake, at): (&Mistake, Option<(usize, usize)>)| match (mistake.place(), at) {
        (_, Some((line, column))) => json!({"file": file, "line": line, "column": column, "message": mistake.message()}),
        (Place::Flag(flag), None) => json!({"flag": flag, "message": mistake.message()}),
        (_, None) => json!({"file": file, "message": mistake.message()}),
    };
    mistakes.places().map(of).collect()
}

/// `stile check`: explains the machine.
///
/// # Errors
/// The configuration has a mistake, a kernel can't be booted, or an image can't be used or shared.
pub fn check(args: &CheckArgs) -> Result<u8> {
    let config = match configure(&args.machine) {
        Err(error) if args.json && error.is::<Mistakes>() => {
            out::json(&json!({"mistakes": places(&error.downcast::<Mistakes>()?)}))?;
            return Ok(exit::USAGE);
        }
        config => config?,
    };
    disk::sharing::check(&config)?;
    for drive in config.vms.iter().flat_map(|vm| &vm.disks).filter(|drive| drive.file.exists()) {
        match drive.inspect(config.arch.option(), true) {
            Err(error) if exit::status_of(&error) != exit::LACKING => return Err(error),
            Ok(_) | Err(_) => {}
        }
    }
    let plans = plans_at_hand(&config)?;
    let explanation = crate::check::explain(&config, &plans, None);
    if args.json {
        out::json(&explanation)?;
    } else {
        out::line(explanation.text().trim_end())?;
    }
    Ok(exit::OK)
}

/// The memory layout of each VM, as far as it can be determined without fetching or building.
fn plans_at_hand(config: &MachineConfig) -> Result<Vec<Option<VmPlan>>> {
    let options = Options { report_exits: false, seed: Seed::Fixed, terminal: ("linux", (0, 0), true), text: "" };
    config
        .vms
        .iter()
        .map(|vm| match files(config.arch, vm, &options, Freshness::Cached) {
            Ok(files) => plan(config.arch, vm, &files, options.seed).map(Some),
            Err(error) if exit::status_of(&error) == exit::LACKING => Ok(None),
            Err(error) => Err(error),
        })
        .collect()
}

fn plan(arch: Arch, vm: &VmConfig, files: &Files, seed: Seed) -> Result<VmPlan> {
    let files = VmFiles {
        kernel: &files.kernel,
        initrd: files.initrd.as_deref(),
        bootargs: &files.bootargs,
        domains: &files.domains,
        disks: &files.disks,
    };
    image::plan_for(arch, vm, &files, seed).map_err(classify)
}

/// Whether a VM may have a network card: a device of the emulated machine, a served one, or one of the PCI functions.
fn may_have_networks(vm: &VmConfig) -> bool {
    let cards = !(vm.networks.is_empty() && vm.served_networks.is_empty());
    cards || vm.functions.len() > vm.emulated_functions() || vm.served.iter().any(|served| served.device == NET)
}

/// Notes a kernel that was not recognized, because any such file is run as a flat binary.
fn note_format(vm: &VmConfig, plan: &VmPlan) {
    if let (KernelSource::File(path), Format::Flat) = (&vm.kernel, plan.kernel.format) {
        out::note(format_args!(
            "stile: {}: {} is not an Image, an ELF program or firmware: it is taken for a flat binary, loaded at {entry:#x} and started \
             there",
            vm.name,
            path.display(),
            entry = plan.kernel.entry
        ));
    }
}

/// Notes that the kernel on a disk has no file system for shared folders.
fn note_missing_folders(vm: &str, release: &str) {
    if release.contains("-cloud-") {
        out::note(format_args!(
            "stile: {vm}: the disk's kernel {release} is one for clouds, without 9P: shared folders are not mounted. `apt-get install \
             linux-image-arm64` in the VM installs another one, `stile disk create --packages linux-image-arm64` begins with it"
        ));
    }
}

/// Distinguishes errors in the user's files from errors in this program.
fn classify(error: image::Error) -> anyhow::Error {
    match error {
        image::Error::Kernel { .. } | image::Error::Domain { .. } | image::Error::NoRoom { .. } => exit::usage(error.to_string()),
        image::Error::Random(_) | image::Error::Dtb { .. } | image::Error::Efi | image::Error::Other | image::Error::Blob(_) => {
            error.into()
        }
    }
}

fn files(arch: Arch, vm: &VmConfig, options: &Options<'_>, freshness: Freshness) -> Result<Files> {
    let mut inner = Vec::new();
    // The parameters of the disk's boot loader come first.
    let mut parameters = String::new();
    let (kernel, bundled, linux) = match &vm.kernel {
        KernelSource::File(path) => {
            let kernel = read(path)?;
            let names = image::guests(&kernel);
            if !names.is_empty() && vm.techniques.nested == Nested::Off {
                let what = "its kernel is an image of Stile, which needs an EL2 or VMX; expected nested = true in its [[vm]], or --nested";
                return Err(exit::usage(format!("{}: {what}", vm.name)));
            }
            inner = names.into_iter().map(|name| Guest { name, system: None, budget: Budget::default(), inner: Vec::new() }).collect();
            (kernel, None, false)
        }
        // Only locally available files are used.
        KernelSource::Stile(_) if freshness == Freshness::Cached => return Err(exit::lacking("Stile is not built yet")),
        KernelSource::Stile(machine) => {
            let machine = make(MachineConfig { memory: Some(vm.memory), ..(**machine).clone() }, options)?;
            inner = machine.guests;
            (machine.image.bytes, None, false)
        }
        KernelSource::Debian(which) => {
            let kernel = debian::kernel_for(arch, *which, freshness)?;
            (read(&kernel.kernel)?, kernel.initrd.as_deref().map(read).transpose()?, which.is_linux())
        }
        KernelSource::Disk => {
            let drive = vm.system_disk.as_ref().context("a VM that starts from a disk has none")?;
            if freshness == Freshness::Cached && !drive.file.exists() {
                return Err(exit::lacking(format!("{} is not there yet", drive.file.display())));
            }
            let files = disk::system::boot(arch, drive)?;
            parameters = files.parameters;
            if let (false, Some(release)) = (vm.folders.is_empty(), image::release(&files.kernel, vm.memory)) {
                note_missing_folders(&vm.name, &release);
            }
            (files.kernel, files.initrd, false)
        }
    };
    let mut bootargs: Vec<&str> = vec![&parameters];
    if linux || vm.initrd == InitrdSource::Busybox {
        bootargs.push(initramfs::kernel_arguments(arch));
    }
    let mut system = None;
    let initrd = match &vm.initrd {
        InitrdSource::None => None,
        InitrdSource::File(path) => Some(read(path)?),
        InitrdSource::Bundled => bundled,
        InitrdSource::Answered(path) => {
            bootargs.push(initramfs::UNATTENDED_ARGUMENTS);
            let preseed = read(path)?;
            bundled.map(|installer| initramfs::with_answers(installer, &preseed))
        }
        InitrdSource::Busybox => {
            let (terminal, size, keyboard) = options.terminal;
            let task = match &vm.exec {
                Some(command) => Task::Command(command),
                None => Task::Shell { terminal, size, keyboard },
            };
            if vm.exec.is_some() {
                bootargs.push(initramfs::QUIET_ARGUMENTS);
            }
            let marks = Marks::new(number(options.seed)?);
            let mut archive = initramfs::build(&read(&debian::busybox_for(arch, freshness)?)?, &vm.name, &task, &marks);
            if let (KernelSource::Debian(which), false) = (&vm.kernel, vm.functions.is_empty() && vm.served.is_empty()) {
                archive.extend(initramfs::with_drivers(&debian::drivers(arch, *which, freshness)?));
            }
            if let (KernelSource::Debian(which), false) = (&vm.kernel, vm.memory_disks.is_empty()) {
                archive.extend(initramfs::with_memory_disks(&debian::memory_disk_modules(arch, *which, freshness)?));
            }
            let folders: Vec<_> = vm.all_folders().cloned().collect();
            if !folders.is_empty() || vm.served.iter().any(|served| served.device == FS) {
                let modules = match &vm.kernel {
                    KernelSource::Debian(which) => debian::folder_modules(arch, *which, freshness)?,
                    // A user's kernel may have the file systems built in.
                    KernelSource::File(_) | KernelSource::Disk | KernelSource::Stile(_) => Vec::new(),
                };
                archive.extend(initramfs::with_folders(&modules, &folders, vm.serves != 0));
            }
            let has = |device| vm.served.iter().any(|served| served.device == device);
            if may_have_networks(vm) {
                archive.extend(initramfs::with_networks());
            }
            if let (KernelSource::Debian(which), true) = (&vm.kernel, has(CONSOLE)) {
                archive.extend(initramfs::with_consoles(&debian::console_modules(arch, *which, freshness)?));
            }
            if let (KernelSource::Debian(which), true) = (&vm.kernel, has(VSOCK)) {
                archive.extend(initramfs::with_sockets(
                    &debian::socket_modules(arch, *which, freshness)?,
                    &devices(arch, freshness, "stile-vsock")?,
                ));
            }
            if let (KernelSource::Debian(which), true) = (&vm.kernel, vm.serves != 0)
                && let Some(module) = debian::served_module(arch, *which, freshness)?
            {
                let modules = [debian::bridge_modules(arch, *which, freshness)?, vec![module]].concat();
                archive.extend(initramfs::with_server(&modules, &devices(arch, freshness, "stile-devices")?, &back_ends(arch, vm)?));
            }
            if let (KernelSource::Debian(which), Arch::X86_64, IpiAccess::Direct | IpiAccess::Gate) = (&vm.kernel, arch, vm.techniques.ipi)
            {
                archive.extend(initramfs::with_drivers(debian::ipi_module(*which, freshness)?.as_slice()));
            }
            if let (KernelSource::Debian(which), Arch::X86_64, true) = (&vm.kernel, arch, vm.techniques.nested != Nested::Off) {
                archive.extend(initramfs::with_drivers(&debian::kvm_modules(*which, freshness)?));
            }
            if wants_l2(vm) {
                archive.extend(l2(arch, freshness));
            }
            system = Some(System { marks, command: vm.exec.is_some(), size });
            Some(archive)
        }
    };
    let mounts = disk::system::mounts(vm.all_folders());
    if vm.kernel == KernelSource::Disk {
        bootargs.push(&mounts);
    }
    // The user's parameters come last, because the last of several duplicates takes effect.
    bootargs.push(&vm.append);
    let mut bootargs = bootargs.join(" ").trim().to_owned();
    if let (KernelSource::Disk, Some(command)) = (&vm.kernel, &vm.exec) {
        let marks = Marks::new(number(options.seed)?);
        bootargs = format!("{bootargs} {}", disk::system::command(arch, command, &marks, vm.seconds_to_address(), &bootargs)?);
        system = Some(System { marks, command: true, size: options.terminal.1 });
    }
    let domains = vm.domains.iter().map(|domain| read(&domain.kernel)).collect::<Result<_>>()?;
    let disks = vm.memory_disks.iter().map(MemoryDisk::read).collect::<Result<_>>()?;
    Ok(Files { kernel, initrd, bootargs, domains, disks, system, inner })
}

/// Minimum memory of a VM that contains another one: kernel and system are in memory twice while the VM
/// starts.
const L1_MEMORY: u64 = 512 << 20;

/// Whether the busybox system of a VM gets a VM for its KVM. Omitted for a command that does not start it, to
/// save time and memory.
fn wants_l2(vm: &VmConfig) -> bool {
    vm.memory >= L1_MEMORY
        && vm.techniques.nested != Nested::Off
        && vm.exec.as_ref().is_none_or(|command| command.contains(l2::client::PROGRAM))
}

/// Output of Debian as L2.
const L2_COMMAND: &str = "echo \"Hello from a VM in a VM: Linux $(uname -r)\"";

/// The additional archive with a VM for KVM. The kernel accepts several concatenated archives ("Ramfs, rootfs
/// and initramfs"). Optional: without it the system lacks only that VM.
fn l2(arch: Arch, freshness: Freshness) -> Vec<u8> {
    // Only uses available files: nothing is built for it.
    if freshness == Freshness::Cached {
        return Vec::new();
    }
    let made = l2::Debian::new_for(arch, 1, L2_COMMAND).and_then(|debian| debian.addition());
    made.unwrap_or_else(|error| {
        out::note(format_args!("stile: {} has no VM to run: {error:#}", l2::client::PROGRAM));
        Vec::new()
    })
}

/// A program of the package with that which serves devices.
fn devices(arch: Arch, freshness: Freshness, program: &str) -> Result<Vec<u8>> {
    // Only uses available files.
    if freshness == Freshness::Cached {
        return Err(exit::lacking(format!("{program} is not built yet")));
    }
    l2::linux::build_one(arch, Path::new("devices"), "stile-devices", program)
}

/// Programs that carry out requests for `stile-devices`, with their libraries, and `qemu-img`; none for a command that does not start them.
fn back_ends(arch: Arch, vm: &VmConfig) -> Result<BTreeMap<String, Vec<u8>>> {
    let wants = |option: &str| vm.exec.as_ref().is_none_or(|command| command.contains(option));
    let mut files = BTreeMap::new();
    if wants("format=qcow2") {
        files.extend(debian::programs(arch, "qemu-utils", &["usr/bin/qemu-storage-daemon", "usr/bin/qemu-img"])?);
    }
    if wants(" fs=") {
        files.extend(debian::programs(arch, "virtiofsd", &["usr/libexec/virtiofsd"])?);
    }
    Ok(files)
}

/// The number in the marks of a system.
///
/// # Errors
/// The host has no random numbers.
pub fn number(seed: Seed) -> Result<u64> {
    match seed {
        Seed::Random => getrandom::u64().map_err(|error| image::Error::Random(error).into()),
        Seed::Fixed => Ok(0x5717_e000_0000_0001),
    }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).map_err(|error| exit::usage(format!("{} can't be read: {error}", path.display())))
}
