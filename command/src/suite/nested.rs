//! Scenarios with a guest hypervisor at virtual EL2.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::scenario::{Expect, NO_DIFFERENCE, Scenario};
use super::test::Test;
use stile::config::Arch;
use stile::session::SAME_MEMORY;
use stile::{cargo, l2};
use stile_bench as bench;

/// Debian's KVM starts at virtual EL2, on every CPU of its VM.
pub fn starts() -> Vec<Scenario> {
    [1, 2]
        .map(|vcpus| {
            let scenario = Scenario::new(format!("nested/kvm-starts-on-{vcpus}"), &format!("--nested --vcpus {vcpus} --exits"));
            let start = "dmesg | grep -o 'VHE mode initialized successfully'; nproc";
            let mut output = vec!["VHE mode initialized successfully".into(), format!("{vcpus}\n")];
            // As docs/nested.md states, the small Debian system contains KVM's client and a VM.
            let by_hand = if vcpus == 1 { "; kvm-client vm debian" } else { "" };
            output.extend((vcpus == 1).then(|| "Hello from a VM in a VM".into()));
            let scenario = scenario.with("--exec", format!("{start}{by_hand}"));
            let notes = vec![NO_DIFFERENCE.into(), "ERET to its own user space".into()];
            Scenario { expect: Expect { output, notes, ..Expect::default() }, ..scenario }
        })
        .into_iter()
        .chain([trapped_deactivations()])
        .collect()
}

/// All of L1's deactivations trap. L1 deasserts the line of its maintenance interrupt without an exit, so the deactivation must sample the
/// line as low: otherwise the interrupt repeats forever.
fn trapped_deactivations() -> Scenario {
    let config = "[[vm]]\nkernel = \"debian\"\nnested = true\nmemory = \"1G\"\nexec = \"kvm-client vm debian\"\n\
                  [vm.techniques]\nbinary_point = \"common\"\n";
    let expect = Expect {
        output: vec!["Hello from a VM in a VM".into()],
        notes: vec![NO_DIFFERENCE.into(), "ICC_DIR_EL1".into()],
        ..Expect::default()
    };
    Scenario { config: Some(config.into()), expect, ..Scenario::new("nested/trapped-deactivations", "--exits") }
}

/// Debian and the probe as VMs of Debian's KVM with two vCPUs, and their exits that reach L1. The budget tests run the probe with one vCPU,
/// under KVM and Xen.
pub fn probes() -> Vec<Test> {
    let two = &["ipi", "ipi_wfi", "wfi_wake"];
    let trapped = &["TPIDR_EL2 read", "VBAR_EL12 read", "CNTV_CTL_EL02 write", "ICH_LR0_EL2 write"];
    let trapping = &["hyp_call", "mmio_read_device", "ipi_self", "timer", "ipi"];
    vec![
        debian_as_l2("nested/debian-as-l2", VHE),
        probe_as_l2("nested/two-vcpus-of-l2", two, VHE, &["WFI or WFE", "ERET to its guest", "ICH_MISR_EL2 read"]),
        probe_as_l2("nested/trap-by-trap", trapping, TRAP_BY_TRAP, trapped),
        // Debian's kernel at EL1, and KVM's nVHE code at EL2, with HCR_EL2.E2H clear.
        debian_as_l2("nested/nvhe-debian-as-l2", NVHE),
        probe_as_l2("nested/nvhe-two-vcpus-of-l2", two, NVHE, &["WFI or WFE", "ERET to its guest", "ICH_MISR_EL2 read"]),
        probe_as_l2("nested/protected-two-vcpus-of-l2", two, PROTECTED, &["HCR_EL2.E2H changed", "ERET to its guest"]),
        // Older kernels, whose KVM does more at each exit.
        probe_as_l2("nested/debian-6.12-two-vcpus-of-l2", two, VHE_6_12, &["ERET to its guest", "ICC_SRE_EL2 write"]),
        probe_as_l2("nested/debian-6.1-nvhe-two-vcpus-of-l2", two, NVHE_6_1, &["ERET to its guest", "CPTR_EL2 write"]),
    ]
}

/// Debian with two vCPUs, and its interrupts.
fn debian_as_l2(name: &'static str, l1: L1Config) -> Test {
    Test::made(name, Arch::Aarch64, move || {
        let debian = l2::Debian::new(2, "echo $(nproc) CPUs; cat /proc/interrupts")?.archive()?;
        let scenario = start(name, l1, &debian, "")?;
        let output = vec!["2 CPUs".into(), "arch_timer".into()];
        let notes = [NO_DIFFERENCE, "FORWARDED"].map(Into::into).into();
        Ok(Scenario { expect: Expect { output, notes, ..Expect::default() }, timeout: 1800, ..scenario })
    })
}

/// The kind of virtual EL2 that L1 has, and how its KVM uses it: arguments of `run`, and of L1's kernel.
type L1Config = [&'static str; 2];
const VHE: L1Config = ["--nested --kernel debian", "loglevel=4"];
const TRAP_BY_TRAP: L1Config = ["--nested=nv --kernel debian", "loglevel=4"];
const NVHE: L1Config = ["--nested --kernel debian", "loglevel=4 kvm-arm.mode=nvhe"];
/// Protected KVM: it keeps EL2 for itself, with HCR_EL2.E2H set, and the host's kernel at EL1 has a second stage, too.
const PROTECTED: L1Config = ["--nested --kernel debian", "loglevel=4 kvm-arm.mode=protected"];
const VHE_6_12: L1Config = ["--nested --kernel debian:6.12", "loglevel=4"];
const NVHE_6_1: L1Config = ["--nested --kernel debian:6.1", "loglevel=4 kvm-arm.mode=nvhe"];

/// L1 with two vCPUs, configured by `l1`, whose VM runs these operations of the probe. `rows`: rows that the ledger must have.
fn probe_as_l2(name: &'static str, operations: &'static [&str], l1: L1Config, rows: &'static [&str]) -> Test {
    Test::made(name, Arch::Aarch64, move || {
        let scenario = start(name, l1, &bench::nested_probe(operations, 64)?, "--icount")?;
        let output = operations.iter().map(|operation| format!("{{\"operation\":\"{operation}\",\"instructions\"")).collect();
        let notes = [NO_DIFFERENCE, "FORWARDED", "ICC_SGI1R_EL1 write"].iter().chain(rows).map(|&note| note.into()).collect();
        let expect = Expect { output, notes, absent: vec!["probe: "], ..Expect::default() };
        Ok(Scenario { expect, timeout: 900, ..scenario })
    })
}

/// Conformance suites as L2 under Debian's KVM: the tests that pass at L1 pass at L2, as far as that KVM supports them. Each has a name, a
/// program and boot arguments.
pub fn suites(programs: Vec<(&'static str, String, &'static str)>) -> Test {
    let name = "nested/suites-as-l2";
    Test::made(name, Arch::Aarch64, move || {
        let programs: Vec<_> = programs.iter().map(|(name, path, append)| (*name, Path::new(path), *append)).collect();
        let scenario = start(name, VHE, &l2::programs(2, &programs)?, "")?;
        let expect = Expect {
            output: vec!["EXIT: STATUS=0".into(); programs.len()],
            notes: vec![NO_DIFFERENCE.into(), SAME_MEMORY.into()],
            absent: vec!["FAIL "],
            ..Expect::default()
        };
        Ok(Scenario { expect, timeout: 900, ..scenario })
    })
}

/// Debian's KVM on two vCPUs, with an initial RAM file system that has the VMs of these names.
fn start(name: &str, l1: L1Config, (archive, names): &(Vec<u8>, Vec<String>), more: &str) -> Result<Scenario> {
    let path = folder()?.join(format!("{}.cpio", name.replace('/', "-")));
    std::fs::write(&path, archive).with_context(|| format!("writing {}", path.display()))?;
    let [run, kernel] = l1;
    let arguments = format!("{run} --vcpus 2 --memory 1G --exits {more}");
    let append = bench::client_boot_arguments(kernel, names);
    Ok(Scenario::new(name, &arguments).with("--initrd", path.display().to_string()).with("--append", append))
}

/// Stile at virtual EL2: suites as its VMs, a whole Debian whose command's exit status becomes the run's, and the probe. The kernel of
/// L1's VM is `stile:` and a configuration.
pub fn stile(programs: Vec<(&'static str, String, &'static str)>) -> [Test; 3] {
    let suites = Test::made("nested/stile-suites", Arch::Aarch64, move || {
        let vm = |(name, path, append): &(&str, String, &str)| {
            format!("\n[[vm]]\nname = \"{name}\"\nkernel = \"{path}\"\nappend = \"{append}\"\nvcpus = 2\nmemory = \"64M\"\n")
        };
        let scenario = under_stile("nested/stile-suites", 2, &programs.iter().map(vm).collect::<String>(), "")?;
        let output = programs.iter().map(|_| "EXIT: STATUS=0".into()).collect();
        Ok(Scenario { expect: Expect { output, absent: vec!["FAIL "], ..scenario.expect }, ..scenario })
    });
    let debian = Test::made("nested/stile-debian", Arch::Aarch64, || {
        let exec = "dmesg | grep 'CPU features: detected: GIC'; uname -r; nproc; exit 7";
        let vm = format!("\n[[vm]]\nkernel = \"debian\"\nvcpus = 2\nmemory = \"256M\"\non_reset = \"stop\"\nexec = \"{exec}\"\n");
        let scenario = under_stile("nested/stile-debian", 2, &vm, "")?;
        Ok(Scenario { expect: Expect { status: 7, output: vec!["\n2\n".into()], ..scenario.expect }, timeout: 1800, ..scenario })
    });
    let probe = Test::made("nested/stile-probe", Arch::Aarch64, || {
        let operations = ["hyp_call", "mmio_read_vgic", "mmio_read_device", "eoi", "ipi_self", "timer"];
        let vm = format!("\n[[vm]]\nkernel = \"{}\"\nappend = \"n=64 only={}\"\n", probe_file()?, operations.join(","));
        let scenario = under_stile("nested/stile-probe", 1, &vm, "--icount")?;
        let output = operations.iter().map(|operation| format!("{{\"operation\":\"{operation}\",\"instructions\"")).collect();
        Ok(Scenario { expect: Expect { output, absent: vec!["probe: "], ..scenario.expect }, ..scenario })
    });
    [suites, debian, probe]
}

/// Stile in a VM, as a machine with `cpus` CPUs and these VMs.
fn under_stile(name: &str, cpus: u32, vms: &str, more: &str) -> Result<Scenario> {
    let path = folder()?.join(format!("{}.toml", name.replace('/', "-")));
    std::fs::write(&path, format!("[machine]\ncpus = {cpus}\n{vms}")).with_context(|| format!("writing {}", path.display()))?;
    let scenario = Scenario::new(name, &format!("--nested --smp {cpus} --exits {more}"));
    let notes = [NO_DIFFERENCE, NO_DIFFERENCE, SAME_MEMORY, SAME_MEMORY, "ERET to its guest"].map(Into::into).into();
    Ok(Scenario { expect: Expect { notes, ..Expect::default() }, timeout: 900, ..scenario }
        .with("--kernel", format!("stile:{}", path.display())))
}

/// Returns the folder for the files of these scenarios, which it creates if it is absent.
///
/// # Errors
/// The folder can't be created.
pub fn folder() -> Result<PathBuf> {
    let folder = cargo::repository().join("target/nested");
    std::fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
    Ok(folder)
}

/// Writes the probe to a file. Returns its path.
fn probe_file() -> Result<String> {
    let probe = folder()?.join("probe");
    std::fs::write(&probe, bench::probe_image()?).with_context(|| format!("writing {}", probe.display()))?;
    Ok(probe.display().to_string())
}
