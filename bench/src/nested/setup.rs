//! Pairs of a host (L0) and a guest hypervisor (L1).

use anyhow::{Context, Result, ensure};

use super::figure::Figure;
use super::l0::{L0, Output, Request};
use super::l1::L1;
use crate::counts::Section;
use crate::operation::Operation;
use crate::probe;

/// A guest hypervisor and its host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setup {
    /// The hypervisor in the VM.
    pub l1: L1,
    /// Its host.
    pub l0: L0,
}

impl Setup {
    /// All setups, in the order of the tables.
    pub fn all() -> impl Iterator<Item = Self> {
        L1::ALL.into_iter().flat_map(|l1| l1.hosts().iter().map(move |&l0| Self { l1, l0 }))
    }

    /// Its name, for people.
    pub fn name(self) -> String {
        format!("{} under {}", self.l1.name(), self.l0.name())
    }

    /// Whether this is a figure of it.
    pub fn has(self, figure: &Figure) -> bool {
        (self.l1.name(), self.l0.name()) == (figure.l1.as_str(), figure.host.as_str())
    }

    /// Measures the operations that need `cpus` CPUs, in one boot of L1.
    ///
    /// # Errors
    /// Something can't be built, fetched or run; the account of Stile and that of the emulator differ.
    pub fn measure(self, request: &Request<'_>, cpus: u8) -> Result<Vec<Figure>> {
        let wanted = |operation: &&Operation| operation.needs.cpus() == u32::from(cpus) && self.l1.has(operation);
        let operations: Vec<_> = request.operations.iter().filter(wanted).copied().collect();
        if operations.is_empty() {
            return Ok(Vec::new());
        }
        (request.progress)(format!("{}, {cpus} CPUs", self.name()));
        let output = self.l1.run(self.l0, request, cpus, &operations)?;
        self.figures(request.cpu, &output, &operations)
    }

    /// Returns each operation's round with the fewest instructions.
    fn figures(self, cpu: &str, output: &Output, operations: &[Operation]) -> Result<Vec<Figure>> {
        let lines = probe::lines(&output.console)?;
        let measured: Vec<_> =
            lines.iter().filter_map(|line| Some((line.operation.as_str(), line.instructions?, line.iterations?))).collect();
        let sections: &[Section] = &output.counts.sections;
        ensure!(sections.len() == measured.len(), "{} sections were counted for {} figures", sections.len(), measured.len());
        let least = |operation: &Operation| {
            let rounds = measured.iter().zip(sections).filter(|((name, ..), _)| *name == operation.name);
            let least = rounds.min_by(|((_, one, _), _), ((_, other, _), _)| one.total_cmp(other));
            let ((_, instructions, iterations), section) = least.with_context(|| format!("{} was not measured", operation.name))?;
            Ok(Figure::new([self.l0.name(), self.l1.name()], cpu, operation, *instructions, *iterations, section))
        };
        operations.iter().map(least).collect()
    }
}

/// The setups that words of `--l1` and of `--against` leave: all without words. Stile with FEAT_NV2 is always among the latter.
///
/// # Errors
/// A word that names nothing, or no setup is left: a sentence.
pub fn choose(l1: &[String], against: &[String]) -> Result<Vec<Setup>, String> {
    let names = L1::ALL.map(L1::name);
    if let Some(unknown) = l1.iter().find(|word| !names.contains(&word.as_str())) {
        return Err(format!("there is no hypervisor for the VM called {unknown}; expected some of {}", names.join(", ")));
    }
    let hosts = L0::ALL.map(L0::name);
    if let Some(unknown) = against.iter().find(|word| *word != "none" && !hosts[1..].contains(&word.as_str())) {
        return Err(format!("L1 runs under no host called {unknown}; expected none or some of {}", hosts[1..].join(", ")));
    }
    let wanted = |words: &[String], name: &str| words.is_empty() || words.iter().any(|word| word == name);
    let is_left = |setup: &Setup| wanted(l1, setup.l1.name()) && (setup.l0 == L0::Nv2 || wanted(against, setup.l0.name()));
    Ok(Setup::all().filter(is_left).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(l1: &[&str], against: &[&str]) -> Result<Vec<String>, String> {
        let owned = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
        Ok(choose(&owned(l1), &owned(against))?.into_iter().map(Setup::name).collect())
    }

    #[test]
    fn setups_are_chosen_by_name() {
        assert_eq!(chosen(&[], &[]).unwrap().len(), Setup::all().count());
        assert_eq!(chosen(&["kvm"], &["none"]).unwrap(), ["kvm under stile-nv2"]);
        assert_eq!(chosen(&["xen", "kvm"], &["kvm"]).unwrap(), ["kvm under stile-nv2", "kvm under kvm", "xen under stile-nv2"]);
        assert_eq!(chosen(&["kvm-nvhe"], &[]).unwrap(), ["kvm-nvhe under stile-nv2"]);
        assert!(chosen(&["vmware"], &[]).unwrap_err().contains("kvm, kvm-nvhe, xen"));
        assert!(chosen(&[], &["xen"]).unwrap_err().contains("stile-nv, kvm"));
    }
}
