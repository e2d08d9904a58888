//! A whole Debian as L2: the file system of an L1 whose KVM runs it.

use anyhow::{Context, Result};
use stile_blob::{OnReset, Techniques};

use super::client::{self, Vm};
use super::linux;
use crate::config::{Arch, DebianKernel, InitrdSource, KernelSource, VmConfig};
use crate::debian::{self, Freshness};
use crate::image::{self, Seed, VmFiles};
use crate::initramfs::{self, Marks, Task};

/// Its name.
const NAME: &str = "debian";

/// Its memory, in bytes.
const MEMORY: u64 = 256 << 20;

/// The file system of an L1 that runs Debian's newest kernel with so many vCPUs and this command, and the names of its VMs.
///
/// # Errors
/// Something can't be built or fetched.
pub fn debian(vcpus: u8, command: &str) -> Result<(Vec<u8>, Vec<String>)> {
    let read = |path: &std::path::Path| std::fs::read(path).with_context(|| format!("reading {}", path.display()));
    let kernel = read(&debian::kernel(DebianKernel::Newest, Freshness::Weekly)?.kernel)?;
    let busybox = read(&debian::busybox(Freshness::Weekly)?)?;
    let initrd = initramfs::build(&busybox, NAME, &Task::Command(command), &Marks::new(0));
    let bootargs = format!("{} loglevel=4", initramfs::kernel_arguments(Arch::Aarch64));
    let config = VmConfig {
        name: NAME.into(),
        kernel: KernelSource::Debian(DebianKernel::Newest),
        initrd: InitrdSource::Busybox,
        append: String::new(),
        memory: MEMORY,
        vcpus,
        cpus: 0,
        pinned: false,
        on_reset: OnReset::Stop,
        exec: None,
        techniques: Techniques::default(),
    };
    let plan = image::plan(&config, &VmFiles { kernel: &kernel, initrd: Some(&initrd), bootargs: &bootargs }, Seed::Fixed)?;
    let paths: Vec<String> = (0..plan.kernel.segments.len()).map(|index| format!("/kernel-{index}")).collect();
    let mut loads: Vec<_> = paths.iter().map(String::as_str).zip(plan.kernel.segments.iter().map(|segment| segment.ipa)).collect();
    loads.extend(plan.layout.initrd.iter().map(|range| ("/initrd", range.start)));
    loads.push(("/tree", plan.layout.dtb.start));
    let vm =
        Vm { arch: Arch::Aarch64, name: NAME, vcpus, memory: MEMORY, loads: &loads, entry: plan.kernel.entry, tree: plan.layout.dtb.start };
    let mut archive = client::archive(&linux::build(client::PROGRAM)?, &[vm]);
    for (path, segment) in paths.iter().zip(&plan.kernel.segments) {
        archive.file(path.trim_start_matches('/'), 0o644, plan.kernel.bytes(segment));
    }
    archive.file("initrd", 0o644, &initrd);
    archive.file("tree", 0o644, &plan.dtb);
    Ok((archive.finish(), vec![NAME.to_owned()]))
}
