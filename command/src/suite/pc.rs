//! The scenarios that are a PC's alone: the guest of `guests/pc`, and Debian's kernels for x86-64.

use std::path::{Path, PathBuf};

use anyhow::Result;
use rustix::process::Signal;

use super::scenario::{Expect, NO_DIFFERENCE, Scenario, by_turns, passed};
use super::topology;
use stile::config::Arch;
use stile::exit;
use stile::programs::{PASSED, Programs};
use stile::session::SAME_MEMORY;

/// All of them.
pub(super) fn all(programs: &Programs) -> Result<Vec<Scenario>> {
    let path = PathBuf::from(programs.path("pc")?);
    let machines = [("corei7_skylake_x", 1, 1), ("corei7_skylake_x", 3, 2), ("corei7_haswell_4770", 2, 1)];
    let suites = machines.map(|(cpu, vcpus, smp)| {
        let arguments = format!("--arch x86_64 --memory 64M --cpu {cpu} --vcpus {vcpus} --smp {smp} --exits");
        let scenario = Scenario::new(format!("pc/suite/{cpu}-{vcpus}-on-{smp}"), &arguments).with("--kernel", path.display().to_string());
        // With several CPUs a tick is not an instruction, so that the guest can't detect exits by ticks.
        let exitless = if vcpus == 1 { vec!["lapic_id_read", "task_priority_write", "self_ipi", "tscdeadline"] } else { vec![] };
        Scenario { expect: exits_of_apic(&exitless), ..scenario }
    });
    // Through the exits and entries of CPUs that need mitigations; what the CPU lacks for them is logged.
    let mitigated = Scenario::new("pc/suite/mitigated", "--arch x86_64 --memory 64M --vcpus 2 --smp 2 --exits --mitigations all")
        .with("--kernel", path.display().to_string());
    let notes = vec![NO_DIFFERENCE.into(), "speculation: branch targets EXPOSED, buffers cleared at entries".into()];
    let mitigated = Scenario { expect: Expect { notes, ..passed() }, ..mitigated };
    // A CPU with IA32_SPEC_CTRL, IA32_PRED_CMD and IA32_ARCH_CAPABILITIES, for Stile and for its guest.
    let controlled = Scenario::new("pc/suite/tigerlake-2-on-1", "--arch x86_64 --memory 64M --cpu tigerlake --vcpus 2 --smp 1 --exits")
        .with("--kernel", path.display().to_string())
        .with("--append", "speculation");
    let notes = vec![NO_DIFFERENCE.into(), "restricted by IBRS from boot on, IBPB between VMs".into()];
    let controlled = Scenario { expect: Expect { notes, ..passed() }, ..controlled };
    let statuses = [(0, exit::OK, "exits counted"), (3, exit::GUEST, "ended itself with status 3")].map(|(status, ends, note)| {
        let arguments = format!("--arch x86_64 --memory 64M --exits --append exit={status}");
        let scenario = Scenario::new(format!("pc/exit-status/{status}"), &arguments).with("--kernel", path.display().to_string());
        Scenario { expect: Expect { status: ends, notes: vec![note.into()], ..Expect::default() }, ..scenario }
    });
    let levels = [("registers", &["lapic_id_read", "task_priority_write"][..]), ("off", &[])];
    let levels = levels.map(|(level, exitless)| {
        let vm = format!("kernel = \"{}\"\nmemory = \"64M\"\nvcpus = 2\n", path.display());
        Scenario {
            config: Some(config(1, &apic(level), &vm)),
            expect: exits_of_apic(exitless),
            ..Scenario::new(format!("pc/apic/{level}"), "--exits")
        }
    });
    // Code that changes, on one vCPU and by another: what is remembered of it must change, too.
    let caches = ["verify", "protect"].map(|scheme| {
        let vm = format!("kernel = \"{}\"\nvcpus = 2\nmemory = \"64M\"\n", path.display());
        let config = config(2, &format!("apic_virtualization = \"off\"\ndecode_cache = \"{scheme}\""), &vm);
        let expect = Expect { notes: vec![NO_DIFFERENCE.into(), "instructions decoded for vm0: ".into()], ..passed() };
        Scenario { config: Some(config), expect, ..Scenario::new(format!("pc/decode-cache/{scheme}"), "--exits") }
    });
    let by_hand = Scenario {
        config: Some(config(
            2,
            &apic("off"),
            "kernel = \"debian:6.1\"\nmemory = \"256M\"\nvcpus = 2\non_reset = \"stop\"\nexec = \"uname -r; nproc; exit 7\"\n",
        )),
        expect: debian("6.1.", 2),
        ..Scenario::new("pc/debian:6.1/apic-off-2-on-2", "--exits")
    };
    // Process churn: the kernel's code that accesses the local APIC is decoded once, not once for each process.
    let churn = Scenario {
        config: Some(config(
            1,
            &apic("off"),
            "kernel = \"debian:6.1\"\nmemory = \"256M\"\nappend = \"nox2apic\"\nexec = \"for i in $(seq 60); do ls /bin | sort | md5sum; cp /bin/busybox /tmp/b; done; uname -r; nproc; exit 7\"\n",
        )),
        expect: Expect { notes: vec![NO_DIFFERENCE.into(), " (99.".into()], ..debian("6.1.", 1) },
        ..Scenario::new("pc/debian:6.1/decode-cache-churn", "--exits")
    };
    Ok(suites
        .into_iter()
        .chain([mitigated, controlled])
        .chain(levels)
        .chain(statuses)
        .chain(caches)
        .chain(boots())
        .chain([
            deadlock(&path),
            sleep(&path),
            off_by_a_byte(&path),
            bios(&path),
            reset_by_a_line(programs)?,
            by_hand,
            churn,
            two_debians(),
            deadlines_by_turns(&path),
            deadlines_beside_a_visitor(&path),
            trapped_timer(&path),
            topology::pc(),
            pvh(programs)?,
            vmx(programs)?,
            vmx_without_delivery(programs)?,
            vmx_resets(programs)?,
            vmx_abort(programs)?,
            long_delivery(programs)?,
        ])
        .collect())
}

/// A conformance suite of VMX, as a hypervisor in a VM. Some of its tests make an exit as long as a guest hypervisor can.
fn vmx(programs: &Programs) -> Result<Scenario> {
    let scenario = Scenario::new("pc/nested/vmx", "--arch x86_64 --nested --memory 64M --exits").with("--kernel", programs.path("vmx")?);
    let mut expect = Expect { bounded_exits: Some(Arch::X86_64), ..passed() };
    expect.notes.push(SAME_MEMORY.into());
    Ok(Scenario { expect, ..scenario })
}

/// The tests of L1's priorities, on a processor without virtual-interrupt delivery.
fn vmx_without_delivery(programs: &Programs) -> Result<Scenario> {
    let vm = format!("kernel = \"{}\"\nmemory = \"64M\"\nnested = true\nappend = \"only=priority\"\n", programs.path("vmx")?);
    let config = Some(config(1, &apic("registers"), &vm));
    Ok(Scenario { config, expect: passed(), ..Scenario::new("pc/nested/vmx-without-delivery", "--exits") })
}

/// The VM is reset by its L2, and by L1 while an L2 is loaded. The second processor is in an L2, too, which INIT has ended before.
fn vmx_resets(programs: &Programs) -> Result<Scenario> {
    let arguments = "--arch x86_64 --nested --memory 64M --vcpus 2 --smp 2 --exits --append only=reset";
    let scenario = Scenario::new("pc/nested/resets-with-l2", arguments);
    let output = vec!["boot 1".into(), "boot 2".into(), "boot 3".into(), PASSED.into()];
    Ok(Scenario { expect: Expect { output, ..passed() }, ..scenario.with("--kernel", programs.path("vmx")?) })
}

/// A VMX abort ends the VM, and says so.
fn vmx_abort(programs: &Programs) -> Result<Scenario> {
    let scenario = Scenario::new("pc/nested/vmx-abort", "--arch x86_64 --nested --memory 64M --exits --append only=abort");
    let notes = vec![NO_DIFFERENCE.into(), "vm0 crashed: VMX abort".into()];
    let expect = Expect { status: exit::GUEST, output: vec!["abort from here on".into()], notes, ..Expect::default() };
    Ok(Scenario { expect, ..scenario.with("--kernel", programs.path("vmx")?) })
}

/// The delivery of an event to an L2 exits 24 times with 134,000 instructions: its slice ends amid them. Ticks count instructions.
fn long_delivery(programs: &Programs) -> Result<Scenario> {
    let (attacker, honest) = (programs.path("vmx")?, programs.path("crowded")?);
    let config = format!(
        "[machine]\narch = \"x86_64\"\ncpus = 1\nslice = \"1000us\"\n\n\
         [[vm]]\nname = \"attacker\"\nkernel = \"{attacker}\"\nmemory = \"64M\"\nnested = true\nappend = \"only=untouched\"\n\n\
         [[vm]]\nname = \"honest\"\nkernel = \"{honest}\"\nmemory = \"64M\"\nappend = \"slice_us=1000 exits_us=2000 least=30\"\n",
    );
    // Both must end, in either order.
    let expect = Expect { output: vec![PASSED.into(), PASSED.into()], absent: vec!["FAIL "], ..Expect::default() };
    Ok(Scenario { config: Some(config), expect, ..Scenario::new("pc/isolation/nested-delivery", "") })
}

/// Debian's kernels, with vCPUs, physical CPUs and RAM.
fn boots() -> impl Iterator<Item = Scenario> {
    let machines = [
        ("debian:6.1", "6.1.", "corei7_skylake_x", 1, 1, LARGE),
        ("debian:6.1", "6.1.", "corei7_haswell_4770", 2, 1, 256),
        ("debian:6.1", "6.1.", "corei7_skylake_x", 2, 2, 256),
        // Without pages of 1 GiB.
        ("debian:6.1", "6.1.", "corei7_ivy_bridge_3770k", 1, 1, 256),
        ("debian", "-cloud-amd64", "corei7_skylake_x", 2, 2, 256),
        ("debian", "-cloud-amd64", "corei7_haswell_4770", 1, 1, 256),
    ];
    machines.into_iter().map(|(kernel, release, cpu, vcpus, smp, memory)| {
        let arguments = format!("--arch x86_64 --kernel {kernel} --memory {memory}M --cpu {cpu} --vcpus {vcpus} --smp {smp} --exits");
        let scenario = Scenario::new(format!("pc/{kernel}/{cpu}-{vcpus}-on-{smp}"), &arguments);
        let mut expect = debian(release, vcpus);
        expect.output.extend((memory == LARGE).then(|| "100000000-107ffffff : System RAM".into()));
        Scenario { expect, ..scenario.with("--exec", "uname -r; nproc; grep RAM /proc/iomem; exit 7") }
    })
}

/// MiB of RAM of which some is above the devices: from 4 GiB on, which Linux uses first.
const LARGE: u32 = 3200;

/// A program that is started by PVH, with a module: its own file.
fn pvh(programs: &Programs) -> Result<Scenario> {
    let program = programs.path("pvh")?;
    let scenario = Scenario::new("pc/pvh", "--arch x86_64 --memory 64M --exits").with("--kernel", program.clone());
    Ok(Scenario { expect: passed(), ..scenario.with("--initrd", program).with("--append", "one two") })
}

/// A program that enters ACPI's S3, and wakes at its waking vector.
fn sleep(kernel: &Path) -> Scenario {
    let scenario = Scenario::new("pc/life/sleep", "--arch x86_64 --memory 64M --vcpus 2 --exits --append sleep");
    let expect = Expect { notes: vec![NO_DIFFERENCE.into()], ..Expect::default() };
    Scenario { expect, ..scenario.with("--kernel", kernel.display().to_string()) }
}

/// A program that powers the machine off by a byte of PM1a control; otherwise it ends with 1.
fn off_by_a_byte(kernel: &Path) -> Scenario {
    let scenario = Scenario::new("pc/life/off-by-a-byte", "--arch x86_64 --memory 64M --exits --append off-by-a-byte");
    let expect = Expect { notes: vec![NO_DIFFERENCE.into()], ..Expect::default() };
    Scenario { expect, ..scenario.with("--kernel", kernel.display().to_string()) }
}

/// A program that goes to real mode, and calls a BIOS's services there.
fn bios(kernel: &Path) -> Scenario {
    let scenario = Scenario::new("pc/bios", "--arch x86_64 --memory 64M --exits --append bios");
    let expect = Expect { output: vec!["printed by INT 0x10".into()], notes: vec![NO_DIFFERENCE.into()], ..Expect::default() };
    Scenario { expect, ..scenario.with("--kernel", kernel.display().to_string()) }
}

/// A device's interrupt resets a waiting VM, while its CPU runs another VM.
fn reset_by_a_line(programs: &Programs) -> Result<Scenario> {
    let vm = |program, append| {
        let path = programs.path(program)?;
        anyhow::Ok(format!("[[vm]]\nname = \"{program}\"\nkernel = \"{path}\"\nappend = \"{append}\"\nmemory = \"64M\"\n"))
    };
    let config = format!("[machine]\narch = \"x86_64\"\n\n{}\n{}", vm("pc", "reset-by-a-line")?, vm("spin", "")?);
    let output = vec!["send a line".into(); 2];
    let expect = Expect { status: exit::LEFT, output, signal: Some(Signal::INT), ..Expect::default() };
    Ok(Scenario { config: Some(config), input: Some(("send a line", "hello\n")), expect, ..Scenario::new("pc/life/reset-by-a-line", "") })
}

/// A deadlocked VM is reported, and keeps its state.
fn deadlock(kernel: &Path) -> Scenario {
    let scenario = Scenario::new("pc/life/deadlock", "--arch x86_64 --memory 64M --vcpus 2 --exits --append deadlock");
    let output = vec!["deadlock from here on: true".into()];
    let signal_note = "vm0: all of its vCPUs wait with interrupts off";
    let signal = Some(Signal::INT);
    let expect = Expect { status: exit::LEFT, output, notes: vec![NO_DIFFERENCE.into()], signal, signal_note, ..Expect::default() };
    Scenario { expect, ..scenario.with("--kernel", kernel.display().to_string()) }
}

/// Two VMs with deadlines on one CPU: each has the timer for itself while the other one sleeps, and loses it when that wakes.
fn deadlines_by_turns(kernel: &Path) -> Scenario {
    let vm = |name| format!("\n[[vm]]\nname = \"{name}\"\nkernel = \"{}\"\nappend = \"deadlines\"\nmemory = \"64M\"\n", kernel.display());
    let config = format!("[machine]\narch = \"x86_64\"\n{}{}", vm("one"), vm("two"));
    let expect = Expect {
        output: vec!["600 deadlines: none early, none lost".into(); 2],
        notes: vec![NO_DIFFERENCE.into(); 2],
        ..Expect::default()
    };
    Scenario { config: Some(config), expect, ..Scenario::new("pc/timer/by-turns", "--exits") }
}

/// A VM with deadlines on a CPU that a vCPU of another VM, without deadlines, uses intermittently: the timer is passed through in
/// between.
fn deadlines_beside_a_visitor(kernel: &Path) -> Scenario {
    let vm = |name, more| format!("\n[[vm]]\nname = \"{name}\"\nkernel = \"{}\"\nmemory = \"64M\"\n{more}\n", kernel.display());
    let config = format!(
        "[machine]\narch = \"x86_64\"\ncpus = 2\n{}{}",
        vm("owner", "append = \"deadlines\"\ncpus = [1]"),
        vm("visitor", "append = \"come-and-go\"\nvcpus = 2\ncpus = [0, 1]\npinned = true"),
    );
    let expect =
        Expect { output: vec!["600 deadlines: none early, none lost".into()], notes: vec![NO_DIFFERENCE.into(); 2], ..Expect::default() };
    Scenario { config: Some(config), expect, ..Scenario::new("pc/timer/visitor", "--exits") }
}

/// The suite with a timer that always traps.
fn trapped_timer(kernel: &Path) -> Scenario {
    let vm = format!("kernel = \"{}\"\nmemory = \"64M\"\n", kernel.display());
    let passed = passed();
    let output = ["xapic tscdeadline: exits", "x2apic tscdeadline: exits"].map(String::from).into_iter().chain(passed.output).collect();
    let expect = Expect { output, ..passed };
    Scenario { config: Some(config(1, "timer = \"trapped\"", &vm)), expect, ..Scenario::new("pc/timer/trapped", "--exits") }
}

/// Two Debians that compute and print on one CPU, in turns.
fn two_debians() -> Scenario {
    let exec = "while :; do i=0; while [ $i -lt 1500 ]; do i=$((i+1)); done; echo turn; done";
    let vm = |name| format!("\n[[vm]]\nname = \"{name}\"\nkernel = \"debian:6.1\"\nmemory = \"256M\"\nexec = \"{exec}\"\n");
    let config = format!("[machine]\narch = \"x86_64\"\n{}{}", vm("one"), vm("two"));
    let expect = by_turns();
    Scenario { config: Some(config), expect, ..Scenario::new("pc/two-debians", "--exits") }
}

/// A PC with one VM, and its techniques.
fn config(cpus: u32, techniques: &str, vm: &str) -> String {
    format!("[machine]\narch = \"x86_64\"\ncpus = {cpus}\n\n[[vm]]\n{vm}[vm.techniques]\n{techniques}\n")
}

/// Local APICs are virtualized so far and no further.
fn apic(level: &str) -> String {
    format!("apic_virtualization = \"{level}\"")
}

/// Lines of the suite for x86-64 about operations on the local APIC that do not exit, in both modes.
fn exits_of_apic(exitless: &[&str]) -> Expect {
    let each = |mode| exitless.iter().map(move |operation| format!("{mode} {operation}: no exit"));
    let passed = passed();
    let output = each("xapic").chain(each("x2apic")).chain(passed.output).collect();
    Expect { output, ..passed }
}

/// Debian's greeting, with the text of its kernel's release.
pub(super) fn debian(release: &str, vcpus: u32) -> Expect {
    let output = vec![release.into(), format!("\n{vcpus}\n")];
    Expect { status: 7, output, notes: vec![NO_DIFFERENCE.into()], ..Expect::default() }
}
