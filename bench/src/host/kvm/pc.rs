//! The probe in a VM of KVM's on a PC.

use anyhow::Result;
use stile_blob::Techniques;

use crate::operation::Operation;
use crate::platform::Platform;
use crate::probe;
use stile::config::Arch;
use stile::debian::{self, Freshness};
use stile::image::{self, Seed, VmFiles};
use stile::l2::client::{self, Vm};

/// The host's file system, and the names of the VMs to start. What is in their memory is what is there under Stile.
pub fn archive(client: &[u8], probe: &[u8], operations: &[Operation], iterations: u32) -> Result<(Vec<u8>, Vec<String>)> {
    let mut vms = Vec::new();
    for (needs, operations) in Platform::groups(operations) {
        let name = format!("probe-{}", needs.vcpus());
        let bootargs = probe::arguments(&operations, iterations);
        let plan = image::plan_for(
            Arch::X86_64,
            &probe::vm(needs, Techniques::default()),
            &VmFiles { kernel: probe, initrd: None, bootargs: &bootargs, domains: &[] },
            Seed::Fixed,
        )?;
        let segments = plan.kernel.segments.iter().map(|segment| (plan.kernel.bytes(segment).to_vec(), segment.gpa));
        let files: Vec<_> = segments.chain([(plan.dtb.clone(), plan.layout.dtb.start)]).collect();
        let paths: Vec<_> = (0..files.len()).map(|index| format!("/{name}-{index}")).collect();
        vms.push((name, needs.vcpus(), files, paths, plan.kernel.entry, plan.layout.dtb.start));
    }
    let loads: Vec<Vec<_>> = vms
        .iter()
        .map(|(_, _, files, paths, ..)| paths.iter().map(String::as_str).zip(files.iter().map(|(_, place)| *place)).collect())
        .collect();
    let described = vms.iter().zip(&loads).map(|((name, vcpus, .., entry, tree), loads)| Vm {
        el2: false,
        arch: Arch::X86_64,
        name,
        vcpus: *vcpus,
        memory: probe::MEMORY,
        loads,
        entry: *entry,
        tree: *tree,
    });
    let mut archive = client::archive(client, &described.collect::<Vec<_>>());
    for (_, _, files, paths, ..) in &vms {
        for ((content, _), path) in files.iter().zip(paths) {
            archive.file(path.trim_start_matches('/'), 0o644, content);
        }
    }
    for module in debian::kvm_modules(Freshness::Weekly)? {
        archive.file(module.name, 0o644, &module.bytes);
    }
    Ok((archive.finish(), vms.into_iter().map(|(name, ..)| name).collect()))
}
