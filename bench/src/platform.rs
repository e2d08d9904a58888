//! Measurements of an architecture: operations, peers, emulated machine.

use std::path::Path;

use stile_blob::Gic;

use super::emulate;
use super::host::{Host, Kvm, Technique};
use super::operation::{self, Needs, Operation};
use stile::config::Arch;
use stile::emulator::{AmdPc, Board, Boot, Machine, Pc, bochs};

/// An architecture, as the bench sees it.
#[derive(Debug)]
pub struct Platform {
    /// The architecture.
    pub arch: Arch,
    /// CPU model of the picture, and default of measurements.
    pub model: &'static str,
    /// Operations of the probe, in the order of tables.
    pub operations: &'static [Operation],
    /// Hosts that Stile is compared with.
    pub peers: &'static [Host],
    /// Whether the emulator can load the plugin that counts instructions outside of the guest.
    pub has_plugin: bool,
    /// Whether the emulator itself counts exits and VMX instructions.
    pub counts_vmx: bool,
    /// The file of the picture, from the repository's folder.
    pub picture: &'static str,
    /// The name of the marks between which `docs/bench.md` has the figures.
    pub mark: &'static str,
}

/// All of them.
pub static PLATFORMS: [Platform; 2] = [
    Platform {
        arch: Arch::Aarch64,
        model: Arch::Aarch64.default_cpu_model(),
        operations: &operation::AARCH64,
        peers: &[
            Host::Without(Technique::VirtualInterrupts),
            Host::Without(Technique::TrappedIpis),
            Host::Native,
            Host::Kvm(Kvm::Vhe),
            Host::Kvm(Kvm::Nvhe),
            Host::Kvm(Kvm::Protected),
            Host::Kvm(Kvm::V6_12),
            Host::Xen,
        ],
        has_plugin: true,
        counts_vmx: false,
        picture: "docs/bench.svg",
        mark: "figures",
    },
    Platform {
        arch: Arch::X86_64,
        model: Arch::X86_64.default_cpu_model(),
        operations: &operation::X86_64,
        peers: &[Host::Without(Technique::ApicVirtualization), Host::Without(Technique::DecodeCache), Host::Native, Host::Kvm(Kvm::V6_1)],
        has_plugin: false,
        counts_vmx: true,
        picture: "docs/bench-x86_64.svg",
        mark: "figures of x86_64",
    },
];

/// A PC with AMD-V. Figures are those of the plugin: its counter is that of time.
pub static AMD_V: Platform = Platform {
    arch: Arch::X86_64,
    model: "EPYC",
    operations: &operation::AMD_V,
    peers: &[Host::Kvm(Kvm::V6_1), Host::Xen],
    has_plugin: true,
    counts_vmx: false,
    picture: "docs/bench-x86_64-svm.svg",
    mark: "figures of x86_64-svm",
};

/// The platform of an architecture.
pub fn of(arch: Arch) -> &'static Platform {
    let [aarch64, x86_64] = &PLATFORMS;
    match arch {
        Arch::Aarch64 => aarch64,
        Arch::X86_64 => x86_64,
    }
}

/// The platform that has a CPU model.
pub fn of_cpu(model: &str) -> &'static Platform {
    of_machine(if bochs::MODELS.contains(&model) || model.starts_with(AMD_V.model) { Arch::X86_64 } else { Arch::Aarch64 }, model)
}

/// The platform of an architecture's CPU model.
pub fn of_machine(arch: Arch, model: &str) -> &'static Platform {
    if arch.has_amd_v(model) { &AMD_V } else { of(arch) }
}

/// Files and settings of a machine.
#[derive(Debug, Clone, Copy)]
pub struct Start<'a> {
    /// The CPUs' model.
    pub cpu: &'a str,
    /// Physical CPUs.
    pub cpus: u32,
    /// Physical memory in bytes.
    pub memory: u64,
}

impl Platform {
    /// CPU model of the picture, and default of measurements.
    pub const fn cpu(&self) -> &'static str {
        self.model
    }

    /// Whether figures are instructions outside of the guest: the counter that the probe reads is that of time.
    pub fn counts_outside_only(&self) -> bool {
        self.has_plugin && self.arch == Arch::X86_64
    }

    /// Stile, followed by its peers.
    pub fn hosts(&self) -> impl Iterator<Item = Host> {
        [Host::Stile].into_iter().chain(self.peers.iter().copied())
    }

    /// The operations with these names; all without names.
    ///
    /// # Errors
    /// Unknown name; the message lists the valid ones.
    pub fn choose(&self, names: &[String]) -> Result<Vec<Operation>, String> {
        operation::choose(self.operations, names)
    }

    /// The peers that the words of `--against` name; all without words.
    ///
    /// # Errors
    /// Unknown name; the message lists the valid ones.
    pub fn choose_peers(&self, words: &[String]) -> Result<Vec<Host>, String> {
        if words.is_empty() {
            return Ok(self.peers.to_vec());
        }
        let mut hosts = Vec::new();
        for word in words.iter().filter(|word| *word != "none") {
            let host = self.peers.iter().find(|host| host.name() == word).ok_or_else(|| {
                let known: Vec<_> = self.peers.iter().map(|host| host.name()).collect();
                format!("there is no peer called {word}; expected none or some of {}", known.join(", "))
            })?;
            if !hosts.contains(host) {
                hosts.push(*host);
            }
        }
        Ok(hosts)
    }

    /// Returns the operations by requirement: those of one requirement share a run.
    pub fn groups(operations: &[Operation]) -> Vec<(Needs, Vec<Operation>)> {
        [Needs::One, Needs::Two, Needs::Shared]
            .into_iter()
            .map(|needs| (needs, operations.iter().filter(|operation| operation.needs == needs).copied().collect::<Vec<_>>()))
            .filter(|(_, operations)| !operations.is_empty())
            .collect()
    }

    /// A machine that starts Stile. `gic`: its interrupt controller, on Arm.
    pub fn hypervisors(&self, start: &Start<'_>, gic: Gic, extra: Vec<String>) -> Machine {
        let options = if gic == Gic::V2 { vec!["gic-version=2".into()] } else { Vec::new() };
        self.machine(start, options, Boot::default(), extra)
    }

    /// A machine without virtualization that starts a program with a command line.
    pub fn bare(&self, start: &Start<'_>, arguments: String) -> Machine {
        let extra = match self.arch {
            Arch::X86_64 if !self.arch.has_amd_v(start.cpu) => Vec::new(),
            Arch::Aarch64 | Arch::X86_64 => vec!["-append".into(), arguments.clone()],
        };
        // The last of several options takes effect.
        self.machine(start, vec!["virtualization=off".into()], Boot::Multiboot(arguments), extra)
    }

    /// A machine that starts Linux with a command line and an initial RAM file system.
    pub fn linux(&self, start: &Start<'_>, arguments: String, initrd: &Path) -> Machine {
        let mut extra = Vec::new();
        if self.arch == Arch::Aarch64 || self.arch.has_amd_v(start.cpu) {
            extra.extend(emulate::REPEATABLE.map(str::to_owned));
            extra.extend(["-initrd".into(), initrd.display().to_string(), "-append".into(), arguments.clone()]);
        }
        self.machine(start, Vec::new(), Boot::Linux(arguments, initrd.to_owned()), extra)
    }

    fn machine(&self, start: &Start<'_>, options: Vec<String>, boot: Boot, extra: Vec<String>) -> Machine {
        let &Start { cpu, cpus, memory } = start;
        let cpu = cpu.to_owned();
        match self.arch {
            Arch::Aarch64 => Machine::Arm(Board {
                cpu,
                cpus,
                nodes: Vec::new(),
                memory,
                machine: options,
                smmu: false,
                icount: true,
                firmware: None,
                extra,
            }),
            Arch::X86_64 if self.arch.has_amd_v(&cpu) => {
                Machine::AmdPc(AmdPc { cpu, cpus, memory, machine: Vec::new(), icount: false, iommu: false, extra })
            }
            Arch::X86_64 => Machine::Pc(Pc { cpu, cpus, memory, boot, extra, counts: None }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_are_chosen_by_name() {
        let arm = of(Arch::Aarch64);
        assert_eq!(arm.choose_peers(&[]).unwrap(), arm.peers);
        assert_eq!(arm.choose_peers(&["none".to_owned()]).unwrap(), []);
        assert_eq!(arm.choose_peers(&["native".to_owned(), "native".to_owned()]).unwrap(), [Host::Native]);
        assert!(arm.choose_peers(&["vmware".to_owned()]).unwrap_err().contains("native"));
    }

    #[test]
    fn each_architecture_has_its_own() {
        for arch in Arch::ALL {
            let platform = of(arch);
            assert_eq!(platform.arch, arch);
            let groups = Platform::groups(platform.operations);
            assert_eq!(groups.iter().map(|(_, operations)| operations.len()).sum::<usize>(), platform.operations.len());
        }
    }
}
