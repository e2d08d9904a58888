//! The probe without a hypervisor: on a machine that has no virtualization, or does not use it.

use anyhow::Result;

use super::{Figure, Request, figure};
use crate::emulate;
use crate::operation::Needs;
use crate::platform::{Platform, Start};
use crate::probe;

/// Measures the operations that work natively: all but those of several vCPUs on one CPU.
pub fn measure(request: &Request<'_>) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for (needs, operations) in Platform::groups(request.operations) {
        if needs == Needs::Shared {
            continue;
        }
        (request.progress)(format!("native, {} CPUs", needs.cpus()));
        let start = Start { cpu: request.cpu, cpus: needs.cpus(), memory: 2 * probe::MEMORY };
        let machine = request.platform.bare(&start, probe::arguments(&operations, request.iterations));
        let output = emulate::run(&machine, request.probe, request.plugin)?;
        figures.extend(figure::figures(output.counts.as_ref(), &output.vmx, &output.line, &operations)?);
    }
    Ok(figures)
}
