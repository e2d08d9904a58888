//! The scenarios with a hypervisor in a VM that has an EL2 of its own.

use anyhow::{Context, Result};

use super::scenario::{Expect, Scenario};
use super::table::NO_DIFFERENCE;
use crate::{bench, cargo};

/// Debian's KVM starts at EL2, on every CPU of its VM.
pub fn starts() -> Vec<Scenario> {
    [1, 2]
        .map(|vcpus| {
            let scenario = Scenario::new(format!("nested/kvm-starts-on-{vcpus}"), &format!("--nested --vcpus {vcpus} --exits"));
            let scenario = scenario.with("--exec", "dmesg | grep -o 'VHE mode initialized successfully'; nproc");
            let output = vec!["VHE mode initialized successfully".into(), format!("{vcpus}\n")];
            let notes = vec![NO_DIFFERENCE.into(), "ERET to its own user space".into()];
            Scenario { expect: Expect { output, notes, ..Expect::default() }, timeout: 600, ..scenario }
        })
        .into()
}

/// The probe as a VM of that KVM's: its hypercalls, devices, interrupts and timer, and what of it L1 is told.
///
/// # Errors
/// The probe or KVM's client can't be built, or a file can't be written.
pub fn probe() -> Result<Vec<Scenario>> {
    let operations = ["hyp_call", "mmio_read_vgic", "mmio_read_device", "eoi", "ipi_self", "timer"];
    let (archive, counts) = bench::nested_probe(&operations, 64)?;
    let folder = cargo::repository().join("target/nested");
    std::fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
    let path = folder.join("probe.cpio");
    std::fs::write(&path, archive).with_context(|| format!("writing {}", path.display()))?;
    let scenario = Scenario::new("nested/probe-as-l2", "--nested --kernel debian --icount --exits")
        .with("--initrd", path.display().to_string())
        .with("--append", bench::client_boot_arguments("loglevel=4", &counts));
    let output = operations.map(|operation| format!("{{\"operation\":\"{operation}\",\"instructions\"")).into();
    let notes = [NO_DIFFERENCE, "FORWARDED", "ICC_SGI1R_EL1 write", "data abort", "ERET to its guest", "ICH_MISR_EL2 read"];
    let expect = Expect { output, notes: notes.map(Into::into).into(), absent: vec!["probe: "], ..Expect::default() };
    Ok(vec![Scenario { expect, timeout: 900, ..scenario }])
}
