//! The hosts and their names.

use stile_blob::{ApicVirtualization, DecodeCache, Interrupts, IpiAccess, Techniques, TimerAccess};

use crate::operation::{FIRE_DIRECT, Needs, Operation};
use stile::config::Arch;

/// Stile's name.
pub const STILE: &str = "stile";

/// Something that the probe runs under.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Host {
    /// Stile.
    Stile,
    /// Stile without a technique.
    Without(Technique),
    /// No hypervisor: the least that an operation can cost.
    Native,
    /// KVM.
    Kvm(Kvm),
    /// Xen.
    Xen,
}

/// A technique that Stile can do without.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Technique {
    /// Virtualization of local APICs by the processor.
    ApicVirtualization,
    /// Virtualization of local APICs, and the cache of decoded instructions.
    DecodeCache,
    /// Virtual interrupts. Without them, a guest's timers and SGIs are physical interrupts.
    VirtualInterrupts,
    /// Traps of IPIs, and on Arm virtual interrupts, too. Without them, all other VMs trust this one.
    TrappedIpis,
    /// Passthrough of the TSC deadline.
    PassthroughTimer,
    /// Traps of IPIs, and passthrough of the TSC deadline.
    IpisAlone,
}

impl Technique {
    /// Its name on the command line and in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ApicVirtualization => "stile-software-apic",
            Self::DecodeCache => "stile-no-decode-cache",
            Self::VirtualInterrupts => "stile-direct",
            Self::TrappedIpis => "stile-trusted",
            Self::PassthroughTimer => "stile-trapped-timer",
            Self::IpisAlone => "stile-trusted-trapped-timer",
        }
    }

    /// Its name in pages and pictures.
    pub const fn title(self) -> &'static str {
        match self {
            Self::ApicVirtualization => "Stile, software APIC",
            Self::DecodeCache => "and no decode cache",
            Self::VirtualInterrupts => "Stile, direct interrupts",
            Self::TrappedIpis => "Stile, trusted",
            Self::PassthroughTimer => "Stile, trapped timer",
            Self::IpisAlone => "Stile, trusted, trapped timer",
        }
    }

    /// Whether it is about how a guest's timers and IPIs arrive.
    pub const fn is_of_interrupts(self) -> bool {
        !matches!(self, Self::ApicVirtualization | Self::DecodeCache)
    }

    /// A VM's techniques without it, on an architecture.
    pub fn switched_off(self, arch: Arch, techniques: Techniques) -> Techniques {
        match self {
            Self::ApicVirtualization => Techniques { apic_virtualization: ApicVirtualization::Off, ..techniques },
            Self::DecodeCache => Techniques { decode_cache: DecodeCache::Off, ..Self::ApicVirtualization.switched_off(arch, techniques) },
            Self::VirtualInterrupts => Techniques { interrupts: Interrupts::Direct, ..techniques },
            Self::TrappedIpis if arch == Arch::X86_64 => Techniques { ipi: IpiAccess::Direct, ..techniques },
            Self::TrappedIpis => Techniques { ipi: IpiAccess::Direct, ..Self::VirtualInterrupts.switched_off(arch, techniques) },
            Self::PassthroughTimer => Techniques { timer: TimerAccess::Trapped, ..techniques },
            Self::IpisAlone => Techniques { ipi: IpiAccess::Direct, ..Self::PassthroughTimer.switched_off(arch, techniques) },
        }
    }

    /// Whether an operation takes another path without the technique.
    pub fn concerns(self, operation: &Operation) -> bool {
        match self {
            Self::ApicVirtualization => true,
            // No vCPU is direct while another wants its CPU.
            Self::VirtualInterrupts => operation.needs != Needs::Shared,
            Self::TrappedIpis | Self::IpisAlone => operation.needs == Needs::Two,
            Self::PassthroughTimer => operation.name.starts_with("tscdeadline") && operation.name != FIRE_DIRECT,
            // Only instructions that access a device's memory are decoded.
            Self::DecodeCache => operation.name.ends_with("_xapic") || matches!(operation.name, "lapic_id_read" | "lapic_timer_read"),
        }
    }
}

impl Host {
    /// Its name on the command line and in the terminal's tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stile => STILE,
            Self::Without(technique) => technique.name(),
            Self::Native => "native",
            Self::Kvm(kvm) => kvm.name(),
            Self::Xen => "xen",
        }
    }

    /// Its name in pages and pictures.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Stile => "Stile",
            Self::Without(technique) => technique.title(),
            Self::Native => "no hypervisor",
            Self::Kvm(kvm) => kvm.title(),
            Self::Xen => "Xen",
        }
    }

    /// Whether the host does not work on a CPU without FEAT_VHE. (The newest kernel's protected mode stops in the boot there, in the
    /// emulator at least.)
    pub const fn needs_vhe(self) -> bool {
        matches!(self, Self::Kvm(Kvm::Vhe | Kvm::Protected | Kvm::V6_12 | Kvm::Nested))
    }
}

/// A version and mode of KVM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kvm {
    /// The newest kernel, with the host at EL2.
    Vhe,
    /// The newest kernel, with the host at EL1.
    Nvhe,
    /// The newest kernel, with a host that is not trusted.
    Protected,
    /// Linux 6.12, with the host at EL2.
    V6_12,
    /// The newest kernel, with the host at EL2, and VMs that may have an EL2 of their own.
    Nested,
    /// Linux 6.1 on a PC.
    V6_1,
}

impl Kvm {
    /// Its name on the command line and in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Vhe => "kvm-vhe",
            Self::Nvhe => "kvm-nvhe",
            Self::Protected => "kvm-protected",
            Self::V6_12 => "kvm-6.12",
            Self::Nested => "kvm-nested",
            Self::V6_1 => "kvm-6.1",
        }
    }

    /// Its name in pages and pictures.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Vhe => "KVM VHE",
            Self::Nvhe => "KVM nVHE",
            Self::Protected => "KVM protected",
            Self::V6_12 => "KVM 6.12",
            Self::Nested => "KVM nested",
            Self::V6_1 => "KVM 6.1",
        }
    }
}
