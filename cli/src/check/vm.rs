//! Explanation of a virtual machine.

use stile_blob::{ApicVirtualization, BinaryPoint, DecodeCache, Gic, Interrupts, IpiAccess, Nested, OnReset, Topology};

use super::affinity;
use super::devices;
use super::explanation::{Fact, Rows, Vm};
use super::interrupts;
use super::ipi;
use super::map;
use super::timer;
use crate::{
    config::{Arch, InitrdSource, KernelSource, MachineConfig, VmConfig, ablation, units},
    image::VmPlan,
};

/// Explains the `index`th virtual machine of `machine`, which gets this CPU time.
pub fn explain(machine: &MachineConfig, index: usize, cpu_time: &str, plan: Option<&VmPlan>) -> Vm {
    let (arch, vm) = (machine.arch, &machine.vms[index]);
    let mut facts = Vec::new();
    let mut fact = |name: &str, value: &str| facts.push(Fact::new(name, value));
    let kernel = match &vm.kernel {
        KernelSource::File(path) => path.display().to_string(),
        KernelSource::Debian(kernel) => kernel.word().to_owned(),
        KernelSource::Disk => "of the system on the first disk".to_owned(),
        KernelSource::Stile(machine) => {
            let names: Vec<&str> = machine.vms.iter().map(|vm| &vm.name[..]).collect();
            format!("Stile, with these VMs of its own: {}", names.join(", "))
        }
    };
    match plan {
        Some(plan) => {
            let size = units::rounded_size(plan.kernel.len() as u64);
            fact("kernel", &format!("{kernel} ({}; {size} unpacked; starts at {:#x})", plan.kernel.about(), plan.kernel.entry));
        }
        None => fact("kernel", &kernel),
    }
    let initrd = match &vm.initrd {
        InitrdSource::None => "none".to_owned(),
        InitrdSource::File(path) => path.display().to_string(),
        InitrdSource::Busybox => "busybox".to_owned(),
        InitrdSource::Bundled => "the kernel's own".to_owned(),
        InitrdSource::Answered(path) => format!("the installer's, with the answers in {}", path.display()),
    };
    fact("initrd", &initrd);
    if !vm.append.is_empty() {
        fact("command line", &vm.append);
    }
    if let Some(exec) = &vm.exec {
        fact("runs", exec);
    }
    let pinned = if vm.pinned { ", each on one CPU" } else { "" };
    let arranged = vm.topology.map(topology).unwrap_or_default();
    fact("vCPUs", &format!("{}{arranged}{pinned}", vm.vcpus));
    fact("CPU time", cpu_time);
    if !vm.budget.is_empty() {
        fact("budget", &vm.budget.to_string());
    }
    if let Some(nodes) = affinity::nodes_of_vm(machine, vm) {
        fact("NUMA nodes", &nodes);
    }
    fact(
        "on reset",
        &match vm.on_reset {
            OnReset::Restart => "it starts again".to_owned(),
            OnReset::RestartAtMost(1) => "it starts again, once".to_owned(),
            OnReset::RestartAtMost(most) => format!("it starts again, {most} times at most"),
            OnReset::Stop => "it ends".to_owned(),
        },
    );
    match arch {
        Arch::Aarch64 => {
            fact("interrupts", &interrupts::explain(machine, index));
            techniques_of_arm(vm, &mut fact);
        }
        Arch::X86_64 => {
            fact("timers", &timer::explain(machine, index));
            techniques_of_pc(vm, arch.has_amd_v(&machine.cpu_model), &mut fact);
        }
    }
    ipi::explain(machine, index).iter().for_each(|what| fact("IPIs", what));
    for (name, what) in devices::explain(machine, index) {
        fact(name, &what);
    }
    if !vm.functions.is_empty() {
        fact("RAM", "filled before the guest starts, because functions access it without faults");
    }
    if let Some(ablate) = &vm.techniques.ablate {
        fact("ablated", &ablation::describe(ablate));
    }
    let (map, lines) = match arch {
        Arch::Aarch64 => (map::arm(vm, plan), Rows::new(&["interrupt", "trigger", "what"], map::arm_interrupts(vm))),
        Arch::X86_64 => {
            let rows = Rows::named(&["ports", "what", "input of the I/O APIC"], &["ports", "what", "io_apic_input"], map::ports());
            (map::pc(vm, plan), rows)
        }
    };
    let present = machine.present_cpus();
    let cpus_of = |vcpu| affinity::cpus_of(vm, vcpu, &present).iter().map(|cpu| cpu.index()).collect();
    let cpus = (0..usize::from(vm.vcpus)).map(cpus_of).collect();
    Vm { name: vm.name.clone(), memory: vm.memory, cpus, facts, map, lines }
}

fn techniques_of_arm(vm: &VmConfig, fact: &mut impl FnMut(&str, &str)) {
    let wfi = if vm.techniques.wfi_passthrough { "not trapped while nothing else wants the CPU" } else { "trapped" };
    fact("WFI", wfi);
    match vm.techniques.binary_point {
        _ if vm.gic == Gic::V2 => {}
        BinaryPoint::Own => fact("ICC_BPR1_EL1", "the guest's; on QEMU it can end the machine with it"),
        BinaryPoint::Common => fact("ICC_BPR1_EL1", "follows ICC_BPR0_EL1; ICC_CTLR, DIR, PMR and RPR trap"),
        BinaryPoint::Auto if vm.techniques.nested != Nested::Off => {}
        BinaryPoint::Auto if vm.techniques.ipi == IpiAccess::Direct && vm.techniques.interrupts == Interrupts::Direct => {
            fact("ICC_BPR1_EL1", "the guest's; on QEMU it can end the machine with it");
        }
        BinaryPoint::Auto => fact("ICC_BPR1_EL1", "on QEMU it follows ICC_BPR0_EL1, and ICC_CTLR, DIR, PMR and RPR trap"),
    }
    match vm.techniques.nested {
        // The last is refused on Arm.
        Nested::Off | Nested::Enlightened => {}
        Nested::Nv => fact("EL2 of its own", "every access to its registers traps (FEAT_NV)"),
        Nested::Nv2 => fact("EL2 of its own", "its registers are in memory or EL1's (FEAT_NV2)"),
    }
}

fn techniques_of_pc(vm: &VmConfig, has_amd_v: bool, fact: &mut impl FnMut(&str, &str)) {
    let apics = match vm.techniques.apic_virtualization {
        _ if has_amd_v => "every access to a register exits, interrupts are injected by hand: AVIC is not used",
        ApicVirtualization::Off => "every access to a register exits, interrupts are injected by hand",
        ApicVirtualization::Registers => "where the CPU can: registers are read without an exit",
        ApicVirtualization::Delivery => "where the CPU can: it delivers interrupts, too",
        ApicVirtualization::Posted => "where the CPU can: it delivers interrupts, also those that other CPUs post",
    };
    fact("local APICs", apics);
    match vm.techniques.nested {
        Nested::Off => {}
        Nested::Enlightened => {
            fact("VMX of its own", "with Hyper-V's enlightened VMCSs, in memory: CPUID reports a Hyper-V; its EPT is shadowed")
        }
        Nested::Nv | Nested::Nv2 => fact("VMX of its own", "its VMCSs are merged with Stile's, its EPT is shadowed"),
    }
    let decoded = match vm.techniques.decode_cache {
        DecodeCache::Verify => "device accesses are remembered, and compared with the code at each use",
        DecodeCache::Protect => "device accesses are remembered, their code write-protected",
        DecodeCache::Off => "device accesses are decoded anew each time",
    };
    fact("decoded", decoded);
}

/// Topology of vCPUs.
fn topology(of: Topology) -> String {
    let [sockets, cores, threads] =
        [(of.sockets, "socket"), (of.cores, "core"), (of.threads, "thread")].map(|(n, what)| units::plural(n, what));
    format!(" in {sockets} of {cores} with {threads} each")
}
