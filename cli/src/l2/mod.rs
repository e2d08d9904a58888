//! Kernels as L2: the file system of an L1 whose KVM runs them.

pub mod client;
pub mod linux;
pub mod vm;

use std::path::Path;

use anyhow::{Context, Result};

use client::{Planned, Vm};
use vm::vm;

use crate::config::{Arch, DebianKernel, InitrdSource, KernelSource, VmConfig};
use crate::debian::{self, Freshness, Module};
use crate::image::{self, Seed, VmFiles};
use crate::initramfs::cpio::Archive;
use crate::initramfs::{self, Marks, Task};

/// A VM of L1's.
struct Guest<'a> {
    name: &'a str,
    vcpus: u16,
    /// In bytes.
    memory: u64,
    source: KernelSource,
    files: VmFiles<'a>,
}

/// The newest Debian, as a VM of a hypervisor in a VM.
pub struct Debian {
    kernel: Vec<u8>,
    initrd: Vec<u8>,
    bootargs: String,
    arch: Arch,
    vcpus: u16,
}

impl Debian {
    const NAME: &'static str = "debian";

    /// A guest for Arm with `vcpus` vCPUs, whose shell runs `command` and powers off.
    ///
    /// # Errors
    /// Something can't be fetched.
    pub fn new(vcpus: u16, command: &str) -> Result<Self> {
        Self::new_for(Arch::Aarch64, vcpus, command)
    }

    /// A guest for any architecture: see [`Debian::new`].
    ///
    /// # Errors
    /// Something can't be fetched.
    pub fn new_for(arch: Arch, vcpus: u16, command: &str) -> Result<Self> {
        let kernel = read(&debian::kernel_for(arch, DebianKernel::Newest, Freshness::Weekly)?.kernel)?;
        let initrd = system(arch, Self::NAME, command)?;
        let bootargs = format!("{} loglevel=4", initramfs::kernel_arguments(arch));
        Ok(Self { kernel, initrd, bootargs, arch, vcpus })
    }

    /// Its files.
    pub fn files(&self) -> VmFiles<'_> {
        VmFiles { kernel: &self.kernel, initrd: Some(&self.initrd), bootargs: &self.bootargs, domains: &[], disks: &[] }
    }

    /// The VM.
    pub fn config(&self) -> VmConfig {
        self.guest().config()
    }

    /// Builds the file system of an L1 that runs the VM, and returns it with the names of its VMs.
    ///
    /// # Errors
    /// Something can't be built.
    pub fn archive(&self) -> Result<(Vec<u8>, Vec<String>)> {
        let modules = match self.arch {
            Arch::Aarch64 => Vec::new(),
            Arch::X86_64 => debian::kvm_modules(DebianKernel::V6_1, Freshness::Weekly)?,
        };
        archive(self.arch, &[self.guest()], client::archive, &modules)
    }

    /// Files added to the small system of an L1, in which `kvm-client vm debian` starts it then.
    ///
    /// # Errors
    /// KVM's client can't be built.
    pub fn addition(&self) -> Result<Vec<u8>> {
        Ok(archive(self.arch, &[self.guest()], client::addition, &[])?.0)
    }

    fn guest(&self) -> Guest<'_> {
        let source = KernelSource::Debian(DebianKernel::Newest);
        Guest { name: Self::NAME, vcpus: self.vcpus, memory: 256 << 20, source, files: self.files() }
    }
}

/// A small system that runs a command and powers off.
///
/// # Errors
/// Busybox can't be fetched.
pub fn system(arch: Arch, name: &str, command: &str) -> Result<Vec<u8>> {
    let busybox = read(&debian::busybox_for(arch, Freshness::Weekly)?)?;
    // The marks are read by people: they need no number to distinguish them from output.
    let marks = |word: &str| word.to_owned();
    let marks = Marks { begin: marks("\r\n"), end: marks("\r\n[status "), stop: marks("]\r\n"), bye: String::new(), ready: String::new() };
    Ok(initramfs::build(&busybox, name, &Task::Command(command), &marks))
}

impl Guest<'_> {
    fn config(&self) -> VmConfig {
        VmConfig { initrd: InitrdSource::Busybox, ..vm(self.name, self.source.clone(), self.memory, self.vcpus) }
    }
}

/// The file system of an L1 that runs programs one after the other, each with `vcpus` vCPUs (name, file, boot
/// arguments); and their names.
///
/// # Errors
/// A file can't be read, or KVM's client can't be built.
pub fn programs(vcpus: u16, programs: &[(&str, &Path, &str)]) -> Result<(Vec<u8>, Vec<String>)> {
    let kernels = programs.iter().map(|(_, path, _)| read(path)).collect::<Result<Vec<_>>>()?;
    let guests = programs.iter().zip(&kernels).map(|(&(name, path, bootargs), kernel)| Guest {
        name,
        vcpus,
        memory: 64 << 20,
        source: KernelSource::File(path.to_path_buf()),
        files: VmFiles { kernel, initrd: None, bootargs, domains: &[], disks: &[] },
    });
    archive(Arch::Aarch64, &guests.collect::<Vec<_>>(), client::archive, &[])
}

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).with_context(|| format!("reading {}", path.display()))
}

/// The archive that `around` makes of the VMs' files, the client and the VMs' descriptions, with the modules that the client loads.
fn archive(
    arch: Arch,
    guests: &[Guest<'_>],
    around: fn(&[u8], &[Vm<'_>]) -> Archive,
    modules: &[Module],
) -> Result<(Vec<u8>, Vec<String>)> {
    let planned = |guest: &Guest<'_>| -> Result<Planned> {
        let config = guest.config();
        let plan = image::plan_for(arch, &config, &guest.files, Seed::Fixed)?;
        Ok(Planned { arch, config, plan })
    };
    let vms = guests.iter().map(planned).collect::<Result<Vec<_>>>()?;
    let mut archive = client::planned(&linux::build_for(arch, client::PROGRAM)?, around, &vms);
    if !modules.is_empty() {
        archive.modules(modules);
    }
    Ok((archive.finish(), guests.iter().map(|guest| guest.name.to_owned()).collect()))
}
