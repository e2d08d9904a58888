//! Scenarios about VMs' shares of CPUs. Guests measure them in virtual time, which counts instructions.

use std::fs;

use anyhow::Result;
use rustix::process::Signal;
use stile_board::MAX_VMS;

use super::scenario::{Expect, NO_DIFFERENCE, Scenario, passed};
use stile::config::Arch;
use stile::programs::{PASSED, Programs};
use stile::{cargo, exit};

/// Path of a file that makes an image large.
pub(super) fn padding() -> Result<String> {
    const PADDING: u64 = 40 << 20;
    let initrd = cargo::repository().join("target/padding");
    fs::File::create(&initrd)?.set_len(PADDING)?;
    Ok(initrd.display().to_string())
}

/// A VM with a large image resets for ever: its neighbour on the same CPU gets half of it, by the count of
/// instructions.
pub(super) fn resetting_neighbour(programs: &Programs) -> Result<Scenario> {
    let icount = if programs.arch == Arch::Aarch64 { "--icount" } else { "" };
    let config = format!(
        "[machine]\narch = \"{}\"\ncpus = 1\n\n\
         [[vm]]\nname = \"resets\"\nkernel = \"{}\"\ninitrd = \"{}\"\nmemory = \"64M\"\n\n\
         [[vm]]\nname = \"share\"\nkernel = \"{}\"\nappend = \"least=45\"\nmemory = \"64M\"\n",
        programs.arch.name(),
        programs.path("resets")?,
        padding()?,
        programs.path("share")?,
    );
    let expect =
        Expect { status: exit::LEFT, output: vec![PASSED.into()], absent: vec!["FAIL "], signal: Some(Signal::INT), ..Expect::default() };
    Ok(Scenario { config: Some(config), expect, ..Scenario::new(programs.scenario("share/beside-resets"), icount) })
}

/// Eight vCPUs of one VM spin; the only vCPU of the other one has half of the CPU, and waits for two slices at most. Virtual time counts
/// instructions.
pub(super) fn fair(programs: &Programs) -> Result<Scenario> {
    let crowded = programs.path("crowded")?;
    let vm = |name: &str, vcpus: u32, append: &str| {
        format!("[[vm]]\nname = \"{name}\"\nkernel = \"{crowded}\"\nappend = \"{append}\"\nvcpus = {vcpus}\nmemory = \"64M\"\n\n")
    };
    let (arch, icount) = (programs.arch.name(), if programs.arch == Arch::Aarch64 { "--icount" } else { "" });
    let machine = format!("[machine]\narch = \"{arch}\"\ncpus = 1\nslice = \"1ms\"\n\n");
    let config = [machine, vm("crowd", 8, "crowd=spin"), vm("neighbour", 1, "slice_us=1000")].concat();
    let expect =
        Expect { status: exit::LEFT, output: vec![PASSED.into()], absent: vec!["FAIL "], signal: Some(Signal::INT), ..Expect::default() };
    Ok(Scenario { config: Some(config), expect, ..Scenario::new(programs.scenario("share/half-against-eight-vcpus"), icount) })
}

/// vCPUs on CPUs of their own kick a CPU without end, by NMIs to the sibling there.
pub(super) fn beside_kicks(programs: &Programs) -> Result<Scenario> {
    let crowded = programs.path("crowded")?;
    let vm =
        format!("[[vm]]\nname = \"kicks\"\nkernel = \"{crowded}\"\nmemory = \"64M\"\nappend = \"crowd=nmi\"\nvcpus = 3\npinned = true\n");
    beside(programs, "pc/share/beside-kicks", &vm, 0)
}

/// An honest VM has its share of a CPU of a PC with three, whatever a hostile VM does.
pub(super) fn beside(programs: &Programs, name: &str, hostile: &str, cpu: u32) -> Result<Scenario> {
    let config = format!(
        "[machine]\narch = \"x86_64\"\ncpus = 3\nslice = \"1000us\"\n{hostile}\n[[vm]]\nname = \"honest\"\nkernel = \"{}\"\n\
         memory = \"64M\"\ncpus = [{cpu}]\nappend = \"slice_us=1000 exits_us=2000 least=40\"\n",
        programs.path("crowded")?,
    );
    let output = vec!["PASS crowded".into()];
    let expect = Expect { status: exit::LEFT, signal: Some(Signal::INT), output, absent: vec!["FAIL "], ..Expect::default() };
    Ok(Scenario { config: Some(config), expect, ..Scenario::new(name, "--exits") })
}

/// A vCPU that sends interrupts to the one beside it takes no time from that. Virtual time counts instructions.
pub(super) fn beside_sender(programs: &Programs) -> Result<Scenario> {
    let config = format!(
        "[machine]\ncpus = 1\nslice = \"1ms\"\n\n[[vm]]\nkernel = \"{}\"\nappend = \"least=40 sgi_us=100\"\nvcpus = 2\nmemory = \"64M\"\n",
        programs.path("share")?
    );
    Ok(Scenario { config: Some(config), expect: passed(), ..Scenario::new("share/beside-a-sender", "--icount --exits") })
}

/// A VM that has a CPU for itself gets its cap, and no more.
pub(super) fn capped(programs: &Programs) -> Result<Scenario> {
    let config = format!(
        "[machine]\ncpus = 1\n\n[[vm]]\nkernel = \"{}\"\nappend = \"cap=30\"\nmemory = \"64M\"\ncap = \"30%\"\n",
        programs.path("crowded")?
    );
    Ok(Scenario { config: Some(config), expect: passed(), ..Scenario::new("share/cap", "--icount --exits") })
}

/// Maximum number of VMs, on two CPUs.
pub(super) fn most_vms(programs: &Programs) -> Result<Scenario> {
    many_vms(&format!("share/{MAX_VMS}-vms"), 2, MAX_VMS, programs)
}

/// VMs that start at once on fewer CPUs, each for a short test.
pub(super) fn many_vms(name: &str, cpus: u32, vms: usize, programs: &Programs) -> Result<Scenario> {
    let psci = programs.path("psci")?;
    let vm = |number| format!("[[vm]]\nname = \"vm-{number}\"\nkernel = \"{psci}\"\nmemory = \"8M\"\nappend = \"stile only=version\"\n");
    let config: String = (0..vms).map(vm).collect();
    let notes = vec![NO_DIFFERENCE.into(); vms];
    let expect = Expect { output: vec![PASSED.into(); vms], notes, absent: vec!["FAIL "], ..Expect::default() };
    Ok(Scenario { config: Some(format!("[machine]\ncpus = {cpus}\n{config}")), expect, ..Scenario::new(name, "--exits") })
}
