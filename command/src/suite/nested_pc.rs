//! The scenarios with a hypervisor in a VM of a PC.

use anyhow::{Context, Result};

use super::nested::folder;
use super::scenario::{Expect, NO_DIFFERENCE, Scenario};
use super::test::Test;
use stile::config::Arch;
use stile::debian::{self, Freshness};
use stile::l2;
use stile::programs::PASSED;
use stile::session::SAME_MEMORY;
use stile_bench::{Grouping, nested_probe_of_pc, pc_host_arguments};

/// A PC whose KVM runs the probe.
struct Host {
    name: &'static str,
    /// Arguments of `run`.
    machine: &'static str,
    operation: &'static str,
    iterations: u32,
    /// VMs, or groups of them.
    vms: usize,
    grouping: Grouping,
    /// Flag of `run`: VMX, or VMX with enlightened VMCSs.
    nested: &'static str,
}

/// The small system of a PC loads Debian's KVM, of each kernel. As docs/nested.md states, it contains KVM's client and a VM.
pub fn starts() -> [Scenario; 4] {
    [in_6_1(), client("debian:6.12"), client("debian"), cpu_offline()]
}

/// L1's CPU goes offline with an L2 loaded, which goes on on the other one; and again after the CPU has come back and the L2 with it.
fn cpu_offline() -> Scenario {
    let steps = [
        "taskset 2 kvm-client vm debian & sleep 8; cd /sys/devices/system/cpu",
        "echo 0 > cpu1/online; echo \"online: $(cat online)\"; sleep 4; echo 1 > cpu1/online; echo \"online: $(cat online)\"",
        "taskset -p 2 $(pidof kvm-client) > /dev/null; sleep 3; echo 0 > cpu1/online; wait",
    ];
    let arguments = "--arch x86_64 --nested --kernel debian --vcpus 2 --smp 2 --memory 768M --exits";
    let scenario = Scenario::new("pc/nested/cpu-offline", arguments).with("--exec", steps.join("; "));
    let output = vec!["online: 0\n".into(), "online: 0-1\n".into(), "Hello from a VM in a VM".into()];
    Scenario { timeout: 1800, expect: Expect { output, notes: notes(1), ..Expect::default() }, ..scenario }
}

fn client(kernel: &str) -> Scenario {
    let arguments = format!("--arch x86_64 --nested --kernel {kernel} --memory 768M --exits");
    let scenario = Scenario::new(format!("pc/nested/kvm-of-{kernel}"), &arguments).with("--exec", "kvm-client vm debian");
    let expect = Expect { output: vec!["Hello from a VM in a VM".into()], notes: notes(1), ..Expect::default() };
    Scenario { timeout: 1800, expect, ..scenario }
}

fn in_6_1() -> Scenario {
    let scenario = Scenario::new("pc/nested/kvm-starts", "--arch x86_64 --nested --kernel debian:6.1 --vcpus 2 --exits")
        .with("--exec", "ls /dev/kvm; grep -wo -m1 vmx /proc/cpuinfo");
    let expect = Expect { output: vec!["/dev/kvm".into(), "vmx".into()], notes: vec![NO_DIFFERENCE.into()], ..Expect::default() };
    Scenario { timeout: 900, expect, ..scenario }
}

/// A whole Debian of two vCPUs, as a VM of Debian's KVM.
fn debian(name: &str) -> Result<Scenario> {
    let (archive, names) = l2::Debian::new_for(Arch::X86_64, 2, "uname -m; echo $(nproc) CPUs")?.archive()?;
    let (kernel, append) = pc_host_arguments(&names)?;
    let initrd = write(name, &archive)?;
    let scenario = Scenario::new(name, "--arch x86_64 --nested --memory 768M --vcpus 2 --smp 2 --exits");
    let scenario = scenario.with("--kernel", kernel.display().to_string()).with("--initrd", initrd).with("--append", append);
    let output = vec!["x86_64\n2 CPUs".into(), "[status 0]".into()];
    let expect = Expect { output, notes: notes(1), absent: vec![FAILURES[1]], ..Expect::default() };
    Ok(Scenario { timeout: 1800, expect, ..scenario })
}

/// Xen as L1, which runs Debian as its first domain by VMX ("PVH dom0"): with EPT, Xen's local and I/O APICs and its virtual interrupts.
fn xen(name: &str) -> Result<Scenario> {
    let initrd = write(name, &l2::system(Arch::X86_64, "dom0", "cat /sys/hypervisor/type /sys/hypervisor/guest_type; nproc")?)?;
    let kernel = debian::dom0_kernel(Freshness::Weekly)?.display().to_string();
    let config = format!(
        "[machine]\narch = \"x86_64\"\ncpus = 2\n\n\
         [[vm]]\nkernel = \"debian-xen\"\ninitrd = \"{initrd}\"\nnested = true\nvcpus = 2\nmemory = \"768M\"\n\
         on_reset = \"stop\"\nappend = \"console=com1 com1=115200,8n1\"\n\n\
         [[vm.domain]]\nkernel = \"{kernel}\"\nappend = \"console=hvc0 quiet\"\nmemory = \"256M\"\nvcpus = 2\n"
    );
    let output = vec!["*** Building a PVH Dom0 ***".into(), "xen\nPVH\n2\n".into(), "[status 0]".into()];
    // Xen reads and writes it at each of some 100,000 exits.
    let rows = ["VMREAD GUEST_RSP", "VMWRITE GUEST_RSP"].map(|row| (row, 1..=10_000, f64::INFINITY)).to_vec();
    let expect = Expect { output, notes: notes(1), absent: vec!["Panic on CPU"], rows, ..Expect::default() };
    Ok(Scenario { config: Some(config), timeout: 1800, expect, ..Scenario::new(name, "--exits") })
}

/// Stile as L1: the suite `pc`, and a whole Debian whose command's exit status becomes the run's.
pub fn stile(suite: String) -> [Test; 2] {
    let suite = Test::made("pc/nested/stile", Arch::X86_64, move || {
        let name = "pc/nested/stile";
        let scenario = under_stile(name, 1, &format!("kernel = \"{suite}\"\nmemory = \"64M\"\n"))?;
        Ok(Scenario { expect: Expect { output: vec![PASSED.into()], absent: vec!["FAIL "], ..scenario.expect }, ..scenario })
    });
    let debian = Test::made("pc/nested/stile-debian", Arch::X86_64, || {
        let vm = "kernel = \"debian\"\nvcpus = 2\nmemory = \"256M\"\non_reset = \"stop\"\nexec = \"uname -m; nproc; exit 7\"\n";
        let scenario = under_stile("pc/nested/stile-debian", 2, vm)?;
        Ok(Scenario { expect: Expect { status: 7, output: vec!["x86_64\n2\n".into()], ..scenario.expect }, timeout: 1800, ..scenario })
    });
    [suite, debian]
}

/// Stile in a VM, as a machine with `cpus` CPUs and this VM. Both accounts are complete.
fn under_stile(name: &str, cpus: u32, vm: &str) -> Result<Scenario> {
    let path = folder()?.join(format!("{}.toml", name.replace('/', "-")));
    let machine = format!("[machine]\narch = \"x86_64\"\ncpus = {cpus}\n\n[[vm]]\n{vm}");
    std::fs::write(&path, machine).with_context(|| format!("writing {}", path.display()))?;
    let scenario = Scenario::new(name, &format!("--arch x86_64 --nested --smp {cpus} --exits"));
    let expect = Expect { notes: [notes(1), notes(1)].concat(), ..Expect::default() };
    Ok(Scenario { expect, timeout: 900, ..scenario }.with("--kernel", format!("stile:{}", path.display())))
}

/// Debian's KVM with several vCPUs or VMs.
pub fn probes() -> Vec<Test> {
    let (two_vcpus, one_cpu) = ("--vcpus 2 --smp 2", "--vcpus 2 --smp 1");
    let ipi =
        Host { name: "", machine: two_vcpus, operation: "ipi", iterations: 16, vms: 1, grouping: Grouping::Alone, nested: "--nested" };
    let hosts = [
        Host { name: "long/two-vcpus-of-l2-pc", vms: 2, ..ipi },
        // One of these kernels also runs with several vCPUs and L2s. L1's vCPUs take turns on one CPU, and with them
        // their L2s.
        Host { name: "long/two-l2s-on-one-cpu-pc", machine: one_cpu, operation: "cpuid", grouping: Grouping::Pairs, ..ipi },
        // The memory of Stile is as free at the end as before.
        Host { name: "long/twenty-l2s-pc", machine: "", operation: "cpuid", iterations: 1, vms: 20, ..ipi },
        Host { name: "long/thousand-l2s-pc", machine: "", operation: "cpuid", iterations: 1, vms: 1000, ..ipi },
        Host { name: "pc/nested/two-l2s-of-two-vcpus", grouping: Grouping::Pairs, ..ipi },
        // A vCPU enters with the VMCSs of two L2s in turn, and each moves between vCPUs.
        Host { name: "pc/nested/enlightened", grouping: Grouping::Pairs, nested: "--nested=enlightened", ..ipi },
    ];
    let made = |name, make: fn(&str) -> Result<Scenario>| Test::made(name, Arch::X86_64, move || make(name));
    let several = [made("pc/nested/two-l1s", two_l1s), made("pc/nested/debian-as-l2", debian), made("pc/nested/xen", xen)];
    hosts.into_iter().map(|host| Test::made(host.name, Arch::X86_64, move || host.scenario())).chain(several).collect()
}

impl Host {
    /// Writes the initial RAM file system. Returns arguments for kernel and file system, and boot arguments.
    fn files(&self) -> Result<[String; 3]> {
        let (kernel, archive, append) = nested_probe_of_pc(&[self.operation], self.iterations, self.vms, self.grouping)?;
        Ok([kernel.display().to_string(), write(self.name, &archive)?, append])
    }

    fn scenario(&self) -> Result<Scenario> {
        let [kernel, initrd, append] = self.files()?;
        let scenario = Scenario::new(self.name, &format!("--arch x86_64 {} --memory 512M --exits {}", self.nested, self.machine))
            .with("--kernel", kernel)
            .with("--initrd", initrd)
            .with("--append", append);
        let runs = self.vms * if self.grouping == Grouping::Pairs { 2 } else { 1 };
        let expect = Expect { output: vec![line(self.operation); runs], notes: notes(1), absent: FAILURES.into(), ..Expect::default() };
        Ok(Scenario { timeout: 1800 + 10 * runs as u32, expect, ..scenario })
    }
}

/// Writes the initial RAM file system of a scenario, and returns its path.
fn write(scenario: &str, archive: &[u8]) -> Result<String> {
    let path = folder()?.join(format!("{}.cpio", scenario.replace('/', "-")));
    std::fs::write(&path, archive).with_context(|| format!("writing {}", path.display()))?;
    Ok(path.display().to_string())
}

/// Two L1s side by side, which share a CPU.
fn two_l1s(name: &str) -> Result<Scenario> {
    let host =
        Host { name: "pc/nested/two-l1s", machine: "", operation: "cpuid", iterations: 64, vms: 2, grouping: Grouping::Alone, nested: "" };
    let [kernel, initrd, append] = host.files()?;
    let vm = |name: &str| {
        format!(
            "[[vm]]\nname = \"{name}\"\nkernel = \"{kernel}\"\ninitrd = \"{initrd}\"\nappend = \"{append}\"\nmemory = \"512M\"\n\
             nested = true\non_reset = \"stop\"\n\n"
        )
    };
    let config = format!("[machine]\narch = \"x86_64\"\ncpus = 1\n\n{}{}", vm("one"), vm("two"));
    let expect = Expect { output: vec![line(host.operation); 4], notes: notes(2), absent: FAILURES.into(), ..Expect::default() };
    Ok(Scenario { config: Some(config), timeout: 1800, expect, ..Scenario::new(name, "--exits") })
}

/// Start of the probe's line, anywhere in the output.
fn line(operation: &str) -> String {
    format!("{{\"operation\":\"{operation}\",\"instructions\"")
}

/// Notes at the end of the run: all exits are accounted for, and the memory of each VM is free again.
fn notes(vms: usize) -> Vec<String> {
    [vec![NO_DIFFERENCE.to_owned(); vms], vec![SAME_MEMORY.to_owned()]].concat()
}

const FAILURES: [&str; 2] = ["probe: ", "kvm-client: "];
