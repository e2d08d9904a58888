//! What the probe can run under: Stile, its peers, and nothing at all.

mod kvm;
mod native;
mod stile;
mod xen;

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};
use stile_blob::{ApicVirtualization, DecodeCache, Techniques};

use super::counts::{self, Counts};
use super::operation::Operation;
use super::platform::{self, Platform};
use super::probe;
use super::vmx::{self, Vmx};
pub use kvm::{Boot, Kvm, boot_arguments as client_boot_arguments, client_archive};
pub use stile::{Together, measure_together};

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

    /// Whether there is no such host on a CPU without FEAT_VHE. (The newest kernel's protected mode stops in the boot there, in the
    /// emulator at least.)
    pub const fn needs_vhe(self) -> bool {
        matches!(self, Self::Kvm(Kvm::Vhe | Kvm::Protected | Kvm::V6_12))
    }

    /// Measures operations: one that the host does not have is left out.
    ///
    /// # Errors
    /// Something can't be built, fetched or run.
    pub fn measure(self, request: &Request<'_>) -> Result<Vec<Figure>> {
        match self {
            Self::Stile => stile::measure(request),
            Self::Without(technique) => {
                let operations: Vec<_> = request.operations.iter().filter(|operation| technique.concerns(operation)).copied().collect();
                let techniques = technique.switched_off(request.techniques);
                stile::measure(&Request { operations: &operations, techniques, ..*request })
            }
            Self::Native => native::measure(request),
            Self::Kvm(kvm) => kvm::measure(kvm, request),
            Self::Xen => xen::measure(request),
        }
    }
}

/// A technique that Stile can do without.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Technique {
    /// Local APICs by the processor.
    ApicVirtualization,
    /// These, and the cache of decoded instructions.
    DecodeCache,
}

impl Technique {
    const fn name(self) -> &'static str {
        match self {
            Self::ApicVirtualization => "stile-software-apic",
            Self::DecodeCache => "stile-no-decode-cache",
        }
    }

    const fn title(self) -> &'static str {
        match self {
            Self::ApicVirtualization => "Stile, software APIC",
            Self::DecodeCache => "and no decode cache",
        }
    }

    /// A VM's techniques without it.
    pub fn switched_off(self, techniques: Techniques) -> Techniques {
        match self {
            Self::ApicVirtualization => Techniques { apic_virtualization: ApicVirtualization::Off, ..techniques },
            Self::DecodeCache => Techniques { decode_cache: DecodeCache::Off, ..Self::ApicVirtualization.switched_off(techniques) },
        }
    }

    /// Whether an operation is another one without it.
    fn concerns(self, operation: &Operation) -> bool {
        match self {
            Self::ApicVirtualization => true,
            // Instructions are decoded whose operand is a device.
            Self::DecodeCache => operation.name.ends_with("_xapic") || matches!(operation.name, "lapic_id_read" | "lapic_timer_read"),
        }
    }
}

/// What to measure.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// The architecture.
    pub platform: &'static Platform,
    /// The probe: on Arm a flat image, on a PC a Multiboot program.
    pub probe: &'a [u8],
    /// The emulated CPUs' model.
    pub cpu: &'a str,
    /// The operations.
    pub operations: &'a [Operation],
    /// How often each runs; some run less often.
    pub iterations: u32,
    /// The plugin that counts exits and what runs outside of the guest; nothing without it.
    pub plugin: Option<&'a Path>,
    /// The techniques of the VM, under Stile.
    pub techniques: Techniques,
    /// Told before each run: which host, and what is measured.
    pub progress: &'a dyn Fn(String),
}

/// What an operation costs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// The operation's name.
    pub operation: String,
    /// Instructions, without the loop's.
    pub instructions: f64,
    /// Exits, where they are counted.
    pub exits: Option<f64>,
    /// The same by reason, where there is a ledger.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub reasons: BTreeMap<String, f64>,
    /// What ran outside of the guest, where it is counted.
    #[serde(flatten)]
    pub outside: Option<Outside>,
    /// What the processor is asked for outside of the guest, where that is counted.
    #[serde(flatten)]
    pub vmx: Option<Vmx>,
    /// How many were measured.
    pub iterations: u64,
}

/// What one operation makes run outside of the guest that measures it: at EL2, and in a host's EL1 and EL0.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Outside {
    /// Instructions.
    #[serde(rename = "instructions_outside")]
    pub instructions: f64,
    /// MRS.
    pub sysreg_reads: f64,
    /// MSR.
    pub sysreg_writes: f64,
    /// DSB, DMB, ISB and SB.
    pub barriers: f64,
    /// TLBI, AT, DC and IC.
    pub tlb_ops: f64,
    /// Instructions that load; one of a pair of registers is one.
    pub loads: f64,
    /// Instructions that store.
    pub stores: f64,
}

impl Outside {
    /// What one of so many operations makes run.
    pub fn of_each(counts: &Counts, operations: u64) -> Self {
        let each = |count: u64| count as f64 / operations as f64;
        Self {
            instructions: each(counts.instructions),
            sysreg_reads: each(counts.sysreg_reads),
            sysreg_writes: each(counts.sysreg_writes),
            barriers: each(counts.barriers),
            tlb_ops: each(counts.tlb_ops),
            loads: each(counts.loads),
            stores: each(counts.stores),
        }
    }
}

/// The figures of the operations that the probe measured. It marks a section for each, in the order of its lines.
///
/// # Errors
/// The probe failed, or there are not as many sections as figures.
fn figures(counts: Option<&counts::Output>, vmx: &[vmx::Section], console: &[u8], operations: &[Operation]) -> Result<Vec<Figure>> {
    let lines = probe::lines(console)?;
    let measured: Vec<_> = lines.iter().filter_map(|line| Some((line, line.instructions?, line.iterations?))).collect();
    let sections = counts.map(|counts| counts.sections.as_slice());
    if let Some(sections) = sections {
        ensure!(sections.len() == measured.len(), "{} sections were counted for {} figures", sections.len(), measured.len());
    }
    ensure!(vmx.is_empty() || vmx.len() == measured.len(), "{} sections were counted for {} figures", vmx.len(), measured.len());
    let figure = |operation: &Operation| {
        let (index, (line, instructions, iterations)) =
            measured.iter().enumerate().find(|(_, (line, ..))| line.operation == operation.name)?;
        let section = sections.and_then(|sections| sections.get(index));
        Some(Figure {
            operation: operation.name.to_owned(),
            instructions: *instructions,
            exits: section.map(|section| section.exits).or(line.exits).map(|exits| exits as f64 / *iterations as f64),
            reasons: BTreeMap::new(),
            outside: section.map(|section| Outside::of_each(&section.outside, *iterations)),
            vmx: vmx.get(index).map(|section| section.of_each(&vmx::Section::default(), *iterations)),
            iterations: *iterations,
        })
    };
    Ok(operations.iter().filter_map(figure).collect())
}

/// The host of this name, on any architecture.
pub fn by_name(name: &str) -> Option<Host> {
    platform::PLATFORMS.iter().flat_map(Platform::hosts).find(|host| host.name() == name)
}
