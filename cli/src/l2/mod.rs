//! Kernels as L2: the file system of an L1 whose KVM runs them.

pub mod client;
pub mod linux;
pub mod vm;

use std::path::Path;

use anyhow::{Context, Result};

use client::Vm;
use vm::vm;

use crate::config::{Arch, DebianKernel, InitrdSource, KernelSource, VmConfig};
use crate::debian::{self, Freshness};
use crate::image::{self, Seed, VmFiles};
use crate::initramfs::cpio::Archive;
use crate::initramfs::{self, Marks, Task};

/// A VM of L1's.
struct Guest<'a> {
    name: &'a str,
    vcpus: u8,
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
    vcpus: u8,
}

impl Debian {
    const NAME: &'static str = "debian";

    /// A guest with `vcpus` vCPUs, whose shell runs `command` and powers off.
    ///
    /// # Errors
    /// Something can't be fetched.
    pub fn new(vcpus: u8, command: &str) -> Result<Self> {
        let kernel = read(&debian::kernel(DebianKernel::Newest, Freshness::Weekly)?.kernel)?;
        let busybox = read(&debian::busybox(Freshness::Weekly)?)?;
        // The marks are read by people: they need no number to distinguish them from output.
        let marks = |word: &str| word.to_owned();
        let marks =
            Marks { begin: marks("\r\n"), end: marks("\r\n[status "), stop: marks("]\r\n"), bye: String::new(), ready: String::new() };
        let initrd = initramfs::build(&busybox, Self::NAME, &Task::Command(command), &marks);
        let bootargs = format!("{} loglevel=4", initramfs::kernel_arguments(Arch::Aarch64));
        Ok(Self { kernel, initrd, bootargs, vcpus })
    }

    /// Its files.
    pub fn files(&self) -> VmFiles<'_> {
        VmFiles { kernel: &self.kernel, initrd: Some(&self.initrd), bootargs: &self.bootargs, domains: &[] }
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
        archive(&[self.guest()], client::archive)
    }

    /// Files added to the small system of an L1, in which `kvm-client vm debian` starts it then.
    ///
    /// # Errors
    /// KVM's client can't be built.
    pub fn addition(&self) -> Result<Vec<u8>> {
        Ok(archive(&[self.guest()], client::addition)?.0)
    }

    fn guest(&self) -> Guest<'_> {
        let source = KernelSource::Debian(DebianKernel::Newest);
        Guest { name: Self::NAME, vcpus: self.vcpus, memory: 256 << 20, source, files: self.files() }
    }
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
pub fn programs(vcpus: u8, programs: &[(&str, &Path, &str)]) -> Result<(Vec<u8>, Vec<String>)> {
    let kernels = programs.iter().map(|(_, path, _)| read(path)).collect::<Result<Vec<_>>>()?;
    let guests = programs.iter().zip(&kernels).map(|(&(name, path, bootargs), kernel)| Guest {
        name,
        vcpus,
        memory: 64 << 20,
        source: KernelSource::File(path.to_path_buf()),
        files: VmFiles { kernel, initrd: None, bootargs, domains: &[] },
    });
    archive(&guests.collect::<Vec<_>>(), client::archive)
}

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).with_context(|| format!("reading {}", path.display()))
}

/// The archive that `around` makes of the VMs' files, the client and the VMs' descriptions.
fn archive(guests: &[Guest<'_>], around: fn(&[u8], &[Vm<'_>]) -> Archive) -> Result<(Vec<u8>, Vec<String>)> {
    let mut files = Vec::new();
    let mut places = Vec::new();
    for guest in guests {
        let config = guest.config();
        let plan = image::plan(&config, &guest.files, Seed::Fixed)?;
        let mut loads = Vec::new();
        let mut load = |what: &str, gpa: u64, content: &[u8]| {
            let file = format!("{}-{what}", guest.name);
            loads.push((format!("/{file}"), gpa));
            files.push((file, content.to_vec()));
        };
        for (index, segment) in plan.kernel.segments.iter().enumerate() {
            load(&format!("kernel-{index}"), segment.gpa, plan.kernel.bytes(segment));
        }
        if let (Some(range), Some(initrd)) = (&plan.layout.initrd, guest.files.initrd) {
            load("initrd", range.start, initrd);
        }
        load("tree", plan.layout.dtb.start, &plan.dtb);
        places.push((loads, plan.kernel.entry, plan.layout.dtb.start));
    }
    let loads: Vec<Vec<_>> = places.iter().map(|(loads, ..)| loads.iter().map(|(path, gpa)| (path.as_str(), *gpa)).collect()).collect();
    let vms: Vec<_> = guests
        .iter()
        .zip(&places)
        .zip(&loads)
        .map(|((guest, &(_, entry, tree)), loads)| Vm {
            arch: Arch::Aarch64,
            name: guest.name,
            vcpus: guest.vcpus,
            memory: guest.memory,
            loads,
            entry,
            tree,
            el2: false,
        })
        .collect();
    let mut archive = around(&linux::build(client::PROGRAM)?, &vms);
    for (path, content) in &files {
        archive.file(path, 0o644, content);
    }
    Ok((archive.finish(), guests.iter().map(|guest| guest.name.to_owned()).collect()))
}
