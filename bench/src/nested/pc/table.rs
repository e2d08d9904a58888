//! Tables of figures, for the terminal and for the page of `docs/`.

use std::collections::BTreeSet;

use super::figure::Figure;
use super::operations;
use crate::number::{number, short};
use crate::page::aligned;

/// All tables, as text for the terminal.
pub fn terminal(figures: &[Figure], cpu: &str) -> String {
    format!(
        "Instructions per operation of L2 in KVM on {cpu}, L1's included; Stile's part; and exits, VMREADs, VMWRITEs, WRMSRs of Stile.\n\
         Instructions are not cycles.\n{}\n\nExits to Stile, per operation\n{}",
        aligned(&costs(figures)),
        aligned(&exits(figures))
    )
}

/// A row for each operation.
pub fn costs(figures: &[Figure]) -> Vec<Vec<String>> {
    let heading = ["operation of L2", "instructions", "in Stile", "exits", "VMREAD", "VMWRITE", "WRMSR", "aim"].map(str::to_owned);
    let aims = operations::all();
    let row = |figure: &Figure| {
        let aim = aims.iter().find(|operation| operation.name == figure.operation).and_then(|operation| operation.aim);
        vec![
            figure.operation.clone(),
            short(figure.instructions),
            short(figure.instructions_outside),
            number(figure.exits()),
            number(figure.vmx.vmcs_reads),
            number(figure.vmx.vmcs_writes),
            number(figure.vmx.msr_writes),
            aim.map_or(String::new(), |aim| number(aim.into())),
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
        assert!(terminal(&figures, "pc").contains("L1: VMRESUME"));
    }
}
