//! Direct interprocessor interrupts (`ipi = "direct"`) on a PC: a bare-metal guest, and Linux with the module.

use anyhow::Result;

use super::disk::Contents;
use super::kexec::Kexec;
use super::operator::Step;
use super::scenario::{Expect, NO_DIFFERENCE, Scenario, passed};
use super::share;
use stile::exit;
use stile::programs::{PASSED, Programs};

/// All of them.
pub(super) fn all(programs: &Programs) -> Result<Vec<Scenario>> {
    let program = programs.path("direct")?;
    let tests = |name: &str, cpus: u32, vm: &str| {
        let config = format!("[machine]\narch = \"x86_64\"\ncpus = {cpus}\n{}", direct("tests", &program, vm));
        Scenario { config: Some(config), expect: passed(), ..Scenario::new(format!("pc/ipi/{name}"), "--exits") }
    };
    let through_gate = |name: &str, cpus: u32, vm: &str| through_gate_of(&program, name, cpus, vm);
    Ok(vec![
        // Identifiers of vCPUs differ from those of their CPUs. The tests' waits exit before direct interrupts are
        // enabled; few other exits occur.
        tests("owned", 3, "vcpus = 2\ncpus = [1, 2]\npinned = true"),
        // vCPUs take turns: notifications become wake-ups.
        tests("shared", 2, "vcpus = 3"),
        // A timer also expires while the CPU is idle.
        with_timer(tests("one-cpu", 1, "vcpus = 2")),
        // Expiries of timers are notifications, on CPUs that the vCPUs own; and for vCPUs that take turns, whose timers are rarely their own.
        paused(with_timer(tests("timer", 3, "vcpus = 2\ncpus = [1, 2]\npinned = true"))),
        with_timer(tests("timer-shared", 2, "vcpus = 3")),
        through_gate("owned", 3, "vcpus = 2\ncpus = [1, 2]\npinned = true"),
        through_gate("shared", 2, "vcpus = 3"),
        // At each of the 4,096 offsets about 50 times.
        intruder(programs, "pc/gate/intruder", 200_000)?,
        intruder(programs, "pc/gate/intruder-million", 1_000_000)?,
        // Each slot opens and closes while it is entered.
        through_gate_of(&programs.path("gate_stress")?, "toggle", 2, "vcpus = 4\ncpus = [0, 1]\npinned = true"),
        user(programs)?,
        after_init(programs)?,
        reset(programs)?,
        flood(programs)?,
        both(&program),
        refused(&program),
        storm(programs, &program)?,
        fires(linux("pc/ipi/debian:6.1", "debian:6.1", "direct")),
        fires(linux("pc/ipi/debian:6.12", "debian:6.12", "direct")),
        fires(linux("pc/ipi/debian", "debian", "direct")),
        linux("pc/gate/debian:6.1", "debian:6.1", "gate"),
        kexec(),
        crash_kernel(),
        crash("pc/ipi/crash", "direct"),
        crash("pc/gate/crash", "gate"),
    ])
}

/// A machine with one VM, which has a gate and must pass.
fn through_gate_of(program: &str, name: &str, cpus: u32, vm: &str) -> Scenario {
    let config = format!("[machine]\narch = \"x86_64\"\ncpus = {cpus}\n{}", with_gate("tests", program, vm));
    Scenario { config: Some(config), expect: passed(), ..Scenario::new(format!("pc/gate/{name}"), "--exits") }
}

/// User code that executes VMFUNC without end takes each interrupt that is sent. Some fall into the gate: their delivery is an EPT
/// violation there, and begins again outside.
fn user(programs: &Programs) -> Result<Scenario> {
    let scenario = through_gate_of(&programs.path("intruder")?, "user", 2, "append = \"user\"\nvcpus = 2\npinned = true");
    let expect = Expect { rows: vec![("delivery put back", 100..=u64::MAX, f64::MAX)], ..scenario.expect };
    Ok(Scenario { expect, ..scenario })
}

/// The slot of a vCPU that INIT has powered off is closed: a sender that enters it exits.
fn after_init(programs: &Programs) -> Result<Scenario> {
    let vm = "append = \"init\"\nvcpus = 2\npinned = true";
    let scenario = through_gate_of(&programs.path("gate_stress")?, "after-init", 2, vm);
    let expect = Expect { rows: vec![("VMX", 2000..=u64::MAX, f64::MAX)], ..scenario.expect };
    Ok(Scenario { expect, ..scenario })
}

/// A VM that is reset again and again while one of its vCPUs enters the gate: each time its interrupts arrive.
fn reset(programs: &Programs) -> Result<Scenario> {
    const RESTARTS: usize = 20;
    let vm = format!("append = \"reset\"\nvcpus = 3\ncpus = [0, 1]\npinned = true\non_reset = \"restart:{RESTARTS}\"");
    let scenario = through_gate_of(&programs.path("gate_stress")?, "reset", 2, &vm);
    let output = vec!["gate_stress: resets".into(); RESTARTS + 1];
    let expect = Expect { status: exit::GUEST, output, absent: vec!["FAIL "], notes: vec![NO_DIFFERENCE.into()], ..Expect::default() };
    Ok(Scenario { expect, ..scenario })
}

/// A vCPU that two others notify without end, on the CPU of an honest VM, which gets its share.
fn flood(programs: &Programs) -> Result<Scenario> {
    let vm = "append = \"flood\"\nvcpus = 3\ncpus = [0, 1, 2]\npinned = true";
    share::beside(programs, "pc/gate/flood", &with_gate("flood", &programs.path("gate_stress")?, vm), 1)
}

/// A VM with a gate, and one with direct IPIs, which stay trapped.
fn both(program: &str) -> Scenario {
    let vms = [with_gate("gate", program, "vcpus = 2"), direct("trapped", program, "vcpus = 2\nappend = \"without\"")];
    let config = format!("[machine]\narch = \"x86_64\"\ncpus = 2\n{}", vms.concat());
    let expect = Expect { output: vec![PASSED.into(); 2], ..passed() };
    Scenario { config: Some(config), expect, ..Scenario::new("pc/gate/beside-direct", "--exits") }
}

/// A VM that is refused a gate, as it has no posted interrupts: the APICs stay in x2APIC mode, and its neighbour has direct IPIs.
fn refused(program: &str) -> Scenario {
    let without = with_gate("refused", program, "vcpus = 2\nappend = \"without\"") + "apic_virtualization = \"delivery\"\n";
    let config = format!("[machine]\narch = \"x86_64\"\ncpus = 2\n{without}{}", direct("direct", program, "vcpus = 2"));
    let expect = Expect { output: vec![PASSED.into(); 2], ..passed() };
    Scenario { config: Some(config), expect, ..Scenario::new("pc/gate/refused", "--exits") }
}

/// A VM with direct interprocessor interrupts.
fn direct(name: &str, kernel: &str, more: &str) -> String {
    let techniques = "[vm.techniques]\nipi = \"direct\"\n";
    format!("\n[[vm]]\nname = \"{name}\"\nkernel = \"{kernel}\"\nmemory = \"64M\"\n{more}\n{techniques}")
}

/// The scenario with `timer = "direct"` in its last VM, whose techniques end the configuration.
fn with_timer(scenario: Scenario) -> Scenario {
    Scenario { config: scenario.config.map(|config| config + "timer = \"direct\"\n"), ..scenario }
}

/// The scenario, paused between two tests of timers: from then on the counter is not the processor's, and the timer is not passed through.
/// The guest waits there for its power button, so that the pause cannot come too late.
fn paused(scenario: Scenario) -> Scenario {
    let config = scenario.config.map(|config| config.replace("pinned = true", "pinned = true\nappend = \"held\""));
    let steps = vec![
        Step::new("waiting for the power button", "pause m/tests", &["m/tests is paused"]),
        Step::new("", "resume m/tests", &["m/tests runs"]),
        Step::new("", "stop m/tests --json --grace 3000", &[r#""state":"off","forced":false"#]),
    ];
    Scenario { config, steps, ..scenario }
}

/// The scenario with timers that notify, of Linux with the module.
fn fires(linux: Scenario) -> Scenario {
    let mut scenario = with_timer(linux);
    scenario.expect.output.insert(1, "stile_ipi: timers fire without exits".to_owned());
    scenario
}

/// A VM with a gate.
fn with_gate(name: &str, kernel: &str, more: &str) -> String {
    direct(name, kernel, more).replace("\"direct\"", "\"gate\"")
}

/// An untrusted VM that enters the gate `attacks` times: at each offset, in every mode. Stile survives, and its neighbours do, which get no
/// NMI and no interrupt that Stile does not know. Most attacks reach the gate, and exit there.
fn intruder(programs: &Programs, name: &str, attacks: u32) -> Result<Scenario> {
    // The neighbours compute for about as long as the attacks last.
    let rounds = attacks / 5_900;
    let vm = format!("append = \"attacks={attacks}\"\nvcpus = 2\ncpus = [0, 1]\npinned = true");
    let config = among_neighbours(programs, &with_gate("intruder", &programs.path("intruder")?, &vm), rounds)?;
    let expect = Expect {
        notes: vec![NO_DIFFERENCE.into(); 3],
        output: vec![PASSED.into(); 3],
        rows: vec![("VMX", u64::from(attacks / 5 * 3)..=u64::MAX, f64::MAX)],
        absent_notes: vec!["spurious", "  NMI "],
        ..passed()
    };
    Ok(Scenario { config: Some(config), timeout: 1800, expect, ..Scenario::new(name, "--exits=all") })
}

/// A machine with a hostile VM on CPUs 0 and 1, and two that verify checksums: on CPU 2, and on CPU 1.
fn among_neighbours(programs: &Programs, hostile: &str, rounds: u32) -> Result<String> {
    let checksum = programs.path("checksum")?;
    let neighbour = |name: &str, cpu: u32| {
        format!("\n[[vm]]\nname = \"{name}\"\nkernel = \"{checksum}\"\nappend = \"rounds={rounds}\"\nmemory = \"64M\"\ncpus = [{cpu}]\n")
    };
    let neighbours = [neighbour("beside", 2), neighbour("among", 1)].concat();
    Ok(format!("[machine]\narch = \"x86_64\"\ncpus = 3\n{hostile}{neighbours}"))
}

/// A trusted VM that sends everything everywhere and scribbles its descriptors: Stile survives, and its neighbours do.
fn storm(programs: &Programs, program: &str) -> Result<Scenario> {
    let vm = "append = \"storm\"\nvcpus = 2\ncpus = [0, 1]\npinned = true";
    let config = among_neighbours(programs, &direct("storm", program, vm), 30)?;
    let expect = Expect { notes: vec![NO_DIFFERENCE.into(); 3], output: vec![PASSED.into(); 3], ..passed() };
    Ok(Scenario { config: Some(config), expect, ..Scenario::new("pc/ipi/storm", "--exits") })
}

/// Linux crashes with the module loaded, under load, and is restarted: nothing of the module is left, and IPIs without exits work again.
fn crash(name: &str, ipi: &str) -> Scenario {
    let exec =
        "dmesg | grep stile_ipi; (while true; do ls /bin | sort | md5sum >/dev/null; done) & usleep 100000; echo c >/proc/sysrq-trigger";
    let config = format!(
        "[machine]\narch = \"x86_64\"\ncpus = 3\n\n[[vm]]\nname = \"linux\"\nkernel = \"debian:6.1\"\nmemory = \"256M\"\nvcpus = 2\n\
         cpus = [1, 2]\npinned = true\non_reset = \"restart:1\"\nexec = \"\"\"{exec}\"\"\"\n\
         [vm.techniques]\nipi = \"{ipi}\"\n"
    );
    let once = ["stile_ipi: interprocessor interrupts are sent without exits", "sysrq triggered crash"];
    let output = once.repeat(2).into_iter().map(String::from).collect();
    let expect = Expect { status: exit::GUEST, output, notes: vec![NO_DIFFERENCE.into()], ..Expect::default() };
    Scenario { config: Some(config), expect, ..Scenario::new(name, "--exits") }
}

/// Linux starts another kernel by kexec.
fn kexec() -> Scenario {
    two_kernels("pc/ipi/kexec", Kexec { command: "/kexec /kernel /initrd", cpus: 2 }, "")
}

/// Another kernel takes over when Linux crashes.
fn crash_kernel() -> Scenario {
    let command = "crash() { /kexec --crash /kernel /initrd \"$1\" && echo c >/proc/sysrq-trigger; }; crash";
    two_kernels("pc/ipi/crash-kernel", Kexec { command, cpus: 1 }, " crashkernel=128M")
}

/// Under load nothing of the first kernel's module is left, and the second kernel loads the module. `more`: arguments of the first kernel.
fn two_kernels(name: &str, kexec: Kexec, more: &str) -> Scenario {
    let config = format!(
        "[machine]\narch = \"x86_64\"\ncpus = 3\n\n[[vm]]\nname = \"linux\"\nkernel = \"debian:6.1\"\ninitrd = \"{{disk}}\"\n\
         append = \"console=ttyS0 quiet{more}\"\nmemory = \"384M\"\nvcpus = 2\ncpus = [1, 2]\npinned = true\non_reset = \"stop\"\n\
         [vm.techniques]\nipi = \"direct\"\n"
    );
    let loaded = |cpus: u32| format!("the module is loaded on {cpus} CPUs");
    let output = vec![loaded(2), loaded(kexec.cpus), "second kernel: 1".to_owned()];
    let expect = Expect { output, notes: vec![NO_DIFFERENCE.into()], ..Expect::default() };
    let disk = Some(Contents::Kexec(kexec));
    // The kernel's own check of what it loads takes 500 million instructions, twice.
    Scenario { config: Some(config), disk, timeout: 1800, expect, ..Scenario::new(name, "--exits") }
}

/// Linux with the module: under load, a CPU goes offline and online, and the module is unloaded and loaded again.
fn linux(name: &str, kernel: &str, ipi: &str) -> Scenario {
    let exec = "dmesg | grep stile_ipi; \
        (for i in $(seq 16); do ls /bin | sort | md5sum; done) >/tmp/sums & \
        for i in 1 2; do echo 0 >/sys/devices/system/cpu/cpu1/online; echo 1 >/sys/devices/system/cpu/cpu1/online; done; \
        for i in 1 2; do rmmod stile_ipi; insmod /stile/drivers/*stile_ipi.ko; done; \
        wait; sort -u /tmp/sums | wc -l; nproc; grep -c stile_ipi /proc/modules; exit 7";
    let config = format!(
        "[machine]\narch = \"x86_64\"\ncpus = 3\n\n[[vm]]\nname = \"linux\"\nkernel = \"{kernel}\"\nmemory = \"256M\"\nvcpus = 2\n\
         cpus = [1, 2]\npinned = true\non_reset = \"stop\"\nexec = \"\"\"{exec}\"\"\"\n[vm.techniques]\nipi = \"{ipi}\"\n"
    );
    let output = ["stile_ipi: interprocessor interrupts are sent without exits", "1\n2\n1\n"].map(String::from).into();
    let expect = Expect { status: 7, output, notes: vec![NO_DIFFERENCE.into()], ..Expect::default() };
    Scenario { config: Some(config), expect, ..Scenario::new(name, "--exits") }
}
