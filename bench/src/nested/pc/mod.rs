//! `stile bench --arch x86_64 --nested`: the probe as L2, in a VM of Debian's KVM that runs in a VM of Stile's.

mod boot;
pub mod budgets;
mod figure;
mod kept;
mod measure;
mod operations;
mod table;

use anyhow::{Context, Result};

use crate::{json_lines, platform};
use operations::L1S;
use stile::args::BenchArgs;
use stile::config::Arch;
use stile::progress::Task;
use stile::{cargo, emulator, exit, out};

/// Measures operations of L2 and L1's boot, and prints their costs and exits.
///
/// # Errors
/// See `stile bench`.
pub fn bench(args: &BenchArgs) -> Result<u8> {
    if args.full || args.l1.iter().any(|l1| !L1S.contains(&&l1[..])) || args.against.iter().any(|peer| peer != "none") {
        let l1s = L1S.join(" and ");
        return Err(exit::usage(format!("with --arch {}, --nested has no --full, no peers, and no L1s but {l1s}", Arch::X86_64.name())));
    }
    let cpu = args.cpu.as_deref().unwrap_or(platform::of(Arch::X86_64).cpu());
    let operations = operations::choose(&args.only).map_err(exit::usage)?;
    emulator::ensure(Arch::X86_64)?;
    let task = Task::start("measuring: nested, L2 of KVM");
    let mut figures = Vec::new();
    for l1 in L1S.into_iter().filter(|l1| args.l1.is_empty() || args.l1.iter().any(|wanted| wanted == l1)) {
        figures.extend(measure::measure(l1, cpu, &operations)?);
    }
    task.message("measuring: nested, boot of L1".to_owned());
    let boot = if args.only.is_empty() && args.l1.is_empty() { Some(boot::measure(cpu)?) } else { None };
    drop(task);
    out::line(table::terminal(&figures, cpu))?;
    if let Some(boot) = &boot {
        out::line(format_args!("\n{}", boot.text()))?;
    }
    if let Some(path) = &args.json {
        let lines = json_lines::write(&figures)? + &json_lines::write(boot.as_slice())?;
        std::fs::write(path, lines).with_context(|| format!("writing {}", path.display()))?;
    }
    if args.update {
        kept::update(&cargo::repository(), figures, boot)?;
    }
    Ok(exit::OK)
}
