//! The figures that the repository keeps (`bench/figures.jsonl`), and the pictures and tables that are generated from them, in `docs/` and
//! in the README. `stile bench --update` measures and writes all of them.

use std::path::Path;

use anyhow::Result;

use super::ablation;
use super::host::{self, Host, Kvm};
use super::json_lines;
use super::number::{number, short};
use super::page::markdown;
use super::picture;
use super::platform::{self, PLATFORMS, Platform};
use super::record::Record;
use super::store::{self, File};
use stile::config::Arch;

/// The file of the figures.
const FIGURES: &str = "bench/figures.jsonl";
/// The page with the figures of all hosts.
const PAGE: &str = "docs/bench.md";
/// The page with the gain of each technique.
const TECHNIQUES: &str = "docs/bench-techniques.md";
/// The page with a summary.
const README: &str = "README.md";

/// The operations of the README's summary, and their names there.
const SUMMARY: [(Arch, &str, &str); 9] = [
    (Arch::Aarch64, "hyp_call", "Arm: hypercall"),
    (Arch::Aarch64, "mmio_read_vgic", "Arm: read of a GIC register"),
    (Arch::Aarch64, "timer", "Arm: timer interrupt"),
    (Arch::Aarch64, "ipi", "Arm: IPI to another vCPU"),
    (Arch::Aarch64, "vcpu_switch", "Arm: switch between vCPUs of one CPU"),
    (Arch::X86_64, "cpuid", "x86-64: CPUID"),
    (Arch::X86_64, "eoi", "x86-64: end of interrupt"),
    (Arch::X86_64, "tscdeadline_fire", "x86-64: timer set and fired"),
    (Arch::X86_64, "ipi", "x86-64: IPI to another vCPU"),
];

/// The command that writes the generated files, as their marks name it.
const COMMAND: &str = "stile bench --update";

/// Replaces older figures of the same operation and host, and regenerates pictures and tables.
///
/// # Errors
/// A file can't be read or written, or is not as expected.
pub fn update(repository: &Path, new: Vec<Record>) -> Result<()> {
    let mut records = store::read(repository, FIGURES)?;
    store::replace(&mut records, new, Record::is_of_same);
    records.sort_by_key(place);
    let made = made(repository, &records)?;
    store::write(repository, [(FIGURES, json_lines::write(&records)?)].into_iter().chain(made))
}

/// The files that are generated from the figures.
fn made(repository: &Path, records: &[Record]) -> Result<Vec<File>> {
    let page = |file, tables: Vec<(&str, String)>| {
        store::page(repository, file, COMMAND, tables.into_iter().map(|(name, table)| (name.to_owned(), table)))
    };
    let mut files = vec![
        page(PAGE, PLATFORMS.iter().map(|platform| (platform.mark, tables(platform, records))).collect())?,
        page(TECHNIQUES, vec![("ablation", ablations(records))])?,
        page(README, vec![("summary", summary(records))])?,
    ];
    files.extend(PLATFORMS.iter().map(|platform| (platform.picture, picture::draw(records, platform, platform.cpu()))));
    Ok(files)
}

/// Returns the sort key of a record: architecture, CPU model (the picture's first), level, ablation, host and operation.
fn place(record: &Record) -> impl Ord + use<> {
    let ablation = record.ablation.as_deref().map(|name| ablation::position(name).unwrap_or(usize::MAX));
    let platform = platform::of(record.arch);
    let host = platform.hosts().position(|host| host.name() == record.host).unwrap_or(usize::MAX);
    let operation = platform.operations.iter().position(|operation| operation.name == record.figure.operation).unwrap_or(usize::MAX);
    (record.arch, record.cpu != platform.cpu(), record.cpu.clone(), record.level, ablation, host, record.host.clone(), operation)
}

/// The README's table: Stile beside the peers of the same machine.
fn summary(records: &[Record]) -> String {
    let mut rows = vec![["instructions per operation", "Stile", "KVM", "Xen"].map(str::to_owned).to_vec()];
    for (arch, operation, name) in SUMMARY {
        let cpu = platform::of(arch).cpu();
        let kvm = if arch == Arch::X86_64 { Kvm::V6_1 } else { Kvm::Vhe };
        let figure = |host: Host| {
            let of = |record: &&Record| {
                (record.arch, &record.cpu[..], record.level, &record.host[..], &record.figure.operation[..])
                    == (arch, cpu, 1, host.name(), operation)
                    && record.ablation.is_none()
            };
            records.iter().find(of).map_or(String::new(), |record| short(record.figure.instructions))
        };
        let [stile, kvm, xen] = [Host::Stile, Host::Kvm(kvm), Host::Xen].map(figure);
        rows.push(vec![name.to_owned(), stile, kvm, xen]);
    }
    markdown(&rows)
}

/// Returns a table for each CPU model: instructions and exits of each operation on each host.
fn tables(platform: &Platform, records: &[Record]) -> String {
    let plain = |record: &&Record| record.arch == platform.arch && record.level == 1 && record.ablation.is_none();
    let plain: Vec<_> = records.iter().filter(plain).collect();
    let mut models: Vec<&str> = plain.iter().map(|record| &record.cpu[..]).collect();
    models.dedup();
    let of_model = |cpu: &str| [Some(table(platform, cpu, &plain)), vmx(platform, cpu, &plain)].into_iter().flatten().collect::<Vec<_>>();
    models.into_iter().flat_map(of_model).collect::<Vec<_>>().join("\n")
}

/// Returns a table of VMREADs, VMWRITEs and WRMSRs outside of guests; `None` if they were not counted.
fn vmx(platform: &Platform, cpu: &str, records: &[&Record]) -> Option<String> {
    let counted = |record: &&&Record| record.cpu == cpu && record.figure.vmx.is_some();
    let records: Vec<_> = records.iter().filter(counted).collect();
    let there = |host: &Host| *host != Host::Native && records.iter().any(|record| record.host == host.name());
    let hosts: Vec<Host> = platform.hosts().filter(there).collect();
    let mut rows =
        vec![["VMREAD + VMWRITE; WRMSR".to_owned()].into_iter().chain(hosts.iter().map(|host| host.title().to_owned())).collect()];
    for operation in platform.operations {
        let cell = |host: &Host| {
            let found = records.iter().find(|record| record.host == host.name() && record.figure.operation == operation.name);
            let vmx = found.and_then(|record| record.figure.vmx);
            vmx.map_or(String::new(), |vmx| format!("{} + {}; {}", short(vmx.vmcs_reads), short(vmx.vmcs_writes), short(vmx.msr_writes)))
        };
        let row: Vec<_> = [operation.name.to_owned()].into_iter().chain(hosts.iter().map(cell)).collect();
        if row.iter().skip(1).any(|cell| !cell.is_empty()) {
            rows.push(row);
        }
    }
    (!hosts.is_empty()).then(|| markdown(&rows))
}

fn table(platform: &Platform, cpu: &str, records: &[&Record]) -> String {
    let records: Vec<_> = records.iter().filter(|record| record.cpu == cpu).collect();
    let there = |host: &Host| *host == Host::Stile || records.iter().any(|record| record.host == host.name());
    // If the plugin counts peers in more detail, their exits are in a separate table.
    let with_exits = |host: &Host| *host == Host::Stile || !platform.has_plugin && *host != Host::Native;
    let hosts: Vec<Host> = platform.hosts().filter(there).collect();
    let mut heading = vec![format!("`-cpu {cpu}`")];
    for host in &hosts {
        heading.push(host.title().to_owned());
        heading.extend(with_exits(host).then(|| "exits".to_owned()));
    }
    let mut rows = vec![heading];
    for operation in platform.operations {
        let mut row = vec![operation.name.to_owned()];
        for host in &hosts {
            let found = records.iter().find(|record| record.host == host.name() && record.figure.operation == operation.name);
            row.push(found.map_or(String::new(), |record| short(record.figure.instructions)));
            let exits = || found.and_then(|record| record.figure.exits).map_or(String::new(), number);
            row.extend(with_exits(host).then(exits));
        }
        if row.iter().skip(1).any(|cell| !cell.is_empty()) {
            rows.push(row);
        }
    }
    markdown(&rows)
}

/// Returns the table of ablations.
fn ablations(records: &[Record]) -> String {
    let cpu = platform::of(Arch::Aarch64).cpu();
    let ours = |record: &&Record| record.arch == Arch::Aarch64 && record.cpu == cpu && record.host == host::STILE;
    let records: Vec<_> = records.iter().filter(ours).cloned().collect();
    let mut cells = ablation::cells(&records);
    if let Some(corner) = cells.first_mut().and_then(|heading| heading.first_mut()) {
        *corner = format!("`-cpu {cpu}`");
    }
    markdown(&cells)
}

#[cfg(test)]
mod tests {
    use super::super::host::Figure;
    use super::*;
    use crate::store::tests::assert_current;
    use stile::cargo;

    #[test]
    fn picture_and_page_are_made_of_the_kept_figures() {
        let repository = cargo::repository();
        let records: Vec<Record> = store::read(&repository, FIGURES).unwrap();
        assert!(!records.is_empty());
        assert_current(&repository, "stile bench --update --against none", made(&repository, &records).unwrap());
    }

    #[test]
    fn new_figures_replace_older_ones_and_others_stay() {
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        let pages = [(PAGE, names(&["figures", "figures of x86_64"])), (TECHNIQUES, names(&["ablation"])), (README, names(&["summary"]))];
        let folder = store::tests::repository(COMMAND, &pages);
        let record = |host: &str, operation: &str, instructions| Record {
            host: host.to_owned(),
            arch: Arch::Aarch64,
            cpu: "max".to_owned(),
            level: 1,
            ablation: None,
            figure: Figure {
                operation: operation.to_owned(),
                instructions,
                exits: Some(1.0),
                reasons: Default::default(),
                outside: None,
                vmx: None,
                iterations: 64,
            },
        };
        let first = vec![record("kvm-vhe", "hyp_call", 1634.0), record("stile", "ipi", 358.0), record("stile", "hyp_call", 45.0)];
        update(folder.path(), first).unwrap();
        update(folder.path(), vec![record("stile", "hyp_call", 35.0)]).unwrap();

        let kept: Vec<Record> = store::read(folder.path(), FIGURES).unwrap();
        let order: Vec<_> = kept.iter().map(|record| (&record.host[..], &record.figure.operation[..])).collect();
        assert_eq!(order, [("stile", "hyp_call"), ("stile", "ipi"), ("kvm-vhe", "hyp_call")]);
        let text = |file| std::fs::read_to_string(folder.path().join(file)).unwrap();
        let page = text(PAGE);
        assert!(page.contains("| hyp_call | 35 | 1 | 1,634 |\n| ipi | 358 | 1 |  |\n"), "{page}");
        assert!(!page.contains("old"), "{page}");
        let readme = text(README);
        assert!(readme.contains("| Arm: hypercall | 35 | 1,634 |  |\n"), "{readme}");
        assert!(text("docs/bench.svg").starts_with("<svg"));
        assert!(update(folder.path(), Vec::new()).is_ok());
    }
}
