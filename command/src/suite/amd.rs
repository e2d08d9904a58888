//! The scenarios of a PC with AMD-V, which QEMU emulates: guests/pc, Debian's kernels, hostile VMs, an operator. Time is real there: none
//! depends on it.

use anyhow::Result;
use rustix::process::Signal;

use super::operator::Step;
use super::pc::debian;
use super::scenario::{Expect, NO_DIFFERENCE, Scenario, passed};
use super::{amd_devices, served_pc, snapshots, topology, traced};
use stile::exit;
use stile::programs::{PASSED, Programs};

/// All of them.
///
/// # Errors
/// A guest is missing.
pub(super) fn all(programs: &Programs) -> Result<Vec<Scenario>> {
    let mut scenarios = Vec::new();
    for (vcpus, cpus) in [(1, 1), (2, 2), (3, 2), (8, 4)] {
        let arguments = format!("--arch x86_64 --memory 64M --cpu max --vcpus {vcpus} --smp {cpus} --exits");
        let scenario = Scenario::new(format!("pc/amd/suite/max-{vcpus}-on-{cpus}"), &arguments);
        scenarios.push(Scenario { expect: passed(), ..scenario.with("--kernel", programs.path("pc")?) });
    }
    scenarios.extend(mitigated(programs)?);
    scenarios.extend([large_apic_id(programs)?, gaps(programs)?]);
    scenarios.extend(boots());
    scenarios.extend([busy(), reboot(), topology::with_gaps(), topology::beyond_eight_bits(), operator(programs)?, absent(programs)?]);
    scenarios.extend(snapshots::with_amd_v(programs)?);
    scenarios.extend(amd_devices::all(programs)?);
    scenarios.extend(served_pc::all(programs)?);
    scenarios.extend(traced::with_amd_v(programs)?);
    for (seed, cpus) in [(2, 1), (3, 2)] {
        scenarios.push(hostile(seed, cpus, programs)?);
    }
    for attack in ["starts", "code", "strings", "registers", "ticks", "calls", "print", "mixed"] {
        scenarios.push(storm(attack, programs)?);
    }
    Ok(scenarios)
}

/// Through the exits and entries of CPUs that need mitigations; and with the registers for them, for Stile and for its guest. QEMU's CPUs
/// lack these: it enumerates them if it is forced to, and takes accesses without effect.
fn mitigated(programs: &Programs) -> Result<[Scenario; 2]> {
    let all = "--arch x86_64 --memory 64M --cpu max --vcpus 2 --smp 2 --exits --mitigations all";
    let all = Scenario::new("pc/amd/suite/mitigated", all).with("--kernel", programs.path("pc")?);
    let notes = vec![NO_DIFFERENCE.into(), "speculation: branch targets EXPOSED, buffers cleared at entries".into()];
    let all = Scenario { expect: Expect { notes, ..passed() }, ..all };
    let forced = ["x-force-features", "ibpb", "ibrs", "amd-stibp", "amd-ssbd", "auto-ibrs"];
    let forced = forced.map(|feature| format!(" --qemu-arg -global --qemu-arg max-x86_64-cpu.{feature}=on")).concat();
    let arguments = format!("--arch x86_64 --memory 64M --cpu max --vcpus 2 --smp 1 --exits{forced}");
    let controlled = Scenario::new("pc/amd/suite/speculation", &arguments).with("--kernel", programs.path("pc")?);
    let notes = vec![NO_DIFFERENCE.into(), "speculation: branch targets flushed by IBPB at exits, IBPB between VMs".into()];
    let controlled = Scenario { expect: Expect { notes, ..passed() }, ..controlled.with("--append", "speculation") };
    Ok([all, controlled])
}

/// The last of three CPUs, each of which has a vCPU, has x2APIC identifier 383: it starts, and is kicked, by that. The firmware's ACPI
/// tables also list 381 CPUs that are absent.
fn large_apic_id(programs: &Programs) -> Result<Scenario> {
    let numbers = "--qemu-arg -smp --qemu-arg 2,sockets=3,cores=128,threads=1,maxcpus=384";
    let last = "--qemu-arg -device --qemu-arg max-x86_64-cpu,socket-id=2,die-id=0,core-id=127,thread-id=0";
    let config = format!(
        "[machine]\narch = \"x86_64\"\ncpu = \"max\"\ncpus = 3\n\n\
         [[vm]]\nkernel = \"{}\"\nmemory = \"64M\"\nvcpus = 3\ncpus = [0, 1, 2]\npinned = true\n",
        programs.path("pc")?
    );
    let scenario = Scenario::new("pc/amd/suite/apic-id-383", &format!("--exits {numbers} {last}"));
    Ok(Scenario { config: Some(config), expect: passed(), ..scenario })
}

/// CPUs with gaps between their identifiers send themselves interrupts.
fn gaps(programs: &Programs) -> Result<Scenario> {
    let config = format!(
        "[machine]\narch = \"x86_64\"\ncpu = \"max\"\ncpus = 2\n\n\
         [[vm]]\nkernel = \"{}\"\nmemory = \"64M\"\ntopology = \"2x3x1\"\nappend = \"only=aps_interrupt_themselves\"\n",
        programs.path("pc")?
    );
    Ok(Scenario { config: Some(config), expect: passed(), ..Scenario::new("pc/amd/suite/gaps", "--exits") })
}

/// Debian's kernels.
fn boots() -> impl Iterator<Item = Scenario> {
    let machines = [
        ("debian:6.1", "6.1.", "max", 1, 1),
        ("debian:6.1", "6.1.", "EPYC", 3, 2),
        ("debian:6.1", "6.1.", "max", 8, 4),
        ("debian:6.12", "6.12.", "max", 4, 2),
        ("debian:6.12", "6.12.", "max", 16, 8),
        ("debian", "-cloud-amd64", "max", 2, 2),
        ("debian", "-cloud-amd64", "max", 16, 4),
    ];
    machines.into_iter().map(|(kernel, release, cpu, vcpus, smp)| {
        let arguments = format!("--arch x86_64 --kernel {kernel} --memory 256M --cpu {cpu} --vcpus {vcpus} --smp {smp} --exits");
        let scenario = Scenario::new(format!("pc/amd/{kernel}/{cpu}-{vcpus}-on-{smp}"), &arguments);
        let tell = "uname -r; nproc; grep -m 1 -o kvm-clock /sys/devices/system/clocksource/clocksource0/current_clocksource; exit 7";
        let mut expect = debian(release, vcpus);
        expect.output.push("kvm-clock".into());
        Scenario { expect, ..scenario.with("--exec", tell) }
    })
}

/// CPUs that ACPI tables name and that are not there, one of them by the ID of all CPUs; no 8254 by which to measure time.
fn absent(programs: &Programs) -> Result<Scenario> {
    let arguments = "--arch x86_64 --memory 64M --cpu max --vcpus 2 --smp 2 --exits --machine-option pit=off \
                     --qemu-arg -acpitable --qemu-arg file={dir}/madt";
    let scenario = Scenario::new("pc/amd/absent", arguments).with("--kernel", programs.path("pc")?).with("--append", "only=multiboot");
    let late = |number: u32, apic: u32| format!("CPU {number} ({apic:#x}) has not started within 5 s: Stile continues without it");
    let expect = Expect { notes: vec![late(2, 7), late(3, 9), NO_DIFFERENCE.into()], ..passed() };
    Ok(Scenario { files: vec![("madt", madt())], expect, ..scenario })
}

/// A "Multiple APIC Description Table" of three enabled CPUs.
fn madt() -> Vec<u8> {
    let mut table = b"APIC\x4c\0\0\0\x01".to_vec();
    table.resize(44, 0);
    for apic in [7, 9] {
        table.extend([0, 8, 0, apic, 1, 0, 0, 0]);
    }
    table.extend([9, 16, 0, 0, 255, 255, 255, 255, 1, 0, 0, 0, 0, 0, 0, 0]);
    table[9] = table.iter().fold(0_u8, |sum, byte| sum.wrapping_sub(*byte));
    table
}

/// Debian's CPUs go off and on again while processes on all of them compute.
fn busy() -> Scenario {
    let exec = "for c in 0 1 2 3; do (while :; do md5sum /bin/busybox >/dev/null; done) & done; \
                for round in 1 2 3; do for c in 1 2 3; do echo 0 >/sys/devices/system/cpu/cpu$c/online || exit 1; echo off $(nproc); \
                echo 1 >/sys/devices/system/cpu/cpu$c/online || exit 1; done; done; uname -r; nproc; exit 7";
    let arguments = "--arch x86_64 --kernel debian:6.1 --memory 256M --cpu max --vcpus 4 --smp 2 --exits";
    let mut expect = debian("6.1.", 4);
    expect.output.splice(0..0, vec!["off 3".into(); 9]);
    Scenario { expect, ..Scenario::new("pc/amd/debian:6.1/cpus-go-and-come", arguments).with("--exec", exec) }
}

/// Debian restarts its machine.
fn reboot() -> Scenario {
    let arguments = "--arch x86_64 --kernel debian:6.1 --memory 256M --cpu max --vcpus 2 --smp 2 --exits --on-reset restart:1";
    let scenario = Scenario::new("pc/amd/debian:6.1/reboot", arguments).with("--exec", "echo has $(nproc); reboot -f");
    let notes = vec![NO_DIFFERENCE.into(), "vm0 ended by a reset, having restarted once".into()];
    Scenario { expect: Expect { status: exit::GUEST, output: vec!["has 2".into(); 2], notes, ..Expect::default() }, ..scenario }
}

/// Two VMs: an attacker, and one that computes checksums over its memory.
fn beside_checksums(cpus: u32, attacker: &str, rest: &str, rounds: &str, programs: &Programs) -> Result<String> {
    let (attacker, checksum) = (programs.path(attacker)?, programs.path("checksum")?);
    Ok(format!(
        "[machine]\narch = \"x86_64\"\ncpu = \"max\"\ncpus = {cpus}\n\n\
         [[vm]]\nname = \"attacker\"\nkernel = \"{attacker}\"\nmemory = \"64M\"\n{rest}\n\n\
         [[vm]]\nname = \"neighbour\"\nkernel = \"{checksum}\"\nmemory = \"64M\"\n{rounds}\n"
    ))
}

/// A VM tries to break out; its neighbour's checksums stay correct.
fn hostile(seed: u32, cpus: u32, programs: &Programs) -> Result<Scenario> {
    let config = beside_checksums(cpus, "hostile", &format!("append = \"seed={seed}\"\nvcpus = 2"), "", programs)?;
    // Both must end, in either order.
    let expect = Expect { output: vec![PASSED.into(), PASSED.into()], ..passed() };
    Ok(Scenario { config: Some(config), timeout: 900, expect, ..Scenario::new(format!("pc/amd/isolation/hostile-{seed}"), "--exits") })
}

/// One kind of exit on four vCPUs without end: the neighbour completes.
fn storm(attack: &str, programs: &Programs) -> Result<Scenario> {
    let rest = format!("append = \"attack={attack}\"\nvcpus = 4");
    let config = beside_checksums(2, "storm", &rest, "append = \"rounds=10\"", programs)?;
    let expect =
        Expect { status: exit::LEFT, output: vec![PASSED.into()], absent: vec!["FAIL "], signal: Some(Signal::INT), ..Expect::default() };
    Ok(Scenario { config: Some(config), expect, ..Scenario::new(format!("pc/amd/isolation/storm-{attack}"), "--exits") })
}

/// An operator pauses the machine, and reads its counts.
fn operator(programs: &Programs) -> Result<Scenario> {
    let steps = vec![
        Step::new("checksum: round", "pause m", &["is paused"]),
        Step::new("", "top m --once --json --interval 0.1", &[r#""unaccounted":0"#]).agrees(),
        Step::new("", "metrics m --once", &["# EOF"]).agrees(),
        Step::new("", "stop m --force", &["is off"]),
    ];
    let arguments = "--arch x86_64 --cpu max --memory 64M --exits --append rounds=1000000";
    let scenario = Scenario::new("pc/amd/operator", arguments).with("--kernel", programs.path("checksum")?);
    let expect = Expect { output: vec!["checksum: round".into()], notes: vec![NO_DIFFERENCE.into()], ..Expect::default() };
    Ok(Scenario { steps, expect, ..scenario })
}
