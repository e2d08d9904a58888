//! A whole Debian as L2: the file system of an L1 whose KVM runs it.

use anyhow::{Context, Result};
use stile_blob::{OnReset, Techniques};

use super::client;
use super::linux;
use crate::config::{Arch, DebianKernel, InitrdSource, KernelSource, VmConfig};
use crate::debian::{self, Freshness};
use crate::image::{self, Seed, VmFiles};
use crate::initramfs::{self, Marks, Task};

/// Its name.
const NAME: &str = "debian";

/// Its memory, in bytes.
const MEMORY: u64 = 256 << 20;

/// The newest Debian, as a VM of a hypervisor in a VM.
pub struct Debian {
    kernel: Vec<u8>,
    initrd: Vec<u8>,
    bootargs: String,
    vcpus: u8,
}

impl Debian {
    /// One with so many vCPUs, whose shell runs this command and turns it off.
    ///
    /// # Errors
    /// Something can't be fetched.
    pub fn new(vcpus: u8, command: &str) -> Result<Self> {
        let read = |path: &std::path::Path| std::fs::read(path).with_context(|| format!("reading {}", path.display()));
        let kernel = read(&debian::kernel(DebianKernel::Newest, Freshness::Weekly)?.kernel)?;
        let busybox = read(&debian::busybox(Freshness::Weekly)?)?;
        let initrd = initramfs::build(&busybox, NAME, &Task::Command(command), &Marks::new(0));
        let bootargs = format!("{} loglevel=4", initramfs::kernel_arguments(Arch::Aarch64));
        Ok(Self { kernel, initrd, bootargs, vcpus })
    }

    /// The VM.
    pub fn config(&self) -> VmConfig {
        VmConfig {
            name: NAME.into(),
            kernel: KernelSource::Debian(DebianKernel::Newest),
            initrd: InitrdSource::Busybox,
            append: String::new(),
            memory: MEMORY,
            vcpus: self.vcpus,
            cpus: 0,
            pinned: false,
            on_reset: OnReset::Stop,
            exec: None,
            techniques: Techniques::default(),
        }
    }

    /// Its files.
    pub fn files(&self) -> VmFiles<'_> {
        VmFiles { kernel: &self.kernel, initrd: Some(&self.initrd), bootargs: &self.bootargs }
    }

    /// The file system of an L1 that runs it, and the names of its VMs.
    ///
    /// # Errors
    /// Something can't be built.
    pub fn archive(&self) -> Result<(Vec<u8>, Vec<String>)> {
        let config = self.config();
        let plan = image::plan(&config, &self.files(), Seed::Fixed)?;
        Ok((client::planned(&linux::build(client::PROGRAM)?, &config, &plan), vec![config.name]))
    }
}
