//! The probe with no hypervisor under it: on a machine without EL2.

use anyhow::Result;

use super::{Figure, Request};
use crate::bench::operation::{Needs, Operation};
use crate::bench::{emulate, probe};
use crate::emulator::Board;

/// Measures what can be measured: there are no virtual CPUs to share one.
pub fn measure(request: &Request<'_>) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for needs in [Needs::One, Needs::Two] {
        let operations: Vec<Operation> = request.operations.iter().filter(|operation| operation.needs == needs).copied().collect();
        if operations.is_empty() {
            continue;
        }
        (request.progress)(format!("native, {} CPUs", needs.cpus()));
        let board = Board {
            cpu: request.cpu.to_owned(),
            cpus: needs.cpus(),
            memory: 2 * probe::MEMORY,
            // The last one of several wins.
            machine: vec!["virtualization=off".into()],
            icount: true,
            extra: vec!["-append".into(), probe::arguments(&operations, request.iterations)],
        };
        let output = emulate::run(&board, request.probe, request.plugin)?;
        figures.extend(super::figures(&output, &output.line, &operations)?);
    }
    Ok(figures)
}
