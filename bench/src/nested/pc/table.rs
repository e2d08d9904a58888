//! Tables of figures, for the terminal and for the page of `docs/`.

use std::collections::BTreeSet;

use super::figure::Figure;
use super::operations::{self, ENLIGHTENED};
use crate::number::{number, short};
use crate::page::aligned;

/// All tables, as text for the terminal.
pub fn terminal(figures: &[Figure], cpu: &str) -> String {
    let heading = format!(
        "Instructions per operation of L2 in KVM on {cpu}, L1's included; Stile's part; and exits, VMREADs, VMWRITEs, WRMSRs of Stile.\n\
         Instructions are not cycles."
    );
    let tables = by_l1(figures).into_iter().zip(["", "With enlightened VMCSs\n"]).filter(|(figures, _)| !figures.is_empty());
    let texts = tables.map(|(figures, kind)| {
        format!("{kind}{}\n\nExits to Stile, per operation\n{}", aligned(&costs(&figures)), aligned(&exits(&figures)))
    });
    [heading, texts.collect::<Vec<_>>().join("\n\n")].join("\n")
}

/// The figures of plain VMCSs, and those of enlightened ones.
pub fn by_l1(figures: &[Figure]) -> [Vec<Figure>; 2] {
    let (enlightened, plain) = figures.iter().cloned().partition(|figure| figure.l1 == ENLIGHTENED);
    [plain, enlightened]
}

/// The most instructions that an operation should take.
fn target(figure: &Figure) -> Option<u32> {
    match (figure.l1.as_str(), figure.operation.as_str()) {
        (ENLIGHTENED, "cpuid") => Some(2500),
        (ENLIGHTENED, _) => None,
        (_, name) => operations::all().iter().find(|operation| operation.name == name)?.target,
    }
}

/// A row for each operation.
pub fn costs(figures: &[Figure]) -> Vec<Vec<String>> {
    let heading = ["operation of L2", "instructions", "in Stile", "exits", "VMREAD", "VMWRITE", "WRMSR", "target"].map(str::to_owned);
    let row = |figure: &Figure| {
        vec![
            figure.operation.clone(),
            short(figure.instructions),
            short(figure.instructions_outside),
            number(figure.exits()),
            number(figure.vmx.vmcs_reads),
            number(figure.vmx.vmcs_writes),
            number(figure.vmx.msr_writes),
            target(figure).map_or(String::new(), |target| number(target.into())),
        ]
    };
    [heading.to_vec()].into_iter().chain(figures.iter().map(row)).collect()
}

/// A row for each reason, those of L2 first; a column for each operation.
pub fn exits(figures: &[Figure]) -> Vec<Vec<String>> {
    let mut rows = vec![vec!["exit".to_owned()]];
    rows[0].extend(figures.iter().map(|figure| figure.operation.clone()));
    for level in ["L2", "L1"] {
        let of = |figure: &Figure| if level == "L2" { figure.l2_exits.clone() } else { figure.l1_exits.clone() };
        let reasons: BTreeSet<String> = figures.iter().flat_map(|figure| of(figure).into_keys()).collect();
        for reason in reasons {
            let cell = |figure: &Figure| of(figure).get(&reason).copied().map_or(String::new(), number);
            rows.push([format!("{level}: {reason}")].into_iter().chain(figures.iter().map(cell)).collect());
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::super::figure::tests::figure;
    use super::*;

    #[test]
    fn each_exit_has_a_row_and_each_operation_a_column() {
        let figures = [figure("cpuid"), figure("port_read")];
        assert_eq!(costs(&figures)[1], ["cpuid", "2,949", "800", "2", "20", "10", "0", "3,000"]);
        assert_eq!(costs(&figures)[2][7], "");
        assert_eq!(exits(&figures)[0], ["exit", "cpuid", "port_read"]);
        assert_eq!(exits(&figures)[1], ["L2: CPUID", "1", "1"]);
        assert!(terminal(&figures, "pc").contains("L1: VMRESUME") && !terminal(&figures, "pc").contains("enlightened"));
        let enlightened = Figure { l1: ENLIGHTENED.to_owned(), ..figure("cpuid") };
        assert_eq!(costs(std::slice::from_ref(&enlightened))[1][7], "2,500");
        assert!(terminal(&[enlightened], "pc").contains("With enlightened VMCSs"));
    }
}
