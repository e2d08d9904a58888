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

/// The probe as a VM of that KVM's: its hypercalls, devices, interrupts and timer, and what of it L1 is told. With one vCPU, and with two.
///
/// # Errors
/// The probe or KVM's client can't be built, or a file can't be written.
pub fn probe() -> Result<Vec<Scenario>> {
    let one = ["hyp_call", "mmio_read_vgic", "mmio_read_device", "eoi", "ipi_self", "timer"];
    let two = ["ipi", "ipi_wfi", "wfi_wake"];
    Ok(vec![
        l2("nested/probe-as-l2", 1, &one, &["data abort", "ERET to its guest", "ICH_MISR_EL2 read"])?,
        l2("nested/two-vcpus-of-l2", 2, &two, &["WFI or WFE"])?,
    ])
}

/// L1 with so many CPUs, and these operations of its VM's.
fn l2(name: &str, vcpus: u8, operations: &[&str], rows: &[&str]) -> Result<Scenario> {
    let (archive, names) = bench::nested_probe(operations, 64)?;
    let folder = cargo::repository().join("target/nested");
    std::fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
    let path = folder.join(format!("probe-{vcpus}.cpio"));
    std::fs::write(&path, archive).with_context(|| format!("writing {}", path.display()))?;
    let scenario = Scenario::new(name, &format!("--nested --kernel debian --vcpus {vcpus} --icount --exits"))
        .with("--initrd", path.display().to_string())
        .with("--append", bench::client_boot_arguments("loglevel=4", &names));
    let output = operations.iter().map(|operation| format!("{{\"operation\":\"{operation}\",\"instructions\"")).collect();
    let notes = [NO_DIFFERENCE, "FORWARDED", "ICC_SGI1R_EL1 write"].iter().chain(rows).map(|&note| note.into()).collect();
    let expect = Expect { output, notes, absent: vec!["probe: "], ..Expect::default() };
    Ok(Scenario { expect, timeout: 900, ..scenario })
}
