//! The probe in a KVM guest on a PC.

use anyhow::Result;
use stile_blob::Techniques;

use crate::operation::{Needs, Operation};
use crate::platform::Platform;
use crate::probe;
use stile::config::{Arch, DebianKernel, VmConfig};
use stile::debian::{self, Freshness};
use stile::image::{self, Seed, VmFiles};
use stile::l2::client::{self, Planned};

/// Builds the file system of a host with this CPU model, and returns it with the names of the VMs to start. Their memory has the same contents as under Stile.
///
/// # Errors
/// A VM can't be planned; KVM's modules can't be fetched.
pub fn archive(client: &[u8], probe: &[u8], operations: &[Operation], iterations: u32, cpu: &str) -> Result<(Vec<u8>, Vec<String>)> {
    let vm = |(needs, operations): (Needs, Vec<Operation>)| -> Result<Planned> {
        let bootargs = probe::arguments(&operations, iterations);
        let config = VmConfig { name: format!("probe-{}", needs.vcpus()), ..probe::vm(needs, Techniques::default()) };
        let files = VmFiles { kernel: probe, initrd: None, bootargs: &bootargs, domains: &[], disks: &[] };
        let plan = image::plan_for(Arch::X86_64, &config, &files, Seed::Fixed)?;
        Ok(Planned { arch: Arch::X86_64, config, plan })
    };
    let vms = Platform::groups(operations).into_iter().map(vm).collect::<Result<Vec<_>>>()?;
    let mut archive = client::planned(client, client::archive, &vms);
    archive.modules(&match Arch::X86_64.has_amd_v(cpu) {
        true => debian::kvm_modules_of_amd(Freshness::Weekly)?,
        false => debian::kvm_modules(DebianKernel::V6_1, Freshness::Weekly)?,
    });
    Ok((archive.finish(), vms.into_iter().map(|vm| vm.config.name).collect()))
}
