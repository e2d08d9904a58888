//! Cost of an operation under a host.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

use crate::counts::{self, Counts};
use crate::operation::Operation;
use crate::probe;
use crate::vmx::{self, Vmx};

/// Cost of an operation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// The operation's name.
    pub operation: String,
    /// Instructions, without the loop's.
    pub instructions: f64,
    /// Exits, where they are counted.
    pub exits: Option<f64>,
    /// Exits by reason, where there is a ledger.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub reasons: BTreeMap<String, f64>,
    /// Instructions outside of the guest, where they are counted.
    #[serde(flatten)]
    pub outside: Option<Outside>,
    /// VMX instructions outside of the guest, where they are counted.
    #[serde(flatten)]
    pub vmx: Option<Vmx>,
    /// Number of measured operations.
    pub iterations: u64,
}

impl Figure {
    /// The figure with the instructions outside of the guest, if they are counted: where the probe's counter is that of time.
    pub fn outside_only(self) -> Self {
        let instructions = self.outside.as_ref().map_or(self.instructions, |outside| outside.instructions);
        Self { instructions, ..self }
    }
}

/// Counts outside of the measuring guest for one operation: at EL2, and in a host's EL1 and EL0.
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
    /// Load instructions; a load of a pair of registers counts once.
    pub loads: f64,
    /// Store instructions; a store of a pair of registers counts once.
    pub stores: f64,
}

impl Outside {
    /// Divides counts by the number of operations.
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

/// Returns the figures of the operations that the probe measured. The probe marks a section for each, in the order in which it
/// prints them.
///
/// # Errors
/// The probe failed, or the numbers of sections and figures differ.
pub(super) fn figures(
    counts: Option<&counts::Output>,
    vmx: &[vmx::Section],
    console: &[u8],
    operations: &[Operation],
) -> Result<Vec<Figure>> {
    let lines = probe::lines(console)?;
    let measured: Vec<_> = lines.iter().filter_map(|line| Some((line, line.instructions?, line.iterations?))).collect();
    let sections = counts.map(|counts| counts.sections.as_slice());
    if let Some(sections) = sections {
        ensure!(sections.len() == measured.len(), "the plugin counted {} sections for {} figures", sections.len(), measured.len());
    }
    ensure!(vmx.is_empty() || vmx.len() == measured.len(), "Bochs counted {} sections for {} figures", vmx.len(), measured.len());
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
