//! Resolving a draft: checks values against each other and fills in every default.

use std::{path::Path, time::Duration};

use stile_blob::{DecodeCache, Gic, IpiAccess, Nested, Share, Techniques, Topology};
use stile_board::{MAX_ASSIGNED, MAX_CPUS, MAX_FUNCTIONS, MAX_NESTED_VCPUS, MAX_VCPUS, MAX_VMS, pc};
use stile_pci::Address;

use super::{
    Arch, DebianKernel, DomainConfig, InitrdSource, KernelSource, MAX_DOMAINS, MAX_NODES, MachineConfig, Mistake, Place, VmConfig, budget,
    devices,
    draft::{Draft, Given, VmDraft},
    gic, memory_disks, served,
    service::{self, Service},
    topology, units, value,
};

/// The RAM of a virtual machine that doesn't say.
const DEFAULT_MEMORY: u64 = 512 << 20;
/// Default memory for Debian's installer, which unpacks its packages into RAM.
const DEFAULT_INSTALLER_MEMORY: u64 = 1 << 30;
/// The RAM of a domain that doesn't say.
const DEFAULT_DOMAIN_MEMORY: u64 = 64 << 20;
const DEFAULT_SLICE: Duration = Duration::from_micros(stile_config::boot::DEFAULT_SLICE_US as u64);

/// Reports every mistake; `None` if no configuration can be made.
pub fn machine(draft: &Draft, folder: &Path, mistakes: &mut Vec<Mistake>) -> Option<MachineConfig> {
    let arch = draft.arch.as_ref().and_then(|given| value::arch(given, mistakes)).unwrap_or_default();
    let cpu_model = draft.cpu.as_ref().and_then(|given| value::cpu_model(given, mistakes));
    let is_vmx = arch == Arch::X86_64 && !arch.has_amd_v(cpu_model.as_deref().unwrap_or(arch.default_cpu_model()));
    let slice = draft.slice.as_ref().and_then(|given| value::slice(given, mistakes));
    let mitigations = draft.mitigations.as_ref().and_then(|given| value::mitigations(given, mistakes));
    let gic = draft.gic.as_ref().and_then(|given| gic::version(given, arch, mistakes)).unwrap_or_default();
    let memory = draft.memory.as_ref().and_then(|given| value::machine_memory(given, mistakes));
    let given_cpus = draft.cpus.as_ref().and_then(|given| {
        let cpus = value::number(given, "physical CPUs", 1, MAX_CPUS, mistakes)?;
        u32::try_from(cpus).ok()
    });
    let given_nodes = draft.nodes.as_ref().and_then(|given| {
        if arch == Arch::X86_64 {
            let what = "NUMA nodes can't be emulated on x86_64";
            mistakes.push(Mistake::new(given.place.clone(), what).expected("arch = \"aarch64\" in [machine], or no `nodes`"));
            return None;
        }
        u32::try_from(value::number(given, "NUMA nodes", 1, MAX_NODES, mistakes)?).ok()
    });
    // If the file doesn't give the number of CPUs, the CPUs named by virtual machines exist.
    let cpu_limit = given_cpus.unwrap_or(MAX_CPUS as u32);

    if let Some(extra) = draft.vms.get(MAX_VMS) {
        let what = format!("there are {} virtual machines", draft.vms.len());
        mistakes.push(Mistake::new(extra.place.clone(), what).expected(format!("at most {MAX_VMS}")));
    }
    let mut vms: Vec<VmConfig> = Vec::new();
    // Mistakes of excess VMs would only add noise.
    for (index, vm_draft) in draft.vms.iter().take(MAX_VMS).enumerate() {
        if let (true, [function, ..]) = (is_vmx, &vm_draft.functions[..]) {
            let what = "PCI functions can't be assigned on x86_64 with VMX yet";
            mistakes.push(Mistake::new(function.place.clone(), what).expected(devices::MACHINES_WITH_FUNCTIONS));
        }
        let mut vm = vm(vm_draft, index, arch, cpu_limit, folder, mistakes);
        if let (Arch::X86_64, true, Some(Given { place, .. })) = (arch, vm.techniques.nested != Nested::Off, &vm_draft.nested) {
            nested_conflicts(&vm.techniques, place, mistakes);
        }
        if let (Arch::Aarch64, Nested::Enlightened, Some(given)) = (arch, vm.techniques.nested, &vm_draft.nested_way) {
            let what = "only VMX has enlightened VMCSs";
            mistakes.push(Mistake::new(given.place.clone(), what).expected("arch = \"x86_64\" in [machine], or another mode"));
        }
        if let (Arch::X86_64, Some(topology), Some(given)) = (arch, vm.topology, &vm_draft.topology)
            && !topology.fits_apic_ids()
            && vm.techniques.ipi != IpiAccess::Trapped
        {
            let what = format!("\"{}\" leaves gaps between APIC identifiers, in which threads and cores take whole bits", given.value);
            let expected = "ipi = \"trapped\", or powers of two for threads and, with several sockets, for cores";
            mistakes.push(Mistake::new(given.place.clone(), what).expected(expected));
        }
        let nested_place = vm_draft.nested.as_ref().map_or(&vm_draft.place, |given| &given.place);
        let (most, kind) = match arch {
            Arch::Aarch64 => (MAX_NESTED_VCPUS, "an EL2"),
            Arch::X86_64 => (pc::MAX_NESTED_VCPUS, "VMX"),
        };
        if vm.techniques.nested != Nested::Off && usize::from(vm.vcpus) > most {
            let what = format!("a VM with {kind} has at most {most} vCPUs, and \"{}\" has {}", vm.name, vm.vcpus);
            mistakes.push(Mistake::new(nested_place.clone(), what).expected("fewer vCPUs, or nested = false"));
        }
        vm.functions = functions(vm_draft, vm.techniques.nested, &vms, mistakes);
        devices::resolve(vm_draft, &mut vm, (arch, is_vmx), folder, mistakes);
        vm.memory_disks = memory_disks::resolve(&vm_draft.disks, vm.memory, folder, mistakes);
        if let (Arch::X86_64, DecodeCache::Protect, Some(given)) = (arch, vm.techniques.decode_cache, &vm_draft.decode_cache)
            && vm.functions.len() + vm.emulated_functions() + vm_draft.served.len() != 0
        {
            let what = "a virtual machine with PCI functions, whose DMA changes code unseen, can't have write-protected code";
            mistakes.push(Mistake::new(given.place.clone(), what).expected("\"verify\" or \"off\""));
        }
        if let (Arch::X86_64, Some(topology), Some(given)) = (arch, vm.topology, &vm_draft.topology)
            && pc::has_extended_destinations(topology.last_apic_id())
            && vm.functions.len() + vm.emulated_functions() != 0
        {
            let what = format!("\"{}\" has APIC identifiers above 255, which messages of PCI functions can't name", given.value);
            mistakes.push(
                Mistake::new(given.place.clone(), what).expected("fewer gaps, with powers of two for threads and cores, or no functions"),
            );
        }
        vm.gic = gic;
        if gic == Gic::V2 {
            gic::check(vm_draft, &vm, mistakes);
        }
        if vms.iter().any(|earlier| earlier.name == vm.name) {
            let place = vm_draft.name.as_ref().map_or(&vm_draft.place, |name| &name.place);
            let what = format!("another virtual machine is called \"{}\" already", vm.name);
            mistakes.push(Mistake::new(place.clone(), what).expected("a name of its own"));
        }
        vms.push(vm);
    }

    devices::check_ports(&draft.vms, &vms, mistakes);
    let drafts: Vec<_> = draft.vms.iter().take(MAX_VMS).map(|vm| &vm.served[..]).collect();
    served::resolve(&drafts, arch, is_vmx, &mut vms, mistakes);
    if let Some(Service { draft, disks, networks, folders, serves }) = service::take(&draft.vms, arch, &mut vms, folder, mistakes) {
        let vm = vm(&draft, vms.len(), arch, cpu_limit, folder, mistakes);
        vms.push(VmConfig { serves, disks, networks, folders, ..vm });
    }
    devices::assign(&mut vms, arch, mistakes);

    let highest = vms.iter().filter_map(|vm| vm.cpus.last()).map(|cpu| cpu.index() as u32 + 1).max().unwrap_or(0);
    let cpus = given_cpus.unwrap_or(highest.max(1));
    if let (Some(nodes), Some(given)) = (given_nodes.filter(|&nodes| nodes > cpus), &draft.nodes) {
        let what = format!("{nodes} NUMA nodes, but {}", units::plural(cpus as usize, "physical CPU"));
        mistakes.push(Mistake::new(given.place.clone(), what).expected("at least one CPU for each node"));
    }
    let config = MachineConfig {
        arch,
        cpus,
        nodes: given_nodes.unwrap_or(1),
        memory,
        cpu_model: cpu_model.unwrap_or_else(|| arch.default_cpu_model().to_owned()),
        slice: slice.unwrap_or(DEFAULT_SLICE),
        mitigations: mitigations.unwrap_or_default(),
        gic,
        vms,
    };
    memory_disks::check_all(&config.vms, draft.vms.iter().flat_map(|vm| &vm.disks), mistakes);
    // Sums of wrong values would be wrong.
    if let (true, Some(memory), Some(given)) = (mistakes.is_empty(), memory, &draft.memory) {
        let needed = config.vm_memory() + config.reserved();
        if memory < needed {
            let what = format!(
                "the machine has {}, but its virtual machines have {} and Stile needs {} beside them",
                units::size(memory),
                units::size(config.vm_memory()),
                units::size(config.reserved())
            );
            let expected = format!("at least {} and the size of the image", units::size(needed));
            mistakes.push(Mistake::new(given.place.clone(), what).expected(expected));
        }
    }
    Some(config)
}

fn vm(draft: &VmDraft, index: usize, arch: Arch, cpu_limit: u32, folder: &Path, mistakes: &mut Vec<Mistake>) -> VmConfig {
    let before = mistakes.len();
    let name = draft.name.as_ref().and_then(|given| value::vm_name(given, mistakes));
    let kernel = value::kernel(draft, arch, folder, mistakes);
    let initrd = draft.initrd.as_ref().and_then(|given| value::initrd(given, folder, mistakes));
    let preseed = draft.preseed.as_ref().and_then(|given| value::preseed(given, draft, folder, mistakes));
    let memory = draft.memory.as_ref().and_then(|given| value::vm_memory(given, mistakes));
    let vcpus = draft.vcpus.as_ref().and_then(|given| value::number(given, "vCPUs", 1, MAX_VCPUS, mistakes));
    let topology = draft.topology.as_ref().and_then(|given| topology::topology(given, vcpus, mistakes));
    let vcpus = vcpus.or(topology.map(Topology::vcpus));
    let (cpus, class) = draft.cpus.as_ref().and_then(|given| value::cpus(given, cpu_limit, mistakes)).unwrap_or_default();
    let weight = draft.weight.as_ref().and_then(|given| value::weight(given, mistakes));
    let cap = draft.cap.as_ref().and_then(|given| value::cap(given, mistakes));
    let budget = budget::budget(draft, mistakes);
    let ablate = draft.ablate.as_ref().map(|given| value::ablation(given, mistakes));
    let on_reset = draft.on_reset.as_ref().and_then(|given| value::on_reset(given, mistakes));
    let nested_way = draft.nested_way.as_ref().and_then(|given| value::nested(given, mistakes));
    let apic = draft.apic_virtualization.as_ref().and_then(|given| value::apic_virtualization(given, mistakes));
    let decode_cache = draft.decode_cache.as_ref().and_then(|given| value::decode_cache(given, mistakes));
    let interrupts = draft.interrupts.as_ref().and_then(|given| value::interrupts(given, mistakes));
    let timer = draft.timer.as_ref().and_then(|given| value::timer(given, mistakes));
    let ipi = draft.ipi.as_ref().and_then(|given| value::ipi(given, mistakes));
    let binary_point = draft.binary_point.as_ref().and_then(|given| value::binary_point(given, mistakes));
    if let Some(append) = &draft.append {
        value::no_nul(append, mistakes);
    }
    if let Some(exec) = &draft.exec {
        value::no_nul(exec, mistakes);
    }

    let inner = match &kernel {
        Some(KernelSource::Stile(machine)) => Some(machine),
        _ => None,
    };
    let (inner_memory, inner_cpus) = inner.map(|machine| machine.as_vm()).unzip();
    if inner.is_some() {
        stile(draft, arch, inner_cpus.zip(vcpus), mistakes);
    }
    // A Stile passes it on.
    let exec = draft.exec.as_ref().filter(|_| inner.is_none());

    let installer = kernel == Some(KernelSource::Debian(DebianKernel::Installer));
    let initrd = initrd.or(preseed).unwrap_or(match kernel {
        Some(KernelSource::Debian(DebianKernel::Installer)) => InitrdSource::Bundled,
        Some(KernelSource::Disk) => InitrdSource::Bundled,
        Some(KernelSource::Debian(which)) if which.is_linux() => InitrdSource::Busybox,
        Some(_) | None => InitrdSource::None,
    });
    if let (Some(exec), true) = (exec, before == mistakes.len() && initrd != InitrdSource::Busybox && kernel != Some(KernelSource::Disk)) {
        mistakes.push(
            Mistake::new(exec.place.clone(), "a command is run by the busybox system, which this virtual machine does not have")
                .expected("initrd = \"busybox\""),
        );
    }
    let nested = match draft.nested.as_ref().is_some_and(|given| given.value) {
        true => nested_way.unwrap_or(Nested::Nv2),
        false => Nested::Off,
    };
    if let (None, Some(given), Some(_)) = (&draft.nested, &draft.nested_way, nested_way.filter(|way| *way != Nested::Off)) {
        let what = format!("nested = \"{}\" has no effect: the virtual machine has no EL2 or VMX of its own", given.value);
        mistakes.push(Mistake::new(given.place.clone(), what).expected("also nested = true (or false) in its [[vm]]"));
    }
    if let (Some(given), true) = (&draft.nested, draft.inside && nested != Nested::Off) {
        mistakes.push(
            Mistake::new(given.place.clone(), "a virtual machine's own virtual machines can't have an EL2 or VMX")
                .expected("nested = false"),
        );
    }
    let domains = domains(draft, nested, folder, mistakes);
    VmConfig {
        name: name.unwrap_or_else(|| format!("vm{index}")),
        // Only ever used if there was no mistake.
        kernel: kernel.unwrap_or(KernelSource::Debian(DebianKernel::Newest)),
        initrd,
        append: text(&draft.append),
        memory: memory.or(inner_memory).unwrap_or(if installer { DEFAULT_INSTALLER_MEMORY } else { DEFAULT_MEMORY }),
        vcpus: vcpus.or(inner_cpus.map(|cpus| cpus as usize)).unwrap_or(1) as u16,
        topology,
        cpus,
        class,
        pinned: draft.pinned.as_ref().is_some_and(|given| given.value),
        share: Share { weight: weight.unwrap_or(Share::default().weight), cap },
        budget,
        on_reset: on_reset.unwrap_or_default(),
        exec: exec.map(|given| given.value.clone()),
        techniques: Techniques {
            nested,
            apic_virtualization: apic.unwrap_or_default(),
            decode_cache: decode_cache.unwrap_or_default(),
            binary_point: binary_point.unwrap_or_default(),
            timer: timer.unwrap_or_default(),
            ipi: ipi.unwrap_or_default(),
            interrupts: interrupts.unwrap_or_default(),
            wfi_passthrough: draft.wfi_passthrough.as_ref().map_or(Techniques::default().wfi_passthrough, |given| given.value),
            ablate,
            counters: false,
        },
        domains,
        functions: Vec::new(),
        disks: Vec::new(),
        memory_disks: Vec::new(),
        system_disk: None,
        networks: Vec::new(),
        folders: Vec::new(),
        served_disks: Vec::new(),
        served_folders: Vec::new(),
        served: Vec::new(),
        served_networks: Vec::new(),
        cid: None,
        forwards: Vec::new(),
        console: None,
        serves: 0,
        gic: Gic::default(),
    }
}

/// Techniques that a virtual machine of x86-64 which runs others can't have.
fn nested_conflicts(techniques: &Techniques, place: &Place, mistakes: &mut Vec<Mistake>) {
    let conflicts = [
        (techniques.decode_cache == DecodeCache::Protect, "have write-protected code", "another decode_cache than \"protect\""),
        (techniques.ipi != IpiAccess::Trapped, "send interrupts directly", "ipi = \"trapped\""),
    ];
    for (_, what, expected) in conflicts.into_iter().filter(|(applies, ..)| *applies) {
        let what = format!("a virtual machine that runs others can't {what}");
        mistakes.push(Mistake::new(place.clone(), what).expected(format!("{expected}, or nested = false")));
    }
}

/// Resolves the PCI functions that the virtual machine owns; `others` are the virtual machines before it.
fn functions(draft: &VmDraft, nested: Nested, others: &[VmConfig], mistakes: &mut Vec<Mistake>) -> Vec<Address> {
    let mut functions = Vec::new();
    for entry in &draft.functions {
        let Some(given) = &entry.function else {
            mistakes.push(Mistake::new(entry.place.clone(), "it names no function").expected("function = \"0000:00:02.0\", for example"));
            continue;
        };
        let Some(function) = value::function(given, mistakes) else { continue };
        let owner = others.iter().find(|other| other.functions.contains(&function)).map(|other| &other.name[..]);
        if let Some(owner) = owner.or_else(|| functions.contains(&function).then_some("this virtual machine")) {
            let what = format!("function {function} is assigned to {owner} already");
            mistakes.push(Mistake::new(given.place.clone(), what).expected("a function that nothing else has"));
        }
        functions.push(function);
    }
    let functions_first = draft.functions.first().map(|function| &function.place);
    let Some(first) = functions_first.into_iter().chain(devices::places(draft)).next() else { return functions };
    if nested != Nested::Off || draft.inside {
        let what = "PCI functions can't be assigned to a virtual machine with an EL2 of its own, or inside of one";
        mistakes.push(Mistake::new(first.clone(), what).expected("nested = false"));
    }
    if let Some(extra) = draft.functions.get(MAX_FUNCTIONS) {
        let what = format!("there are {} functions", draft.functions.len());
        mistakes.push(Mistake::new(extra.place.clone(), what).expected(format!("at most {MAX_FUNCTIONS}")));
    }
    let all = functions.len() + others.iter().map(|other| other.functions.len()).sum::<usize>();
    if all > MAX_ASSIGNED && functions.len() <= MAX_FUNCTIONS {
        let what = format!("the virtual machines up to this one have {all} functions");
        mistakes.push(Mistake::new(first.clone(), what).expected(format!("at most {MAX_ASSIGNED}")));
    }
    functions
}

/// Resolves a virtual machine that runs Stile: `cpus` is the inner machine's number, and the number of vCPUs
/// given.
fn stile(draft: &VmDraft, arch: Arch, cpus: Option<(u32, usize)>, mistakes: &mut Vec<Mistake>) {
    if !draft.nested.as_ref().is_some_and(|given| given.value) {
        let place = draft.kernel.as_ref().map_or(&draft.place, |kernel| &kernel.place);
        let needs = match arch {
            Arch::Aarch64 => "an EL2",
            Arch::X86_64 => "VMX",
        };
        mistakes.push(Mistake::new(place.clone(), format!("Stile needs {needs}")).expected("nested = true in its [[vm]]; or --nested"));
    }
    if let (Some((needs, has)), Some(given)) = (cpus, &draft.vcpus)
        && has < needs as usize
    {
        let what = format!(
            "the machine of its Stile has {}, and this virtual machine {}",
            units::plural(needs as usize, "CPU"),
            units::plural(has, "vCPU")
        );
        mistakes.push(Mistake::new(given.place.clone(), what).expected("at least as many"));
    }
    for given in [&draft.append, &draft.initrd].into_iter().flatten() {
        mistakes.push(Mistake::new(given.place.clone(), "Stile takes no command line and no initial RAM file system").expected("nothing"));
    }
}

/// Resolves the domains that the virtual machine starts.
fn domains(draft: &VmDraft, nested: Nested, folder: &Path, mistakes: &mut Vec<Mistake>) -> Vec<DomainConfig> {
    let mut domains = Vec::new();
    for domain in &draft.domains {
        if nested == Nested::Off {
            let what = "a virtual machine without an EL2 can't start others";
            mistakes.push(Mistake::new(domain.place.clone(), what).expected("nested = true in its [[vm]]"));
        }
        if domain.kernel.is_none() {
            mistakes.push(Mistake::new(domain.place.clone(), "this domain has no kernel").expected("kernel = a path"));
        }
        let kernel = domain.kernel.as_ref().and_then(|given| value::file(given, "kernel", "a file", &[], folder, mistakes));
        let memory = domain.memory.as_ref().and_then(|given| value::vm_memory(given, mistakes));
        let vcpus = domain.vcpus.as_ref().and_then(|given| value::number(given, "vCPUs", 1, MAX_VCPUS, mistakes));
        if let Some(append) = &domain.append {
            value::no_nul(append, mistakes);
        }
        domains.push(DomainConfig {
            // Only ever used if there was no mistake.
            kernel: kernel.unwrap_or_default(),
            append: text(&domain.append),
            memory: memory.unwrap_or(DEFAULT_DOMAIN_MEMORY),
            vcpus: vcpus.unwrap_or(1) as u16,
        });
    }
    if let Some(extra) = draft.domains.get(MAX_DOMAINS) {
        let what = format!("there are {} domains", draft.domains.len());
        mistakes.push(Mistake::new(extra.place.clone(), what).expected(format!("at most {MAX_DOMAINS}")));
    }
    domains
}

fn text(given: &Option<Given<String>>) -> String {
    given.as_ref().map(|given| given.value.clone()).unwrap_or_default()
}
